"""Check parity: do the ranks train what a single process trains?

There are five gates:

- ``ranks``: all ranks start from one model, train, and end with the same parameters, bit for bit
- ``float64``: each of up to twenty steps ends where the same step of a single process ends; a launch that
  repeats a proven launch bit for bit skips these steps
- ``float32``: the same in float32, only in ``compare verify``
- ``end``: one more step after the training gets the mean of all gradients and the right learning rate
- ``samples``: every rank trains on samples of its own, which is checked if the loader is the user's

The limits leave room only for rounding (``schema/parity.py``). A gate that a wrong step would pass as well
proves nothing, and its outcome says so (``gates.py``).

An arm is proven by all of its launches. One without passes that repeats another launch bit for bit shares the
proof of that launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from compare.analysis.gates import (
    GateName,
    check_end,
    check_samples,
    failed_gate,
    left_open,
    nothing_proven,
    pass_of,
    shortened,
    unseen_bend,
)
from compare.analysis.wrong_steps import diagnose, why_incomparable
from compare.errors import ParityError
from compare.schema.arms import Arm
from compare.schema.job import PASSES, Proof
from compare.schema.parity import EPSILON, ParityPass, PassKind
from compare.schema.results import Gate, Launch, Outcome, RankResult, Run

AT_PERIOD_1 = "the same training at period 1"
"""What is proven of an arm that does not average in every step."""
_LEAST_ALIKE = 2
"""Smallest number of arms whose failures point to the workload."""
UNMOVED = "in no group of the optimizer, or frozen on purpose? These parameters end as they started"
AT_THE_END = "shown by one step at the end alone"
_WORTHLESS = "until then, the speed of this arm means nothing."
_ROUNDED = 0.05
"""Largest relative error of the first update of an arm that rounds.

The error of fp16 is 3e-4, and that of a sum over two ranks is 1. PowerSGD does not compress its first steps.
"""
ROUNDING_MAKES = 1e-3
"""Largest distance of two ends that still counts as rounding, relative to how far the arms moved.

It is ten thousand times the rounding of float32, because a training makes small differences grow.
"""
_WORST_FIRST: tuple[Outcome, ...] = ("failed", "incomparable", "nothing")
_AS_FAR_AS_UNTRAINED = 1.0
"""Largest error of all updates together, of an arm that rounds or compresses.

The error is relative to the single process's update, so 1 is no training at all. ``docs/method.md`` has the
errors of right arms and of wrong ones. The largest relative difference of a step does not separate them.
"""


def check_gates(arm: Arm, ranks: list[RankResult], proof: Proof = "brief") -> list[Gate]:
    """Return every gate of one launch's proof: samples, the passes, the end, and the ranks.

    Of the control, whose ranks never synchronise, only the common start and the training are checked.
    """
    samples = check_samples(arm, ranks)
    beside = check_training(arm, ranks, proof)
    return [*([samples] if samples else []), *beside, _check_ranks(arm, ranks)]


def check_training(arm: Arm, ranks: list[RankResult], proof: Proof = "brief") -> list[Gate]:
    """Return the gates that compare one launch with a single process: its passes, and its end.

    The end is not checked if a pass failed or is incomparable. If the end passes on several ranks, it also
    proves a pass that showed nothing.
    """
    kinds = [kind for kind in PASSES[proof] if kind in EPSILON]
    gates = [_check_pass(arm, ranks, kind) for kind in kinds]
    if any(gate.outcome in {"failed", "incomparable"} for gate in gates):
        return gates
    end = check_end(arm, ranks)
    if not end:
        return gates
    if end.outcome == "passed" and len(ranks) > 1:
        # The step after the training is the proof of a pass that showed nothing.
        gates = [
            msgspec.structs.replace(gate, outcome="passed", what=f"{AT_THE_END}: {gate.what}", remedy="")
            if gate.outcome == "nothing"
            else gate
            for gate in gates
        ]
    return [*gates, end]


def with_passes(ranks: list[RankResult], launches: Iterable[Launch]) -> list[RankResult]:
    """Return ranks with the passes of a launch that they repeat, unless they have passes of their own.

    Ranks repeat a launch if each began and ended as the same rank of that launch did, bit for bit, because
    then both computed the same. Ranks that have passes, or repeat none of ``launches``, are returned as they
    are.
    """
    found = [rank.fingerprint for rank in ranks]
    if None in found or any(rank.parity for rank in ranks):
        return ranks
    for launch in launches:
        proven = launch.ranks
        if all(rank.parity for rank in proven) and [rank.fingerprint for rank in proven] == found:
            return [
                msgspec.structs.replace(rank, parity=of.parity)
                for rank, of in zip(ranks, proven, strict=True)
            ]
    return ranks


def check_launches(launches: Sequence[tuple[Arm, list[RankResult]]], run: Run) -> None:
    """Require that launches pass every gate of the brief proof.

    A launch without passes takes those of an earlier launch in ``run`` that it repeats bit for bit.

    Raises:
        ParityError: a gate failed; the error has the difference, and its likely cause if that is known.
    """
    proven = [(arm, with_passes(ranks, run.of(arm))) for arm, ranks in launches]
    failed = [
        (arm, gate) for arm, ranks in proven for gate in check_gates(arm, ranks) if gate.outcome == "failed"
    ]
    if failed:
        gate = failed[0][1]
        alike = fail_alike(run, [(arm, gate.name) for arm, gate in failed])
        raise ParityError(gate.what, found=gate.found, remedy=alike or gate.remedy)


def fail_alike(run: Run, failed: Sequence[tuple[Arm, str]]) -> str:
    """Return the advice to suspect the workload; empty unless all arms of an own workload fail alike.

    ``failed`` has the arm and the name of each failed gate. Only failures of ``float64`` count. Arms with a
    step of the user's own are left out.
    """
    if run.dataset.name != "own":  # the built-in models remember nothing
        return ""
    proven = [arm for arm in run.config.synchronising if not arm.traits.own_step]
    beside = {arm.label for arm, name in failed if name == "float64"}
    if len(proven) < _LEAST_ALIKE or not all(arm.label in beside for arm in proven):
        return ""
    return (
        f"All {len(proven)} arms fail alike, so suspect the workload and not the arms: does it remember "
        "something outside the model, or does its loss depend on the rank?"
    )


# ---- the ranks ----


def _check_ranks(arm: Arm, ranks: list[RankResult]) -> Gate:
    if len({r.initial_hash for r in ranks}) > 1:
        return _different(arm, ranks, "initial_hash")
    for result in ranks:
        if result.final_hash == result.initial_hash:
            return _untrained(arm, result, len(ranks))
    if not arm.traits.synchronises:
        return Gate(name="ranks", outcome="exempt")
    if arm.traits.in_shards and len(ranks) > 1:
        # Every rank gathers the same shards, so equal hashes are no evidence.
        return Gate(name="ranks", outcome="exempt", what="held in shards; proven by the reference alone")
    if len({r.final_hash for r in ranks}) > 1:
        return _different(arm, ranks, "final_hash")
    unmoved = ranks[0].unmoved
    what = f"{UNMOVED}: {shortened(unmoved)}" if unmoved else ""
    return Gate(name="ranks", outcome="passed", what=what)


def _untrained(arm: Arm, rank: RankResult, ranks: int) -> Gate:
    what = f"{arm.label}: rank {rank.rank} on {rank.host} never trained."
    found = "Its parameters at the end are those of the start, bit for bit."
    proof = pass_of(rank, "float64")
    if not (proof and proof.is_exact):
        return failed_gate(arm, "ranks", what, found, "its step does not change the parameters.")
    if empty := nothing_proven(arm, ranks, proof):
        what, remedy = empty
        return Gate(name="ranks", outcome="nothing", what=what, found=found, remedy=remedy)
    found += f" In {proof.steps} float64 steps, however, it trained what a single process trains."
    remedy = "Is the learning rate too small for float32? Try a larger one."
    return Gate(name="ranks", outcome="failed", what=what, found=found, remedy=remedy)


def _different(arm: Arm, ranks: list[RankResult], when: Literal["initial_hash", "final_hash"]) -> Gate:
    verb = "started from" if when == "initial_hash" else "ended with"
    each = ", ".join(f"rank {r.rank} {getattr(r, when)[:12]}" for r in ranks)
    starts = "rank 0's parameters must reach every rank before the first step."
    return failed_gate(
        arm,
        "ranks",
        f"{arm.label}: the ranks {verb} different models.",
        f"SHA-256 of the parameters: {each}.",
        starts if when == "initial_hash" else "its gradients are not the mean over all ranks.",
    )


# ---- a pass beside a single process ----


def _check_pass(arm: Arm, ranks: list[RankResult], kind: PassKind) -> Gate:
    name: GateName = "float64" if kind == "float64" else "float32"
    if not arm.traits.synchronises:
        return Gate(name=name, outcome="exempt")
    passes = {r.rank: taken for r in ranks if (taken := pass_of(r, kind))}
    if len(passes) < len(ranks):
        missing = next((r for r in ranks if r.rank not in passes), ranks[0])
        what = f"{arm.label}: rank {missing.rank} on {missing.host} has no {kind} pass."
        found = "Without it, the training of this arm is not proven."
        return failed_gate(arm, name, what, found, "every rank must take the parity steps.")
    figure = _worst(passes[0])[0]
    if arm.traits.another_training:
        return Gate(name=name, outcome="exempt", figure=figure, what="another training by declaration")
    same = len({taken.hash for taken in passes.values()}) == 1
    # Every first update was the mean, except for rounding.
    right_at_first = all(_is_within(taken.error_of_first_update, _ROUNDED) for taken in passes.values())
    if not arm.exact and figure is not None and same and right_at_first:
        return _check_end_of_lossy(arm, passes[0], name)
    steps_once = all(count == 1 for taken in passes.values() for count in taken.optimizer_steps)
    if arm.exact and same and steps_once and all(taken.is_exact for taken in passes.values()):
        return _check_what_shows(arm, len(ranks), passes[0], name)
    return _check_wrong_steps(arm, passes, name)


def _check_wrong_steps(arm: Arm, passes: dict[int, ParityPass], name: GateName) -> Gate:
    """Return the gate of a pass with a wrong step: failed, or incomparable with a single process."""
    figure, limit = _worst(passes[0])
    incomparable = why_incomparable(passes, own_step=arm.traits.own_step)
    if incomparable:
        what, remedy = incomparable
        return Gate(name=name, outcome="incomparable", figure=figure, limit=limit, what=what, remedy=remedy)
    size = "not a number" if figure is None else f"{figure:.1e}"
    allowed = f"{limit:.0e}, for rounding" if arm.exact else f"{_ROUNDED:g} of the first update, for rounding"
    return failed_gate(
        arm,
        name,
        f"{arm.label} does not train what a single process trains on the same samples.",
        f"Largest relative difference of rank 0 in {passes[0].steps} {name} steps: {size}. "
        f"Allowed: {allowed}. " + diagnose(passes, in_shards=arm.traits.in_shards),
        _WORTHLESS,
        figure=figure,
        limit=limit,
    )


def _check_what_shows(arm: Arm, ranks: int, first: ParityPass, name: GateName) -> Gate:
    """Return the gate of a pass without a wrong step: passed, or *nothing* if a wrong step would pass too."""
    figure, limit = _worst(first)
    if empty := nothing_proven(arm, ranks, first):
        what, remedy = empty
        return Gate(name=name, outcome="nothing", figure=figure, limit=limit, what=what, remedy=remedy)
    open_ = [] if arm.same_training else [AT_PERIOD_1]
    if first.diverged:
        open_.append(f"Proven by {first.steps} steps: the single process diverges after them.")
    what = "; ".join([*open_, *left_open(first)])
    return Gate(name=name, outcome="passed", figure=figure, limit=limit, what=what)


def _check_end_of_lossy(arm: Arm, first: ParityPass, name: GateName) -> Gate:
    """Return the gate of an arm that rounds or compresses, and whose first update is right.

    It is exempt, with the difference as its figure. It fails if the error of all updates together is larger
    than without any training.
    """
    figure, error = _worst(first)[0], first.error_of_whole_update
    if _is_within(error, _AS_FAR_AS_UNTRAINED):
        return Gate(name=name, outcome="exempt", figure=figure)
    size = "not a number" if error is None else f"{error:.2g} times the size of that update"
    return failed_gate(
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
    """Return the step's difference that is largest relative to its limit, and that limit.

    A difference that is not a number counts as the largest, and is None.
    """
    compared = list(zip(taken.differences, taken.limits, strict=True))
    return max(compared, key=lambda pair: math.inf if pair[0] is None else pair[0] / pair[1])


def _is_within(difference: float | None, limit: float) -> bool:
    return difference is not None and difference <= limit


# ---- all launches of an arm ----


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """What is proven of an arm: how far it trains what a single process trains."""

    outcome: Outcome | Literal["none"]
    """The worst outcome of the gates that compare the arm with a single process.

    ``exempt``: the arm rounds or compresses by design, or declares another training. ``none``: a launch has
    no pass, as in the control. A run that Ringside wrote holds no failed pass.
    """
    why: str = ""
    """Why nothing is proven, with the remedy; empty if something is proven."""
    open: list[str] = []
    """What the proof leaves open, as phrases: parameters, a clip, the loss."""
    at_end: bool = False
    """Whether one more step after the training of every launch was proven as well."""
    by_hash: int = 0
    """Number of launches without a pass of their own, because they repeat a proven launch bit for bit."""
    steps: int | None = None
    """Smallest number of steps in the pass of any launch; None without a pass."""
    difference: float | None = None
    """Largest relative difference after the last step of any pass; None if one is not a number."""


def parity_of(arm: Arm, launches: list[Launch]) -> Parity:
    """Sum up the proofs of all launches of an arm."""
    without = [launch for launch in launches if not launch.ranks[0].parity]
    launches = [
        msgspec.structs.replace(launch, ranks=with_passes(launch.ranks, launches)) for launch in launches
    ]
    passes = [taken for launch in launches if (taken := pass_of(launch.ranks[0], "float64"))]
    if len(passes) < len(launches):
        return Parity(outcome="none")
    ends = [taken.differences[-1] if taken.differences else None for taken in passes]
    numbers = [end for end in ends if end is not None]
    gates = [gate for launch in launches for gate in check_training(arm, launch.ranks)]
    beside = [gate for gate in gates if gate.name == "float64"]
    after = [gate for gate in gates if gate.name == "end"]
    judged = [*beside, *(gate for gate in after if gate.outcome == "failed")]
    found = {gate.outcome: gate for gate in reversed(judged)}
    worst = next((found[outcome] for outcome in _WORST_FIRST if outcome in found), None)
    # An arm that rounds by design was judged before its result was kept.
    exempt = not arm.exact or arm.traits.another_training
    outcome: Outcome = "exempt" if exempt else worst.outcome if worst else "passed"
    return Parity(
        outcome=outcome,
        by_hash=len(without),
        steps=min(taken.steps for taken in passes),
        difference=max(numbers) if len(numbers) == len(ends) else None,
        why=f"{worst.what}. {worst.remedy}" if worst and outcome in {"incomparable", "nothing"} else "",
        open=_left_open(launches, passes, beside) if outcome == "passed" else [],
        at_end=len(after) == len(launches) and all(gate.outcome == "passed" for gate in after),
    )


def _left_open(launches: list[Launch], passes: list[ParityPass], gates: list[Gate]) -> list[str]:
    """Return what the proofs of all launches leave open, as phrases, each once."""
    late = [gate.what for gate in gates if gate.what.startswith(AT_THE_END)]
    unmoved = [f"{UNMOVED}: {shortened(la.ranks[0].unmoved)}" for la in launches if la.ranks[0].unmoved]
    late += filter(None, [unseen_bend(la.ranks[0].end) for la in launches if la.ranks[0].end])
    return list(dict.fromkeys([*late, *(what for taken in passes for what in left_open(taken)), *unmoved]))


def distance_of_ends(run: Run, names: Iterable[str]) -> float | None:
    """Return how far the named arms' ends lie apart, relative to how far they moved from the start.

    It is the largest distance of a launch from the first one over the largest movement, by rank 0's sketches.
    None if a launch has no sketch, or if the arms have no launch.
    """
    chosen = set(names)
    sketches = [launch.ranks[0].sketch for launch in run.launches if launch.arm in chosen]
    if not sketches or not all(sketches):
        return None
    first, *others = sketches
    moved = max(math.hypot(*sketch) for sketch in sketches)
    apart = max((math.dist(first, other) for other in others), default=0.0)
    return apart / moved if moved else 0.0
