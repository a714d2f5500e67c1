"""Check parity: do the ranks train what a single process trains?

Four gates:

- ``ranks``: all ranks start from one model, train, and end with the same parameters, bit for bit
- ``float64``: each of twenty steps ends where that of a single process ends; in every launch
- ``float32``: likewise; for ``compare verify``
- ``samples``: ranks train on samples of their own; where the loader is the user's

The limits leave room for rounding alone (``schema/parity.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, TypeAlias

from compare.analysis.wrong_steps import diagnose
from compare.errors import ParityError
from compare.schema.arms import Arm
from compare.schema.job import PASSES, Proof
from compare.schema.parity import EPSILON, ParityPass, PassKind
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
_WORTHLESS = "the speed of this arm means nothing."
_Name: TypeAlias = Literal["ranks", "samples", "float64", "float32"]
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
    kinds = [kind for kind in PASSES[proof] if kind in EPSILON]
    return [
        *_check_samples(arm, ranks),
        *(_check_pass(arm, ranks, kind) for kind in kinds),
        _check_ranks(arm, ranks),
    ]


def check_launch(arm: Arm, ranks: list[RankResult]) -> None:
    """Refuse a launch that fails a gate.

    Raises:
        ParityError: a gate failed; it names the ranks, the difference, and its meaning if that is known.
    """
    for gate in check_gates(arm, ranks):
        if gate.outcome == "failed":
            raise ParityError(gate.what, found=gate.found, remedy=gate.remedy)


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
    return Gate(name="ranks", outcome="passed")


def _untrained(arm: Arm, rank: RankResult) -> Gate:
    what = f"{arm.label}: rank {rank.rank} on {rank.host} never trained."
    found = "Its parameters at the end are those of the start, bit for bit."
    proof = pass_of(rank, "float64")
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
    elif whole is not None and len(ranks) > 1 and whole * len(ranks) > there + batch["samples"] * len(ranks):
        found = f"An epoch of every rank has {whole} samples, of {there} in all. {_SHARD}"
    else:
        yield Gate(name="samples", outcome="passed")
        return
    yield Gate(name="samples", outcome="failed", what=what, found=found, remedy="Fix your loader.")


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
    figure, limit = _worst(passes[0])
    if arm.another_training:
        return Gate(name=name, outcome="exempt", figure=figure, what=ANOTHER_TRAINING)
    same = len({taken.hash for taken in passes.values()}) == 1
    # Every first update was the mean, except for rounding.
    right_at_first = all(_is_within(taken.error_of_first_update, _ROUNDED) for taken in passes.values())
    if not arm.exact and figure is not None and same and right_at_first:
        return _check_end_of_lossy(arm, passes[0], name)
    steps_once = all(count == 1 for taken in passes.values() for count in taken.optimizer_steps)
    if arm.exact and same and steps_once and all(taken.is_exact for taken in passes.values()):
        steps = passes[0].steps
        what = "" if arm.same_training else AT_PERIOD_1
        if passes[0].diverged:
            what = f"Proven by {steps} steps: the single process diverges after them."
        return Gate(name=name, outcome="passed", figure=figure, limit=limit, what=what)
    allowed = f"{limit:.0e}, for rounding" if arm.exact else f"{_ROUNDED:g} of the first update, for rounding"
    return _failed(
        arm,
        name,
        f"{arm.label} does not train what a single process trains on the same samples.",
        f"Largest relative difference of rank 0 in {passes[0].steps} {kind} steps: {_size(figure)}. "
        f"Allowed: {allowed}. " + diagnose(list(passes.items()), in_shards=arm.in_shards),
        _WORTHLESS,
        figure=figure,
        limit=limit,
    )


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
