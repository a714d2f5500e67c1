"""Judge the parts of a proof other than its passes, and what they leave open.

A user's own loader must give every rank samples of its own. After its training, each replica takes one more
step, which is checked. A proof leaves open what a wrong step would have passed as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from compare.schema.arms import Arm
from compare.schema.parity import EndStep, ParityPass, PassKind
from compare.schema.results import Gate, RankResult
from compare.text import counted

GateName: TypeAlias = Literal["ranks", "samples", "float64", "float32", "end"]
_FROM_ZERO = 1e9
"""Ratio that the ranks record for a learning rate that should be zero and is not."""
_SCHEDULED = 1e-4
"""Largest relative error of a learning rate."""
_MOSTLY = 0.5
"""Share of a rank's samples that duplicates in the data set cannot explain if another rank has them too."""
_SHARD = "Use torch's DistributedSampler with num_replicas and rank."
_SHOWN = 3
"""Number of names that a list shows; the others are only counted."""
_ANOTHER_LOSS = 1e-6
"""Largest relative distance of the combined batch's gradient from the mean that rounding can explain."""


def pass_of(rank: RankResult, kind: PassKind) -> ParityPass | None:
    """Return a rank's pass of one kind; None without one."""
    return next((taken for taken in rank.parity if taken.kind == kind), None)


def failed_gate(
    arm: Arm, name: GateName, what: str, found: str, reason: str, **figures: float | None
) -> Gate:
    """Return a failed gate, whose remedy names the strategy or the user's step and ends with ``reason``.

    ``figures`` are the gate's ``figure`` and ``limit``.
    """
    remedy = f"Fix {'your step' if arm.traits.own_step else 'the strategy'}: {reason}"
    return Gate(name=name, outcome="failed", what=what, found=found, remedy=remedy, **figures)


def check_samples(arm: Arm, ranks: list[RankResult]) -> Gate | None:
    """Return the gate ``samples`` of one launch; None if no float64 pass used a loader of the user's own.

    A failed gate describes the first fault. The order may depend on the rank, ranks may share samples, or
    their epochs may differ in length. The epochs of all ranks may also miss or repeat samples.
    """
    passes = {r.rank: taken for r in ranks if (taken := pass_of(r, "float64")) and taken.first_batches}
    if 0 not in passes or len(passes[0].first_batches) < len(ranks):
        return None
    expected = passes[0].first_batches
    what = f"{arm.label}: the ranks do not share the samples as one process would see them."
    batch = ranks[0].attestation["batch"]
    whole, there = batch.get("samples_of_an_epoch"), batch["training_samples"]
    lengths = {rank.rank: rank.attestation["batch"].get("samples_of_an_epoch") for rank in ranks}
    known = {rank: length for rank, length in lengths.items() if length is not None}
    least, most = (choose(known, key=known.__getitem__, default=0) for choose in (min, max))
    other = [rank for rank, taken in passes.items() if taken.first_batches[rank] != expected[rank]]
    same = [(expected.index(one), rank) for rank, one in enumerate(expected) if one in expected[:rank]]
    if other:
        found = (
            f"loader({other[0]}, {len(ranks)}, …) yields other samples on rank {other[0]} than on rank 0. "
            "Its order may depend only on its arguments and on torch's seed."
        )
    elif same:
        found = f"Ranks {same[0][0]} and {same[0][1]} begin with the same batch. {_SHARD}"
    elif passes[0].shared_samples >= _MOSTLY:
        found = f"{passes[0].shared_samples:.0%} of a rank's first samples are also another rank's. {_SHARD}"
    elif known and known[most] - known[least] > batch["samples"]:
        found = (
            f"An epoch has {known[least]} samples on rank {least} and {known[most]} on rank {most}, so their "
            f"epochs drift apart. {_SHARD}"
        )
    elif known and sum(known.values()) + len(ranks) * batch["samples"] < there and len(known) == len(ranks):
        found = (
            f"An epoch of all ranks has {sum(known.values())} samples, of {there} in all, so the others "
            "never take part. Let the workload's data have only the samples that the loader yields."
        )
    elif whole is not None and len(ranks) > 1 and whole * len(ranks) > there + batch["samples"] * len(ranks):
        found = f"An epoch of every rank has {whole} samples, of {there} in all. {_SHARD}"
    else:
        return Gate(name="samples", outcome="passed")
    return Gate(name="samples", outcome="failed", what=what, found=found, remedy="Fix your loader.")


def check_end(arm: Arm, ranks: list[RankResult]) -> Gate | None:
    """Return the gate ``end`` of one launch; None if no rank took a step after its training.

    The gate is exempt, with the reason, if the ranks compared nothing, or if the gradients are too small to
    tell a wrong step. A failed gate describes the first rank that is wrong.
    """
    ends = {r.rank: r.end for r in ranks if r.end and not r.end.why_not}
    if not ends:
        first = ranks[0].end
        return Gate(name="end", outcome="exempt", what=first.why_not) if first else None
    for rank, end in ends.items():
        if cause := _wrong_end(end):
            return failed_gate(
                arm,
                "end",
                f"{arm.label} trains differently after {end.step} steps than in its proof.",
                f"Rank {rank} is wrong in one more step after the training: {cause}",
                "something begins or changes late, such as a hook, a schedule or a clip.",
                figure=end.error,
                limit=end.limit,
            )
    end = ends[min(ends)]
    if len(ranks) > 1 and end.alone <= end.limit:
        what = "at the end of the training the gradients are too small to tell a wrong step"
        return Gate(name="end", outcome="exempt", what=what)
    return Gate(name="end", outcome="passed", figure=end.error, limit=end.limit, what=unseen_bend(end))


def unseen_bend(end: EndStep) -> str:
    """Describe the first bend of the schedule that no proven step shows; empty if there is none."""
    if not end.unseen_bend:
        return ""
    return f"the schedule bends at step {end.unseen_bend}, which no step of the proof takes"


def _wrong_end(end: EndStep) -> str:
    """Describe what is wrong in the step after the training; empty if the step is right."""
    if end.optimizer_steps != 1:
        times = f"it calls optimizer.step() {end.optimizer_steps} times."
        return times if end.optimizer_steps else "its parameters do not move."
    if end.changes_outside:
        return "its parameters change outside the optimizer's step, too."
    if end.rate >= _FROM_ZERO:
        return "its learning rate is not zero, although the schedule's is."
    if abs(end.rate - 1) > _SCHEDULED:
        return f"its learning rate is {end.rate:.3g} times what the schedule says."
    if end.error is None:
        return "a gradient is not a number."
    return _wrong_gradients(end, end.error) if end.error > end.limit else ""


def _wrong_gradients(end: EndStep, error: float) -> str:
    allowed = f"(rounding allows {end.limit:.0e})"
    found = f"its gradients differ from the mean by {error:.2g} of the mean's size {allowed}"
    across = math.sqrt(max(0.0, error**2 - (end.share - 1) ** 2))
    is_multiple = across <= max(end.limit, _SCHEDULED)
    times = f"{end.share:.3g} times the mean" if abs(end.share) > _SCHEDULED else "zero"
    return f"{found}. They are {times}." if is_multiple else f"{found}."


# ---- what a passed proof leaves open ----


def nothing_proven(arm: Arm, ranks: int, taken: ParityPass) -> tuple[str, str] | None:
    """Return why a passed proof shows nothing, and what the user can do; None if it shows something.

    Older results do not record which wrong steps they tell apart, so they count as showing something.
    """
    if not taken.trainable:
        return None
    untold = {kind: len(names) == taken.trainable for kind, names in taken.untold.items()}
    if untold.get("none"):
        return (
            f"no parameter moves in {taken.steps} steps: every gradient is zero, or the learning rate is",
            "Does the loss depend on the data and on the model? Are the inputs zero?",
        )
    if not arm.traits.communicates:
        return None
    if ranks == 1:
        return "one rank synchronises nothing", "Take two ranks or more: -np 2."
    if untold.get("alone"):
        return (
            "each rank's own gradient is already the mean, so a step without communication would pass",
            "Do all ranks get the same samples, or does the loss not depend on them?",
        )
    return None


def left_open(taken: ParityPass) -> Iterator[str]:
    """Yield what a passed proof leaves open, as phrases: parameters, ``before_step``, the kind of loss."""
    still = set(taken.untold.get("none", []))
    alone = [name for name in taken.untold.get("alone", []) if name not in still]
    sums = [name for name in taken.untold.get("sum", []) if name not in still and name not in alone]
    if still:
        yield f"not proven, because their gradients are zero: {shortened(sorted(still))}"
    if alone:
        yield f"not told apart from one rank alone: {shortened(alone)}"
    if sums:
        yield f"not told apart from a sum in place of the mean: {shortened(sums)}"
    if taken.acted and not any(taken.acted):
        yield "before_step changed no gradient, so what it does is not proven"
    if taken.combined is not None and taken.combined > _ANOTHER_LOSS:
        yield (
            f"the mean over the ranks is {taken.combined:.2g} of its size away from the gradient of the "
            "combined batch, as with a mean per token or a summed loss"
        )


def shortened(names: Sequence[str]) -> str:
    """Return the first names, joined by commas, and the number of the others."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {counted(more, 'other')}" if more > 0 else "")
