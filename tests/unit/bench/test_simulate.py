"""Test how often verdicts are wrong, by simulation."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from compare.analysis.budget import ALPHA, FIRST_LOOK, Look
from compare.analysis.figures import binomial_interval
from compare.analysis.verdict import MARGIN, judge
from tests.bench import simulate
from tests.bench.simulate import simulate_aa, simulate_gates
from tests.comparing import ROOT

FIXED = [Look(5, 5)]
SEQUENTIAL = [Look(n, 12) for n in range(FIRST_LOOK, 13)]
LONG = [Look(n, 30) for n in range(FIRST_LOOK, 31)]
EXPERIMENTS = 10_000
# Four standard errors of 5 % in so many experiments.
LIMIT = ALPHA + 4 * math.sqrt(ALPHA * (1 - ALPHA) / EXPERIMENTS)

SHAPES = {
    "normal": lambda random, shape: 0.2 * random.standard_normal(shape),
    "small normal": lambda random, shape: 0.02 * random.standard_normal(shape),
    "heavy tails": lambda random, shape: 0.05 * random.standard_t(2, shape),
    "one in ten hit": lambda random, shape: (
        0.02 * random.standard_normal(shape) + (random.random(shape) < 0.1) * random.exponential(0.5, shape)
    ),
    "quick or slow": lambda random, shape: (
        0.2 * (random.random(shape) < 0.5) + 0.005 * random.standard_normal(shape)
    ),
    "noisy spells": lambda random, shape: (
        random.standard_normal(shape)
        * np.exp(np.cumsum(0.3 * random.standard_normal(shape[0])) % 3 - 3)[:, None]
    ),
    "random walk": lambda random, shape: np.cumsum(0.1 * random.standard_normal(shape)).reshape(shape),
}


@functools.cache
def recorded(shape, launches, rounds=5_000):
    return np.exp(SHAPES[shape](np.random.default_rng(7), (rounds, launches))).tolist()


@pytest.mark.parametrize("arms", [1, 4])
@pytest.mark.parametrize("looks", [FIXED, SEQUENTIAL], ids=["fixed", "sequential"])
@pytest.mark.parametrize("shape", SHAPES)
def test_simulate_few_differences_are_false_for_any_launches(shape, looks, arms):
    found = simulate_aa(recorded(shape, arms + 1), looks, arms=arms, experiments=EXPERIMENTS)
    assert found.rate <= LIMIT, found
    assert found.low <= found.rate <= found.high


def test_simulate_normal_noise_spends_alpha_in_a_single_look():
    record = recorded("normal", 2, rounds=20_000)
    fixed, sequential, long = (simulate_aa(record, looks) for looks in (FIXED, SEQUENTIAL, LONG))
    assert fixed.low <= ALPHA <= fixed.high + 0.002  # the margin takes a little
    assert 0.01 < sequential.rate < fixed.rate
    assert 0.005 < long.rate < fixed.rate


@pytest.mark.parametrize("looks", [[Look(3, 3)], FIXED, SEQUENTIAL], ids=["three", "fixed", "sequential"])
def test_simulate_slow_position_makes_no_difference(looks):
    """Every second round is reversed, so all arms share all positions."""
    record = recorded("small normal", 2)
    position = [[first * 1.5, second] for first, second in record]
    assert simulate_aa(position, looks).rate < 0.001


def test_simulate_first_look_after_three_rounds_is_too_early():
    record = recorded("quick or slow", 5)
    early = simulate_aa(record, [Look(n, 12) for n in range(3, 13)], arms=4)
    assert early.rate > LIMIT > simulate_aa(record, SEQUENTIAL, arms=4).rate


@pytest.mark.parametrize("shape", ["small normal", "quick or slow"])
def test_simulate_decides_as_judge_does(shape):
    record = recorded(shape, 4)
    found = simulate_aa(record, SEQUENTIAL, arms=3, experiments=60, seed=0, alpha=0.3)
    different = equivalent = 0
    for rounds in simulate._draw_log_ratios(record, SEQUENTIAL, 3, 60, 0):
        run = {str(arm): list(rounds[:, arm]) for arm in range(3)}
        kinds = [v.kind for v in judge(run, SEQUENTIAL, alpha=0.3).values()]
        different += any(kind in {"faster", "slower"} for kind in kinds)
        equivalent += kinds == ["same"] * 3
    assert different > 0
    assert (found.false_differences, found.equivalent) == (different, equivalent)


def experiments_with(mean, spread, looks, arms=1):
    """Return arms of this mean log ratio against one noisy baseline."""
    random = np.random.default_rng(3)
    noise = spread / math.sqrt(2) * random.standard_normal((EXPERIMENTS, looks[-1].rounds, arms + 1))
    return mean + noise[..., :1] - noise[..., 1:]


@pytest.mark.parametrize("arms", [1, 2, 4])
@pytest.mark.parametrize("spread", [0.01, 0.02])
@pytest.mark.parametrize("looks", [FIXED, SEQUENTIAL], ids=["fixed", "sequential"])
def test_follow_arms_on_the_margin_are_rarely_equivalent(looks, spread, arms):
    values = experiments_with(math.log1p(MARGIN), spread, looks, arms)
    settled, _ = simulate.follow(values, looks, ALPHA, MARGIN)
    assert settled.equivalent.any(-1).mean() <= LIMIT


@pytest.mark.parametrize(
    ("mean", "spread", "most_rounds"),
    [(math.log(2), 0.05, 5.1), (math.log(1.2), 0.05, 6.5), (math.log(1.1), 0.05, 9.5), (0.0, 0.005, 5.2)],
)
def test_follow_clear_differences_are_settled_early(mean, spread, most_rounds):
    values = experiments_with(mean, spread, SEQUENTIAL)
    settled, rounds = simulate.follow(values, SEQUENTIAL, ALPHA, MARGIN)
    right = settled.different if mean else settled.equivalent
    assert right.mean() > 0.85
    assert rounds.mean() < most_rounds


# ---- gates ----

RECORD = ROOT / "docs" / "false-differences.jsonl"


FEW_LOOKS = [Look(n, 20) for n in (5, 8, 12, 18, 20)]


@pytest.mark.parametrize("looks", [FIXED, FEW_LOOKS], ids=["fixed", "sequential"])
def test_gates_drawn_from_recorded_turns_are_rarely_wrong(looks):
    entries = [json.loads(line) for line in RECORD.read_text().splitlines()]
    quiet = [one for one in entries if (one["arm"], one["mode"], one["load"]) == ("mpi", "blocks", "none")]
    turns = [pair for entry in quiet for pair in entry["step_seconds"]]
    equal = simulate_gates(turns, looks, limit=0.05)
    assert equal.slower <= 0.055 * EXPERIMENTS
    assert simulate_gates(turns, looks, limit=0.05, slowdowns=[0.2]).slower > 0.8 * EXPERIMENTS
    assert simulate_gates(turns, looks, limit=0.05, slowdowns=[0.05]).passed <= 0.055 * EXPERIMENTS


@pytest.mark.parametrize("looks", [FIXED, FEW_LOOKS], ids=["fixed", "sequential"])
@pytest.mark.parametrize("others", [[], [-0.5] * 3], ids=["alone", "beside three that always pass"])
def test_gate_rarely_passes_an_arm_that_is_slower_by_the_limit(others, looks):
    wrong = simulate_gates(recorded("small normal", 2), looks, limit=0.05, slowdowns=[0.05, *others])
    assert 0.02 * EXPERIMENTS < wrong.passed < LIMIT * EXPERIMENTS


# ---- rates ----


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 500), st.data(), st.sampled_from([0.9, 0.95, 0.99]))
def test_binomial_interval_matches_scipy(trials, data, level):
    successes = data.draw(st.integers(0, trials))
    expected = stats.binomtest(successes, trials).proportion_ci(level, method="exact")
    assert binomial_interval(successes, trials, level=level) == pytest.approx(tuple(expected), abs=1e-12)
