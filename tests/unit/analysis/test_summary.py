"""Test the summary of a run, by hand and by its invariants."""

from __future__ import annotations

import msgspec
import pytest

from compare.analysis import analyse
from compare.analysis.figures import Estimate
from compare.analysis.parity import Parity
from compare.analysis.summary import Detail, summarise_turns
from compare.report.origin import warnings
from compare.schema.results import Evaluation, Interleaved, Moments
from tests.unit.factories import TRAINED, a_block, a_launch, a_pass, a_phased_block, a_rank, a_run, noisy
from tests.unit.pages import render


def summarise(run):
    return analyse(run).summary


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


def test_sync_cost_without_a_control_is_unknown():
    control = summary_of({"none": [4.0], "ddp": [5.0]})["none"]
    alone = summary_of({"ddp": [5.0] * 2, "mpi": [6.0] * 2})["ddp"]
    assert (control.sync_seconds, control.sync_share, control.efficiency) == (None, None, None)
    assert (alone.sync_seconds, alone.sync_share, alone.efficiency) == (None, None, None)
    assert control.speed_against_baseline.mean == pytest.approx(1.25)


def test_figures_of_an_arm_are_those_of_all_ranks_of_its_launch():
    ranks = [
        a_rank(0, evaluation=Evaluation(correct=90, samples=100, loss_sum=10.0)),
        a_rank(1, evaluation=Evaluation(correct=10, samples=300, loss_sum=70.0)),
    ]
    ranks[0].attestation["group"]["transport"] = "shared memory"
    (arm,) = summarise(a_run({"mpi": []}, launches=[a_launch("mpi", launcher="mpirun", ranks=ranks)])).arms
    assert (arm.accuracy, arm.test_loss) == pytest.approx((100 / 400, 80 / 400))
    assert (arm.launcher, arm.transport) == ("mpirun", "shared memory")


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


@pytest.mark.parametrize(("last", "known"), [(TRAINED, TRAINED), ("f" * 64, None)])
def test_final_hash_is_known_if_all_agree(last, known):
    launches = [a_launch(), a_launch(round_=2, ranks=[a_rank(0), a_rank(1, final_hash=last)])]
    (arm,) = summarise(a_run({"ddp": []}, launches=launches)).arms
    assert arm.final_hash == known


# ---- a run ----


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


def test_summary_is_independent_of_the_launch_order():
    milliseconds = {"none": [4, 4, 5], "ddp": [5, 6, 10], "manual": [10, 6, 8]}
    run = a_run(milliseconds)
    shuffled = sorted(run.launches, key=lambda launch: (launch.round, launch.arm))
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
    ranks = [a_rank(rank, milliseconds=time) for rank, time in enumerate(control)]
    return [a_launch("none", round_, ranks=ranks), a_launch("ddp", round_, ranks=own)]


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


def test_parts_that_were_not_measured_are_unknown():
    """There is no reference, phase, control or collective."""
    arm = the_arm([a_launch(ranks=[a_rank(rank, collective_ns=[], message_bytes=[]) for rank in range(2)])])
    known = {name for name in Detail.__struct_fields__ if getattr(arm.detail, name) is not None}
    always = {"gradient_bytes", "message_bytes", "cores_per_rank", "whole_peak_memory_bytes", "slowest_rank"}
    assert known == always
    alone = the_arm([a_launch(ranks=[a_rank(0)])], config={"ranks": 1}).detail
    assert (alone.collective_seconds, alone.overlap, alone.bus_bandwidth) == (None, None, None)


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


@pytest.mark.parametrize(("steps", "dropped"), [(9, 0), (10, 1), (19, 1), (20, 2), (30, 3)])
def test_phases_exclude_the_slowest_tenth_of_the_steps(steps, dropped):
    """One interruption must not look like skew or waiting. Its step is left out in all phases and ranks."""

    def first_steps(of_rank, **milliseconds):
        return of_rank | {
            name: [time] * dropped + of_rank[name][dropped:] for name, time in milliseconds.items()
        }

    own = first_steps(phases(steps, forward=1.0, sync=4.0), forward=0.0, sync=1000.0)
    interrupted = first_steps(phases(steps, forward=1.0), forward=1000.0)
    even = first_steps(phases(steps, forward=2.0), forward=0.5)
    detail = the_arm([in_phases([own, own], [interrupted, even])]).detail
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


@pytest.mark.parametrize(("ranks", "reduced"), [(2, 1.0), (4, 1.5)])
def test_bandwidth_follows_nccl_tests(ranks, reduced):
    """800 kB in 0.4 ms are an algbw of 2 GB/s."""
    calls = [[399_999 + 2 * (rank % 2), 500_000, 300_000] for rank in range(ranks)]
    own = [a_rank(r, message_bytes=[600_000, 200_000], collective_ns=ns) for r, ns in enumerate(calls)]
    detail = the_arm([a_launch(ranks=own)], config={"ranks": ranks}).detail
    assert detail.collective_seconds.mean == pytest.approx(0.0004, rel=1e-5)
    assert detail.algorithm_bandwidth.mean == pytest.approx(2e9, rel=1e-5)
    assert detail.bus_bandwidth.mean == pytest.approx(reduced * 2e9, rel=1e-5)


def test_parts_have_the_interval_of_their_paired_ratio():
    """A drift of all times leaves the interval narrow; its geometric mean is 3."""
    launches = []
    for round_, drift in enumerate((1.0, 3.0, 9.0), start=1):
        launches += a_pair(round_, [drift, 3 * drift], [10 * drift] * 2, [5 * drift] * 2)
    detail = the_arm(launches).detail
    assert detail.exposed_seconds == alike(Estimate(0.015, 0.015, 0.015, 3, "t"))
    assert detail.background_seconds == alike(Estimate(0.009, 0.009, 0.009, 3, "t"))
    assert detail.imbalance_seconds == alike(Estimate(0.003, 0.003, 0.003, 3, "t"))
    assert detail.communication_seconds == alike(Estimate(0.021, 0.021, 0.021, 3, "t"))


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
    launches = a_run({"none": [4, 4, 4], "ddp": [5, 5, 5]}).launches
    (busy,) = noisy(a_run(launches=[launches[4]]), 2).launches
    summary = summarise(a_run({"none": [], "ddp": []}, launches=[*launches[:4], busy, launches[5]]))
    assert summary.noisy_rounds == [2]
    assert {arm.arm: arm.other_cpu_load.high > 0.4 for arm in summary.arms} == {"none": False, "ddp": True}


def test_discarded_rounds_are_counted_and_change_no_figure():
    run = a_run({"none": [4, 4, 4], "ddp": [5, 5, 5]})
    discarded = a_run({"none": [40, 40], "ddp": [90, 90]}).launches
    summary = summarise(msgspec.structs.replace(run, discarded=discarded))
    assert summary.rounds_repeated == 2
    assert summary.arms == summarise(run).arms


def test_loss_that_is_no_number_is_a_warning():
    lost = a_rank(evaluation=Evaluation(correct=10, samples=100, loss_sum=None))
    run = a_run({"ddp": []}, launches=[a_launch(ranks=[lost])])
    assert summarise(run).arms[0].test_loss is None
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


# ---- turns ----


def a_cohort(*arms, mode="blocks", **changes):
    """Return a run of one cohort."""
    launches = [a_launch(arm, ranks=[a_rank(0, **changes)]) for arm in arms]
    return a_run({arm: [] for arm in arms}, interleaved=Interleaved(mode=mode), launches=launches)


def test_arm_that_takes_cpu_time_while_it_waits_is_named():
    quiet = a_cohort("ddp", waited_ns=10**9, waited_cpu_ns=19 * 10**6)
    assert summarise_turns(quiet).awake == {}
    busy = a_cohort("ddp", waited_ns=10**9, waited_cpu_ns=90 * 10**6)
    assert summarise_turns(busy).awake == {"ddp": pytest.approx(0.09)}
    assert "more than 2 % of a core: ddp 9.0 %." in render(busy, analyse(busy), "table", detail=True)


def test_steps_beyond_the_training_are_named():
    run = a_cohort("ddp", "mpi", trained_steps=250)
    printed = render(run, analyse(run), "markdown")
    assert "Every arm trained 100 steps. For timing only, every arm went on after them." in printed
    assert summarise_turns(a_cohort("ddp", trained_steps=100)).trained_on == []


def test_memory_of_a_cohort_is_that_of_all_its_ranks():
    run = a_cohort("ddp", "mpi", whole_peak_memory_bytes=300 << 20)
    assert summarise_turns(run).memory_bytes == 600 << 20
    assert summarise_turns(a_cohort("ddp", mode="launches")) is None
