"""Test verdicts against scipy, by hand and by invariants, and which arm is called fastest."""

from __future__ import annotations

import math
import statistics

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special, stats

from compare.analysis import analyse
from compare.analysis.budget import ALPHA, FIRST_LOOK, Look, levels
from compare.analysis.figures import Figures
from compare.analysis.ranking import find_lead, log_ratios
from compare.analysis.verdict import MARGIN, Verdict, judge
from compare.report.columns import why_open
from tests.unit.factories import a_run

untimed = settings(deadline=None, max_examples=40)

LOG_RATIO = st.floats(-0.5, 0.5).map(lambda value: round(value, 6))
ROUNDS = st.lists(LOG_RATIO, min_size=2, max_size=9)
RUN = st.dictionaries(st.sampled_from(["ddp", "manual", "horovod", "mpi"]), ROUNDS, min_size=1)


def rounds_with(mean, spread, n):
    """Return n values with exactly this mean and standard deviation."""
    values = np.arange(n) - (n - 1) / 2
    return list(mean + spread * values / values.std(ddof=1))


def rounds_with_p(p, n=10, spread=0.2):
    return rounds_with(spread / math.sqrt(n) * -special.stdtrit(n - 1, p / 2), spread, n)


def only(values, **settings_):
    return judge({"mpi": values}, **settings_)["mpi"]


# ---- one arm ----


@untimed
@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=12))
def test_judge_p_and_interval_match_scipy(times):
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
        (0.00, 0.01, "same"),
        (0.01, 0.01, "same"),  # a certain difference within the margin
        (-0.01, 0.01, "same"),
        (0.02, 0.02, "open"),  # the interval excludes 1, the estimate does not exceed the margin
        (-0.02, 0.02, "open"),
        (0.10, 0.20, "open"),
        (-0.10, 0.20, "open"),
    ],
)
def test_judge_needs_certainty_and_size(mean, spread, kind):
    found = only(rounds_with(mean, spread, 10))
    assert (found.kind, found.n, found.margin) == (kind, 10, MARGIN)
    assert (found.rounds_to_settle is None) == (kind != "open")


@untimed
@given(RUN)
def test_judge_kind_agrees_with_the_interval_and_with_holm(run):
    for found in judge(run).values():
        low, high = found.low or 0, found.high or math.inf
        assert low <= found.speed_ratio * (1 + 1e-12)
        assert found.speed_ratio <= high * (1 + 1e-12)
        assert found.p <= found.p_adjusted <= 1
        assert 1 - ALPHA - 1e-12 <= found.level <= 1 - ALPHA / len(run) + 1e-12
        outside = not 1 / (1 + MARGIN) <= found.speed_ratio <= 1 + MARGIN
        assume(abs(found.p_adjusted - ALPHA) > 1e-9)
        assert (found.kind in {"faster", "slower"}) == (outside and found.p_adjusted <= ALPHA)
        if found.kind == "faster":
            assert low > 1
        elif found.kind == "slower":
            assert high < 1
        elif found.kind == "same":
            assert low >= 1 / (1 + MARGIN) - 1e-12
            assert high <= 1 + MARGIN + 1e-12
        else:
            assert high > 1 + MARGIN or low < 1 / (1 + MARGIN)
            assert low <= 1 <= high or not outside


def test_judge_one_round_is_unresolved_without_an_interval():
    found = only([2.0])
    assert (found.kind, found.n, found.p) == ("open", 1, 1.0)
    assert (found.low, found.high, found.rounds_to_settle) == (None, None, None)
    assert found.speed_ratio == pytest.approx(math.exp(2))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Verdict) == found


def test_judge_arm_without_rounds_counts_as_compared():
    assert judge({}) == judge({"mpi": []}) == {}
    alone, among_two = only(rounds_with_p(0.04)), judge({"mpi": rounds_with_p(0.04), "ddp": []})
    assert set(among_two) == {"mpi"}
    assert (alone.kind, among_two["mpi"].kind) == ("faster", "open")
    assert among_two["mpi"].p_adjusted == pytest.approx(0.08)


@pytest.mark.parametrize(("value", "kind"), [(0.0, "same"), (0.25, "faster"), (-0.25, "slower")])
def test_judge_rounds_without_spread(value, kind):
    found = only([value] * 4)
    assert found.kind == kind
    assert found.low == found.speed_ratio == found.high
    assert found.p == (value == 0)


# ---- how many more rounds ----


@pytest.mark.parametrize(
    ("mean", "spread", "n"), [(0.10, 0.20, 5), (0.0, 0.05, 5), (-0.02, 0.03, 8), (0.031, 1.0, 3)]
)
def test_rounds_to_settle_are_just_enough(mean, spread, n):
    found = only(rounds_with(mean, spread, n))
    assert found.kind == "open"
    needed = n + found.rounds_to_settle
    assert only(rounds_with(mean, spread, needed)).kind != "open"
    assert only(rounds_with(mean, spread, needed - 1)).kind == "open"


def test_rounds_to_settle_on_the_margin_are_unknown():
    found = only(rounds_with(math.log1p(MARGIN), 0.1, 5))
    assert (found.kind, found.rounds_to_settle) == ("open", None)
    assert why_open(found).endswith("more rounds would hardly settle it")


# ---- several arms ----


def test_holm_matches_a_hand_computation():
    # 4 · 0.005 = 0.02, 3 · 0.01 = 0.03, 2 · 0.03 = 0.06; then 0.04, but never less than the one before.
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    adjusted = {"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02}
    kinds = {"a": "faster", "b": "open", "c": "open", "d": "faster"}
    # d at the first step, a at the second; two arms are left for the others.
    alphas = {"a": 0.05 / 3, "b": 0.05 / 2, "c": 0.05 / 2, "d": 0.05 / 4}
    found = judge({arm: rounds_with_p(value) for arm, value in p.items()})
    assert {arm: v.p for arm, v in found.items()} == pytest.approx(p)
    assert {arm: v.p_adjusted for arm, v in found.items()} == pytest.approx(adjusted)
    assert {arm: v.kind for arm, v in found.items()} == kinds
    assert {arm: 1 - v.level for arm, v in found.items()} == pytest.approx(alphas)


# ---- several looks ----


def test_looks_share_alpha_and_keep_most_of_it_for_the_end():
    shares = levels([Look(n, 10) for n in range(FIRST_LOOK, 11)], alpha=0.05)
    assert shares[0] == pytest.approx(0.05 * 0.5**2)
    assert sum(shares[:3]) == pytest.approx(0.05 * 0.7**2)
    assert sum(shares) == pytest.approx(0.05)


@untimed
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), min_size=1, max_size=20))
def test_looks_never_spend_more_than_alpha(steps):
    rounds, looks = 1, []
    for more, planned in steps:
        rounds += more
        looks.append(Look(rounds, planned))
    shares = levels(looks)
    assert min(shares) >= 0
    assert shares[0] > 0
    assert sum(shares) <= ALPHA * (1 + 1e-12)
    assert sum(levels([*looks, Look(rounds, rounds)])) == pytest.approx(ALPHA)


def test_looks_keep_what_is_settled():
    # mpi is settled at the first look, ddp at the second, manual never.
    run = {
        "mpi": rounds_with(0.5, 0.01, 5),
        "ddp": [*rounds_with(0.2, 0.3, 5), *rounds_with(0.2, 0.01, 15)],
        "manual": [*rounds_with(0.0, 0.3, 5), *rounds_with(0.0, 0.3, 15)],
    }
    looks = [Look(5, 20), Look(20, 20)]
    first, second = judge(run, looks[:1]), judge(run, looks)
    assert [first[arm].kind for arm in run] == ["faster", "open", "open"]
    assert second["mpi"] == first["mpi"], "no further round of it"
    assert (second["ddp"].kind, second["ddp"].n) == ("faster", 20)
    spent = levels(looks)[1]
    assert 1 - second["ddp"].level == pytest.approx(spent / 2)  # the second of three steps
    assert 1 - second["manual"].level == pytest.approx(spent)  # two arms are settled
    # The plan grows: the second look has nothing to spend, and nothing changes.
    assert judge(run, [looks[0], Look(20, 200)]) == first


def test_verdict_that_is_not_accepted_is_judged_again():
    run = {"mpi": rounds_with(0.5, 0.1, 20), "ddp": rounds_with(0.5, 0.1, 20)}

    def accept(arm, verdict):
        refused = arm == "mpi" and verdict.n < 20
        return msgspec.structs.replace(verdict, kind="open") if refused else verdict

    looks = [Look(5, 20), Look(10, 20), Look(20, 20)]
    kinds = [judge(run, looks[:n], accept=accept)["mpi"].kind for n in (1, 2, 3)]
    assert kinds == ["open", "open", "faster"]
    found = judge(run, looks, accept=accept)
    assert (found["mpi"].settled_after, found["ddp"].settled_after) == (20, 5)


def test_settled_verdict_shows_the_ratio_of_all_rounds():
    early, all_rounds = rounds_with(0.5, 0.01, 5), [*rounds_with(0.5, 0.01, 5), *rounds_with(0.2, 0.1, 5)]
    looks = [Look(5, 20)]
    then, now = judge({"mpi": early}, looks)["mpi"], judge({"mpi": all_rounds}, looks)["mpi"]
    assert (now.kind, now.settled_after, now.n) == (then.kind, 5, 10) == ("faster", 5, 10)
    assert now.speed_ratio == pytest.approx(math.exp(statistics.fmean(all_rounds)))
    assert (now.level, now.p) == (then.level, then.p), "as the look decided"
    assert now.high / now.low > then.high / then.low, "its spread is that of all rounds"


@pytest.mark.parametrize(
    ("early", "later", "kind"), [(0.5, -0.6, "faster"), (-0.5, 0.6, "slower"), (0.0, 0.08, "same")]
)
def test_verdict_that_all_rounds_contradict_is_open_again(early, later, kind):
    looks = [Look(5, 20)]
    values = rounds_with(early, 0.001, 5)
    assert judge({"mpi": values}, looks)["mpi"].kind == kind
    found = judge({"mpi": values + rounds_with(later, 0.1, 5)}, looks)["mpi"]
    assert (found.kind, found.settled_after) == ("open", None)
    assert found.rounds_to_settle is not None


def test_verdict_that_later_rounds_contradict_is_judged_anew():
    values = [*rounds_with(0.5, 0.01, 5), *rounds_with(-0.8, 0.05, 20)]
    looks = [Look(rounds, 40) for rounds in (5, 8, 12, 18, 25)]
    assert judge({"mpi": values[:5]}, looks[:1])["mpi"].kind == "faster"
    found = judge({"mpi": values}, looks)["mpi"]
    assert (found.kind, found.settled_after) == ("slower", 18)


def test_gate_that_passed_stays_passed_while_all_rounds_are_not_slower():
    looks = [Look(5, 20)]
    values = [*rounds_with(0.0, 0.001, 5), *rounds_with(0.2, 0.3, 5)]
    found = judge({"mpi": values}, looks, one_sided=True)["mpi"]
    assert (found.kind, found.settled_after) == ("same", 5), "faster is not slower"
    slower = [*rounds_with(0.0, 0.001, 5), *rounds_with(-0.2, 0.3, 5)]
    assert judge({"mpi": slower}, looks, one_sided=True)["mpi"].kind == "open"


# ---- the fastest arm ----


def test_log_ratios_cover_common_rounds_and_are_positive_if_faster():
    run = a_run({"ddp": [4.0, 8.0, 9.0], "mpi": [2.0, 16.0]})
    assert log_ratios(Figures(run), "mpi", "ddp") == pytest.approx([math.log(2), -math.log(2)])


CLEAR = {"none": [4] * 5, "ddp": [6.0, 6.1, 6.0, 6.2, 6.1], "mpi": [5.0, 5.1, 5.0, 5.1, 5.2]}
FASTEST = {
    "a clear difference": (CLEAR, "mpi"),
    "the control is faster": ({"none": [1] * 5, "ddp": [5] * 5, "mpi": [6] * 5}, "ddp"),
    "four rounds": ({arm: times[:4] for arm, times in CLEAR.items()}, None),
    "ranges overlap": (
        {"none": [4] * 5, "ddp": [5.0, 6.0, 5.2, 5.9, 5.4], "mpi": [5.5, 5.3, 7.0, 5.1, 6.4]},
        None,
    ),
    "faster than one arm of two": (CLEAR | {"manual": [5.1, 5.0, 5.2, 5.1, 5.2]}, None),
    "within the margin": (CLEAR | {"ddp": [5.05, 5.15, 5.05, 5.15, 5.25]}, None),
    "one round": ({"none": [4], "ddp": [5.0], "mpi": [6.0]}, None),
    "one arm": ({"none": [4] * 5, "ddp": [5.0] * 5}, None),
    "one arm has too few": ({"none": [4] * 5, "ddp": [5.0] * 5, "mpi": [6.0, 6.1, 6.0, 6.1]}, None),
}


@pytest.mark.parametrize("case", FASTEST)
def test_fastest_arm_needs_proof(case):
    milliseconds, name = FASTEST[case]
    run = a_run(milliseconds)
    lead = find_lead(Figures(run))
    assert (lead and lead.fastest) == name
    assert [arm.arm for arm in analyse(run).summary.arms if arm.fastest] == ([name] if name else [])
