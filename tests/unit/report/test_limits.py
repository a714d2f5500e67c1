"""Lines about what a machine limits."""

import pytest

from compare.analysis import analyse
from compare.report.limits import limits
from compare.schema.hosts import Host
from compare.schema.results import MachineUse
from tests.unit.factories import a_launch, a_rank, a_run


def shown(**attested):
    """Return the lines of a run on two cores."""
    machine = MachineUse(wall_ns=10**9, cpus=2, busy_ns=10**9, stolen_ns=0)
    attested = {"group": {"transport": "TCP over lo"}} | attested
    ranks = [a_rank(rank, attestation=attested, machine=None if rank else machine) for rank in (0, 1)]
    run = a_run({"ddp": []}, launches=[a_launch("ddp", 1, ranks=ranks)], cores=2)
    return limits(run, analyse(run).summary)


def test_low_priority_is_named():
    (line,) = shown(nice=19)
    assert line.startswith("Nice 19:")


@pytest.mark.parametrize(("quota", "text"), [(0.5, "0.5 cores of the 2"), (1.0, "1 core of the 2")])
def test_quota_below_the_cores_is_named(quota, text):
    (line,) = shown(core_quota=quota)
    assert text in line


def test_quota_is_held_against_the_cores_of_its_own_host():
    def rank(number, cpus, quota):
        use = MachineUse(wall_ns=10**9, cpus=cpus, busy_ns=10**9, stolen_ns=0)
        return a_rank(number, host="ab"[number], attestation={"core_quota": quota}, machine=use)

    launch = a_launch("ddp", 1, ranks=[rank(0, 4, None), rank(1, 64, 8.0)])
    run = a_run({"ddp": []}, launches=[launch], hosts=[Host("a", 1), Host("b", 1)])
    assert any("8 cores of the 64" in line for line in limits(run, analyse(run).summary))


@pytest.mark.parametrize(
    "attested", [{}, {"nice": 0, "core_quota": None}, {"core_quota": 8.0}, {"nice": "x"}]
)
def test_run_without_such_limits_has_no_line(attested):
    assert shown(**attested) == []
