"""Test what the load of the machine does to ratios and verdicts."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from scipy.stats import linregress

from compare.analysis import analyse
from compare.analysis.figures import Figures
from compare.analysis.noise import may_explain
from compare.analysis.ranking import assess, find_lead, twins, verdicts
from compare.analysis.verdict import judge
from compare.report.columns import describe
from compare.report.limits import warnings
from compare.report.notes import notes
from compare.report.sentences import conclusion
from compare.schema.arms import parse_arm
from compare.schema.results import Interleaved, MachineUse
from tests.unit.factories import a_block, a_launch, a_rank, a_run
from tests.unit.pages import render

NEAR = {"ddp": [5.0, 5.1, 5.0, 5.2, 5.1], "mpi": [2.5, 2.6, 2.5, 2.5, 2.6]}
FAR = {"ddp": [50, 51, 50, 52, 51], "mpi": [2.5, 2.6, 2.5, 2.5, 2.6]}


def beside(run, cpus=2, **cores):
    """Return the run with that other load beside each arm, in every round or in each."""

    def use(launch):
        own = cores[launch.arm]
        busy = own[launch.round - 1] if isinstance(own, list) else own
        machine = MachineUse(wall_ns=10**9, cpus=cpus, busy_ns=round(busy * 1e9), stolen_ns=0)
        ranks = [msgspec.structs.replace(rank, cpu_ns=0, machine=machine) for rank in launch.ranks]
        return msgspec.structs.replace(launch, ranks=ranks)

    return msgspec.structs.replace(run, launches=[use(launch) for launch in run.launches])


SPINNING = {"ddp": [3.00, 3.21, 3.53, 2.93, 3.26], "mpi": [1.38, 1.38, 1.28, 1.33, 1.28]}
BESIDE_SPINNING = {"ddp": [0.74, 0.82, 0.79, 0.7, 0.8], "mpi": [0.12, 0.2, 0.17, 0.15, 0.15]}
UNEVEN = {
    "the load may explain it": (NEAR, {"ddp": 1.0, "mpi": 0.0}, "unresolved"),
    "it runs beside both": (NEAR, {"ddp": 1.0, "mpi": 1.0}, "faster"),
    "as a busy core did to two ranks that spin": (SPINNING, BESIDE_SPINNING, "unresolved"),
    "as on a quiet machine": (NEAR, {"ddp": 0.08, "mpi": 0.0}, "faster"),
    "it slows the quicker arm": (NEAR, {"ddp": 0.0, "mpi": 1.0}, "faster"),
    "no load slows so much": (FAR, {"ddp": 1.0, "mpi": 0.0}, "faster"),
    "a small load slows less": (NEAR, {"ddp": 0.2, "mpi": 0.0}, "faster"),
    "it may be more than seen": (NEAR, {"ddp": [0.3, 0.0, 0.1, 0.4, 0.2], "mpi": 0.0}, "unresolved"),
    "it comes and goes by chance": (NEAR, {"ddp": [2.0, 0.0, 0.0, 0.0, 1.0], "mpi": 0.0}, "faster"),
    "equal times": ({"ddp": [5.0] * 5, "mpi": [5.01] * 5}, {"ddp": 0.0, "mpi": 0.4}, "unresolved"),
}


@pytest.mark.parametrize("cpus", [2, 64])
@pytest.mark.parametrize("case", UNEVEN)
def test_uneven_load_withholds_what_it_may_explain(case, cpus):
    times, cores, kind = UNEVEN[case]
    run = beside(a_run(times), cpus, **cores)
    assert verdicts(Figures(run), "ddp")["mpi"].kind == kind
    assert (find_lead(Figures(run)).fastest is None) == (kind == "unresolved")


def test_the_whole_interval_must_exceed_what_the_load_explains():
    run = a_run({"ddp": [8.0, 13.0, 9.0, 14.0, 10.0], "mpi": [2.5, 2.6, 2.5, 2.5, 2.6]})
    verdict = verdicts(Figures(run), "ddp")["mpi"]
    explained = 1 + 3 * 0.8
    assert verdict.low < explained < verdict.speed_ratio
    assert verdicts(Figures(beside(run, ddp=0.8, mpi=0.0)), "ddp")["mpi"].uneven_load == (0.0, 0.8)


EXPERIMENTS = 300


def false_differences(*, load, spread, ticks=0.03, noise=0.05, rounds=8):
    """Count the differences of equal arms that stand.

    The other load beside one arm has that mean and spread, in cores. A core makes a step 2.5 times as long.
    """
    random, shape = np.random.default_rng(0), (EXPERIMENTS, rounds)
    cores = load + spread * random.standard_normal(shape)
    ratios = np.sign(cores) * np.log1p(1.5 * np.abs(cores)) + noise * random.standard_normal(shape)
    counted = cores + ticks * random.standard_normal(shape)
    found = [(judge({"arm": [*-ratio]})["arm"], each) for ratio, each in zip(ratios, counted, strict=True)]
    return sum(
        verdict.kind in {"faster", "slower"} and not may_explain([*each], verdict) for verdict, each in found
    )


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("load", [0.0, 0.2, 1.0])
def test_few_differences_stand_that_are_due_to_load(load, spread):
    assert false_differences(load=load, spread=spread) <= 0.05 * EXPERIMENTS


@pytest.mark.parametrize(("cores", "stands"), [(0.0, 1.0), (0.2, 0.0), (1.0, 0.0)])
def test_rounding_on_64_cpus_hides_no_fifth_of_a_core(cores, stands):
    """Idle time is rounded to 10 ms on each CPU; that alone withholds hardly a verdict."""
    random = np.random.default_rng(0)
    shown = judge({"arm": [-0.2, -0.21, -0.19, -0.2, -0.2]})["arm"]
    counted = cores + 0.04 * random.standard_normal((1000, 5))
    share = sum(not may_explain([*each], shown) for each in counted) / 1000
    assert share == pytest.approx(stands, abs=0.05)


def test_the_load_is_named_with_its_remedy():
    run = beside(a_run(NEAR), ddp=0.96, mpi=0.04)
    analysis = analyse(run)
    (arm,) = (arm for arm in analysis.summary.arms if arm.verdict)
    assert describe(arm.verdict) == "unresolved: uneven load"
    assert any("used 0.04 cores beside mpi, and 0.96 beside ddp" in line for line in warnings(run, analysis))
    assert "uneven" in conclusion(run, analysis)


def test_load_after_the_settling_look_is_named_and_keeps_the_verdict():
    times = {arm: its * 2 for arm, its in NEAR.items()}
    quiet_then_busy = [0.0] * 5 + [1.5] * 5
    run = beside(a_run(times, config={"rounds": 99, "settle_seconds": 1e4}), ddp=quiet_then_busy, mpi=0.0)
    found = verdicts(Figures(run), "ddp")["mpi"]
    assert (found.kind, found.settled_after) == ("faster", 5)
    assert found.uneven_load == (0.0, 0.75)
    assert "faster" in describe(found)
    assert any(line.startswith("Uneven load") for line in warnings(run, analyse(run)))


def test_uneven_load_is_not_met_by_more_time():
    run = beside(a_run(NEAR, config={"rounds": 1000, "settle_seconds": 300.0}), ddp=0.96, mpi=0.04)
    assert [line for line in notes(run, analyse(run)) if line.startswith("Ended")] == [
        "Ended after 5 rounds: 5 min leave no time for another."
    ]


def test_an_aa_test_withholds_it_too():
    first, second = twins(parse_arm("mpi"))
    labels = {"ddp": first.label, "mpi": second.label}
    run = a_run(NEAR)
    launches = [msgspec.structs.replace(launch, arm=labels[launch.arm]) for launch in run.launches]
    twin = {"arms": [first, second], "baseline": first.label, "comparisons": 1, "rounds": 5}
    config = msgspec.structs.replace(run.config, **twin)
    run = msgspec.structs.replace(run, launches=launches, config=config)
    assert assess(Figures(run)).false_differences == 1
    uneven = beside(run, **{first.label: 1.0, second.label: 0.0})
    assert assess(Figures(uneven)).false_differences == 0


# ---- ratios that change with the load ----


def a_waiting_rank(loads, time):
    """Return a rank whose turns waited for a core."""
    blocks = []
    for turn, load in enumerate(loads, start=1):
        block = a_block(time(load), turn=turn)
        blocks += [msgspec.structs.replace(block, cpu_ns=int(block.wall_ns / load))] * 2
    return a_rank(0, blocks=blocks)


def under_load(loads, arms):
    """Return a run from the load of every pass."""
    cohorts = [loads[at : at + 4] for at in range(0, len(loads), 4)]
    launches = [
        a_launch(arm, round_, ranks=[a_waiting_rank(cohort, time)])
        for round_, cohort in enumerate(cohorts, start=1)
        for arm, time in arms.items()
    ]
    changes = {"interleaved": Interleaved(mode="blocks"), "config": {"rounds": len(cohorts)}}
    return a_run({arm: [] for arm in arms}, launches=launches, **changes)


BUSY_AND_QUIET = [1.0, 1.1, 2.5, 2.2, 1.3, 1.0, 3.0, 1.9, 1.2, 2.8]
BUSY_AND_QUIET += [1.1, 1.6, 2.0, 1.0, 2.4, 3.1, 1.4, 1.0, 1.2, 2.6]
SPINS = {"none": lambda load: load, "ddp": lambda load: 4 + load, "mpi": lambda load: 1.3 * load**2.5}


def test_ratio_that_changes_with_the_load_is_named():
    run = under_load(BUSY_AND_QUIET, SPINS)
    (found,) = analyse(run).load_dependence
    assert found.arm == "mpi"
    assert found.quiet_ratio > 2.5
    assert found.busy_ratio < 1
    ratios = [math.log((4 + load) / (1.3 * load**2.5)) for load in BUSY_AND_QUIET]
    theirs = linregress([math.log(load) for load in BUSY_AND_QUIET], ratios)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-3)
    printed = render(run, analyse(run), "markdown")
    assert "On a quiet machine mpi has 3.80× the speed (a rank of none gets 1.00 cores)." in printed


def test_lead_that_depends_on_the_load_is_an_average():
    run = under_load(BUSY_AND_QUIET, SPINS | {"mpi": lambda load: 0.5 * load**2})
    assert conclusion(run, analyse(run)).endswith("(on average over loads).")


def test_load_shows_through_a_machine_of_changing_speed():
    speed = {load: 1 + 0.3 * math.sin(9 * index) for index, load in enumerate(BUSY_AND_QUIET)}
    arms = SPINS | {"none": speed.__getitem__}
    assert [found.arm for found in analyse(under_load(BUSY_AND_QUIET, arms)).load_dependence] == ["mpi"]


NOISE = {load: math.exp(0.5 * math.sin(7 * index)) for index, load in enumerate(BUSY_AND_QUIET)}


@pytest.mark.parametrize(
    ("loads", "arms"),
    [
        (BUSY_AND_QUIET, {"mpi": lambda load: 5 * load**0.8, "ddp": lambda load: 4 * load}),
        (BUSY_AND_QUIET, {"mpi": lambda load: 5 * load, "ddp": lambda load: 4 * load}),
        (BUSY_AND_QUIET, {"mpi": lambda load: load * NOISE[load]}),
        ([1 + 0.02 * math.sin(index) for index in range(20)], {"mpi": lambda load: 1.3 * load**20}),
        (BUSY_AND_QUIET[:8], {}),
    ],
    ids=["it hardly changes", "it is constant", "within the noise", "a quiet machine", "few passes"],
)
def test_ratio_that_need_not_change_with_the_load_is_not_named(loads, arms):
    assert analyse(under_load(loads, SPINS | arms)).load_dependence == []
