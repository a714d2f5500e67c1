"""Test when noise hides every difference of a run, and which ones a verdict would have found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import nct, norm, t

from compare.analysis import analyse
from compare.analysis.figures import Figures
from compare.analysis.looks import ALPHA, FIRST_LOOK
from compare.analysis.noise import POWER, budget_to_rank, half_width, narrowest, would_have_seen
from compare.analysis.summary import summarise
from compare.analysis.verdict import MARGIN, judge
from compare.report.limits import warnings
from compare.schema.results import Interleaved
from tests.unit.factories import a_block, a_launch, a_rank, a_run, noisy

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
    assert "Stop other programs, or give it longer: --budget" in line


@pytest.mark.parametrize(
    ("rounds", "busy", "hidden"), [(2, (1, 2), True), (2, (1,), False), (3, (1, 2, 3), False)]
)
def test_one_or_two_rounds_tell_nothing_if_all_are_noisy(rounds, busy, hidden):
    run = noisy(a_run({arm: times[:rounds] for arm, times in ALL_NOISE.items()}), *busy)
    assert analyse(run).summary.noise_hides_all is hidden


def by_load(arm, round_, load):
    """Return a launch of four turns; mpi is fast on a quiet machine alone."""
    milliseconds = {"none": load, "ddp": 3.0 * load, "mpi": 1.5 * load**3}[arm]
    blocks = [
        a_block(milliseconds * (1 + 0.02 * turn), turn=turn, cpu_ns=round(30e6 * milliseconds / load))
        for turn in range(1, 5)
    ]
    return a_launch(arm, round_, ranks=[a_rank(rank, blocks=blocks) for rank in range(2)])


def test_ratio_that_depends_on_the_load_is_a_difference():
    """No line names a ratio beside one which says that nothing can be ranked."""
    arms = ("none", "ddp", "mpi")
    loads = enumerate([1.0, 2.0, 1.05, 1.9, 1.1, 1.8], start=1)
    launches = [by_load(arm, round_, load) for round_, load in loads for arm in arms]
    run = a_run({arm: [] for arm in arms}, launches=launches, interleaved=Interleaved(mode="blocks"))
    found = analyse(run)
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
    assert narrowest(found) == min(half_width(one.low, one.high) for one in found)
    assert narrowest([]) is None


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
    assert all("exceeds the median, by 5.5 % for ddp." in line for line in lines)


# ---- the differences that a verdict would have found ----

untimed = settings(deadline=None, max_examples=40)


def smallest(spread, rounds, arms, margin=MARGIN):
    """Return the smallest difference that is found for one of some arms whose log ratios have a spread."""
    values = np.arange(rounds) - (rounds - 1) / 2
    own = {"0": list(spread * values / values.std(ddof=1))}
    others = {str(arm): [0.001 * (-1) ** i for i in range(rounds)] for arm in range(1, arms)}
    verdict = judge(own | others, fewest=99, margin=margin)["0"]
    return would_have_seen(verdict)


@untimed
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


@untimed
@given(st.integers(FIRST_LOOK, 30), st.integers(1, 8), st.floats(0.001, 0.5))
def test_smallest_difference_shrinks_with_rounds_and_grows_with_arms(rounds, arms, spread):
    found = smallest(spread, rounds, arms) * (1 + 1e-9)
    assert MARGIN <= smallest(spread, rounds + 1, arms) <= found
    assert found <= smallest(spread, rounds, arms + 1) * (1 + 1e-6)
    assert found <= smallest(spread + 0.01, rounds, arms)


TIMES = {
    "none": [4.0] * 6,
    "ddp": [5.0, 5.2, 5.1, 5.0, 5.3, 5.1],
    "mpi": [5.0, 5.6, 4.4, 5.9, 4.8, 5.3],
    "manual": [5.0, 5.1, 5.0, 5.2, 5.0, 5.1],
}


def seen_in(rounds=6, **changes):
    run = a_run({arm: times[:rounds] for arm, times in TIMES.items()}, **changes)
    return {arm.arm: arm.would_have_seen for arm in analyse(run).summary.arms}


def test_noisier_arm_would_have_seen_less():
    seen = seen_in()
    assert seen["manual"] < seen["mpi"] / 3
    assert (seen["none"], seen["ddp"]) == (None, None)


@pytest.mark.parametrize("changes", [{"cores": 1}, {"rounds": 4}])
def test_nothing_would_have_been_seen_where_nothing_is_judged(changes):
    assert set(seen_in(**changes).values()) == {None}
