"""Lines about what a machine limits."""

import re

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


@pytest.mark.parametrize(
    ("attested", "text"),
    [
        ({"nice": 19}, "^Nice 19:"),
        ({"core_quota": 0.5}, "0.5 cores of the 2"),
        ({"core_quota": 1.0}, "1 core of the 2"),
        ({"function_called_once": True}, "It was called once"),
    ],
)
def test_limit_is_named_in_one_line(attested, text):
    (line,) = shown(**attested)
    assert re.search(text, line)


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


def test_what_ranks_tell_is_named_once_and_bounded():
    told = shown(
        batch={"loader_workers": 2},
        default_dtype="torch.float64 (train.py:3)",
        warnings=["first", "second", "third", "fourth", "fifth"],
    )
    assert told[:2] == [
        "Each rank's loader has 2 workers, which are processes beside its threads.",
        "Your file sets the default dtype: torch.float64 (train.py:3).",
    ]
    assert told[2:] == [
        *(f"A library warns in ddp: {text}." for text in ("first", "second", "third")),
        "2 more warnings of libraries: read the logs of the ranks.",
    ]
    assert shown(batch={"loader_workers": 0}, default_dtype="", warnings=[], function_called_once=False) == []
