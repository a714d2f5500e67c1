"""Verdicts: against scipy, by hand, by what must hold for any rounds, and by how often they are wrong."""

from __future__ import annotations

import functools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special, stats

from compare.analysis import simulate, verdict
from compare.analysis.simulate import binomial_interval, simulate_aa
from compare.analysis.verdict import (
    ALPHA,
    FIRST_LOOK,
    MARGIN,
    Look,
    Verdict,
    judge,
    levels,
)
from compare.report.columns import describe

untimed = settings(deadline=None, max_examples=40)

LOG_RATIO = st.floats(-0.5, 0.5).map(lambda value: round(value, 6))
ROUNDS = st.lists(LOG_RATIO, min_size=2, max_size=9)
RUN = st.dictionaries(st.sampled_from(["ddp", "manual", "horovod", "mpi"]), ROUNDS, min_size=1)
MIRRORED = {"faster": "slower", "slower": "faster"}


def rounds_with(mean, spread, n):
    """So many values with exactly this mean and this standard deviation."""
    values = np.arange(n) - (n - 1) / 2
    return list(mean + spread * values / values.std(ddof=1))


def rounds_with_p(p, n=10, spread=0.2):
    return rounds_with(spread / math.sqrt(n) * -special.stdtrit(n - 1, p / 2), spread, n)


def only(values, **settings_):
    return judge({"mpi": values}, **settings_)["mpi"]


# ---- one arm ----


@untimed
@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=12))
def test_p_and_interval_are_those_of_scipy(times):
    baseline, arm = np.log(np.array(times)).T
    assume((baseline - arm).std() > 1e-6)
    found = only(list(baseline - arm))
    assert found.p == pytest.approx(stats.ttest_rel(baseline, arm).pvalue, rel=1e-9)
    interval = stats.ttest_1samp(baseline - arm, 0).confidence_interval(found.level)
    assume(max(map(abs, interval)) < 600)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx(tuple(interval), rel=1e-9, abs=1e-12)
    assert found.speed_ratio == pytest.approx(stats.gmean(np.exp(baseline - arm)))


@pytest.mark.parametrize(
    ("mean", "spread", "kind"),
    [
        (0.10, 0.01, "faster"),
        (-0.10, 0.01, "slower"),
        (0.00, 0.01, "equivalent"),
        (0.01, 0.01, "equivalent"),  # differs for certain, but by less than anybody cares about
        (0.02, 0.02, "unresolved"),  # the interval excludes 1, the estimate does not exceed the margin
        (0.10, 0.20, "unresolved"),
    ],
)
def test_different_needs_certainty_and_size_and_equivalent_the_whole_interval(mean, spread, kind):
    found = only(rounds_with(mean, spread, 10))
    assert (found.kind, found.n, found.margin) == (kind, 10, MARGIN)
    assert (found.rounds_to_settle is None) == (kind != "unresolved")


@untimed
@given(RUN)
def test_what_a_verdict_says_its_interval_shows(run):
    for found in judge(run).values():
        low, high = found.low or 0, found.high or math.inf
        assert low <= found.speed_ratio * (1 + 1e-12)
        assert found.speed_ratio <= high * (1 + 1e-12)
        outside = not 1 / (1 + MARGIN) <= found.speed_ratio <= 1 + MARGIN
        if found.kind == "faster":
            assert low > 1
            assert outside
        elif found.kind == "slower":
            assert high < 1
            assert outside
        elif found.kind == "equivalent":
            assert low >= 1 / (1 + MARGIN) - 1e-12
            assert high <= 1 + MARGIN + 1e-12
        else:
            assert high > 1 + MARGIN or low < 1 / (1 + MARGIN)
            assert low <= 1 <= high or not outside


@untimed
@given(RUN)
def test_swapping_arm_and_baseline_mirrors_the_verdict(run):
    there = judge(run)
    back = judge({arm: [-value for value in values] for arm, values in run.items()})
    for arm, found in there.items():
        mirror = back[arm]
        assert mirror.kind == MIRRORED.get(found.kind, found.kind)
        assert mirror.speed_ratio == pytest.approx(1 / found.speed_ratio)
        assert (mirror.p, mirror.n, mirror.rounds_to_settle) == (found.p, found.n, found.rounds_to_settle)
        if found.low is not None:
            assert (mirror.low, mirror.high) == pytest.approx((1 / found.high, 1 / found.low))
        assert describe(mirror) == describe(found).replace(found.kind, mirror.kind)


@untimed
@given(ROUNDS)
def test_more_rounds_of_the_same_narrow_the_interval(values):
    assume(np.std(values) > 1e-4)
    once, twice = only(values), only(values * 2)
    assume(once.low is not None)
    assert once.low < twice.low < twice.high < once.high
    assert twice.p <= once.p


@untimed
@given(RUN, st.floats(0.2, 5), st.randoms())
def test_only_ratios_count_not_units_nor_order(run, scale, random):
    before = judge(run)
    # The same times in another unit; the noise and the margin both stretched; rounds and arms shuffled.
    rescaled = judge(
        {arm: [scale * value for value in values] for arm, values in run.items()},
        margin=math.expm1(scale * math.log1p(MARGIN)),
    )
    shuffled = judge({arm: random.sample(values, len(values)) for arm, values in reversed(list(run.items()))})
    for arm, found in before.items():
        # A verdict that hangs on the last bit of a double may fall to either side.
        assume(abs(abs(math.log(found.speed_ratio)) - math.log1p(MARGIN)) > 1e-9)
        assert rescaled[arm].kind == shuffled[arm].kind == found.kind
        assert rescaled[arm].p == pytest.approx(found.p, rel=1e-6, abs=1e-12)


def test_one_round_settles_nothing_and_tells_no_interval():
    found = only([2.0])
    assert (found.kind, found.n, found.p) == ("unresolved", 1, 1.0)
    assert (found.low, found.high, found.rounds_to_settle) == (None, None, None)
    assert found.speed_ratio == pytest.approx(math.exp(2))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Verdict) == found


def test_an_arm_without_a_round_has_no_verdict_but_counts_as_compared():
    assert judge({}) == judge({"mpi": []}) == {}
    alone, among_two = only(rounds_with_p(0.04)), judge({"mpi": rounds_with_p(0.04), "ddp": []})
    assert set(among_two) == {"mpi"}
    assert (alone.kind, among_two["mpi"].kind) == ("faster", "unresolved")
    assert among_two["mpi"].p_adjusted == pytest.approx(0.08)


@pytest.mark.parametrize(("value", "kind"), [(0.0, "equivalent"), (0.25, "faster"), (-0.25, "slower")])
def test_rounds_without_any_spread_are_taken_at_their_word(value, kind):
    found = only([value] * 4)
    assert found.kind == kind
    assert found.low == found.speed_ratio == found.high
    assert found.p == (value == 0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e3])
def test_what_is_no_ratio_is_refused_with_its_place(value):
    with pytest.raises(ValueError, match="the log ratio of ddp in round 2 is"):
        judge({"mpi": [0.0, 0.0], "ddp": [0.0, value]})


@pytest.mark.parametrize("wrong", [{"alpha": 0}, {"alpha": 1}, {"margin": 0}, {"margin": math.inf}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="must lie between"):
        judge({"mpi": [0.0, 0.1]}, **wrong)


# ---- how many more rounds ----


@pytest.mark.parametrize(
    ("mean", "spread", "n"), [(0.10, 0.20, 5), (0.0, 0.05, 5), (-0.02, 0.03, 8), (0.031, 1.0, 3)]
)
def test_as_many_more_rounds_as_it_says_settle_it_and_one_fewer_does_not(mean, spread, n):
    found = only(rounds_with(mean, spread, n))
    assert found.kind == "unresolved"
    needed = n + found.rounds_to_settle
    assert only(rounds_with(mean, spread, needed)).kind != "unresolved"
    assert only(rounds_with(mean, spread, needed - 1)).kind == "unresolved"


def test_on_the_margin_no_number_of_rounds_settles_anything():
    found = only(rounds_with(math.log1p(MARGIN), 0.1, 5))
    assert (found.kind, found.rounds_to_settle) == ("unresolved", None)
    assert describe(found).endswith("and more rounds would hardly settle it")


# ---- several arms ----


def test_holm_worked_out_by_hand():
    # 4 · 0.005 = 0.02, 3 · 0.01 = 0.03, 2 · 0.03 = 0.06; then 0.04, but never less than the one before.
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    found = judge({arm: rounds_with_p(value) for arm, value in p.items()})
    assert {arm: v.p for arm, v in found.items()} == pytest.approx(p)
    assert {arm: v.p_adjusted for arm, v in found.items()} == pytest.approx(
        {"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02}
    )
    assert {arm: v.kind for arm, v in found.items()} == {
        "a": "faster",
        "b": "unresolved",
        "c": "unresolved",
        "d": "faster",
    }
    # d at the first step, a at the second; two arms are left for the others.
    assert {arm: 1 - v.level for arm, v in found.items()} == pytest.approx(
        {"a": 0.05 / 3, "b": 0.05 / 2, "c": 0.05 / 2, "d": 0.05 / 4}
    )


@untimed
@given(RUN)
def test_different_is_what_holm_rejects_beyond_the_margin(run):
    for found in judge(run).values():
        beyond = abs(math.log(found.speed_ratio)) > math.log1p(MARGIN)
        assume(abs(found.p_adjusted - ALPHA) > 1e-9)
        assert (found.kind in MIRRORED) == (beyond and found.p_adjusted <= ALPHA)
        assert found.p <= found.p_adjusted <= 1
        assert 1 - ALPHA - 1e-12 <= found.level <= 1 - ALPHA / len(run) + 1e-12


# ---- several looks ----


def test_a_single_look_at_everything_is_the_fixed_design():
    run = {"mpi": rounds_with_p(0.03), "ddp": rounds_with_p(0.001)}
    assert judge(run, [Look(10, 10)]) == judge(run)
    assert levels([Look(10, 10)]) == [ALPHA]


def test_looks_share_alpha_as_lan_and_demets_have_it():
    shares = levels([Look(n, 10) for n in range(FIRST_LOOK, 11)], alpha=0.05)
    assert shares[0] == pytest.approx(0.05 * math.log(1 + (math.e - 1) * 0.5))
    assert sum(shares[:3]) == pytest.approx(0.05 * math.log(1 + (math.e - 1) * 0.7))
    assert sum(shares) == pytest.approx(0.05)


@untimed
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), min_size=1, max_size=20))
def test_however_the_plan_changes_alpha_is_never_overdrawn(steps):
    rounds, looks = 1, []
    for more, planned in steps:
        rounds += more
        looks.append(Look(rounds, planned))
    shares = levels(looks)
    assert min(shares) >= 0
    assert shares[0] > 0
    assert sum(shares) <= ALPHA * (1 + 1e-12)
    assert sum(levels([*looks, Look(rounds, rounds)])) == pytest.approx(ALPHA)


@pytest.mark.parametrize("looks", [[Look(0, 5)], [Look(5, 0)], [Look(5, 9), Look(4, 9)]])
def test_looks_out_of_order_are_refused(looks):
    with pytest.raises(ValueError, match="cannot follow"):
        levels(looks)


def test_what_is_settled_stays_settled_and_counts_for_holm():
    # mpi is clear at once, and gets no more rounds; ddp becomes so later; manual turns up in the end.
    run = {
        "mpi": rounds_with(0.5, 0.01, 5),
        "ddp": [*rounds_with(0.2, 0.3, 5), *rounds_with(0.2, 0.01, 15)],
        "manual": [*rounds_with(0.0, 0.3, 5), *rounds_with(0.0, 0.3, 15)],
    }
    looks = [Look(5, 20), Look(20, 20)]
    first, second = judge(run, looks[:1]), judge(run, looks)
    assert [first[arm].kind for arm in run] == ["faster", "unresolved", "unresolved"]
    assert second["mpi"] == first["mpi"]
    assert (second["ddp"].kind, second["ddp"].n) == ("faster", 20)
    spent = levels(looks)[1]
    assert 1 - second["ddp"].level == pytest.approx(spent / 2)  # the second of three steps
    assert 1 - second["manual"].level == pytest.approx(spent)  # two are done with
    # The plan has grown: nothing can be spent at the second look, and nothing changes.
    assert judge(run, [looks[0], Look(20, 200)]) == first


# ---- how often it is wrong ----

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
def test_whatever_launches_are_like_few_differences_are_false(shape, looks, arms):
    found = simulate_aa(recorded(shape, arms + 1), looks, arms=arms, experiments=EXPERIMENTS)
    assert found.rate <= LIMIT, found
    assert found.low <= found.rate <= found.high


def test_for_normal_noise_a_single_look_spends_all_of_alpha_and_many_looks_no_more():
    record = recorded("normal", 2, rounds=20_000)
    fixed, sequential, long = (simulate_aa(record, looks) for looks in (FIXED, SEQUENTIAL, LONG))
    assert fixed.low <= ALPHA <= fixed.high + 0.002  # the margin takes a little
    assert 0.01 < sequential.rate < fixed.rate
    assert 0.005 < long.rate < fixed.rate


@pytest.mark.parametrize("looks", [[Look(3, 3)], FIXED, SEQUENTIAL], ids=["three", "fixed", "sequential"])
def test_a_position_that_is_always_slow_makes_no_difference(looks):
    """Every second round is the reverse of the one before, so every arm has every place as often."""
    record = recorded("small normal", 2)
    position = [[first * 1.5, second] for first, second in record]
    assert simulate_aa(position, looks).rate < 0.001


def test_a_first_look_after_three_rounds_would_be_too_early():
    record = recorded("quick or slow", 5)
    early = simulate_aa(record, [Look(n, 12) for n in range(3, 13)], arms=4)
    assert early.rate > LIMIT > simulate_aa(record, SEQUENTIAL, arms=4).rate


def null_of(shape, looks, arms=1, experiments=60):
    record = recorded(shape, arms + 1)
    values = simulate._draw_log_ratios(record, looks, arms, experiments, 0)
    return values, simulate_aa(record, looks, arms=arms, experiments=experiments, seed=0, alpha=0.3)


@pytest.mark.parametrize("shape", ["small normal", "quick or slow"])
def test_what_is_simulated_is_what_is_judged(shape):
    values, found = null_of(shape, SEQUENTIAL, arms=3)
    different = equivalent = 0
    for rounds in values:
        run = {str(arm): list(rounds[:, arm]) for arm in range(3)}
        kinds = [v.kind for v in judge(run, SEQUENTIAL, alpha=0.3).values()]
        different += any(kind in MIRRORED for kind in kinds)
        equivalent += kinds == ["equivalent"] * 3
    assert different > 0
    assert (found.false_differences, found.equivalent) == (different, equivalent)


def experiments_with(mean, spread, looks, arms=1, seed=3):
    """Arms of this mean log ratio, all measured against one and the same noisy baseline."""
    random = np.random.default_rng(seed)
    noise = spread / math.sqrt(2) * random.standard_normal((EXPERIMENTS, looks[-1].rounds, arms + 1))
    return mean + noise[..., :1] - noise[..., 1:]


@pytest.mark.parametrize("arms", [1, 2, 4])
@pytest.mark.parametrize("spread", [0.01, 0.02])
@pytest.mark.parametrize("looks", [FIXED, SEQUENTIAL], ids=["fixed", "sequential"])
def test_few_arms_that_differ_by_the_margin_are_called_equivalent(looks, spread, arms):
    values = experiments_with(math.log1p(MARGIN), spread, looks, arms)
    settled, _ = simulate.follow(values, looks, ALPHA, MARGIN)
    assert settled.equivalent.any(-1).mean() <= LIMIT


def test_intervals_hold_the_truth_as_often_as_they_say():
    values = experiments_with(0.2, 0.1, SEQUENTIAL)
    missed = np.zeros(EXPERIMENTS, bool)
    for look, level in zip(SEQUENTIAL, levels(SEQUENTIAL), strict=True):
        sample = verdict.Sample.over_rounds(values[:, : look.rounds])
        decision = verdict.decide(sample, level, math.log1p(MARGIN), verdict.Settled.none((EXPERIMENTS, 1)))
        misses = (np.abs(sample.mean - 0.2) > decision.half_width)[:, 0]
        assert misses.mean() == pytest.approx(level, abs=4 * math.sqrt(level / EXPERIMENTS))
        missed |= misses
    assert missed.mean() <= LIMIT  # at all looks together


def test_each_interval_holds_at_its_own_level_and_all_of_a_run_together_at_none():
    """Three clear differences: Holm's steps have levels of 5/3, 5/2 and 5 %, and their misses add up."""
    means = np.array([0.3, 1.2, 3.0])
    sample = verdict.Sample.over_rounds(experiments_with(means, 0.05, FIXED, arms=3))
    none_yet = verdict.Settled.none((EXPERIMENTS, 3))
    decision = verdict.decide(sample, ALPHA, math.log1p(MARGIN), none_yet)
    assert decision.settled.different.all()
    misses = np.abs(sample.mean - means) > decision.half_width
    # The arm nearest to the baseline comes last in Holm's order, as good as always.
    assert misses.mean(0) == pytest.approx([ALPHA, ALPHA / 2, ALPHA / 3], abs=0.008)
    assert misses.any(-1).mean() > LIMIT


@pytest.mark.parametrize(
    ("mean", "spread", "most_rounds"),
    [(math.log(2), 0.05, 5.1), (math.log(1.2), 0.05, 6.5), (math.log(1.1), 0.05, 9.5), (0.0, 0.005, 5.2)],
)
def test_what_is_clear_is_settled_early(mean, spread, most_rounds):
    values = experiments_with(mean, spread, SEQUENTIAL)
    settled, rounds = simulate.follow(values, SEQUENTIAL, ALPHA, MARGIN)
    right = settled.different if mean else settled.equivalent
    assert right.mean() > 0.85
    assert rounds.mean() < most_rounds


def test_the_same_seed_gives_the_same_answer():
    record = recorded("normal", 2, rounds=50)
    first, again, other = (simulate_aa(record, FIXED, experiments=500, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("record", "arms"),
    [([[1, 1]] * 4, 1), ([[1, 1]] * 5, 2), ([[1, 1]] * 5, 0), ([[1, 1]] * 4 + [[1, 0]], 1)],
)
def test_a_record_that_does_not_suffice_is_refused(record, arms):
    with pytest.raises(ValueError, match=r"too few|above 0"):
        simulate_aa(record, FIXED, arms=arms, experiments=10)


# ---- rates ----


@untimed
@given(st.integers(1, 500), st.data(), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_interval_of_a_rate_is_scipys(trials, data, level):
    successes = data.draw(st.integers(0, trials))
    expected = stats.binomtest(successes, trials).proportion_ci(level, method="exact")
    assert binomial_interval(successes, trials, level=level) == pytest.approx(tuple(expected), abs=1e-12)


def test_59_comparisons_without_a_false_difference():
    low, high = binomial_interval(0, 59)
    assert (low, high) == (0, pytest.approx(0.0606, abs=1e-4))


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (-1, 5), (6, 5)])
def test_what_is_no_rate_is_refused(successes, trials):
    with pytest.raises(ValueError, match="is no rate"):
        binomial_interval(successes, trials)


# ---- words ----


def a_verdict(kind, ratio, low, high, **changes):
    about = {"level": 0.95, "p": 0.01, "p_adjusted": 0.01, "n": 5, "margin": MARGIN, "rounds_to_settle": None}
    return Verdict(kind=kind, speed_ratio=ratio, low=low, high=high, **(about | changes))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (a_verdict("faster", 1.051, 1.02, 1.083), "5.1 % faster [2.0, 8.3]"),
        (a_verdict("faster", 1.5, 1.1, 2.2), "50 % faster [10, 120]"),
        (a_verdict("faster", 3.04, 2.8, 3.2), "3.0× faster [2.8, 3.2]"),
        (a_verdict("slower", 1 / 1.051, 1 / 1.083, 1 / 1.02), "5.1 % slower [2.0, 8.3]"),
        (a_verdict("slower", 0.25, 0.2, 0.4), "4.0× slower [2.5, 5.0]"),
        (a_verdict("equivalent", 1.001, 0.99, 1.01), "equivalent within 3 %"),
        (a_verdict("equivalent", 1.001, 0.99, 1.01, margin=0.025), "equivalent within 2.5 %"),
        (
            a_verdict("unresolved", 1.0, 1 / 1.08, 1.08, rounds_to_settle=6),
            "unresolved: ±8.0 %, about 6 more rounds would settle it",
        ),
        (
            a_verdict("unresolved", 1.0, 1 / 1.25, 1.25, rounds_to_settle=1),
            "unresolved: ±25 %, about 1 more round would settle it",
        ),
        (
            a_verdict("unresolved", 1.0, 0.1, 10, rounds_to_settle=3),
            "unresolved: a factor of 10 either way, about 3 more rounds would settle it",
        ),
        (a_verdict("unresolved", 2.0, None, None, n=1), "unresolved: one round has no spread"),
        (
            a_verdict("unresolved", 2.0, None, None, n=2, rounds_to_settle=4),
            "unresolved: about 4 more rounds would settle it",
        ),
    ],
)
def test_what_is_said(found, said):
    assert describe(found) == said
