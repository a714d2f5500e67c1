"""From raw samples to what a table says. Pure: the same results give the same figures.

The definitions of the field's terms as they are used here stand in ``docs/measuring.md``. In short, for a
step: T_S is its time with synchronisation, T_R that of the reference in the same processes, T_0 that of
the control ``none`` in the same round. The independent sample is the launch, never the step.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from compare.analysis.budget import is_oversubscribed
from compare.analysis.estimate import Estimate
from compare.analysis.parity import LIMITS, pass_of
from compare.analysis.ranking import fastest_arm, log_ratios, noise_floor, verdicts
from compare.analysis.step_times import (
    collective_seconds,
    cores_per_rank,
    foreign_share,
    has_reference,
    imbalance_seconds,
    is_disturbed,
    phase_seconds,
    rank_seconds,
    skew_seconds,
    step_seconds,
)
from compare.analysis.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from compare.schema.arms import Arm
    from compare.schema.results import Launch, Mode, RankResult, Run


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """Where the sync cost of an arm goes; a figure that could not be measured is None.

    All times are seconds a step. Identities, of the means: sync cost = exposed + background;
    sync cost = communication + imbalance; phased exposed = blocked + the changes of forward, backward, step.
    """

    reference_seconds: Estimate | None
    """T_R: the step time of a replica without any synchronisation, in the same processes."""
    exposed_seconds: Estimate | None
    """E = T_S - T_R; may be negative."""
    background_seconds: Estimate | None
    """B = T_R - T_0: what the library's threads take from the computation."""
    imbalance_seconds: Estimate | None
    """Largest minus mean T_0 over ranks: the part of the sync cost that is waiting for the slowest."""
    communication_seconds: Estimate | None
    """Sync cost without the imbalance."""
    skew_seconds: Estimate | None
    """Mean over the reference's steps, but for the slowest tenth, of the largest minus the mean computing
    time over ranks."""
    blocked_seconds: Estimate | None
    """In the phase ``sync``; an arm that overlaps has its waiting in ``backward``."""
    forward_seconds: Estimate | None
    """Change of the forward phase against the reference."""
    backward_seconds: Estimate | None
    """Change of the backward phase against the reference."""
    step_seconds: Estimate | None
    """Change of the optimizer's phase against the reference."""
    collective_seconds: Estimate | None
    """T_iso: a step's collectives alone, from a common start; mean over ranks."""
    hiding: Estimate | None
    """H = 1 - E / T_iso: 1 is all hidden behind computation. E also holds copying and waiting, so an arm that
    blocks is below 0, often far below."""
    algorithm_bandwidth: Estimate | None
    """algbw = bytes of a step's messages / T_iso, in bytes a second."""
    bus_bandwidth: Estimate | None
    """busbw = algbw x 2 (n - 1) / n for an all-reduce among n ranks (nccl-tests, PERFORMANCE.md)."""
    gradient_bytes: int
    message_bytes: list[int]
    """What is handed over to be averaged in a step, call by call."""
    cores_per_rank: Estimate
    """CPU time over wall time while the arm itself trained."""
    whole_peak_memory_bytes: int | None
    """The largest resident set of any rank at any time: with the proof before the training, in float64, with
    the reference beside it, and with the test. None for runs that did not keep it."""
    slowest_rank: int
    """The rank that computed longest, by the reference where there is one."""


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """How near to a single process an arm trained before its launches, as rank 0 found in float64."""

    outcome: Literal["passed", "failed", "exempt", "none"]
    """``exempt``: it rounds or compresses by its own choice. ``none``: not every launch brought a pass, and
    the control's never do. A launch that failed is in no run as it was written."""
    steps: int | None = None
    """The fewest of any launch."""
    difference: float | None = None
    """The largest relative difference that any launch ended with; None where one is no number."""


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One arm of a run. What cannot be told yet, without the control say, is None."""

    arm: str
    launcher: str
    transport: str
    step_seconds: Estimate
    """T_S."""
    samples_per_second: Estimate
    """Over all ranks together."""
    sync_seconds: Estimate | None
    """Sync cost: T_S minus the control's T_0, round by round."""
    sync_share: Estimate | None
    """The part of the step that is sync cost."""
    efficiency: Estimate | None
    """T_0 / T_S, round by round: 1 is no cost at all."""
    speed_against_baseline: Estimate | None
    """The baseline's step time over this arm's, round by round: above 1 is faster."""
    verdict: Verdict | None
    """None for the control, the baseline, and where ranks outnumber cores: then nothing is ranked."""
    accuracy: float
    """On the whole test set. For the control, whose models differ, the mean over its ranks' shards."""
    test_loss: float | None
    """None where the training has diverged."""
    final_hash: str | None
    """Hash of the trained parameters where all ranks and launches agree."""
    parity: Parity
    """What stands behind its being the same training as the others'."""
    peak_memory_bytes: int
    """The largest of any rank."""
    start_up_seconds: Estimate
    """From the start of the launcher to the end of the slowest rank's first step."""
    foreign_share: Estimate
    """Share of the busiest host's CPUs that others used while this arm was measured."""
    detail: Detail
    fastest: bool
    """Every other arm that synchronises is slower: judged as the verdicts are, with this one as baseline."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its tables show it."""

    arms: list[ArmSummary]
    oversubscribed: bool
    """More threads than cores on a host: ranks wait for each other's core, and nothing is ranked."""
    rounds_taken_again: int
    disturbed_rounds: list[int]
    """Rounds that count although others used the machine: they could not be taken again any more."""
    noise: float | None
    """The noise floor: the 95 % half-width, as a share, of the difference of two arms that do not differ."""


def summarise(run: Run) -> Summary:
    """Summarise the arms that have at least one finished launch, in the order they were named."""
    oversubscribed = is_oversubscribed(run)
    found = {} if oversubscribed else verdicts(run, run.config.baseline)
    fastest = None if oversubscribed else fastest_arm(run)
    return Summary(
        arms=[
            _summarise_arm(run, arm, found.get(arm.label), fastest=arm.label == fastest)
            for arm in run.config.arms
            if run.of(arm)
        ],
        oversubscribed=oversubscribed,
        rounds_taken_again=len(run.set_aside) // len(run.config.arms),
        disturbed_rounds=sorted({launch.round for launch in run.launches if is_disturbed(launch)}),
        noise=noise_floor(run),
    )


# ---- one arm ----


def _summarise_arm(run: Run, arm: Arm, verdict: Verdict | None, *, fastest: bool) -> ArmSummary:
    launches = run.of(arm)
    steps = [step_seconds(launch) for launch in launches]
    ranks = launches[-1].ranks
    samples = sum(rank.evaluation.samples for rank in ranks)
    hashes = {rank.final_hash for launch in launches for rank in launch.ranks}
    control = run.config.control if arm.synchronises else None
    baseline = next(a for a in run.config.arms if a.label == run.config.baseline)
    return ArmSummary(
        arm=arm.label,
        launcher=launches[-1].launcher,
        transport=_transport(ranks[0].attestation),
        step_seconds=Estimate.of(steps),
        samples_per_second=Estimate.of(run.config.global_batch_size / step for step in steps),
        sync_seconds=_paired(run, arm, control, lambda own, other: own - other),
        sync_share=_paired(run, arm, control, lambda own, other: (own - other) / own),
        efficiency=_paired(run, arm, control, lambda own, other: other / own),
        speed_against_baseline=_geometric(log_ratios(run, arm, baseline)),
        verdict=verdict,
        accuracy=sum(rank.evaluation.correct for rank in ranks) / samples,
        test_loss=_mean_loss(ranks, samples),
        final_hash=hashes.pop() if len(hashes) == 1 else None,
        parity=_parity(arm, launches),
        peak_memory_bytes=max(rank.peak_memory_bytes for launch in launches for rank in launch.ranks),
        start_up_seconds=Estimate.of(
            max(r.moments.first_step_done for r in launch.ranks) for launch in launches
        ),
        foreign_share=Estimate.of(map(foreign_share, launches)),
        detail=_detail(run, arm, control),
        fastest=fastest,
    )


def _parity(arm: Arm, launches: list[Launch]) -> Parity:
    passes = [taken for launch in launches if (taken := pass_of(launch.ranks[0], "float64"))]
    if len(passes) < len(launches):
        return Parity(outcome="none")
    ends = [taken.differences[-1] if taken.differences else None for taken in passes]
    numbers = [end for end in ends if end is not None]
    worst = max(numbers) if len(numbers) == len(ends) else None
    near = worst is not None and worst <= LIMITS["float64"]
    outcome: Literal["passed", "failed", "exempt"] = "passed" if near else "failed"
    return Parity(
        outcome=outcome if arm.exact else "exempt",
        steps=min(taken.steps for taken in passes),
        difference=worst,
    )


def _detail(run: Run, arm: Arm, control: Arm | None) -> Detail:
    launches = run.of(arm)
    referred = [launch for launch in launches if has_reference(launch)]
    reference = {launch.number: step_seconds(launch, "reference") for launch in referred}
    control_of = {launch.round: launch for launch in run.of(control)} if control else {}
    paired = [launch for launch in launches if launch.round in control_of]
    imbalance = {launch.number: imbalance_seconds(control_of[launch.round]) for launch in paired}
    changes = [change for launch in launches if (change := _phase_changes(launch))]
    alone = [(launch, seconds) for launch in launches if (seconds := collective_seconds(launch))]
    if run.config.ranks == 1:
        alone = []  # nothing travels
    last = launches[-1].ranks[0]
    reduced = 2 * (run.config.ranks - 1) / run.config.ranks
    return Detail(
        reference_seconds=_maybe(reference[launch.number] for launch in referred),
        exposed_seconds=_maybe(step_seconds(launch) - reference[launch.number] for launch in referred),
        background_seconds=_maybe(
            reference[launch.number] - step_seconds(control_of[launch.round])
            for launch in paired
            if launch.number in reference
        ),
        imbalance_seconds=_maybe(imbalance.values()),
        communication_seconds=_maybe(
            step_seconds(launch) - step_seconds(control_of[launch.round]) - imbalance[launch.number]
            for launch in paired
        ),
        skew_seconds=_maybe(skew for launch in launches if (skew := skew_seconds(launch)) is not None),
        blocked_seconds=_maybe(change["sync"] for change in changes),
        forward_seconds=_maybe(change["forward"] for change in changes),
        backward_seconds=_maybe(change["backward"] for change in changes),
        step_seconds=_maybe(change["step"] for change in changes),
        collective_seconds=_maybe(seconds for _, seconds in alone),
        hiding=_maybe(
            1 - (step_seconds(launch) - reference[launch.number]) / seconds
            for launch, seconds in alone
            if launch.number in reference
        ),
        algorithm_bandwidth=_maybe(sum(launch.ranks[0].message_bytes) / seconds for launch, seconds in alone),
        bus_bandwidth=_maybe(
            reduced * sum(launch.ranks[0].message_bytes) / seconds for launch, seconds in alone
        ),
        gradient_bytes=last.gradient_bytes,
        message_bytes=last.message_bytes,
        cores_per_rank=Estimate.of(map(cores_per_rank, launches)),
        whole_peak_memory_bytes=max(r.whole_peak_memory_bytes for la in launches for r in la.ranks) or None,
        slowest_rank=_slowest_rank(launches),
    )


def _phase_changes(launch: Launch) -> dict[str, float]:
    """Return how much longer each phase took than the reference's."""
    own, reference = phase_seconds(launch, "training"), phase_seconds(launch, "reference")
    return {name: own[name] - reference[name] for name in own} if reference else {}


def _slowest_rank(launches: list[Launch]) -> int:
    mode: Mode = "reference" if all(map(has_reference, launches)) else "training"
    ranks = range(len(launches[0].ranks))
    return max(ranks, key=lambda r: statistics.fmean(rank_seconds(la.ranks[r], mode) for la in launches))


def _maybe(values: Iterable[float]) -> Estimate | None:
    values = list(values)
    return Estimate.of(values) if values else None


def _geometric(log_ratios: list[float]) -> Estimate | None:
    return Estimate.of_log_ratios(log_ratios) if log_ratios else None


def _transport(attestation: dict[str, Any]) -> str:
    """Name how gradients travelled: a strategy that does not leave that to its group says so itself."""
    return attestation.get("replica", {}).get("transport") or attestation["group"]["transport"]


def _mean_loss(ranks: list[RankResult], samples: int) -> float | None:
    sums = [rank.evaluation.loss_sum for rank in ranks]
    return None if None in sums else sum(filter(None, sums)) / samples


def _paired(
    run: Run, arm: Arm, other: Arm | None, combine: Callable[[float, float], float]
) -> Estimate | None:
    """Combine an arm's step time with another's, launch by launch of the same round."""
    if other is None:
        return None
    others = {launch.round: step_seconds(launch) for launch in run.of(other)}
    return _maybe(
        combine(step_seconds(launch), others[launch.round])
        for launch in run.of(arm)
        if launch.round in others
    )
