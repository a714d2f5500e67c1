"""Statistics: worked examples by hand, and what holds for any figures."""

from __future__ import annotations

import math
import random
import statistics

import msgspec
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compare.analysis import analyse
from compare.analysis.budget import fullest_host, has_time_left, looks
from compare.analysis.estimate import Estimate
from compare.analysis.ranking import log_ratios, verdicts
from compare.analysis.step_times import OTHER_LOAD_LIMIT, is_noisy, other_cpu_load, step_seconds
from compare.analysis.summary import Detail, Parity, summarise
from compare.analysis.verdict import FIRST_LOOK, Look, levels
from compare.report.notes import warnings
from compare.schema.arms import parse_arm
from compare.schema.hosts import Host
from compare.schema.results import Block, Evaluation, MachineUse, Moments
from tests.unit.factories import (
    TRAINED,
    a_block,
    a_launch,
    a_pass,
    a_phased_block,
    a_rank,
    a_run,
)

untimed = settings(deadline=None)

MILLISECONDS = st.floats(0.01, 1e4)
ARMS = ("none", "ddp", "manual", "mpi")


def summary_of(milliseconds, **changes):
    return {arm.arm: arm for arm in summarise(a_run(milliseconds, **changes)).arms}


def alike(estimate):
    """The same estimate but for rounding."""
    near = [
        pytest.approx(value, rel=1e-9, abs=1e-12) for value in (estimate.mean, estimate.low, estimate.high)
    ]
    return Estimate(*near, estimate.n, estimate.method)


def fastest(milliseconds, **changes):
    return [arm.arm for arm in summarise(a_run(milliseconds, **changes)).arms if arm.fastest]


# ---- one launch ----


def test_step_time_is_the_median_over_blocks_of_the_mean_over_ranks():
    launch = a_launch(ranks=[a_rank(0, milliseconds=[10, 20, 30]), a_rank(1, milliseconds=[12, 22, 100])])
    assert step_seconds(launch) == pytest.approx(0.021)  # the median of 11, 21 and 65 ms


def test_blocks_of_different_length_count_by_their_steps():
    blocks = [
        Block(steps=30, wall_ns=300_000_000, cpu_ns=0),
        Block(steps=31, wall_ns=310_000_000, cpu_ns=0),
    ]
    assert step_seconds(a_launch(ranks=[a_rank(blocks=blocks)])) == pytest.approx(0.010)


@untimed
@given(st.lists(st.lists(MILLISECONDS, min_size=3, max_size=3), min_size=1, max_size=4))
def test_step_time_lies_within_what_the_ranks_measured(times):
    launch = a_launch(ranks=[a_rank(rank, milliseconds=blocks) for rank, blocks in enumerate(times)])
    low = min(b.wall_ns / b.steps for rank in launch.ranks for b in rank.blocks) / 1e9
    high = max(b.wall_ns / b.steps for rank in launch.ranks for b in rank.blocks) / 1e9
    assert low * (1 - 1e-12) <= step_seconds(launch) <= high * (1 + 1e-12)


def test_neither_phased_blocks_nor_the_reference_come_into_the_headline():
    quick, slow = a_block(10), a_phased_block(**phases(30, sync=500.0))
    reference = [a_block(4, mode="reference"), a_phased_block("reference", **phases(30, forward=500.0))]
    launch = a_launch(ranks=[a_rank(rank, blocks=[quick, *reference, slow]) for rank in range(2)])
    assert step_seconds(launch) == pytest.approx(0.010)
    assert step_seconds(launch, "reference") == pytest.approx(0.004)
    alone = a_launch(ranks=[a_rank(rank, blocks=[quick]) for rank in range(2)])
    assert summarise(a_run({"ddp": []}, launches=[launch])).arms[0].step_seconds == (
        summarise(a_run({"ddp": []}, launches=[alone])).arms[0].step_seconds
    )


def test_a_mode_that_was_not_measured_has_no_step_time():
    with pytest.raises(ValueError, match="launch 7 has no blocks of reference"):
        step_seconds(a_launch(number=7), "reference")


# ---- estimates ----


def test_an_interval_worked_out_by_hand():
    # Mean 7, deviations -2, -1, 3: s^2 = 14 / 2 = 7; t at two degrees of freedom is 4.302653.
    half = 4.302653 * math.sqrt(7 / 3)
    assert Estimate.of([5.0, 6.0, 10.0]) == Estimate(
        7.0, pytest.approx(7 - half, rel=1e-6), pytest.approx(7 + half, rel=1e-6), 3, "t"
    )


@untimed
@given(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=30))
def test_from_three_launches_on_an_estimate_is_students_interval_of_the_mean(values):
    estimate = Estimate.of(iter(values))
    # scipy has no interval of equal values, nor of all but vanishing ones.
    assume(statistics.stdev(values) > max(1e-6 * max(map(abs, values)), 1e-100))
    low, high = scipy.stats.t.interval(
        0.95, len(values) - 1, loc=statistics.fmean(values), scale=scipy.stats.sem(values)
    )
    assert (estimate.n, estimate.method) == (len(values), "t")
    assert estimate.mean == statistics.fmean(values)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-6)


@pytest.mark.parametrize("values", [[3.0], [3.0, 1.0]])
def test_fewer_than_three_launches_have_a_range_and_no_interval(values):
    assert Estimate.of(values) == Estimate(
        statistics.fmean(values), min(values), max(values), len(values), "range"
    )


def test_launches_that_do_not_differ_have_an_interval_of_no_width():
    assert Estimate.of([2.0] * 5) == Estimate(2.0, 2.0, 2.0, 5, "t")


def test_of_nothing_there_is_no_estimate():
    with pytest.raises(statistics.StatisticsError):
        Estimate.of([])


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """2,000 seeded experiments for each number of launches: 95 % of them, give or take four sigmas."""
    chance = random.Random(20)
    for n in (3, 5, 8):
        held = 0
        for _ in range(2000):
            estimate = Estimate.of(chance.gauss(7, 2) for _ in range(n))
            held += estimate.low <= 7 <= estimate.high
        assert held / 2000 == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 2000))


# ---- one arm ----


def test_figures_worked_out_by_hand():
    arms = summary_of({"none": [4, 4, 5], "ddp": [5, 6, 10], "manual": [10, 6, 8]})
    ddp, manual = arms["ddp"], arms["manual"]
    assert ddp.step_seconds == alike(Estimate.of([0.005, 0.006, 0.010]))
    assert ddp.step_seconds.mean == pytest.approx(0.007)
    # 2 ranks with 64 samples each in every step.
    assert ddp.samples_per_second == alike(Estimate.of([25_600, 128 / 0.006, 12_800]))
    assert ddp.sync_seconds == alike(Estimate.of([0.001, 0.002, 0.005]))
    assert ddp.sync_share == alike(Estimate.of([1 / 5, 2 / 6, 5 / 10]))
    assert ddp.efficiency == alike(Estimate.of([4 / 5, 4 / 6, 5 / 10]))
    assert ddp.speed_against_baseline == Estimate(1.0, 1.0, 1.0, 3, "t")
    assert manual.speed_against_baseline == alike(
        Estimate.of_log_ratios(map(math.log, [5 / 10, 6 / 6, 10 / 8]))
    )


def test_two_rounds_are_a_mean_with_the_smallest_and_the_largest():
    ddp = summary_of({"none": [4, 4], "ddp": [5, 10]})["ddp"]
    assert ddp.step_seconds == alike(Estimate(0.0075, 0.005, 0.010, 2, "range"))
    assert ddp.sync_seconds == alike(Estimate(0.0035, 0.001, 0.006, 2, "range"))


def test_pairs_are_made_within_a_round_and_not_of_means():
    # The machine slowed down in round 2, for both: what differs between them did not.
    assert summary_of({"none": [4, 40, 4], "ddp": [6, 42, 6]})["ddp"].sync_seconds == Estimate(
        pytest.approx(0.002), pytest.approx(0.002), pytest.approx(0.002), 3, "t"
    )


def test_sync_cost_may_be_below_nothing_and_is_shown_as_it_is():
    assert summary_of({"none": [5.0], "ddp": [4.0]})["ddp"].sync_seconds.mean == pytest.approx(-0.001)


def test_the_control_has_no_sync_cost_of_its_own():
    control = summary_of({"none": [4.0], "ddp": [5.0]})["none"]
    assert (control.sync_seconds, control.sync_share, control.efficiency) == (None, None, None)
    assert control.speed_against_baseline.mean == pytest.approx(1.25)


def test_without_the_control_there_is_no_sync_cost():
    ddp = summary_of({"ddp": [5.0, 5.0], "mpi": [6.0, 6.0]})["ddp"]
    assert (ddp.sync_seconds, ddp.sync_share, ddp.efficiency) == (None, None, None)


def test_accuracy_and_loss_are_over_the_whole_test_set():
    first = a_rank(0, evaluation=Evaluation(correct=90, samples=100, loss_sum=10.0))
    second = a_rank(1, evaluation=Evaluation(correct=10, samples=300, loss_sum=70.0))
    (arm,) = summarise(a_run({"ddp": []}, launches=[a_launch(ranks=[first, second])])).arms
    assert arm.accuracy == pytest.approx(100 / 400)
    assert arm.test_loss == pytest.approx(80 / 400)


def test_memory_is_the_largest_of_any_rank_and_start_up_the_slowest_rank_of_a_launch():
    def rank(index, memory, first_step):
        moments = Moments(0.1, 0.2, 0.3, 0.4, first_step)
        return a_rank(index, peak_memory_bytes=memory, moments=moments)

    launches = [
        a_launch(round_=1, ranks=[rank(0, 100, 2.0), rank(1, 300, 3.0)]),
        a_launch(round_=2, ranks=[rank(0, 200, 5.0), rank(1, 200, 4.0)]),
    ]
    (arm,) = summarise(a_run({"ddp": []}, launches=launches)).arms
    assert arm.peak_memory_bytes == 300
    assert arm.start_up_seconds == Estimate(4.0, 3.0, 5.0, 2, "range")


def test_the_trained_hash_is_told_only_where_all_agree():
    other = "f" * 64

    def launches(*hashes):
        return [
            a_launch(round_=round_, ranks=[a_rank(0, final_hash=hash_), a_rank(1, final_hash=hash_)])
            for round_, hash_ in enumerate(hashes, start=1)
        ]

    for hashes, told in (((TRAINED, TRAINED), TRAINED), ((TRAINED, other), None)):
        (arm,) = summarise(a_run({"ddp": []}, launches=launches(*hashes))).arms
        assert arm.final_hash == told


def test_launcher_and_transport_are_those_that_ran():
    rank = a_rank(attestation={"group": {"transport": "shared memory"}})
    (arm,) = summarise(a_run({"mpi": []}, launches=[a_launch("mpi", launcher="mpirun", ranks=[rank])])).arms
    assert (arm.launcher, arm.transport) == ("mpirun", "shared memory")


# ---- a run ----


def test_arms_come_in_the_order_they_were_named():
    assert list(summary_of({"none": [4], "mpi": [9], "ddp": [5], "manual": [7]})) == [
        "none",
        "mpi",
        "ddp",
        "manual",
    ]


def test_the_clearly_fastest_arm_is_named():
    rounds = {"none": [4] * 5, "ddp": [6.0, 6.1, 6.0, 6.2, 6.1], "mpi": [5.0, 5.1, 5.0, 5.1, 5.2]}
    assert fastest(rounds) == ["mpi"]
    assert fastest({arm: times[:4] for arm, times in rounds.items()}) == [], "four rounds settle nothing"


@pytest.mark.parametrize(
    ("why", "milliseconds"),
    [
        (
            "ranges overlap",
            {"none": [4] * 5, "ddp": [5.0, 6.0, 5.2, 5.9, 5.4], "mpi": [5.5, 5.3, 7.0, 5.1, 6.4]},
        ),
        (
            "one beats the second but not the third",
            {
                "ddp": [5.0, 5.1, 5.0, 5.2, 5.1],
                "mpi": [7.0, 7.1, 7.0, 7.2, 7.1],
                "manual": [5.1, 5.0, 5.2, 5.1, 5.2],
            },
        ),
        (
            "a difference within the margin",
            {"none": [4] * 5, "ddp": [5.0, 5.1, 5.0, 5.1, 5.2], "mpi": [5.05, 5.15, 5.05, 5.15, 5.25]},
        ),
        ("one round is no proof", {"none": [4], "ddp": [5.0], "mpi": [6.0]}),
        ("nor are four", {"none": [4] * 4, "ddp": [5.0] * 4, "mpi": [6.0, 6.1, 6.0, 6.1]}),
        ("one arm alone", {"none": [4] * 5, "ddp": [5.0] * 5}),
        (
            "one arm has only four rounds yet",
            {"none": [4] * 5, "ddp": [5.0] * 5, "mpi": [6.0, 6.1, 6.0, 6.1]},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_arm_is_called_fastest_without_proof(why, milliseconds):
    assert fastest(milliseconds) == []


def test_the_control_is_never_called_fastest():
    assert fastest({"none": [1] * 5, "ddp": [5] * 5, "mpi": [6] * 5}) == ["ddp"]


@pytest.mark.parametrize(
    ("threads", "cores", "too_many"), [(1, 2, False), (2, 4, False), (2, 2, True), (1, 1, True)]
)
def test_no_arm_is_called_fastest_when_ranks_wait_for_each_others_cores(threads, cores, too_many):
    run = a_run(
        {"none": [4] * 5, "ddp": [6.0, 6.1] * 2 + [6.0], "mpi": [5.0, 5.1] * 2 + [5.0]},
        config={"threads_per_rank": threads},
        cores=cores,
    )
    summary = summarise(run)
    assert summary.oversubscribed is too_many
    assert any(arm.fastest for arm in summary.arms) is not too_many


@pytest.mark.parametrize(("slots", "too_many"), [((2, 2), False), ((3, 1), True)])
def test_idle_cores_of_one_host_are_of_no_use_to_the_ranks_of_another(slots, too_many):
    hosts = [Host(f"n{number}", count) for number, count in enumerate(slots)]
    run = a_run({"none": [4.0], "ddp": [5.0]}, config={"ranks": 4}, hosts=hosts, cores=2)
    assert summarise(run).oversubscribed is too_many


@pytest.mark.parametrize(
    "milliseconds",
    [
        {"none": [], "ddp": [], "mpi": []},
        {"none": [4.0], "ddp": [], "mpi": []},
        {"none": [], "ddp": [5.0], "mpi": []},
        {"none": [], "ddp": [], "mpi": [6.0]},
        {"none": [4.0, 4.0], "ddp": [5.0], "mpi": [6.0, 6.0]},
        {"none": [4.0], "ddp": [5.0, 5.0], "mpi": [6.0]},
    ],
    ids=str,
)
def test_a_run_cut_short_anywhere_is_summarised_as_far_as_it_came(milliseconds):
    arms = summary_of(milliseconds, complete=False)
    assert list(arms) == [arm for arm, times in milliseconds.items() if times]
    for name, arm in arms.items():
        assert arm.step_seconds.n == len(milliseconds[name])
        pairs = min(len(milliseconds[name]), len(milliseconds["none"]))
        if name == "none" or not pairs:
            assert arm.sync_seconds is None
        else:
            assert arm.sync_seconds.n == pairs


@st.composite
def measured(draw):
    rounds = draw(st.integers(1, 4))
    arms = draw(st.permutations(ARMS))[: draw(st.integers(1, len(ARMS)))]
    return {arm: draw(st.lists(MILLISECONDS, min_size=rounds, max_size=rounds)) for arm in arms}


@untimed
@given(measured())
def test_every_figure_follows_from_the_step_times(milliseconds):
    arms = summary_of(milliseconds)
    run = a_run(milliseconds)
    steps = {
        arm: [step_seconds(launch) for launch in run.launches if launch.arm == arm] for arm in milliseconds
    }
    for name, arm in arms.items():
        own = steps[name]
        assert arm.step_seconds == Estimate.of(own)
        assert arm.samples_per_second == Estimate.of(128 / mine for mine in own)
        ratios = [other / mine for mine, other in zip(own, steps[run.config.baseline], strict=True)]
        assert arm.speed_against_baseline.mean == pytest.approx(statistics.geometric_mean(ratios))
        if "none" in arms and name != "none":
            pairs = list(zip(own, steps["none"], strict=True))
            assert arm.sync_seconds == Estimate.of(mine - control for mine, control in pairs)
            assert arm.sync_share == Estimate.of((mine - control) / mine for mine, control in pairs)
            assert arm.efficiency == Estimate.of(control / mine for mine, control in pairs)
            assert arm.efficiency.mean == pytest.approx(1 - arm.sync_share.mean)


@st.composite
def comparable(draw):
    """Arms that differ clearly, a little or not at all, over rounds enough for a verdict."""
    rounds = draw(st.integers(FIRST_LOOK, 8))
    arms = draw(st.permutations(ARMS))[: draw(st.integers(2, len(ARMS)))]
    spread = draw(st.sampled_from([0.001, 0.01, 0.2]))
    times = {}
    for arm in arms:
        level = draw(st.sampled_from([1.0, 1.02, 1.2, 3.0]))
        noise = draw(st.lists(st.floats(-1, 1), min_size=rounds, max_size=rounds))
        times[arm] = [10 * level * math.exp(spread * own) for own in noise]
    return times


@untimed
@given(comparable())
def test_at_most_one_arm_is_fastest_and_it_has_the_lowest_mean(milliseconds):
    named = fastest(milliseconds)
    assert len(named) <= 1
    for name in named:
        others = [arm for arm in milliseconds if arm not in {"none", name}]
        means = {arm: statistics.fmean(milliseconds[arm]) for arm in [name, *others]}
        assert min(means, key=means.get) == name
        against = verdicts(a_run(milliseconds), name)
        assert {arm: against[arm].kind for arm in others} == dict.fromkeys(others, "slower")


@untimed
@given(measured(), st.randoms(use_true_random=False))
def test_the_order_in_which_arms_were_launched_does_not_matter(milliseconds, random):
    run = a_run(milliseconds)
    shuffled = sorted(run.launches, key=lambda launch: (launch.round, random.random()))
    assert summarise(a_run(milliseconds, launches=shuffled)) == summarise(run)


# ---- where the cost goes ----

PHASES = ("forward", "backward", "sync", "step")


def a_pair(round_, control, training, reference=(), **changes):
    """The launches of one round from step times in milliseconds, one for every rank."""
    references = reference or [()] * len(training)
    own = [
        a_rank(rank, milliseconds=time, reference=other, **changes)
        for rank, (time, other) in enumerate(zip(training, references, strict=True))
    ]
    return [
        a_launch(
            "none",
            round_,
            number=2 * round_ - 1,
            ranks=[a_rank(r, milliseconds=t) for r, t in enumerate(control)],
        ),
        a_launch("ddp", round_, number=2 * round_, ranks=own),
    ]


def the_arm(launches, **changes):
    """The summary of the only arm that synchronises."""
    return summarise(a_run({"none": [], "ddp": []}, launches=launches, **changes)).arms[-1]


def only(seconds):
    """What is known from a single launch."""
    near = pytest.approx(seconds, rel=1e-9, abs=1e-12)
    return Estimate(near, near, near, 1, "range")


def test_the_parts_of_the_cost_worked_out_by_hand():
    arm = the_arm(a_pair(1, control=[2.0, 4.0], training=[10.0, 10.0], reference=[5.0, 6.0]))
    detail = arm.detail
    assert arm.sync_seconds == only(0.007)  # T_S 10 - T_0 3
    assert detail.reference_seconds == only(0.0055)  # T_R: the mean of 5 and 6
    assert detail.exposed_seconds == only(0.0045)  # T_S 10 - T_R 5.5
    assert detail.background_seconds == only(0.0025)  # T_R 5.5 - T_0 3
    assert detail.imbalance_seconds == only(0.001)  # the slowest 4 - the mean 3
    assert detail.communication_seconds == only(0.006)  # sync cost 7 - imbalance 1


def test_a_straggler_is_imbalance_and_no_communication():
    """3 ms more on one of two ranks: all wait for it, so the step takes 3 ms more and its mean work 1.5."""
    even = the_arm(a_pair(1, control=[2, 2], training=[5, 5], reference=[2, 2]))
    uneven = the_arm(a_pair(1, control=[2, 5], training=[8, 8], reference=[2, 5]))
    assert uneven.sync_seconds.mean - even.sync_seconds.mean == pytest.approx(0.0015)
    assert uneven.detail.imbalance_seconds.mean == pytest.approx(0.0015)
    assert uneven.detail.communication_seconds == alike(even.detail.communication_seconds)


@pytest.mark.parametrize(("reference", "slowest"), [([2.0, 5.0], 1), ([5.0, 2.0], 0)])
def test_the_slowest_rank_is_the_one_that_computes_longest(reference, slowest):
    # Who waits for the other spends as long on a step as the other: only the reference tells them apart.
    assert the_arm(a_pair(1, [2, 2], [8.0, 7.9], reference)).detail.slowest_rank == slowest


def test_without_a_reference_the_slowest_rank_is_that_of_the_training():
    assert the_arm(a_pair(1, [2, 2], [8.0, 8.1])).detail.slowest_rank == 1


RANK_TIMES = st.lists(st.floats(0.01, 1e3), min_size=3, max_size=3)


@untimed
@given(st.lists(st.tuples(RANK_TIMES, RANK_TIMES, RANK_TIMES), min_size=1, max_size=5))
def test_the_parts_add_up_to_the_cost(rounds):
    arm = the_arm([launch for i, times in enumerate(rounds, start=1) for launch in a_pair(i, *times)])
    cost, detail = arm.sync_seconds, arm.detail
    largest = max(time for times in rounds for ranks in times for time in ranks) / 1e3
    near = {"rel": 1e-9, "abs": 1e-12 * largest}
    assert cost.mean == pytest.approx(detail.exposed_seconds.mean + detail.background_seconds.mean, **near)
    assert cost.mean == pytest.approx(
        detail.communication_seconds.mean + detail.imbalance_seconds.mean, **near
    )
    assert detail.imbalance_seconds.mean >= -1e-12 * largest


def test_what_was_not_measured_is_not_known():
    """No reference, no phases, no control, and collectives that cannot be run alone."""
    arm = the_arm(
        [a_launch(ranks=[a_rank(rank, collective_ns=[], message_bytes=[]) for rank in range(2)])],
    )
    known = {name for name in Detail.__struct_fields__ if getattr(arm.detail, name) is not None}
    assert known == {
        "gradient_bytes",
        "message_bytes",
        "cores_per_rank",
        "whole_peak_memory_bytes",
        "slowest_rank",
    }


def test_the_control_has_no_cost_to_take_apart():
    launches = a_pair(1, [2.0, 4.0], [10.0, 10.0], [5.0, 6.0])
    control, _ = summarise(a_run({"none": [], "ddp": []}, launches=launches)).arms
    for figure in ("reference", "exposed", "background", "imbalance", "communication", "blocked"):
        assert getattr(control.detail, f"{figure}_seconds") is None


def test_a_round_without_its_control_takes_no_part_in_what_needs_it():
    launches = a_pair(1, [2, 2], [10, 10], [5, 5]) + a_pair(2, [2, 2], [20, 20], [6, 6])[1:]
    detail = the_arm(launches, complete=False).detail
    assert detail.exposed_seconds.n == 2
    assert detail.background_seconds == only(0.003)
    assert detail.imbalance_seconds == only(0.0)
    assert detail.communication_seconds == only(0.008)


# ---- phases ----


def in_phases(own, reference=None):
    """A launch from the phases' milliseconds in every step, for each rank."""
    ranks = []
    for rank, phases in enumerate(own):
        blocks = [a_block(9), a_phased_block(**phases)]
        if reference:
            blocks += [a_block(5, mode="reference"), a_phased_block("reference", **reference[rank])]
        ranks.append(a_rank(rank, blocks=blocks))
    return a_launch(ranks=ranks)


def phases(steps=1, **milliseconds):
    return {name: [milliseconds.get(name, 0.0)] * steps for name in PHASES}


def test_the_changes_of_phases_worked_out_by_hand():
    launch = in_phases(
        [phases(forward=2, backward=4, sync=3, step=1), phases(forward=2, backward=5, sync=2, step=1)],
        [phases(forward=1, backward=3, step=1.5), phases(forward=2, backward=4, step=1.5)],
    )
    detail = the_arm([launch]).detail
    assert detail.blocked_seconds == only(0.0025)  # the mean of 3 and 2; the reference's sync takes nothing
    assert detail.forward_seconds == only(0.0005)
    assert detail.backward_seconds == only(0.001)
    assert detail.optimizer_seconds == only(-0.0005)


@untimed
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 3))
def test_the_changes_of_phases_add_up_to_the_change_of_the_steps_that_are_kept(seed, steps, ranks):
    chance = random.Random(seed)

    def measured():
        return [
            # Whole microseconds: what a clock of nanoseconds could not tell is no part of the sum.
            {name: [round(chance.uniform(0, 50), 3) for _ in range(steps)] for name in PHASES}
            for _ in range(ranks)
        ]

    own, reference = measured(), measured()
    detail = the_arm([in_phases(own, reference)]).detail
    changes = (
        detail.blocked_seconds,
        detail.forward_seconds,
        detail.backward_seconds,
        detail.optimizer_seconds,
    )
    assert sum(change.mean for change in changes) == pytest.approx(
        mean_of_the_quickest(own) - mean_of_the_quickest(reference), rel=1e-6, abs=1e-9
    )


def mean_of_the_quickest(ranks):
    """Seconds a step, over ranks, without the slowest tenth of the steps."""
    steps = sorted(
        statistics.fmean(sum(phase[step] for phase in rank.values()) for rank in ranks)
        for step in range(len(ranks[0]["forward"]))
    )
    return statistics.fmean(steps[: len(steps) - len(steps) // 10]) / 1e3


@pytest.mark.parametrize(("steps", "dropped"), [(9, 0), (10, 1), (19, 1), (20, 2), (30, 3)])
def test_the_slowest_tenth_of_the_steps_is_no_phase(steps, dropped):
    """One interruption of a rank would otherwise be its skew, and the waiting of all."""

    def interrupted(times):
        own = phases(steps, forward=1.0, **times)
        own["forward"][:dropped] = [1000.0] * dropped
        return own

    even = phases(steps, forward=2.0)
    detail = the_arm(
        [in_phases([interrupted({"sync": 4.0})] * 2, [interrupted({}), even])],
    ).detail
    assert detail.blocked_seconds == only(0.004)
    assert detail.forward_seconds == only(-0.0005)  # 1 ms, against 1 and 2 of the reference
    assert detail.skew_seconds == only(0.0005)


def test_skew_is_the_mean_over_steps_of_the_largest_minus_the_mean():
    # Whichever rank it is: 1 and 5 ms, then 3 and 2. Over the whole block they differ by 1.5 ms on average.
    first = {"forward": [1.0, 2.0], "backward": [0.0, 1.0], "sync": [0.0, 0.0], "step": [0.0, 0.0]}
    second = {"forward": [4.0, 2.0], "backward": [1.0, 0.0], "sync": [0.0, 0.0], "step": [0.0, 0.0]}
    detail = the_arm([in_phases([phases(2), phases(2)], [first, second])]).detail
    assert detail.skew_seconds == only((2.0 + 0.5) / 2 / 1e3)


def test_a_rank_whose_phases_are_missing_leaves_them_unknown_for_all():
    whole = in_phases([phases(forward=1)] * 2, [phases(forward=1)] * 2)
    first, second = whole.ranks
    kept = [block for block in second.blocks if block.mode == "training" or not block.phases]
    launch = msgspec.structs.replace(whole, ranks=[first, msgspec.structs.replace(second, blocks=kept)])
    detail = the_arm([launch]).detail
    assert (detail.skew_seconds, detail.blocked_seconds) == (None, None)


# ---- collectives ----


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_straggler_among_many_is_waited_for_by_all_the_others(ranks):
    """3 ms more on one of W ranks: the slowest is 3 (1 - 1/W) ms above the mean, and all wait as long."""
    last = ranks - 1

    def measured_with(excess):
        own = [2.0] * last + [2.0 + excess]
        pair = a_pair(1, control=own, training=[5.0 + excess] * ranks, reference=own)
        phased = in_phases([phases()] * ranks, [phases(3, forward=time) for time in own])
        with_skew = [
            msgspec.structs.replace(rank, blocks=rank.blocks + other.blocks[1::2])
            for rank, other in zip(pair[1].ranks, phased.ranks, strict=True)
        ]
        pair[1] = msgspec.structs.replace(pair[1], ranks=with_skew)
        return the_arm(pair, config={"ranks": ranks})

    even, uneven = measured_with(0.0), measured_with(3.0)
    law = pytest.approx(0.003 * (1 - 1 / ranks))
    assert even.detail.imbalance_seconds.mean == even.detail.skew_seconds.mean == 0
    assert uneven.detail.imbalance_seconds.mean == law
    assert uneven.detail.skew_seconds.mean == law
    assert uneven.sync_seconds.mean - even.sync_seconds.mean == law
    assert uneven.detail.communication_seconds == alike(even.detail.communication_seconds)
    assert uneven.detail.slowest_rank == last


def test_of_one_rank_there_are_no_collectives():
    detail = the_arm([a_launch(ranks=[a_rank(0)])], config={"ranks": 1}).detail
    assert (detail.collective_seconds, detail.overlap, detail.bus_bandwidth) == (None, None, None)


@pytest.mark.parametrize(("ranks", "reduced"), [(2, 1.0), (4, 1.5)])
def test_bandwidth_is_that_of_nccl_tests(ranks, reduced):
    """busbw = algbw x 2 (n - 1) / n; 800 kB in 0.4 ms are 2 GB/s."""
    launch = a_launch(
        ranks=[
            a_rank(
                rank,
                message_bytes=[600_000, 200_000],
                collective_ns=[399_999 + 2 * (rank % 2), 500_000, 300_000],
            )
            for rank in range(ranks)
        ]
    )
    detail = the_arm([launch], config={"ranks": ranks}).detail
    assert detail.collective_seconds.mean == pytest.approx(0.0004, rel=1e-5)
    assert detail.algorithm_bandwidth.mean == pytest.approx(2e9, rel=1e-5)
    assert detail.bus_bandwidth.mean == pytest.approx(reduced * 2e9, rel=1e-5)


@pytest.mark.parametrize(("step", "hidden"), [(5.0, 1.0), (5.1, 0.75), (5.4, 0.0), (5.8, -1.0), (4.8, 1.5)])
def test_hiding_is_signed(step, hidden):
    """T_R 5 ms and T_iso 0.4 ms: all of it hidden, a part, none, and a cost beyond the collectives."""
    launches = a_pair(1, [3, 3], [step] * 2, [5.0] * 2, collective_ns=[400_000])
    assert the_arm(launches).detail.overlap.mean == pytest.approx(hidden)


def test_collectives_alone_are_the_median_of_the_mean_over_ranks():
    ranks = [a_rank(0, collective_ns=[100, 300, 900]), a_rank(1, collective_ns=[300, 500, 1900])]
    assert the_arm([a_launch(ranks=ranks)]).detail.collective_seconds == only(400e-9)


def test_cores_per_rank_are_those_of_the_training_alone():
    blocks = [
        a_block(10, cpu_ns=600_000_000),
        a_block(10, cpu_ns=300_000_000),
        a_block(10, mode="reference", cpu_ns=0),
        msgspec.structs.replace(a_phased_block(forward=[10.0] * 30), cpu_ns=0),
    ]
    launch = a_launch(ranks=[a_rank(rank, blocks=blocks) for rank in range(2)])
    assert the_arm([launch]).detail.cores_per_rank == only(1.5)  # 2 and 1 of 300 ms each


# ---- others on the machine ----


def on_host(host, rank, cpu_ms, busy_ms=None, stolen_ms=0):
    """A rank measured for a second on a host with two CPUs; the first of a host has measured the host."""
    machine = None
    if busy_ms is not None:
        machine = MachineUse(
            wall_ns=10**9, cpus=2, busy_ns=round(busy_ms * 1e6), stolen_ns=round(stolen_ms * 1e6)
        )
    return a_rank(rank, host=host, cpu_ns=round(cpu_ms * 1e6), machine=machine)


def test_others_are_what_a_host_did_beside_its_ranks():
    # 1,500 ms of 2,000 were busy, and 1,400 of them with the two ranks.
    launch = a_launch(ranks=[on_host("a", 0, 900, busy_ms=1500), on_host("a", 1, 500)])
    assert other_cpu_load(launch) == pytest.approx(0.05)
    assert not is_noisy(launch)


def test_the_busiest_host_counts():
    ranks = [
        on_host("a", 0, 900, busy_ms=1500),
        on_host("a", 1, 500),
        on_host("b", 2, 100, busy_ms=1000),
        on_host("b", 3, 200),
    ]
    assert other_cpu_load(a_launch(ranks=ranks)) == pytest.approx(0.35)
    # What the ranks of one host used is nothing that another host could have done.
    assert other_cpu_load(a_launch(ranks=ranks[::-1])) == pytest.approx(0.35)


@pytest.mark.parametrize(
    "ranks", [[on_host("a", 0, 900, busy_ms=890)], [on_host("a", 0, 900)]], ids=["by a tick", "unmeasured"]
)
def test_others_never_use_less_than_nothing(ranks):
    """The kernel counts CPUs by whole ticks, a process to the nanosecond."""
    assert other_cpu_load(a_launch(ranks=ranks)) == 0


@pytest.mark.parametrize(("busy", "disturbed"), [(0, False), (199, False), (201, True), (2000, True)])
def test_a_launch_is_disturbed_above_the_limit(busy, disturbed):
    assert OTHER_LOAD_LIMIT == 0.10
    assert is_noisy(a_launch(ranks=[on_host("a", 0, 0, busy_ms=busy)])) is disturbed


def test_a_disturbed_round_that_counts_is_told():
    run = a_run({"none": [4, 4, 4], "ddp": [5, 5, 5]})
    noisy = [on_host("a", 0, 0, busy_ms=1000), on_host("a", 1, 0)]
    launches = [
        msgspec.structs.replace(launch, ranks=noisy) if (launch.arm, launch.round) == ("ddp", 2) else launch
        for launch in run.launches
    ]
    summary = summarise(msgspec.structs.replace(run, launches=launches))
    assert summary.noisy_rounds == [2]
    assert {arm.arm: arm.other_cpu_load.high > 0.4 for arm in summary.arms} == {"none": False, "ddp": True}


def test_what_was_set_aside_is_counted_in_rounds_and_changes_no_figure():
    run = a_run({"none": [4, 4, 4], "ddp": [5, 5, 5]})
    aside = a_run({"none": [40, 40], "ddp": [90, 90]}).launches
    summary = summarise(msgspec.structs.replace(run, set_aside=aside))
    assert summary.rounds_repeated == 2
    assert summary.arms == summarise(run).arms
    assert summary.noise == summarise(run).noise


# ---- the noise floor ----


def noise_of(milliseconds):
    return summarise(a_run(milliseconds)).noise


def test_of_two_arms_the_noise_floor_is_that_of_the_paired_comparison():
    times = {"none": [4.0, 4.4, 3.9, 4.1], "ddp": [5.0, 5.2, 5.1, 5.6]}
    run = a_run(times)
    differences = log_ratios(run, parse_arm("ddp"), parse_arm("none"))
    compared = scipy.stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert math.log1p(summarise(run).noise) == pytest.approx((compared.high - compared.low) / 2)


def test_neither_slow_arms_nor_slow_rounds_are_noise():
    assert noise_of({"none": [4, 8, 12], "ddp": [5, 10, 15], "mpi": [50, 100, 150]}) == pytest.approx(
        0, abs=1e-6
    )


@pytest.mark.parametrize(
    ("arms", "rounds", "told"), [(1, 9, False), (2, 2, False), (3, 1, False), (2, 3, True), (3, 2, True)]
)
def test_noise_is_told_where_there_is_enough_to_tell_it_from(arms, rounds, told):
    times = {
        arm: [4 + 0.1 * ((3 * index + round_) % 4) for round_ in range(rounds)]
        for index, arm in enumerate(ARMS[:arms])
    }
    assert (noise_of(times) is not None) is told


def test_rounds_that_are_not_complete_are_no_part_of_the_noise():
    whole = {"none": [4, 4.4, 3.9], "ddp": [5, 5.2, 5.1]}
    assert noise_of({**whole, "ddp": [5, 5.2, 5.1, 99]}) == noise_of(whole)


def test_arms_that_do_not_differ_seem_to_by_more_than_the_noise_floor_one_time_in_twenty():
    """600 seeded runs of four arms that are the same, on a machine that drifts from round to round."""
    chance = random.Random(7)
    experiments, beyond = 600, 0
    for _ in range(experiments):
        drift = [chance.gauss(0, 0.3) for _ in range(4)]
        times = {arm: [5 * math.exp(d + chance.gauss(0, 0.05)) for d in drift] for arm in ARMS}
        run = a_run(times)
        difference = statistics.fmean(log_ratios(run, parse_arm("ddp"), parse_arm("mpi")))
        beyond += abs(difference) > math.log1p(summarise(run).noise)
    assert beyond / experiments == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / experiments))


def test_log_ratios_are_above_nothing_where_the_arm_is_faster():
    run = a_run({"ddp": [4.0, 8.0, 9.0], "mpi": [2.0, 16.0]})
    assert log_ratios(run, parse_arm("mpi"), parse_arm("ddp")) == pytest.approx([math.log(2), -math.log(2)])


# ---- a training that went wrong ----


def test_a_loss_that_is_no_number_is_none_and_is_said():
    lost = Evaluation(correct=10, samples=100, loss_sum=None)
    run = a_run({"ddp": [10.0]})
    launches = [msgspec.structs.replace(run.launches[0], ranks=[a_rank(evaluation=lost)])]
    run = msgspec.structs.replace(run, launches=launches)
    summary = summarise(run)
    assert summary.arms[0].test_loss is None
    assert any("ddp diverged" in warning for warning in warnings(run, analyse(run)))


# ---- under a budget ----


def a_run_of_rounds(seconds, *, again=(), budget, complete=False, rounds=99):
    """Rounds of two launches of so many seconds each; those in ``again`` are set aside once."""
    now, launches, aside = 0.0, [], []

    def take(round_):
        nonlocal now
        taken = []
        for arm in ("ddp", "mpi"):
            taken.append(a_launch(arm, round_, started_at=now, seconds=seconds))
            now += seconds
        return taken

    for round_ in range(1, rounds + 1):
        if round_ in again:
            aside += take(round_)
        launches += take(round_)
    config = {"rounds": 1000, "budget_seconds": budget}
    return a_run({"ddp": [], "mpi": []}, config=config, launches=launches, set_aside=aside, complete=complete)


@settings(deadline=None, max_examples=60)
@given(st.integers(5, 9), st.sets(st.integers(1, 9), max_size=3), st.floats(1, 40), st.floats(10, 900))
def test_a_look_has_something_left_to_spend_wherever_there_is_time_for_another_round(
    rounds, again, seconds, budget
):
    run = a_run_of_rounds(seconds, again=again, budget=budget, rounds=rounds)
    last = looks(run)[-1]
    assert last.rounds == rounds
    assert (last.planned > rounds) is has_time_left(run)


def test_a_run_that_time_ended_before_its_plan_spends_what_is_left():
    going = a_run_of_rounds(10, budget=135, rounds=6)
    assert looks(going)[-1] == Look(6, 6)
    cut_short = a_run_of_rounds(10, budget=145, rounds=6, complete=True)
    assert looks(cut_short)[-2:] == [Look(6, 7), Look(6, 6)]
    assert sum(levels(looks(cut_short))) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("slots", "cores", "fullest", "too_many"),
    [([8, 2], [8, 2], (8, 8), False), ([8, 2], [8, 1], (2, 1), True), ([1, 3], [2, 2], (3, 2), True)],
)
def test_every_host_is_held_against_its_own_cores(slots, cores, fullest, too_many):
    hosts = [Host(f"n{number}", count) for number, count in enumerate(slots)]
    run = a_run(config={"ranks": sum(slots)}, hosts=hosts, cores=min(cores), cores_by_host=cores)
    assert fullest_host(run) == fullest
    assert summarise(run).oversubscribed is too_many


# ---- the same training ----


@pytest.mark.parametrize(
    ("arm", "passes", "parity"),
    [
        ("ddp", [[a_pass()], [a_pass(steps=5, differences=[3e-15])]], ("passed", 5, 3e-15)),
        ("ddp", [[a_pass()], [a_pass(differences=[2e-12])]], ("failed", 20, 2e-12)),
        ("ddp", [[a_pass()], [a_pass(differences=[None])]], ("failed", 20, None)),
        ("ddp", [[a_pass()], []], ("none", None, None)),
        ("ddp", [[a_pass(), a_pass(kind="as run", differences=[0.5])]], ("passed", 20, 2e-16)),
        ("ddp:comm_hook=fp16", [[a_pass(differences=[4e-5])]], ("exempt", 20, 4e-5)),
        ("none", [[]], ("none", None, None)),
    ],
)
def test_every_arm_is_stamped_with_how_near_to_a_single_process_it_was(arm, passes, parity):
    launches = [
        a_launch(arm, round_, ranks=[a_rank(0, parity=taken), a_rank(1)])
        for round_, taken in enumerate(passes, start=1)
    ]
    (found,) = summarise(a_run({arm: []}, launches=launches)).arms
    outcome, steps, difference = parity
    assert found.parity == Parity(outcome=outcome, steps=steps, difference=difference)
