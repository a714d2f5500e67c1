"""Judge the samples and the last step of a proof, and name what a passed proof leaves open.

A user's own loader must give every rank samples of its own. After its training, each replica takes one more
step, which is checked. A passed proof leaves open all errors with which a step would have passed as well.
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
_RATE_IN_PLACE_OF_ZERO = 1e9
"""Ratio of learning rates that the ranks record if the rate should be zero and is not."""
_RATE_TOLERANCE = 1e-4
"""A learning rate may differ by this share from the schedule's, or a gradient from a multiple of the mean."""
_MOST_SHARED = 0.5
"""If ranks share this part of their samples or more, duplicates in the data set cannot explain it."""
_SHARDING_ADVICE = "Use torch's DistributedSampler with num_replicas and rank."
_SHOWN_NAMES = 3
"""A list shows this number of names, and counts the others."""
_MEAN_TOLERANCE = 1e-6
"""Rounding explains no larger distance of the combined batch's gradient from the ranks' mean, as a share."""


def pass_of(rank: RankResult, kind: PassKind) -> ParityPass | None:
    """Return the rank's parity pass of this kind, which is a short training to prove it; None without one."""
    return next((parity_pass for parity_pass in rank.parity if parity_pass.kind == kind), None)


def failed_gate(
    arm: Arm, name: GateName, what: str, found: str, reason: str, **figures: float | None
) -> Gate:
    """Return a failed gate whose remedy is to fix the strategy or the user's own step, because of ``reason``.

    ``figures`` are the fields ``figure`` and ``limit`` of the gate.
    """
    remedy = f"Fix {'your step' if arm.traits.own_step else 'the strategy'}: {reason}"
    return Gate(name=name, outcome="failed", what=what, found=found, remedy=remedy, **figures)


def check_samples(arm: Arm, ranks: list[RankResult]) -> Gate | None:
    """Return the gate ``samples`` of one launch; None if no float64 pass used a loader of the user's own.

    A failed gate describes the first of these faults: the order of samples depends on the rank, ranks share
    samples, their epochs differ in length, or all epochs together miss or repeat samples.
    """
    passes = {r.rank: one for r in ranks if (one := pass_of(r, "float64")) and one.first_batches}
    if 0 not in passes or len(passes[0].first_batches) < len(ranks):
        return None
    expected = passes[0].first_batches
    what = f"{arm.label}: the ranks do not share the samples as one process would see them."
    batch = ranks[0].attestation["batch"]
    epoch_samples, all_samples = batch.get("samples_of_an_epoch"), batch["training_samples"]
    lengths = {rank.rank: rank.attestation["batch"].get("samples_of_an_epoch") for rank in ranks}
    known = {rank: length for rank, length in lengths.items() if length is not None}
    least, most = (choose(known, key=known.__getitem__, default=0) for choose in (min, max))
    other = [rank for rank, one in passes.items() if one.first_batches[rank] != expected[rank]]
    equal = [(expected.index(one), rank) for rank, one in enumerate(expected) if one in expected[:rank]]
    shared = passes[0].shared_samples
    margin = batch["samples"] * len(ranks)  # one step of all ranks
    repeats = len(ranks) > 1 and epoch_samples and epoch_samples * len(ranks) > all_samples + margin
    if other:
        found = (
            f"loader({other[0]}, {len(ranks)}, …) yields other samples on rank {other[0]} than on rank 0. "
            "Its order may depend only on its arguments and on torch's seed."
        )
    elif equal:
        found = f"Ranks {equal[0][0]} and {equal[0][1]} begin with the same batch. {_SHARDING_ADVICE}"
    elif shared >= _MOST_SHARED:
        found = f"{shared:.0%} of a rank's first samples are also another rank's. {_SHARDING_ADVICE}"
    elif known and known[most] - known[least] > batch["samples"]:
        found = (
            f"An epoch has {known[least]} samples on rank {least} and {known[most]} on rank {most}, so their "
            f"epochs drift apart. {_SHARDING_ADVICE}"
        )
    elif len(known) == len(ranks) and sum(known.values()) + margin < all_samples:
        found = (
            f"An epoch of all ranks has {sum(known.values())} samples, of {all_samples} in all, so the "
            "others never take part. Let the workload's data have only the samples that the loader yields."
        )
    elif repeats:
        of_all = f"{epoch_samples} samples, of {all_samples} in all"
        found = f"An epoch of every rank has {of_all}. {_SHARDING_ADVICE}"
    else:
        return Gate(name="samples", outcome="passed")
    return Gate(name="samples", outcome="failed", what=what, found=found, remedy="Fix your loader.")


def check_end(arm: Arm, ranks: list[RankResult]) -> Gate | None:
    """Return the gate ``end`` of one launch, which checks one step after the training.

    None if no rank took such a step. The gate is exempt, with the reason, if the ranks compared nothing, or
    if the gradients are too small to tell a wrong step. A failed gate describes the first rank that is wrong.
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
    return Gate(name="end", outcome="passed", figure=end.error, limit=end.limit, what=describe_bend(end))


def describe_bend(end: EndStep) -> str:
    """Return a phrase for the first change of the schedule that no proven step shows; empty without one."""
    if not end.unseen_bend:
        return ""
    return f"the schedule bends at step {end.unseen_bend}, which no step of the proof takes"


def _wrong_end(end: EndStep) -> str:
    """Return a clause for what is wrong in the step after the training; empty if the step is right."""
    if end.optimizer_steps != 1:
        times = f"it calls optimizer.step() {end.optimizer_steps} times."
        return times if end.optimizer_steps else "its parameters do not move."
    if end.changes_outside:
        return "its parameters change outside the optimizer's step, too."
    if end.rate >= _RATE_IN_PLACE_OF_ZERO:
        return "its learning rate is not zero, although the schedule's is."
    if abs(end.rate - 1) > _RATE_TOLERANCE:
        return f"its learning rate is {end.rate:.3g} times what the schedule says."
    if end.error is None:
        return "a gradient is not a number."
    return _wrong_gradients(end, end.error) if end.error > end.limit else ""


def _wrong_gradients(end: EndStep, error: float) -> str:
    allowed = f"(rounding allows {end.limit:.0e})"
    found = f"its gradients differ from the mean by {error:.2g} of the mean's size {allowed}"
    across = math.sqrt(max(0.0, error**2 - (end.share - 1) ** 2))
    is_multiple = across <= max(end.limit, _RATE_TOLERANCE)
    times = f"{end.share:.3g} times the mean" if abs(end.share) > _RATE_TOLERANCE else "zero"
    return f"{found}. They are {times}." if is_multiple else f"{found}."


# ---- what a passed proof leaves open ----


def why_nothing_proven(arm: Arm, ranks: int, proof: ParityPass) -> tuple[str, str] | None:
    """Return why a passed proof proves nothing, and what the user can do; None if it proves something.

    Older results do not record which wrong steps would pass as well, so they count as proving something.
    """
    if not proof.trainable:
        return None
    untold = {kind: len(names) == proof.trainable for kind, names in proof.untold.items()}
    if untold.get("none"):
        return (
            f"no parameter moves in {proof.steps} steps: every gradient is zero, or the learning rate is",
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


def open_points(proof: ParityPass) -> Iterator[str]:
    """Yield a phrase for each point that a passed proof leaves open.

    A point is a list of parameters, the user's ``before_step``, or a loss that is not a mean over samples.
    """
    unmoved = set(proof.untold.get("none", []))
    alone = [name for name in proof.untold.get("alone", []) if name not in unmoved]
    sums = [name for name in proof.untold.get("sum", []) if name not in unmoved and name not in alone]
    if unmoved:
        yield f"not proven, because their gradients are zero: {shorten(sorted(unmoved))}"
    if alone:
        yield f"a step without communication would pass as well with these parameters: {shorten(alone)}"
    if sums:
        yield f"a sum in place of the mean would pass as well with these parameters: {shorten(sums)}"
    if proof.acted and not any(proof.acted):
        yield "before_step changed no gradient, so what it does is not proven"
    if proof.combined is not None and proof.combined > _MEAN_TOLERANCE:
        yield (
            f"the mean over the ranks is {proof.combined:.2g} of its size away from the gradient of the "
            "combined batch, as with a mean per token or a summed loss"
        )


def shorten(names: Sequence[str]) -> str:
    """Return the first three names, joined by commas, and the number of the others."""
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {counted(more, 'other')}" if more > 0 else "")
