"""Check parity: do the ranks train what a single process trains?

Five gates:

- ``ranks``: all ranks start from one model, train, and end with the same parameters, bit for bit
- ``float64``: each of twenty steps ends where that of a single process ends; in every launch
- ``float32``: likewise; for ``compare verify``
- ``end``: one more step after the training is given the mean of all gradients, at the right learning rate
- ``samples``: ranks train on samples of their own; where the loader is the user's

The limits leave room for rounding alone (``schema/parity.py``). A gate that a wrong step would pass as well
proves nothing, and says so (``proof_gaps.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from compare.analysis.proof_gaps import left_open, nothing_proven, shortened
from compare.analysis.wrong_steps import diagnose, why_incomparable
from compare.errors import ParityError
from compare.schema.arms import Arm
from compare.schema.job import PASSES, Proof
from compare.schema.parity import EPSILON, EndStep, ParityPass, PassKind
from compare.schema.results import Gate, RankResult

IN_SHARDS = "held in shards; proven by the reference alone"
"""Reason why the hashes of an arm's ranks may differ."""
ANOTHER_TRAINING = "another training by declaration"
"""Reason why an arm need not train what a single process trains."""
_MOSTLY = 0.5
"""Part of a rank's samples that no data set holds twice."""
_SHARD = "Use torch's DistributedSampler with num_replicas and rank."
AT_PERIOD_1 = "the same training at period 1"
"""What is proven of an arm that averages less often."""
_LEAST_ALIKE = 2
"""Arms that must fail before the workload is suspected."""
_WORTHLESS = "the speed of this arm means nothing."
_Name: TypeAlias = Literal["ranks", "samples", "float64", "float32", "end"]
_SCHEDULED = 1e-4
"""Largest relative error of a learning rate."""
_ROUNDED = 0.05
"""Largest error of the first update of an arm that rounds.

fp16 is 3e-4 away, a sum over two ranks 1. PowerSGD does not compress its first steps.
"""
_AS_FAR_AS_UNTRAINED = 1.0
"""Largest error of all updates of an arm that rounds or compresses.

It is relative to the single process's update, so 1 is no training at all. Models of 200 thousand to 6
million parameters trained 5 and 20 steps. fp16 was up to 4e-4 away and PowerSGD of rank 1 0.7. If gradients
were never reset, both were 1.2 to 14 away. The largest relative difference does not separate these cases.
"""


def check_gates(arm: Arm, ranks: list[RankResult], proof: Proof = "brief") -> list[Gate]:
    """Check the ranks of one launch at every gate of its proof.

    The control must only start from one model and train: its ranks never synchronise.
    """
    return [*_check_samples(arm, ranks), *check_training(arm, ranks, proof), _check_ranks(arm, ranks)]


def check_training(arm: Arm, ranks: list[RankResult], proof: Proof = "brief") -> list[Gate]:
    """Check the ranks of one launch at the gates beside a single process alone."""
    kinds = [kind for kind in PASSES[proof] if kind in EPSILON]
    return [*(_check_pass(arm, ranks, kind) for kind in kinds), *_check_end(arm, ranks)]


def check_launch(arm: Arm, ranks: list[RankResult]) -> None:
    """Refuse a launch that fails a gate; see ``check_launches``."""
    check_launches([(arm, ranks)])


def check_launches(launches: Sequence[tuple[Arm, list[RankResult]]]) -> None:
    """Refuse launches of which one fails a gate.

    Raises:
        ParityError: a gate failed; it names the ranks, the difference, and its meaning if that is known.
    """
    failed = [
        (arm, gate) for arm, ranks in launches for gate in check_gates(arm, ranks) if gate.outcome == "failed"
    ]
    if failed:
        gate = failed[0][1]
        alike = fail_alike([arm for arm, _ in launches], [(arm, gate.name) for arm, gate in failed])
        raise ParityError(gate.what, found=gate.found, remedy=alike or gate.remedy)


def fail_alike(arms: Sequence[Arm], failed: Sequence[tuple[Arm, str]]) -> str:
    """Say that the workload is to be suspected; empty unless all arms fail beside one process."""
    proven = [arm for arm in arms if arm.synchronises and not arm.own_step]
    beside = {arm.label for arm, name in failed if name == "float64"}
    if len(proven) < _LEAST_ALIKE or not all(arm.label in beside for arm in proven):
        return ""
    return (
        f"All {len(proven)} arms fail alike, so suspect the workload and not the arms: does it remember "
        "something outside the model, or does its loss depend on the rank?"
    )


def pass_of(rank: RankResult, kind: PassKind) -> ParityPass | None:
    """Return a rank's pass of one kind, if there is one."""
    return next((taken for taken in rank.parity if taken.kind == kind), None)


def _failed(arm: Arm, name: _Name, what: str, found: str, reason: str, **figures: float | None) -> Gate:
    remedy = f"Fix {'your step' if arm.own_step else 'the strategy'}: {reason}"
    return Gate(name=name, outcome="failed", what=what, found=found, remedy=remedy, **figures)


# ---- the ranks ----


def _check_ranks(arm: Arm, ranks: list[RankResult]) -> Gate:
    if len({r.initial_hash for r in ranks}) > 1:
        return _different(arm, ranks, "initial_hash")
    for result in ranks:
        if result.final_hash == result.initial_hash:
            return _untrained(arm, result)
    if not arm.synchronises:
        return Gate(name="ranks", outcome="exempt")
    if arm.in_shards and len(ranks) > 1:
        # Every rank gathers the same shards, so equal hashes are no evidence.
        return Gate(name="ranks", outcome="exempt", what=IN_SHARDS)
    if len({r.final_hash for r in ranks}) > 1:
        return _different(arm, ranks, "final_hash")
    unmoved = ranks[0].unmoved
    what = f"these parameters end as they started: {shortened(unmoved)}" if unmoved else ""
    return Gate(name="ranks", outcome="passed", what=what)


def _untrained(arm: Arm, rank: RankResult) -> Gate:
    what = f"{arm.label}: rank {rank.rank} on {rank.host} never trained."
    found = "Its parameters at the end are those of the start, bit for bit."
    proof = pass_of(rank, "float64")
    if proof and (empty := nothing_proven(arm, 1, proof)):
        return Gate(name="ranks", outcome="nothing", what=f"{empty.what}.", found=found, remedy=empty.remedy)
    if not (proof and proof.is_exact):
        return _failed(arm, "ranks", what, found, "its step does not change the parameters.")
    found += f" In {proof.steps} steps of float64 it trained what a single process trains."
    remedy = "Is the learning rate too small for float32? Try a larger --lr."
    return Gate(name="ranks", outcome="failed", what=what, found=found, remedy=remedy)


def _different(arm: Arm, ranks: list[RankResult], when: Literal["initial_hash", "final_hash"]) -> Gate:
    verb = "started from" if when == "initial_hash" else "ended with"
    each = ", ".join(f"rank {r.rank} {getattr(r, when)[:12]}" for r in ranks)
    return _failed(
        arm,
        "ranks",
        f"{arm.label}: the ranks {verb} different models.",
        f"SHA-256 of the parameters: {each}.",
        "its gradients are not the mean over all ranks.",
    )


# ---- the samples ----


def _check_samples(arm: Arm, ranks: list[RankResult]) -> Iterator[Gate]:
    """Check that an own loader gives every rank samples of its own."""
    passes = {r.rank: taken for r in ranks if (taken := pass_of(r, "float64")) and taken.first_batches}
    if 0 not in passes or len(passes[0].first_batches) < len(ranks):
        return
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
            "Its order must depend on its arguments and on torch's seed alone."
        )
    elif same:
        found = f"Ranks {same[0][0]} and {same[0][1]} begin with the same batch. {_SHARD}"
    elif passes[0].shared_samples >= _MOSTLY:
        found = f"{passes[0].shared_samples:.0%} of a rank's samples at the start are another's. {_SHARD}"
    elif known and known[most] - known[least] > batch["samples"]:
        found = (
            f"An epoch has {known[least]} samples on rank {least} and {known[most]} on rank {most}, so their "
            f"epochs drift apart. {_SHARD}"
        )
    elif whole is not None and len(ranks) > 1 and whole * len(ranks) > there + batch["samples"] * len(ranks):
        found = f"An epoch of every rank has {whole} samples, of {there} in all. {_SHARD}"
    else:
        yield Gate(name="samples", outcome="passed")
        return
    yield Gate(name="samples", outcome="failed", what=what, found=found, remedy="Fix your loader.")


# ---- one more step after the training ----


def _check_end(arm: Arm, ranks: list[RankResult]) -> Iterator[Gate]:
    """Check the step that the run's own replicas took after their training."""
    ends = {r.rank: r.end for r in ranks if r.end and not r.end.why_not}
    if not ends:
        yield from (Gate(name="end", outcome="exempt", what=r.end.why_not) for r in ranks[:1] if r.end)
        return
    wrong = {rank: cause for rank, end in ends.items() if (cause := _wrong_end(end))}
    if wrong:
        rank, cause = next(iter(wrong.items()))
        end = ends[rank]
        yield _failed(
            arm,
            "end",
            f"{arm.label} trains differently after {end.step} steps than in its proof.",
            f"Rank {rank} is wrong in one more step after the training: {cause}",
            "something begins or changes late, such as a hook, a schedule or a clip.",
            figure=end.error,
            limit=end.limit,
        )
        return
    end = ends[min(ends)]
    if len(ranks) > 1 and end.alone <= end.limit:
        what = "at the end of the training the gradients are too small to tell a wrong step"
        yield Gate(name="end", outcome="exempt", what=what)
        return
    yield Gate(name="end", outcome="passed", figure=end.error, limit=end.limit)


def _wrong_end(end: EndStep) -> str:
    """Say what is wrong in the step after the training; empty if nothing is."""
    if end.optimizer_steps != 1:
        return f"it calls optimizer.step() {end.optimizer_steps} times."
    if abs(end.rate - 1) > _SCHEDULED:
        return f"its learning rate is {end.rate:.3g} times what the schedule says."
    if end.error is None:
        return "a gradient is not a number."
    if end.error <= end.limit:
        return ""
    allowed = f"rounding allows {end.limit:.0e}"
    apart = f"its gradients are {end.error:.2g} of their size away from the mean ({allowed})"
    across = math.sqrt(max(0.0, end.error**2 - (end.share - 1) ** 2))
    if across <= max(end.limit, _SCHEDULED):
        return f"{apart}, because they are {end.share:.3g} times the mean."
    return f"{apart}."


# ---- a pass beside a single process ----


def _check_pass(arm: Arm, ranks: list[RankResult], kind: PassKind) -> Gate:
    name: _Name = "float64" if kind == "float64" else "float32"
    if not arm.synchronises:
        return Gate(name=name, outcome="exempt")
    passes = {r.rank: taken for r in ranks if (taken := pass_of(r, kind))}
    if len(passes) < len(ranks):
        missing = next(r for r in ranks if r.rank not in passes)
        what = f"{arm.label}: rank {missing.rank} on {missing.host} has no {kind} pass."
        found = "Without it, the training of this arm is not proven."
        return _failed(arm, name, what, found, "every rank must take the parity steps.")
    figure = _worst(passes[0])[0]
    if arm.another_training:
        return Gate(name=name, outcome="exempt", figure=figure, what=ANOTHER_TRAINING)
    same = len({taken.hash for taken in passes.values()}) == 1
    # Every first update was the mean, except for rounding.
    right_at_first = all(_is_within(taken.error_of_first_update, _ROUNDED) for taken in passes.values())
    if not arm.exact and figure is not None and same and right_at_first:
        return _check_end_of_lossy(arm, passes[0], name)
    steps_once = all(count == 1 for taken in passes.values() for count in taken.optimizer_steps)
    if arm.exact and same and steps_once and all(taken.is_exact for taken in passes.values()):
        return _check_what_is_told(arm, len(ranks), passes[0], name)
    return _check_wrong_steps(arm, passes, name)


def _check_wrong_steps(arm: Arm, passes: dict[int, ParityPass], name: _Name) -> Gate:
    """Judge a pass with a wrong step: is a single process its measure, and what went wrong?"""
    figure, limit = _worst(passes[0])
    incomparable = why_incomparable(list(passes.items()), own_step=arm.own_step)
    if incomparable:
        what, remedy = incomparable
        return Gate(name=name, outcome="incomparable", figure=figure, limit=limit, what=what, remedy=remedy)
    allowed = f"{limit:.0e}, for rounding" if arm.exact else f"{_ROUNDED:g} of the first update, for rounding"
    return _failed(
        arm,
        name,
        f"{arm.label} does not train what a single process trains on the same samples.",
        f"Largest relative difference of rank 0 in {passes[0].steps} {name} steps: {_size(figure)}. "
        f"Allowed: {allowed}. " + diagnose(list(passes.items()), in_shards=arm.in_shards),
        _WORTHLESS,
        figure=figure,
        limit=limit,
    )


def _check_what_is_told(arm: Arm, ranks: int, first: ParityPass, name: _Name) -> Gate:
    """Judge a pass without a wrong step by what it would have shown of one."""
    figure, limit = _worst(first)
    empty = nothing_proven(arm, ranks, first)
    if empty:
        return Gate(
            name=name, outcome="nothing", figure=figure, limit=limit, what=empty.what, remedy=empty.remedy
        )
    said = [] if arm.same_training else [AT_PERIOD_1]
    if first.diverged:
        said.append(f"Proven by {first.steps} steps: the single process diverges after them.")
    what = "; ".join([*said, *left_open(first)])
    return Gate(name=name, outcome="passed", figure=figure, limit=limit, what=what)


def _check_end_of_lossy(arm: Arm, first: ParityPass, name: _Name) -> Gate:
    """Check an arm that rounds or compresses after its first update.

    The first update is right. The difference is reported, and must only be smaller than without any training.
    """
    figure, error = _worst(first)[0], first.error_of_whole_update
    if _is_within(error, _AS_FAR_AS_UNTRAINED):
        return Gate(name=name, outcome="exempt", figure=figure)
    size = "no number" if error is None else f"{error:.2g} times the size of that update"
    return _failed(
        arm,
        name,
        f"{arm.label}: rounding or compression cannot explain its difference from a single process.",
        f"Difference of the update after {first.steps} {name} steps: {size}. "
        f"Allowed: {_AS_FAR_AS_UNTRAINED:g}, the difference without any training. "
        "The first update is right on every rank. Either something is left over from the step before, or the "
        "compression error is lost.",
        _WORTHLESS,
        figure=figure,
    )


def _worst(taken: ParityPass) -> tuple[float | None, float]:
    """Return the difference that is furthest beyond its limit, and that limit.

    The difference is None if it is not a number.
    """
    compared = list(zip(taken.differences, taken.limits, strict=True))
    return max(compared, key=lambda pair: math.inf if pair[0] is None else pair[0] / pair[1])


def _is_within(difference: float | None, limit: float) -> bool:
    return difference is not None and difference <= limit


def _size(difference: float | None) -> str:
    return "no number" if difference is None else f"{difference:.1e}"
