"""Test that load beside one arm alone makes no winner."""

from __future__ import annotations

import msgspec
import pytest

from compare.analysis import analyse
from compare.analysis.aa import assess, twins
from compare.analysis.ranking import find_lead, verdicts
from compare.report.columns import describe
from compare.report.notes import notes, warnings
from compare.report.sentences import conclusion
from compare.schema.arms import parse_arm
from compare.schema.results import MachineUse
from tests.unit.factories import a_launch, a_rank, a_run

NEAR = {"ddp": [5.0, 5.1, 5.0, 5.2, 5.1], "mpi": [2.5, 2.6, 2.5, 2.5, 2.6]}
FAR = {"ddp": [50, 51, 50, 52, 51], "mpi": [2.5, 2.6, 2.5, 2.5, 2.6]}


def beside(run, **shares):
    """Return the run with that other load beside each arm."""

    def use(launch):
        busy = MachineUse(wall_ns=10**9, cpus=2, busy_ns=int(2e9 * shares[launch.arm]), stolen_ns=0)
        ranks = [msgspec.structs.replace(rank, cpu_ns=0, machine=busy) for rank in launch.ranks]
        return msgspec.structs.replace(launch, ranks=ranks)

    return msgspec.structs.replace(run, launches=[use(launch) for launch in run.launches])


@pytest.mark.parametrize(
    ("times", "shares", "kind"),
    [
        pytest.param(NEAR, {"ddp": 0.5, "mpi": 0.0}, "unresolved", id="the load may explain it"),
        pytest.param(NEAR, {"ddp": 0.5, "mpi": 0.5}, "faster", id="it runs beside both"),
        pytest.param(
            {"ddp": [3.00, 3.21, 3.53, 2.93, 3.26], "mpi": [1.38, 1.38, 1.28, 1.33, 1.28]},
            {"ddp": 0.385, "mpi": 0.079},
            "unresolved",
            id="as a busy core did to two ranks that spin",
        ),
        pytest.param(NEAR, {"ddp": 0.04, "mpi": 0.0}, "faster", id="as on a quiet machine"),
        pytest.param(NEAR, {"ddp": 0.0, "mpi": 0.5}, "faster", id="it slows the quicker arm"),
        pytest.param(FAR, {"ddp": 0.5, "mpi": 0.0}, "faster", id="no load slows so much"),
        pytest.param(NEAR, {"ddp": 0.1, "mpi": 0.0}, "faster", id="a small load slows less"),
        pytest.param(
            {"ddp": [5.0] * 5, "mpi": [5.01] * 5}, {"ddp": 0.0, "mpi": 0.2}, "unresolved", id="equal times"
        ),
    ],
)
def test_uneven_load_withholds_what_it_may_explain(times, shares, kind):
    run = beside(a_run(times), **shares)
    assert verdicts(run, "ddp")["mpi"].kind == kind
    lead = find_lead(run)
    assert (lead.fastest is None) == (kind == "unresolved")


def test_the_whole_interval_must_exceed_what_the_load_explains():
    run = a_run({"ddp": [8.0, 13.0, 9.0, 14.0, 10.0], "mpi": [2.5, 2.6, 2.5, 2.5, 2.6]})
    verdict = verdicts(run, "ddp")["mpi"]
    explained = 1 + 3 * 0.4 * 2
    assert verdict.low < explained < verdict.speed_ratio
    assert verdicts(beside(run, ddp=0.4, mpi=0.0), "ddp")["mpi"].uneven_load == (0.0, 0.4)


def test_the_load_is_named_with_its_remedy():
    run = beside(a_run(NEAR), ddp=0.48, mpi=0.02)
    analysis = analyse(run)
    (arm,) = (arm for arm in analysis.summary.arms if arm.verdict)
    assert describe(arm.verdict) == "unresolved: uneven load"
    assert any("2% of the CPUs beside mpi, and 48% beside ddp" in line for line in warnings(run, analysis))
    assert "uneven" in conclusion(run, analysis)


def test_uneven_load_is_not_met_by_more_time():
    run = beside(
        a_run(NEAR, config={"rounds": 1000, "settle_seconds": 300.0}, complete=True), ddp=0.48, mpi=0.02
    )
    assert [line for line in notes(run, analyse(run)) if line.startswith("Ended")] == [
        "Ended after 5 rounds: 5 min have no time for another."
    ]


def test_an_aa_test_withholds_it_too():
    first, second = twins(parse_arm("mpi"))
    launches = [
        a_launch(arm.label, round_, ranks=[a_rank(rank, milliseconds=time) for rank in range(2)])
        for arm, times in ((first, NEAR["ddp"]), (second, NEAR["mpi"]))
        for round_, time in enumerate(times, start=1)
    ]
    twin = {"arms": [first, second], "baseline": first.label, "comparisons": 1, "rounds": 5}
    run = a_run(launches=launches)
    run = msgspec.structs.replace(run, config=msgspec.structs.replace(run.config, **twin))
    assert assess(run).false_differences == 1
    assert assess(beside(run, **{first.label: 0.5, second.label: 0.0})).false_differences == 0
