"""Statistics: worked examples by hand, and what holds for any figures."""

from __future__ import annotations

import statistics

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compare.report.wording import warnings
from compare.results import Block, Evaluation, Moments
from compare.stats import Estimate, step_seconds, summarise
from tests.unit.factories import TRAINED, a_launch, a_rank, a_run

untimed = settings(deadline=None)

MILLISECONDS = st.floats(0.01, 1e4)
ARMS = ("none", "ddp", "manual", "mpi")


def summary_of(milliseconds, **changes):
    return {arm.arm: arm for arm in summarise(a_run(milliseconds, **changes)).arms}


def fastest(milliseconds, **changes):
    return [arm.arm for arm in summarise(a_run(milliseconds, **changes)).arms if arm.fastest]


# ---- one launch ----


def test_step_time_is_the_median_over_blocks_of_the_mean_over_ranks():
    launch = a_launch(ranks=[a_rank(0, milliseconds=[10, 20, 30]), a_rank(1, milliseconds=[12, 22, 100])])
    assert step_seconds(launch) == pytest.approx(0.021)  # the median of 11, 21 and 65 ms


def test_blocks_of_different_length_count_by_their_steps():
    blocks = [Block(steps=30, wall_ns=300_000_000), Block(steps=31, wall_ns=310_000_000)]
    assert step_seconds(a_launch(ranks=[a_rank(blocks=blocks)])) == pytest.approx(0.010)


@untimed
@given(st.lists(st.lists(MILLISECONDS, min_size=3, max_size=3), min_size=1, max_size=4))
def test_step_time_lies_within_what_the_ranks_measured(times):
    launch = a_launch(ranks=[a_rank(rank, milliseconds=blocks) for rank, blocks in enumerate(times)])
    low = min(b.wall_ns / b.steps for rank in launch.ranks for b in rank.blocks) / 1e9
    high = max(b.wall_ns / b.steps for rank in launch.ranks for b in rank.blocks) / 1e9
    assert low * (1 - 1e-12) <= step_seconds(launch) <= high * (1 + 1e-12)


# ---- one arm ----


@untimed
@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_an_estimate_is_the_median_within_its_range(values):
    estimate = Estimate.of(iter(values))
    assert estimate == Estimate(statistics.median(values), min(values), max(values), len(values))
    assert estimate.low <= estimate.median <= estimate.high


def test_figures_worked_out_by_hand():
    arms = summary_of({"none": [4, 4, 5], "ddp": [5, 6, 10], "manual": [10, 6, 8]})
    ddp, manual = arms["ddp"], arms["manual"]
    assert ddp.step_seconds == Estimate(0.006, 0.005, 0.010, 3)
    # 2 ranks with 64 samples each in every step.
    assert ddp.samples_per_second.median == pytest.approx(128 / 0.006)
    assert ddp.samples_per_second.low == pytest.approx(12_800)
    assert ddp.samples_per_second.high == pytest.approx(25_600)
    assert ddp.sync_seconds.median == pytest.approx(0.002)  # of 1, 2 and 5 ms
    assert (ddp.sync_seconds.low, ddp.sync_seconds.high) == pytest.approx((0.001, 0.005))
    assert ddp.sync_share.median == pytest.approx(1 / 3)  # of 1/5, 2/6 and 5/10
    assert ddp.efficiency.median == pytest.approx(2 / 3)  # of 4/5, 4/6 and 5/10
    assert ddp.speed_against_baseline == Estimate(1.0, 1.0, 1.0, 3)
    assert manual.speed_against_baseline.median == pytest.approx(1.0)  # of 5/10, 6/6 and 10/8
    assert manual.speed_against_baseline.low == pytest.approx(0.5)
    assert manual.speed_against_baseline.high == pytest.approx(1.25)


def test_pairs_are_made_within_a_round_and_not_of_medians():
    # The machine slowed down in round 2, for both: what differs between them did not.
    assert summary_of({"none": [4, 40, 4], "ddp": [6, 42, 6]})["ddp"].sync_seconds == Estimate(
        pytest.approx(0.002), pytest.approx(0.002), pytest.approx(0.002), 3
    )


def test_sync_cost_may_be_below_nothing_and_is_shown_as_it_is():
    assert summary_of({"none": [5.0], "ddp": [4.0]})["ddp"].sync_seconds.median == pytest.approx(-0.001)


def test_the_control_has_no_sync_cost_of_its_own():
    control = summary_of({"none": [4.0], "ddp": [5.0]})["none"]
    assert (control.sync_seconds, control.sync_share, control.efficiency) == (None, None, None)
    assert control.speed_against_baseline.median == pytest.approx(1.25)


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
    assert arm.start_up_seconds == Estimate(4.0, 3.0, 5.0, 2)


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
    assert fastest({"none": [4, 4], "ddp": [6.0, 6.1], "mpi": [5.0, 5.1]}) == ["mpi"]


@pytest.mark.parametrize(
    ("why", "milliseconds"),
    [
        ("ranges overlap", {"none": [4, 4], "ddp": [5.0, 6.0], "mpi": [5.5, 7.0]}),
        (
            "one beats the second but not the third",
            {"ddp": [5.0, 5.5], "mpi": [6.0, 7.0], "manual": [5.4, 9.0]},
        ),
        ("ranges touch", {"none": [4, 4], "ddp": [5.0, 6.0], "mpi": [6.0, 7.0]}),
        ("one round is no proof", {"none": [4], "ddp": [5.0], "mpi": [6.0]}),
        ("one arm alone", {"none": [4, 4], "ddp": [5.0, 5.0]}),
        ("one arm has only one round yet", {"none": [4, 4], "ddp": [5.0, 5.0], "mpi": [6.0]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_arm_is_called_fastest_without_proof(why, milliseconds):
    assert fastest(milliseconds) == []


def test_the_control_is_never_called_fastest():
    assert fastest({"none": [1, 1], "ddp": [5, 5], "mpi": [6, 6]}) == ["ddp"]


@pytest.mark.parametrize(
    ("threads", "cores", "too_many"), [(1, 2, False), (2, 4, False), (2, 2, True), (1, 1, True)]
)
def test_no_arm_is_called_fastest_when_ranks_wait_for_each_others_cores(threads, cores, too_many):
    run = a_run(
        {"none": [4, 4], "ddp": [6.0, 6.1], "mpi": [5.0, 5.1]},
        config={"threads_per_rank": threads},
        cores=cores,
    )
    summary = summarise(run)
    assert summary.oversubscribed is too_many
    assert any(arm.fastest for arm in summary.arms) is not too_many


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
        assert arm.samples_per_second.high == pytest.approx(128 / min(own))
        assert arm.speed_against_baseline == Estimate.of(
            other / mine for mine, other in zip(own, steps[run.config.baseline], strict=True)
        )
        if "none" in arms and name != "none":
            pairs = list(zip(own, steps["none"], strict=True))
            assert arm.sync_seconds == Estimate.of(mine - control for mine, control in pairs)
            assert arm.sync_share == Estimate.of((mine - control) / mine for mine, control in pairs)
            assert arm.efficiency == Estimate.of(control / mine for mine, control in pairs)
            assert arm.efficiency.median == pytest.approx(1 - arm.sync_share.median)


@untimed
@given(measured())
def test_at_most_one_arm_is_fastest_and_it_has_the_lowest_median(milliseconds):
    synchronising = [arm for arm in milliseconds if arm != "none"]
    assume(synchronising)
    named = fastest(milliseconds)
    assert len(named) <= 1
    for name in named:
        assert all(
            max(milliseconds[name]) <= min(milliseconds[other]) for other in synchronising if other != name
        )


@untimed
@given(measured(), st.randoms(use_true_random=False))
def test_the_order_in_which_arms_were_launched_does_not_matter(milliseconds, random):
    run = a_run(milliseconds)
    shuffled = sorted(run.launches, key=lambda launch: (launch.round, random.random()))
    assert summarise(a_run(milliseconds, launches=shuffled)) == summarise(run)


# ---- a training that went wrong ----


def test_a_loss_that_is_no_number_is_none_and_is_said():
    lost = Evaluation(correct=10, samples=100, loss_sum=None)
    run = a_run({"ddp": [10.0]})
    launches = [msgspec.structs.replace(run.launches[0], ranks=[a_rank(evaluation=lost)])]
    run = msgspec.structs.replace(run, launches=launches)
    summary = summarise(run)
    assert summary.arms[0].test_loss is None
    assert any("ddp diverged" in warning for warning in warnings(run, summary))
