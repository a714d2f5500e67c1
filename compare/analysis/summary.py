"""Summarise a run: derive every figure of its tables.

``docs/measuring.md`` defines the terms. In short, of one step:

- T_S is its time with synchronisation
- T_R is the time of the reference in the same processes
- T_0 is the time of the control ``none`` in the same round

The independent sample is the launch, never the step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Literal

import msgspec

from compare.analysis.attested import transport_of
from compare.analysis.budget import is_oversubscribed
from compare.analysis.estimate import Estimate
from compare.analysis.parity import LIMITS, pass_of
from compare.analysis.ranking import fastest_arm, log_ratios, noise_floor, verdicts
from compare.analysis.step_times import (
    collective_seconds,
    cores_per_rank,
    has_reference,
    imbalance_seconds,
    is_noisy,
    other_cpu_load,
    phase_changes,
    rank_seconds,
    skew_seconds,
    step_seconds,
)
from compare.analysis.verdict import Verdict
from compare.schema.arms import Arm
from compare.schema.results import Launch, Mode, Run


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of an arm's sync cost, in seconds per step.

    A part that was not measured is None. Three sums hold for the means:

    - sync cost = exposed + background
    - sync cost = communication + imbalance
    - exposed, in the blocks with timed phases = blocked + the changes of forward, backward and optimizer
    """

    reference_seconds: Estimate | None
    """T_R: step time of a replica without synchronisation, in the same processes."""
    exposed_seconds: Estimate | None
    """E = T_S - T_R; may be negative."""
    background_seconds: Estimate | None
    """B = T_R - T_0: what the library's threads take from the computation."""
    imbalance_seconds: Estimate | None
    """Largest minus mean T_0 over ranks: the wait for the slowest rank."""
    communication_seconds: Estimate | None
    """Sync cost without the imbalance."""
    skew_seconds: Estimate | None
    """Largest minus mean computing time over ranks, in the reference.

    A mean over steps, without the slowest tenth.
    """
    blocked_seconds: Estimate | None
    """Time in the phase ``sync``; an arm that overlaps waits in ``backward``."""
    forward_seconds: Estimate | None
    """Change of the forward phase against the reference."""
    backward_seconds: Estimate | None
    """Change of the backward phase against the reference."""
    optimizer_seconds: Estimate | None
    """Change of the optimizer's phase against the reference."""
    collective_seconds: Estimate | None
    """T_iso: a step's collectives alone, from a common start; mean over ranks."""
    overlap: Estimate | None
    """H = 1 - E / T_iso: 1 if computation hides all communication.

    E also holds copying and waiting, so an arm that blocks is below 0.
    """
    algorithm_bandwidth: Estimate | None
    """algbw = bytes of a step's messages / T_iso, in bytes per second."""
    bus_bandwidth: Estimate | None
    """busbw = algbw x 2 (n - 1) / n for n ranks (nccl-tests, PERFORMANCE.md)."""
    gradient_bytes: int
    message_bytes: list[int]
    """Bytes of each message of a step, before averaging."""
    cores_per_rank: Estimate
    """CPU time over wall time while the arm trained."""
    whole_peak_memory_bytes: int | None
    """Largest resident set of any rank at any time.

    It includes the parity passes in float64, the reference, and the test. None for older runs.
    """
    slowest_rank: int
    """Rank that computed longest, in the reference if there is one."""


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """Difference between an arm and a single process, before its launches."""

    outcome: Literal["passed", "failed", "exempt", "none"]
    """Outcome of the float64 gate.

    ``exempt``: the arm rounds or compresses by design. ``none``: a launch has no pass. The control never has
    a pass. A run that Ringside wrote holds no failed pass.
    """
    steps: int | None = None
    """The fewest of any launch."""
    difference: float | None = None
    """Largest relative difference at an end; None if not a number."""


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one arm; None for what cannot be computed."""

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
    """Share of the step that is sync cost."""
    efficiency: Estimate | None
    """T_0 / T_S, round by round: 1 is no cost at all."""
    speed_against_baseline: Estimate | None
    """The baseline's step time over this arm's; above 1 is faster."""
    verdict: Verdict | None
    """None for the control and the baseline, and if ranks outnumber cores."""
    accuracy: float
    """Accuracy on the whole test set, by the ranks' shards."""
    test_loss: float | None
    """None if the training diverged."""
    final_hash: str | None
    """Hash of the trained parameters if all ranks and launches agree."""
    parity: Parity
    peak_memory_bytes: int
    """The largest of any rank."""
    start_up_seconds: Estimate
    """From the launcher's start to the slowest rank's first step."""
    other_cpu_load: Estimate
    """Share of the busiest host's CPUs that other processes used."""
    detail: Detail
    fastest: bool
    """With this arm as baseline, the verdict on all others is slower."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run, as its tables show them."""

    arms: list[ArmSummary]
    oversubscribed: bool
    """A host has more threads than cores: nothing is ranked."""
    rounds_repeated: int
    noisy_rounds: list[int]
    """Rounds that count although they were noisy: no more could be repeated."""
    noise: float | None
    """The noise floor: the relative difference that two equal arms may show."""


def summarise(run: Run) -> Summary:
    """Summarise all arms that have a finished launch."""
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
        rounds_repeated=len(run.discarded) // len(run.config.arms),
        noisy_rounds=sorted({launch.round for launch in run.launches if is_noisy(launch)}),
        noise=noise_floor(run),
    )


# ---- one arm ----


def _summarise_arm(run: Run, arm: Arm, verdict: Verdict | None, *, fastest: bool) -> ArmSummary:
    launches = run.of(arm)
    steps = [step_seconds(launch) for launch in launches]
    ranks = launches[-1].ranks
    samples = sum(rank.evaluation.samples for rank in ranks)
    losses = [rank.evaluation.loss_sum for rank in ranks]
    hashes = {rank.final_hash for launch in launches for rank in launch.ranks}
    control = run.config.control if arm.synchronises else None
    # An arm of one process exchanges nothing: it has an efficiency, and no sync cost.
    paying = control if arm.communicates else None
    baseline = next(a for a in run.config.arms if a.label == run.config.baseline)
    ratios = log_ratios(run, arm, baseline)
    return ArmSummary(
        arm=arm.label,
        launcher=launches[-1].launcher,
        transport=transport_of(ranks[0]),
        step_seconds=Estimate.of(steps),
        samples_per_second=Estimate.of(run.config.global_batch_size / step for step in steps),
        sync_seconds=_paired(run, arm, paying, lambda own, other: own - other),
        sync_share=_paired(run, arm, paying, lambda own, other: (own - other) / own),
        efficiency=_paired(run, arm, control, lambda own, other: other / own),
        speed_against_baseline=Estimate.of_log_ratios(ratios) if ratios else None,
        verdict=verdict,
        accuracy=sum(rank.evaluation.correct for rank in ranks) / samples,
        test_loss=None if None in losses else sum(filter(None, losses)) / samples,
        final_hash=hashes.pop() if len(hashes) == 1 else None,
        parity=_parity(arm, launches),
        peak_memory_bytes=max(rank.peak_memory_bytes for launch in launches for rank in launch.ranks),
        start_up_seconds=Estimate.of(
            max(rank.moments.first_step_done for rank in launch.ranks) for launch in launches
        ),
        other_cpu_load=Estimate.of(map(other_cpu_load, launches)),
        detail=_detail(run, arm, paying),
        fastest=fastest,
    )


def _paired(
    run: Run, arm: Arm, other: Arm | None, combine: Callable[[float, float], float]
) -> Estimate | None:
    """Combine an arm's step time with another's, round by round."""
    others = {launch.round: step_seconds(launch) for launch in run.of(other)} if other else {}
    pairs = [(step_seconds(la), others[la.round]) for la in run.of(arm) if la.round in others]
    return Estimate.of_any(combine(own, other) for own, other in pairs)


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
        outcome=outcome if arm.exact and not arm.another_training else "exempt",
        steps=min(taken.steps for taken in passes),
        difference=worst,
    )


# ---- its detail ----


def _detail(run: Run, arm: Arm, control: Arm | None) -> Detail:
    launches = run.of(arm)
    control_of = {launch.round: launch for launch in run.of(control)} if control else {}
    parts = [_parts(launch, control_of.get(launch.round)) for launch in launches]
    last = launches[-1].ranks[0]

    def over(part: str) -> Estimate | None:
        return Estimate.of_any(own.get(part) for own in parts)

    return Detail(
        reference_seconds=over("reference"),
        exposed_seconds=over("exposed"),
        background_seconds=over("background"),
        imbalance_seconds=over("imbalance"),
        communication_seconds=over("communication"),
        skew_seconds=Estimate.of_any(map(skew_seconds, launches)),
        blocked_seconds=over("sync"),
        forward_seconds=over("forward"),
        backward_seconds=over("backward"),
        optimizer_seconds=over("step"),
        collective_seconds=over("collective"),
        overlap=over("overlap"),
        algorithm_bandwidth=over("algbw"),
        bus_bandwidth=over("busbw"),
        gradient_bytes=last.gradient_bytes,
        message_bytes=last.message_bytes,
        cores_per_rank=Estimate.of(map(cores_per_rank, launches)),
        whole_peak_memory_bytes=max(r.whole_peak_memory_bytes for la in launches for r in la.ranks) or None,
        slowest_rank=_slowest_rank(launches),
    )


def _parts(launch: Launch, control: Launch | None) -> dict[str, float]:
    """Return the measured parts of one launch's step time."""
    own, ranks = step_seconds(launch), len(launch.ranks)
    alone = collective_seconds(launch) if ranks > 1 else None  # one rank sends nothing
    parts = phase_changes(launch)
    if has_reference(launch):
        parts["reference"] = step_seconds(launch, "reference")
        parts["exposed"] = own - parts["reference"]
    if control:
        parts["imbalance"] = imbalance_seconds(control)
        parts["communication"] = own - step_seconds(control) - parts["imbalance"]
    if control and has_reference(launch):
        parts["background"] = parts["reference"] - step_seconds(control)
    if alone:
        parts["collective"] = alone
        parts["algbw"] = sum(launch.ranks[0].message_bytes) / alone
        parts["busbw"] = parts["algbw"] * 2 * (ranks - 1) / ranks
    if alone and has_reference(launch):
        parts["overlap"] = 1 - parts["exposed"] / alone
    return parts


def _slowest_rank(launches: list[Launch]) -> int:
    mode: Mode = "reference" if all(map(has_reference, launches)) else "training"
    ranks = range(len(launches[0].ranks))
    return max(ranks, key=lambda r: statistics.fmean(rank_seconds(la.ranks[r], mode) for la in launches))
