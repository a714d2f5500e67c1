"""Test what load does to ratios and verdicts, and when noise hides every difference."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import linregress, nct, norm, t

from compare.analysis import analyse
from compare.analysis.budget import ALPHA, FIRST_LOOK
from compare.analysis.figures import Figures
from compare.analysis.noise import (
    POWER,
    budget_to_rank,
    half_width,
    may_explain,
    narrowest_half_width,
    would_have_seen,
)
from compare.analysis.ranking import assess_aa_test, find_lead, twins, verdicts
from compare.analysis.summary import summarise
from compare.analysis.verdict import MARGIN, judge
from compare.report.columns import describe_verdict, why_open
from compare.report.origin import warnings
from compare.report.sentences import conclusion, notes
from compare.schema.arms import parse_arm
from compare.schema.results import Interleaved
from tests.unit.factories import a_block, a_launch, a_rank, a_run, beside, noisy
from tests.unit.pages import render

NEAR = {"ddp": [5.0, 5.1, 5.0, 5.2, 5.1], "mpi": [2.5, 2.6, 2.5, 2.5, 2.6]}
FAR = {"ddp": [50, 51, 50, 52, 51], "mpi": [2.5, 2.6, 2.5, 2.5, 2.6]}


SPINNING = {"ddp": [3.00, 3.21, 3.53, 2.93, 3.26], "mpi": [1.38, 1.38, 1.28, 1.33, 1.28]}
BESIDE_SPINNING = {"ddp": [0.74, 0.82, 0.79, 0.7, 0.8], "mpi": [0.12, 0.2, 0.17, 0.15, 0.15]}
UNEVEN = {
    "the load may explain it": (NEAR, {"ddp": 1.0, "mpi": 0.0}, "open"),
    "it runs beside both": (NEAR, {"ddp": 1.0, "mpi": 1.0}, "faster"),
    "as a busy core did to two ranks that spin": (SPINNING, BESIDE_SPINNING, "open"),
    "as on a quiet machine": (NEAR, {"ddp": 0.08, "mpi": 0.0}, "faster"),
    "it slows the quicker arm": (NEAR, {"ddp": 0.0, "mpi": 1.0}, "faster"),
    "no load slows so much": (FAR, {"ddp": 1.0, "mpi": 0.0}, "faster"),
    "a small load slows less": (NEAR, {"ddp": 0.2, "mpi": 0.0}, "faster"),
    "it may be more than seen": (NEAR, {"ddp": [0.3, 0.0, 0.1, 0.4, 0.2], "mpi": 0.0}, "open"),
    "it comes and goes by chance": (NEAR, {"ddp": [2.0, 0.0, 0.0, 0.0, 1.0], "mpi": 0.0}, "faster"),
    "equal times": ({"ddp": [5.0] * 5, "mpi": [5.01] * 5}, {"ddp": 0.0, "mpi": 0.4}, "open"),
}


@pytest.mark.parametrize("cpus", [2, 64])
@pytest.mark.parametrize("case", UNEVEN)
def test_uneven_load_withholds_what_it_may_explain(case, cpus):
    times, cores, kind = UNEVEN[case]
    run = beside(a_run(times), cpus, **cores)
    assert verdicts(Figures(run), "ddp")["mpi"].kind == kind
    assert (find_lead(Figures(run)).fastest is None) == (kind == "open")


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


def test_the_load_is_named_with_its_remedy():
    run = beside(a_run(NEAR), ddp=0.96, mpi=0.04)
    analysis = analyse(run)
    (arm,) = (arm for arm in analysis.summary.arms if arm.verdict)
    assert why_open(arm.verdict) == "the load was uneven"
    assert any("used 0.04 cores beside mpi, and 0.96 beside ddp" in line for line in warnings(run, analysis))
    assert "uneven" in conclusion(run, analysis)


def test_load_after_the_settling_look_is_named_and_keeps_the_verdict():
    times = {arm: its * 2 for arm, its in NEAR.items()}
    quiet_then_busy = [0.0] * 5 + [1.5] * 5
    run = beside(a_run(times, config={"rounds": 99, "settle_seconds": 1e4}), ddp=quiet_then_busy, mpi=0.0)
    found = verdicts(Figures(run), "ddp")["mpi"]
    assert (found.kind, found.settled_after) == ("faster", 5)
    assert found.uneven_load == (0.0, 0.75)
    assert not describe_verdict(found).endswith("open")
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
    assert assess_aa_test(Figures(run)).false_differences == 1
    uneven = beside(run, **{first.label: 1.0, second.label: 0.0})
    assert assess_aa_test(Figures(uneven)).false_differences == 0


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


# ---- noise that hides all ----

SCATTER = [1.0, 2.5, 1.2, 2.0, 0.9]
WILD = [2.0, 1.0, 2.4, 0.9, 1.8]
ALL_NOISE = {"none": SCATTER, "ddp": WILD, "mpi": SCATTER[::-1]}
NARROW = [2.0, 1.02, 2.4, 0.9, 1.82]


@pytest.mark.parametrize(
    ("milliseconds", "changes", "hidden"),
    [
        (ALL_NOISE, {}, True),
        (ALL_NOISE | {"manual": NARROW}, {}, False),
        (ALL_NOISE | {"manual": [30 * t for t in WILD]}, {}, False),
        (ALL_NOISE | {"none": [0.1] * 5}, {}, True),
        ({"none": SCATTER, "ddp": WILD}, {}, False),
        ({arm: times[:4] for arm, times in ALL_NOISE.items()}, {}, False),
        (ALL_NOISE, {"cores": 1}, False),
        (ALL_NOISE, {"config": {"comparisons": 1}}, False),
    ],
    ids=["all is noise", "one narrow interval", "a clear difference", "a clear cost ranks nothing"]
    + ["there is no verdict", "four rounds", "oversubscribed", "an A/A test"],
)
def test_noise_hides_all_if_every_arms_own_interval_is_open_and_wide(milliseconds, changes, hidden):
    assert summarise(Figures(a_run(milliseconds, **changes))).noise_hides_all is hidden


def test_run_that_can_rank_nothing_says_that_alone():
    run = noisy(a_run(ALL_NOISE), 1, 2)
    assert analyse(run).summary.noisy_rounds == [1, 2]
    (line,) = warnings(run, analyse(run))
    assert line.startswith("NOTHING CAN BE RANKED: every verdict is open, and the narrowest interval reaches")
    assert "Stop other programs, or measure longer: --budget" in line


@pytest.mark.parametrize(
    ("rounds", "busy", "hidden"), [(2, (1, 2), True), (2, (1,), False), (3, (1, 2, 3), False)]
)
def test_one_or_two_rounds_tell_nothing_if_all_are_noisy(rounds, busy, hidden):
    run = noisy(a_run({arm: times[:rounds] for arm, times in ALL_NOISE.items()}), *busy)
    assert analyse(run).summary.noise_hides_all is hidden


def test_ratio_that_depends_on_the_load_is_a_difference():
    """No line names a ratio beside one which says that nothing can be ranked."""
    loads = [load for load in (1.0, 2.0, 1.05, 1.9, 1.1, 1.8) for _ in range(4)]
    arms = {"none": lambda load: load, "ddp": lambda load: 3 * load, "mpi": lambda load: 1.5 * load**3}
    found = analyse(under_load(loads, arms))
    assert found.load_dependence
    (verdict,) = (arm.verdict for arm in found.summary.arms if arm.verdict)
    assert verdict.low < 1 / 1.25 < 1.25 < verdict.high
    assert not found.summary.noise_hides_all


def test_budget_to_rank_follows_from_the_narrowest_interval():
    """The run took 12.5 s."""
    run = a_run(ALL_NOISE | {"manual": [2 * t for t in SCATTER]})
    assert budget_to_rank(run, 1.26) == 60, "twice the time, in whole minutes"
    assert budget_to_rank(run, 1.25**4) == 240, "16 times the time"
    found = [arm.verdict for arm in analyse(run).summary.arms if arm.verdict]
    assert narrowest_half_width(found) == min(half_width(one.low, one.high) for one in found)
    assert narrowest_half_width([]) is None


# ---- stalls ----


def with_stalls(milliseconds):
    """Return a run whose arm ddp has these blocks in each of two turns."""
    blocks = [a_block(ms * turn, turn=turn) for turn in (1, 2) for ms in milliseconds]
    ranks = [a_rank(rank, blocks=blocks) for rank in range(2)]
    others = a_run({"mpi": [5.0] * 3}).launches
    launches = [a_launch("ddp", round_, ranks=ranks) for round_ in range(1, 4)]
    return a_run({"ddp": [], "mpi": []}, launches=[*launches, *others])


@pytest.mark.parametrize(("milliseconds", "ratio"), [([5.0] * 4, 1.0), ([5.0, 5.0, 8.0, 5.0], 1.15)])
def test_stall_is_in_the_step_time_and_in_mean_over_median(milliseconds, ratio):
    found = analyse(with_stalls(milliseconds)).summary.arms[0]
    assert found.mean_over_median.mean == pytest.approx(ratio)
    assert found.step_seconds.mean == pytest.approx(5e-3 * ratio * math.sqrt(2))


def test_median_of_one_or_two_blocks_tells_no_stall():
    assert [arm.mean_over_median for arm in analyse(with_stalls([5.0, 8.0])).summary.arms] == [None, None]


@pytest.mark.parametrize(("stall", "named"), [(5.9, False), (6.1, True)])
def test_stalls_are_named_beyond_5_percent(stall, named):
    run = with_stalls([5.0, 5.0, stall, 5.0])
    lines = [line for line in warnings(run, analyse(run)) if line.startswith("Stalls:")]
    assert len(lines) == named
    assert all("their mean is above the median: 1.05× for ddp." in line for line in lines)


# ---- the differences that a verdict would have found ----


def smallest(spread, rounds, arms, margin=MARGIN):
    """Return the smallest difference that is found for one of some arms whose log ratios have a spread."""
    values = np.arange(rounds) - (rounds - 1) / 2
    own = {"0": list(spread * values / values.std(ddof=1))}
    others = {str(arm): [0.001 * (-1) ** i for i in range(rounds)] for arm in range(1, arms)}
    verdict = judge(own | others, fewest=99, margin=margin)["0"]
    return would_have_seen(verdict)


@settings(deadline=None, max_examples=40)
@given(st.integers(FIRST_LOOK, 40), st.integers(1, 8), st.floats(0.05, 0.3))
def test_smallest_difference_is_that_of_the_noncentral_t(rounds, arms, spread):
    """The sum of two central quantiles approximates it."""
    found = math.log1p(smallest(spread, rounds, arms, margin=1e-9))
    critical = t.isf(ALPHA / arms / 2, rounds - 1)
    exact = brentq(lambda nc: nct.sf(critical, rounds - 1, nc) - POWER, 0, 50)
    assert found * math.sqrt(rounds) / spread == pytest.approx(exact, rel=1e-6)
    assert exact == pytest.approx(critical + t.ppf(POWER, rounds - 1), rel=0.1)
    beyond = math.log1p(MARGIN) + norm.ppf(POWER) * spread / math.sqrt(rounds)
    assert math.log1p(smallest(spread, rounds, arms)) == pytest.approx(max(found, beyond), rel=1e-6)


TIMES = {
    "none": [4.0] * 6,
    "ddp": [5.0, 5.2, 5.1, 5.0, 5.3, 5.1],
    "mpi": [5.0, 5.6, 4.4, 5.9, 4.8, 5.3],
    "manual": [5.0, 5.1, 5.0, 5.2, 5.0, 5.1],
}


def test_noisier_arm_would_have_seen_less_and_nothing_unless_judged():
    def seen(rounds=6, **changes):
        run = a_run({arm: times[:rounds] for arm, times in TIMES.items()}, **changes)
        return {arm.arm: arm.would_have_seen for arm in analyse(run).summary.arms}

    found = seen()
    assert found["manual"] < found["mpi"] / 3
    assert (found["none"], found["ddp"]) == (None, None)
    assert {*seen(cores=1).values(), *seen(rounds=4).values()} == {None}
