"""From raw samples to what a table says. Pure: the same results give the same figures."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from compare.arms import Arm
    from compare.results import Launch, RankResult, Run


class Estimate(msgspec.Struct, frozen=True):
    """A median over launches, with the smallest and the largest of them."""

    median: float
    low: float
    high: float
    n: int
    """Launches behind it: a launch, not a step, is the independent sample."""

    @classmethod
    def of(cls, values: Iterable[float]) -> Estimate:
        """Estimate from one value a launch; there must be at least one."""
        values = sorted(values)
        return cls(statistics.median(values), values[0], values[-1], len(values))


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One arm of a run. What cannot be told yet, without the control say, is None."""

    arm: str
    launcher: str
    transport: str
    step_seconds: Estimate
    samples_per_second: Estimate
    """Over all ranks together."""
    sync_seconds: Estimate | None
    """Step time minus the control's, round by round."""
    sync_share: Estimate | None
    """The part of the step that is sync cost."""
    efficiency: Estimate | None
    """The control's step time over this arm's, round by round: 1 is no cost at all."""
    speed_against_baseline: Estimate | None
    """The baseline's step time over this arm's, round by round: above 1 is faster."""
    accuracy: float
    """On the whole test set. For the control, whose models differ, the mean over its ranks' shards."""
    test_loss: float | None
    """None where the training has diverged."""
    final_hash: str | None
    """Hash of the trained parameters where all ranks and launches agree."""
    peak_memory_bytes: int
    """The largest of any rank."""
    start_up_seconds: Estimate
    """From the start of the launcher to the end of the slowest rank's first step."""
    fastest: bool
    """Its slowest launch beats the quickest one of every other arm that synchronises."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its tables show it."""

    arms: list[ArmSummary]
    oversubscribed: bool
    """More threads than cores: ranks wait for each other's core, and no arm is called fastest."""


def summarise(run: Run) -> Summary:
    """Summarise the arms that have at least one finished launch, in the order they were named."""
    arms = [_summarise_arm(run, arm) for arm in run.config.arms if run.of(arm)]
    oversubscribed = run.config.ranks * run.config.threads_per_rank > run.cores * len(run.hosts)
    fastest = None if oversubscribed else _fastest(run, arms)
    return Summary(
        arms=[msgspec.structs.replace(arm, fastest=arm.arm == fastest) for arm in arms],
        oversubscribed=oversubscribed,
    )


def step_seconds(launch: Launch) -> float:
    """Step time of a launch: the median over its blocks of the mean over ranks."""
    blocks = zip(*(rank.blocks for rank in launch.ranks), strict=True)
    return statistics.median(statistics.fmean(b.wall_ns / b.steps for b in ranks) for ranks in blocks) / 1e9


def _summarise_arm(run: Run, arm: Arm) -> ArmSummary:
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
        speed_against_baseline=_paired(run, arm, baseline, lambda own, other: other / own),
        accuracy=sum(rank.evaluation.correct for rank in ranks) / samples,
        test_loss=_mean_loss(ranks, samples),
        final_hash=hashes.pop() if len(hashes) == 1 else None,
        peak_memory_bytes=max(rank.peak_memory_bytes for launch in launches for rank in launch.ranks),
        start_up_seconds=Estimate.of(
            max(r.moments.first_step_done for r in launch.ranks) for launch in launches
        ),
        fastest=False,
    )


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
    values = [
        combine(step_seconds(launch), others[launch.round])
        for launch in run.of(arm)
        if launch.round in others
    ]
    return Estimate.of(values) if values else None


def _fastest(run: Run, summaries: list[ArmSummary]) -> str | None:
    """Name the arm that is fastest beyond doubt: in two rounds or more, and no ranges overlapping."""
    synchronising = {arm.label for arm in run.config.arms if arm.synchronises}
    candidates = sorted(
        (s for s in summaries if s.arm in synchronising), key=lambda summary: summary.step_seconds.median
    )
    if len(candidates) < 2 or any(c.step_seconds.n < 2 for c in candidates):  # noqa: PLR2004 -- a comparison takes two
        return None
    first, *others = candidates
    clear = all(first.step_seconds.high < other.step_seconds.low for other in others)
    return first.arm if clear else None
