"""Summarise a run: derive every figure of its tables.

``docs/method.md`` defines the terms. In short, there are three times of a step:

- T_S with synchronisation
- T_R of the reference: the same model in the same processes, but without synchronisation
- T_0 of the control: the arm ``none`` in the same round, whose ranks never synchronise

The independent sample is the launch, never the step. Step times are averaged on the log scale, over the
rounds that all arms have. So the quotient or difference of two printed step times is the printed figure.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable

import msgspec

from compare.analysis.attested import transport_of
from compare.analysis.budget import is_oversubscribed
from compare.analysis.collectives import bus_factor
from compare.analysis.figures import Estimate, Figures, LaunchFigures
from compare.analysis.memory import ArmMemory, DoesNotFit, does_not_fit, memory_of, timed_bare
from compare.analysis.noise import hides_all, would_have_seen
from compare.analysis.parity import Parity, parity_of
from compare.analysis.ranking import Lead, find_lead, verdicts
from compare.analysis.verdict import Verdict
from compare.schema.arms import Arm
from compare.schema.results import Mode, RankResult, Run

WAITING_CORES_LIMIT = 0.02
"""A waiting arm is reported if all of its ranks together use more than this share of a core."""


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an arm's sync cost, and the bandwidth, memory and CPU time that go with it.

    Fields that end in ``_seconds`` are seconds per step. A figure that was not measured is None. The
    difference of two step times is the difference of their geometric means, and its interval comes from the
    ratio of paired times. Three sums hold for the means:

    - sync cost = exposed + background
    - sync cost = communication + imbalance
    - exposed = blocked + forward + backward + optimizer, within the blocks whose phases were timed
    """

    reference_seconds: Estimate | None
    """T_R: step time of a replica without synchronisation, in the same processes."""
    exposed_seconds: Estimate | None
    """E = T_S - T_R; may be negative."""
    background_seconds: Estimate | None
    """B = T_R - T_0: what the library's threads take from the computation."""
    imbalance_seconds: Estimate | None
    """Largest minus mean T_0 over ranks, which is the wait for the slowest rank."""
    communication_seconds: Estimate | None
    """Sync cost without the imbalance."""
    skew_seconds: Estimate | None
    """By how much the slowest rank computes longer than the average of ranks, in the reference.

    It is averaged over all steps but the slowest tenth.
    """
    blocked_seconds: Estimate | None
    """How much longer ``sync`` takes than in the reference; an arm that overlaps waits in ``backward``."""
    forward_seconds: Estimate | None
    """How much longer the forward phase takes than in the reference."""
    backward_seconds: Estimate | None
    """How much longer the backward phase takes than in the reference."""
    optimizer_seconds: Estimate | None
    """How much longer the optimizer's phase takes than in the reference."""
    collective_seconds: Estimate | None
    """T_iso: a step's collectives without training, median over samples of the mean over ranks."""
    overlap: Estimate | None
    """H = 1 - E / T_iso: 1 if computation hides all communication, 0 if it hides none.

    E also contains copying and waiting, so H may be below 0. The tables then say ``none``.
    """
    algorithm_bandwidth: Estimate | None
    """algbw = bytes of a step's messages / T_iso, in bytes per second."""
    bus_bandwidth: Estimate | None
    """busbw = algbw x 2 (n - 1) / n for n ranks (nccl-tests, PERFORMANCE.md)."""
    gradient_bytes: int
    message_bytes: list[int]
    """Bytes of each call that averages gradients in a step."""
    cores_per_rank: Estimate
    """CPU time of the ranks over their wall time while the arm trained."""
    whole_peak_memory_bytes: int | None
    """Most memory (resident set) of any rank at any time; None for older runs.

    It includes the proof in float64, the reference and the test.
    """
    slowest_rank: int
    """Rank with the longest mean step time, in the reference if there is one."""


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one arm; a figure that cannot be computed is None."""

    arm: str
    launcher: str
    transport: str
    step_seconds: Estimate
    """T_S: step time with synchronisation."""
    mean_over_median: Estimate | None
    """Ratio of the blocks' mean step time to their median: about 1 if no block stalls.

    None if no turn has three blocks.
    """
    samples_per_second: Estimate
    """Samples of all ranks together, per second."""
    sync_seconds: Estimate | None
    """Sync cost T_S - T_0, which equals ``sync_share`` times T_S."""
    sync_share: Estimate | None
    """Share of the step that is sync cost: 1 minus the efficiency."""
    efficiency: Estimate | None
    """T_0 / T_S: 1 if synchronising costs nothing."""
    speed_against_baseline: Estimate | None
    """The baseline's step time divided by this arm's; above 1 is faster."""
    verdict: Verdict | None
    """Verdict against the baseline; None for control and baseline, and if threads outnumber cores."""
    would_have_seen: float | None
    """The relative difference that 80 of 100 such runs would find; they find larger ones more often.

    None before `FIRST_LOOK` rounds, without a verdict, and if uneven load may explain the verdict.
    """
    accuracy: float | None
    """Share of right answers on the whole test set, or the mean metric of a workload of the user's own."""
    test_loss: float | None
    """Mean loss on the test set; None if the training diverged."""
    final_hash: str | None
    """SHA-256 of the trained parameters; None if ranks or launches differ."""
    parity: Parity
    peak_memory_bytes: int
    """Most memory (resident set) of any rank during training."""
    peak_device_memory_bytes: int | None
    """Most memory of tensors on any rank's GPU; None on CPUs."""
    memory: ArmMemory | None
    """What the rank that holds the most holds, by kind; None for older results."""
    start_up_seconds: Estimate
    """Seconds from a launch's start to the end of the slowest rank's first step, without the parity check."""
    other_cpu_load: Estimate
    """Share of the busiest host's CPUs that other processes used."""
    detail: Detail
    fastest: bool
    """Whether every other arm is shown to be slower than this one."""

    @property
    def below_noise(self) -> bool:
        """Return whether the interval of the sync cost reaches zero."""
        return self.sync_share is not None and self.sync_share.low <= 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run, as its tables show them."""

    arms: list[ArmSummary]
    unfit: list[DoesNotFit]
    """The arms that did not fit into memory, so that they have no figures."""
    bare: list[DoesNotFit]
    """The arms whose proof did not fit into memory, so that they were timed without one."""
    lead: Lead | None
    """The fastest arm and its rivals; None if nothing is ranked, or fewer than two arms can be ranked."""
    oversubscribed: bool
    """Whether a host has more threads than cores, so that nothing is ranked."""
    rounds_repeated: int
    """Number of rounds that were discarded because of noise, and repeated."""
    noisy_rounds: list[int]
    """Numbers of the noisy rounds that were kept, because no more rounds could be repeated."""
    noise_hides_all: bool
    """Whether noise hides every difference between arms, so that the run can rank nothing."""

    @property
    def ranks_nothing(self) -> bool:
        """Return whether no arm may be called faster than another: not in a table, a cause or a sentence."""
        return self.oversubscribed or self.noise_hides_all


class TurnsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU time and memory that arms took from each other while they waited for their turns."""

    waiting_cores: dict[str, float]
    """By arm: cores that all of its ranks used together while it waited, as the mean over its launches."""
    memory_bytes: int
    """Sum of the peak memory of all ranks of a round, in the round where it is largest."""
    trained_on: list[str]
    """Labels of the arms whose turns went on after the training, for timing only."""

    @property
    def awake(self) -> dict[str, float]:
        """Return, by arm, the cores of those arms that used more than the limit while they waited."""
        return {arm: cores for arm, cores in self.waiting_cores.items() if cores > WAITING_CORES_LIMIT}


def summarise(figures: Figures) -> Summary:
    """Summarise a run, with the figures of every arm that has a launch."""
    run, common = figures.run, figures.common
    oversubscribed = is_oversubscribed(run)
    by_arm = {} if oversubscribed else verdicts(common, run.config.baseline)
    noise_hides_all = hides_all(common, list(by_arm.values()))
    lead = None if oversubscribed or noise_hides_all else find_lead(common)
    fastest = lead.fastest if lead else None
    arms = [
        _summarise_arm(figures, arm, by_arm.get(arm.label), fastest=arm.label == fastest)
        for arm in run.config.arms
        if run.of(arm)
    ]
    return Summary(
        arms=arms,
        unfit=[does_not_fit(run, unfit) for unfit in run.unfit],
        bare=timed_bare(run),
        lead=lead,
        oversubscribed=oversubscribed,
        rounds_repeated=len(run.discarded) // len(run.config.arms),
        noisy_rounds=figures.noisy_rounds,
        noise_hides_all=noise_hides_all,
    )


# ---- one arm ----


def _summarise_arm(figures: Figures, arm: Arm, verdict: Verdict | None, *, fastest: bool) -> ArmSummary:
    """Return the figures of one arm.

    Times and memory come from the rounds that all arms have. Accuracy comes from the arm's last launch, and
    hash and proof from all of its launches.
    """
    config, common, launches = figures.run.config, figures.common, figures.run.of(arm)
    ranks = launches[-1].ranks
    samples = sum(rank.evaluation.samples for rank in ranks)
    losses = [rank.evaluation.loss_sum for rank in ranks]
    rights = [rank.evaluation.correct for rank in ranks]
    hashes = {rank.final_hash for launch in launches for rank in launch.ranks}
    compared = common.of(arm.label)
    steps = [one.step_seconds for one in compared]
    # A proof leaves memory that its process keeps, so launches without one show what training takes.
    plain = [one for one in compared if not any(rank.parity for rank in one.ranks)]
    peaks = [rank for one in plain or compared for rank in one.ranks]
    on_devices = [rank.peak_device_memory_bytes for rank in peaks]
    controlled = (
        common.pairs(arm.label, config.control.label) if config.control and arm.traits.synchronises else []
    )
    # An arm of one process exchanges nothing, and ranks with different layers share the work of a batch.
    paired = controlled if arm.traits.has_sync_cost else []
    efficiency = _geometric(control.step_seconds / one.step_seconds for one, control in controlled)
    return ArmSummary(
        arm=arm.label,
        launcher=launches[-1].launcher,
        transport=transport_of(ranks[0]),
        step_seconds=Estimate.geometric(steps),
        mean_over_median=_geometric(filter(None, (one.mean_over_median for one in compared))),
        samples_per_second=Estimate.geometric(config.global_batch_size / step for step in steps),
        sync_seconds=_difference((one.step_seconds, control.step_seconds) for one, control in paired),
        sync_share=efficiency.rest() if efficiency and paired else None,
        efficiency=efficiency,
        speed_against_baseline=_geometric(
            other.step_seconds / one.step_seconds for one, other in common.pairs(arm.label, config.baseline)
        ),
        verdict=verdict,
        would_have_seen=would_have_seen(verdict) if verdict else None,
        accuracy=None if None in rights else sum(filter(None, rights)) / samples,
        test_loss=None if None in losses else sum(filter(None, losses)) / samples,
        final_hash=hashes.pop() if len(hashes) == 1 else None,
        parity=Parity(outcome="unfit") if figures.run.is_bare(arm) else parity_of(arm, launches),
        peak_memory_bytes=max(rank.peak_memory_bytes for rank in peaks),
        peak_device_memory_bytes=max((peak for peak in on_devices if peak is not None), default=None),
        memory=memory_of(figures.run, arm),
        start_up_seconds=Estimate.of(
            max(rank.moments.first_step_done for rank in one.ranks)
            for one in [one for one in compared if one.launch.started_alone] or compared
        ),
        other_cpu_load=Estimate.of(one.other_cpu_load for one in compared),
        detail=_detail(compared, paired),
        fastest=fastest,
    )


def _geometric(values: Iterable[float]) -> Estimate | None:
    values = list(values)
    return Estimate.geometric(values) if values else None


def _difference(pairs: Iterable[tuple[float, float]]) -> Estimate | None:
    """Estimate by how much the first time of each pair exceeds the second; None without pairs.

    The mean is the difference of the two geometric means. The interval follows from that of the paired ratio.
    """
    pairs = list(pairs)
    whole, ratio = _geometric(pair[0] for pair in pairs), _geometric(pair[1] / pair[0] for pair in pairs)
    return ratio.rest().scaled(whole.mean) if whole and ratio else None


# ---- its detail ----


def _detail(launches: list[LaunchFigures], paired: list[tuple[LaunchFigures, LaunchFigures]]) -> Detail:
    """Return the parts of an arm's sync cost.

    ``paired`` has the arm's launches, each with the control's of the same round. It is empty if there is
    no control, or if the arm has no sync cost.
    """
    last, ranks = launches[-1].ranks[0], len(launches[-1].ranks)
    timed = [(one, reference) for one in launches if (reference := one.reference_seconds)]
    mode: Mode = "reference" if len(timed) == len(launches) else "training"
    of_ranks = list(zip(*(one.rank_seconds(mode) for one in launches), strict=True))
    collectives = [(one, seconds) for one in launches if ranks > 1 and (seconds := one.collective_seconds)]
    exposed = _difference((one.step_seconds, reference) for one, reference in timed)
    collective = _geometric(seconds for _, seconds in collectives)
    bandwidth = _geometric(
        size / seconds for one, seconds in collectives if (size := sum(one.ranks[0].message_bytes))
    )

    def change(phase: str) -> Estimate | None:
        return Estimate.of_any(one.phase_changes.get(phase) for one in launches)

    return Detail(
        reference_seconds=_geometric(reference for _, reference in timed),
        exposed_seconds=exposed,
        background_seconds=_difference(
            (reference, control.step_seconds)
            for one, control in paired
            if (reference := one.reference_seconds)
        ),
        imbalance_seconds=_difference(
            (control.slowest_seconds, control.step_seconds) for _, control in paired
        ),
        communication_seconds=_difference(
            (one.step_seconds, control.slowest_seconds) for one, control in paired
        ),
        skew_seconds=Estimate.of_any(one.skew_seconds for one in launches),
        blocked_seconds=change("sync"),
        forward_seconds=change("forward"),
        backward_seconds=change("backward"),
        optimizer_seconds=change("step"),
        collective_seconds=collective,
        overlap=exposed.over(collective).rest() if exposed and collective else None,
        algorithm_bandwidth=bandwidth,
        bus_bandwidth=bandwidth.scaled(_bus_factor(last, ranks)) if bandwidth else None,
        gradient_bytes=last.gradient_bytes,
        message_bytes=last.message_bytes,
        cores_per_rank=Estimate.of(one.cores_per_rank for one in launches),
        whole_peak_memory_bytes=max(r.whole_peak_memory_bytes for la in launches for r in la.ranks) or None,
        slowest_rank=max(range(ranks), key=lambda rank: statistics.fmean(of_ranks[rank])),
    )


def _bus_factor(rank: RankResult, ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth for all calls of a step together."""
    if not rank.calls:
        return bus_factor("all_reduce", ranks)
    sent = [call.message_bytes * bus_factor(call.collective, len(call.ranks) or ranks) for call in rank.calls]
    return sum(sent) / sum(rank.message_bytes)


# ---- its turns ----


def summarise_turns(run: Run) -> TurnsSummary | None:
    """Summarise the turns of a run; None if its arms took none."""
    if run.interleaved.mode != "blocks" or not run.launches:
        return None
    of_arms = {arm.label: launches for arm in run.config.arms if (launches := run.of(arm))}
    memory = Counter[int]()
    for launch in run.launches:
        memory[launch.round] += sum(rank.whole_peak_memory_bytes for rank in launch.ranks)
    waiting = {
        arm: [
            sum(rank.waited_cpu_ns / rank.waited_ns for rank in launch.ranks if rank.waited_ns)
            for launch in launches
        ]
        for arm, launches in of_arms.items()
    }
    return TurnsSummary(
        waiting_cores={arm: statistics.fmean(cores) for arm, cores in waiting.items()},
        memory_bytes=max(memory.values()),
        trained_on=[
            arm
            for arm, launches in of_arms.items()
            if any(launch.ranks[0].trained_steps > run.config.total_steps for launch in launches)
        ],
    )
