"""Test the summary of a run, by hand and by its invariants."""

from __future__ import annotations

import random
import statistics

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.analysis import analyse
from compare.analysis.estimate import Estimate
from compare.analysis.step_times import step_seconds
from compare.analysis.summary import Detail, Parity, summarise
from compare.report.notes import warnings
from compare.schema.results import Evaluation, MachineUse, Moments
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
    """Return the estimate, equal except for rounding."""
    near = [
        pytest.approx(value, rel=1e-9, abs=1e-12) for value in (estimate.mean, estimate.low, estimate.high)
    ]
    return Estimate(*near, estimate.n, estimate.method)


# ---- one arm ----


def test_summary_matches_a_hand_computation():
    arms = summary_of({"none": [4, 4, 5], "ddp": [5, 6, 10], "manual": [10, 6, 8]})
    ddp, manual = arms["ddp"], arms["manual"]
    assert ddp.step_seconds == alike(Estimate.geometric([0.005, 0.006, 0.010]))
    assert ddp.step_seconds.mean == pytest.approx((5 * 6 * 10) ** (1 / 3) / 1e3)
    # 2 ranks with 64 samples each in every step.
    assert ddp.samples_per_second == alike(Estimate.geometric([25_600, 128 / 0.006, 12_800]))
    efficiency = Estimate.geometric([4 / 5, 4 / 6, 5 / 10])
    assert ddp.efficiency == alike(efficiency)
    assert ddp.sync_share == alike(efficiency.rest())
    assert ddp.sync_seconds == alike(efficiency.rest().scaled(ddp.step_seconds.mean))
    assert ddp.speed_against_baseline == Estimate(1.0, 1.0, 1.0, 3, "t")
    assert manual.speed_against_baseline == alike(Estimate.geometric([5 / 10, 6 / 6, 10 / 8]))


@pytest.mark.parametrize(
    ("milliseconds", "arm"),
    [({"none": [4.0], "ddp": [5.0]}, "none"), ({"ddp": [5.0] * 2, "mpi": [6.0] * 2}, "ddp")],
)
def test_sync_cost_without_a_control_is_unknown(milliseconds, arm):
    found = summary_of(milliseconds)
    assert (found[arm].sync_seconds, found[arm].sync_share, found[arm].efficiency) == (None, None, None)
    if arm == "none":
        assert found[arm].speed_against_baseline.mean == pytest.approx(1.25)


def test_accuracy_and_loss_cover_the_whole_test_set():
    first = a_rank(0, evaluation=Evaluation(correct=90, samples=100, loss_sum=10.0))
    second = a_rank(1, evaluation=Evaluation(correct=10, samples=300, loss_sum=70.0))
    (arm,) = summarise(a_run({"ddp": []}, launches=[a_launch(ranks=[first, second])])).arms
    assert arm.accuracy == pytest.approx(100 / 400)
    assert arm.test_loss == pytest.approx(80 / 400)


def test_memory_and_start_up_are_those_of_the_worst_rank():
    def rank(index, memory, first_step):
        moments = Moments(0.1, 0.2, 0.3, 0.4, first_step)
        return a_rank(index, peak_memory_bytes=memory, peak_device_memory_bytes=memory * 2, moments=moments)

    launches = [
        a_launch(round_=1, ranks=[rank(0, 100, 2.0), rank(1, 300, 3.0)]),
        a_launch(round_=2, ranks=[rank(0, 200, 5.0), rank(1, 200, 4.0)]),
    ]
    (arm,) = summarise(a_run({"ddp": []}, launches=launches)).arms
    assert arm.peak_memory_bytes == 300
    assert arm.peak_device_memory_bytes == 600
    assert arm.start_up_seconds == Estimate(4.0, 3.0, 5.0, 2, "range")
    launches[1] = msgspec.structs.replace(launches[1], started_alone=False)
    (arm,) = summarise(a_run({"ddp": []}, launches=launches)).arms
    assert arm.start_up_seconds.mean == 3.0, "a start beside others takes longer"


def test_final_hash_is_known_if_all_agree():
    other = "f" * 64

    def launches(*hashes):
        return [
            a_launch(round_=round_, ranks=[a_rank(0, final_hash=hash_), a_rank(1, final_hash=hash_)])
            for round_, hash_ in enumerate(hashes, start=1)
        ]

    for hashes, known in (((TRAINED, TRAINED), TRAINED), ((TRAINED, other), None)):
        (arm,) = summarise(a_run({"ddp": []}, launches=launches(*hashes))).arms
        assert arm.final_hash == known


def test_launcher_and_transport_are_those_that_ran():
    rank = a_rank(attestation={"group": {"transport": "shared memory"}})
    (arm,) = summarise(a_run({"mpi": []}, launches=[a_launch("mpi", launcher="mpirun", ranks=[rank])])).arms
    assert (arm.launcher, arm.transport) == ("mpirun", "shared memory")


# ---- a run ----


def test_arms_have_the_order_of_the_config():
    arms = {"none": [4], "mpi": [9], "ddp": [5], "manual": [7]}
    assert list(summary_of(arms)) == list(arms)


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
def test_summary_of_an_incomplete_run(milliseconds):
    arms = summary_of(milliseconds, complete=False)
    assert list(arms) == [arm for arm, times in milliseconds.items() if times]
    common = min((len(times) for times in milliseconds.values() if times), default=0)
    for name, arm in arms.items():
        assert arm.step_seconds.n == common, "a round counts if every arm with a launch has it"
        if name == "none" or not milliseconds["none"]:
            assert arm.sync_seconds is None
        else:
            assert arm.sync_seconds.n == common


def test_summary_without_a_common_round_has_each_arms_own_rounds():
    launches = [a_launch("ddp", 1), a_launch("mpi", 2)]
    ddp, mpi = summarise(a_run({"ddp": [], "mpi": []}, launches=launches, complete=False)).arms
    assert (ddp.step_seconds.n, mpi.step_seconds.n) == (1, 1)
    assert mpi.speed_against_baseline is None


@st.composite
def measured(draw):
    rounds = draw(st.integers(1, 4))
    arms = draw(st.permutations(ARMS))[: draw(st.integers(1, len(ARMS)))]
    return {arm: draw(st.lists(MILLISECONDS, min_size=rounds, max_size=rounds)) for arm in arms}


@untimed
@given(measured())
def test_summary_follows_from_the_step_times(milliseconds):
    arms = summary_of(milliseconds)
    run = a_run(milliseconds)
    steps = {
        arm: [step_seconds(launch) for launch in run.launches if launch.arm == arm] for arm in milliseconds
    }
    for name, arm in arms.items():
        own = steps[name]
        assert arm.step_seconds == Estimate.geometric(own), "a range for one or two rounds, otherwise by t"
        assert arm.step_seconds.low > 0
        step = arm.step_seconds.mean
        assert arm.samples_per_second.mean == pytest.approx(128 / step)
        baseline = arms[run.config.baseline].step_seconds.mean
        assert arm.speed_against_baseline.mean == pytest.approx(baseline / step)
        if "none" in arms and name != "none":
            control = arms["none"].step_seconds.mean
            near = {"rel": 1e-9, "abs": 1e-12 * max(step, control)}
            assert arm.efficiency.mean == pytest.approx(control / step)
            assert arm.sync_share.mean == pytest.approx(1 - control / step, **near)
            assert arm.sync_seconds.mean == pytest.approx(step - control, **near)
            assert arm.sync_seconds.low <= arm.sync_seconds.mean <= arm.sync_seconds.high <= step


@untimed
@given(measured(), st.randoms(use_true_random=False))
def test_summary_is_independent_of_the_launch_order(milliseconds, random):
    run = a_run(milliseconds)
    shuffled = sorted(run.launches, key=lambda launch: (launch.round, random.random()))
    assert summarise(a_run(milliseconds, launches=shuffled)) == summarise(run)


# ---- where the cost goes ----

PHASES = ("forward", "backward", "sync", "step")


def a_pair(round_, control, training, reference=(), **changes):
    """Return the launches of one round from each rank's step times."""
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
    """Return the summary of the only arm that synchronises."""
    return summarise(a_run({"none": [], "ddp": []}, launches=launches, **changes)).arms[-1]


def only(seconds):
    """Return the estimate of a single launch."""
    near = pytest.approx(seconds, rel=1e-9, abs=1e-12)
    return Estimate(near, near, near, 1, "range")


def test_parts_of_the_cost_match_a_hand_computation():
    launches = a_pair(1, control=[2.0, 4.0], training=[10.0, 10.0], reference=[5.0, 6.0])
    control, arm = summarise(a_run({"none": [], "ddp": []}, launches=launches)).arms
    detail = arm.detail
    assert arm.sync_seconds == only(0.007)  # T_S 10 - T_0 3
    assert detail.reference_seconds == only(0.0055)  # T_R: the mean of 5 and 6
    assert detail.exposed_seconds == only(0.0045)  # T_S 10 - T_R 5.5
    assert detail.background_seconds == only(0.0025)  # T_R 5.5 - T_0 3
    assert detail.imbalance_seconds == only(0.001)  # the slowest 4 - the mean 3
    assert detail.communication_seconds == only(0.006)  # sync cost 7 - imbalance 1
    for figure in ("reference", "exposed", "background", "imbalance", "communication", "blocked"):
        assert getattr(control.detail, f"{figure}_seconds") is None


@pytest.mark.parametrize(
    ("training", "reference", "slowest"),
    [([8.0, 7.9], [2.0, 5.0], 1), ([8.0, 7.9], [5.0, 2.0], 0), ([8.0, 8.1], (), 1)],
)
def test_slowest_rank_computes_longest_in_the_reference(training, reference, slowest):
    # A rank that waits for another has the same step time. Only the reference differs, if there is one.
    assert the_arm(a_pair(1, [2, 2], training, reference)).detail.slowest_rank == slowest


RANK_TIMES = st.lists(st.floats(0.01, 1e3), min_size=3, max_size=3)


@untimed
@given(st.lists(st.tuples(RANK_TIMES, RANK_TIMES, RANK_TIMES), min_size=1, max_size=5))
def test_parts_of_the_cost_add_up(rounds):
    arm = the_arm([launch for i, times in enumerate(rounds, start=1) for launch in a_pair(i, *times)])
    cost, detail = arm.sync_seconds, arm.detail
    largest = max(time for times in rounds for ranks in times for time in ranks) / 1e3
    near = {"rel": 1e-9, "abs": 1e-12 * largest}
    assert cost.mean == pytest.approx(detail.exposed_seconds.mean + detail.background_seconds.mean, **near)
    assert cost.mean == pytest.approx(
        detail.communication_seconds.mean + detail.imbalance_seconds.mean, **near
    )
    assert detail.imbalance_seconds.mean >= -1e-12 * largest


def test_parts_that_were_not_measured_are_unknown():
    """There is no reference, phase, control or collective."""
    arm = the_arm(
        [a_launch(ranks=[a_rank(rank, collective_ns=[], message_bytes=[]) for rank in range(2)])],
    )
    known = {name for name in Detail.__struct_fields__ if getattr(arm.detail, name) is not None}
    always = {"gradient_bytes", "message_bytes", "cores_per_rank", "whole_peak_memory_bytes", "slowest_rank"}
    assert known == always
    alone = the_arm([a_launch(ranks=[a_rank(0)])], config={"ranks": 1}).detail
    assert (alone.collective_seconds, alone.overlap, alone.bus_bandwidth) == (None, None, None)


def test_parts_exclude_a_round_without_the_control():
    launches = a_pair(1, [2, 2], [10, 10], [5, 5]) + a_pair(2, [2, 2], [20, 20], [6, 6])[1:]
    detail = the_arm(launches, complete=False).detail
    assert detail.exposed_seconds == only(0.005)
    assert detail.background_seconds == only(0.003)
    assert detail.imbalance_seconds == only(0.0)
    assert detail.communication_seconds == only(0.008)


# ---- phases ----


def in_phases(own, reference=None):
    """Return a launch from each rank's phases in milliseconds."""
    ranks = []
    for rank, phases in enumerate(own):
        blocks = [a_block(9), a_phased_block(**phases)]
        if reference:
            blocks += [a_block(5, mode="reference"), a_phased_block("reference", **reference[rank])]
        ranks.append(a_rank(rank, blocks=blocks))
    return a_launch(ranks=ranks)


def phases(steps=1, **milliseconds):
    return {name: [milliseconds.get(name, 0.0)] * steps for name in PHASES}


def test_phase_changes_match_a_hand_computation():
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
def test_phase_changes_add_up_to_the_change_of_the_step(seed, steps, ranks):
    chance = random.Random(seed)

    def measured():
        return [
            # Whole microseconds, because the clock has whole nanoseconds.
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
    """Return seconds per step, without the slowest tenth."""
    steps = sorted(
        statistics.fmean(sum(phase[step] for phase in rank.values()) for rank in ranks)
        for step in range(len(ranks[0]["forward"]))
    )
    return statistics.fmean(steps[: len(steps) - len(steps) // 10]) / 1e3


@pytest.mark.parametrize(("steps", "dropped"), [(9, 0), (10, 1), (19, 1), (20, 2), (30, 3)])
def test_phases_exclude_the_slowest_tenth_of_the_steps(steps, dropped):
    """One interruption must not look like skew or waiting."""

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


def test_skew_is_the_mean_over_steps_of_largest_minus_mean():
    # 1 and 5 ms, then 3 and 2. Their means over the block differ by 1.5 ms.
    first = {"forward": [1.0, 2.0], "backward": [0.0, 1.0], "sync": [0.0, 0.0], "step": [0.0, 0.0]}
    second = {"forward": [4.0, 2.0], "backward": [1.0, 0.0], "sync": [0.0, 0.0], "step": [0.0, 0.0]}
    detail = the_arm([in_phases([phases(2), phases(2)], [first, second])]).detail
    assert detail.skew_seconds == only((2.0 + 0.5) / 2 / 1e3)


def test_phases_missing_on_a_rank_are_unknown():
    whole = in_phases([phases(forward=1)] * 2, [phases(forward=1)] * 2)
    first, second = whole.ranks
    kept = [block for block in second.blocks if block.mode == "training" or not block.phases]
    launch = msgspec.structs.replace(whole, ranks=[first, msgspec.structs.replace(second, blocks=kept)])
    detail = the_arm([launch]).detail
    assert (detail.skew_seconds, detail.blocked_seconds) == (None, None)


# ---- collectives ----


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_straggler_among_many_ranks_delays_all(ranks):
    """The slowest rank is 3 (1 - 1/W) ms above the mean."""
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


@pytest.mark.parametrize(("ranks", "reduced"), [(2, 1.0), (4, 1.5)])
def test_bandwidth_follows_nccl_tests(ranks, reduced):
    """800 kB in 0.4 ms are an algbw of 2 GB/s."""
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
def test_overlap_is_signed(step, hidden):
    """T_R is 5 ms, and T_iso 0.4 ms."""
    launches = a_pair(1, [3, 3], [step] * 2, [5.0] * 2, collective_ns=[400_000])
    assert the_arm(launches).detail.overlap.mean == pytest.approx(hidden)


def test_parts_have_the_interval_of_their_paired_ratio():
    """A drift of both times leaves the interval narrow."""
    detail = the_arm(
        [
            launch
            for i, drift in enumerate((1.0, 3.0, 9.0), start=1)
            for launch in a_pair(i, [2 * drift] * 2, [10 * drift] * 2, [5 * drift] * 2)
        ]
    ).detail
    assert detail.exposed_seconds == alike(Estimate(0.015, 0.015, 0.015, 3, "t"))  # half of T_S, 30 ms
    assert detail.background_seconds == alike(Estimate(0.009, 0.009, 0.009, 3, "t"))  # 0.6 of T_R, 15 ms


# ---- noise ----


@pytest.mark.parametrize(
    ("control", "own", "below"),
    [
        ([4.0], [5.0], False),
        ([4.0], [3.9], True),
        ([4.0, 5.0], [5.0, 5.0], True),
        ([4.0, 4.0, 4.0], [5.0, 5.1, 5.2], False),
        ([4.0, 6.0, 5.0], [5.0, 5.1, 5.2], True),
    ],
)
def test_sync_cost_is_below_noise_if_its_interval_reaches_zero(control, own, below):
    arms = summary_of({"none": control, "ddp": own})
    assert (arms["none"].below_noise, arms["ddp"].below_noise) == (False, below)


# ---- noisy and discarded rounds ----


def test_noisy_round_is_listed():
    run = a_run({"none": [4, 4, 4], "ddp": [5, 5, 5]})
    busy = MachineUse(wall_ns=10**9, cpus=2, busy_ns=10**9, stolen_ns=0)
    noisy = [a_rank(0, cpu_ns=0, machine=busy), a_rank(1, cpu_ns=0)]
    launches = [
        msgspec.structs.replace(launch, ranks=noisy) if (launch.arm, launch.round) == ("ddp", 2) else launch
        for launch in run.launches
    ]
    summary = summarise(msgspec.structs.replace(run, launches=launches))
    assert summary.noisy_rounds == [2]
    assert {arm.arm: arm.other_cpu_load.high > 0.4 for arm in summary.arms} == {"none": False, "ddp": True}


def test_discarded_rounds_are_counted_and_change_no_figure():
    run = a_run({"none": [4, 4, 4], "ddp": [5, 5, 5]})
    discarded = a_run({"none": [40, 40], "ddp": [90, 90]}).launches
    summary = summarise(msgspec.structs.replace(run, discarded=discarded))
    assert summary.rounds_repeated == 2
    assert summary.arms == summarise(run).arms


# ---- a training that went wrong ----


def test_loss_that_is_no_number_is_a_warning():
    lost = Evaluation(correct=10, samples=100, loss_sum=None)
    run = a_run({"ddp": [10.0]})
    launches = [msgspec.structs.replace(run.launches[0], ranks=[a_rank(evaluation=lost)])]
    run = msgspec.structs.replace(run, launches=launches)
    summary = summarise(run)
    assert summary.arms[0].test_loss is None
    assert any("ddp diverged" in warning for warning in warnings(run, analyse(run)))


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
def test_parity_of_an_arm(arm, passes, parity):
    launches = [
        a_launch(arm, round_, ranks=[a_rank(0, parity=taken), a_rank(1)])
        for round_, taken in enumerate(passes, start=1)
    ]
    (found,) = summarise(a_run({arm: []}, launches=launches)).arms
    outcome, steps, difference = parity
    assert found.parity == Parity(outcome=outcome, steps=steps, difference=difference)
