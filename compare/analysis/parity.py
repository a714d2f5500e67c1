"""Check parity: do the ranks train what a single process trains?

A gate is one check of this, and there are five:

- ``ranks``: all ranks start from one model, train, and end with the same parameters, bit for bit
- ``float64``: each of up to twenty steps ends where the same step of a single process ends; a launch that
  repeats a proven launch bit for bit skips these steps, which are called its pass
- ``float32``: the same in float32, only in ``ringside verify``
- ``end``: one more step after the training gets the mean of all gradients and the right learning rate
- ``samples``: every rank trains on samples of its own, which is checked if the loader is the user's

The limits leave room only for rounding (``schema/parity.py``). A gate that a wrong step would pass as well
proves nothing, and its outcome says so (``gates.py``).

An arm is proven by all of its launches. A launch without passes that repeats another launch bit for bit
shares the proof of that launch.
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
    describe_bend,
    diagnose,
    failed_gate,
    pass_of,
    why_incomparable,
)
from compare.analysis.open_points import open_points, shorten, why_nothing_proven
from compare.errors import ParityError
from compare.schema.arms import Arm
from compare.schema.job import PASSES, Proof
from compare.schema.parity import EPSILON, ParityPass, PassKind
from compare.schema.results import Gate, Launch, Outcome, RankResult, Run
from compare.text import listed, numbered

AT_PERIOD_1 = "the same training at period 1"
"""What the proof shows of an arm that does not average in every step."""
_FEWEST_ARMS = 2
"""With fewer failing arms, the workload is not suspected."""
UNMOVED = "in no group of the optimizer, or frozen on purpose? These parameters end as they started"
AT_THE_END = "shown by one step at the end alone"
_WORTHLESS_UNTIL_THEN = "until then, the speed of this arm means nothing."
_ROUNDED_ERROR = 0.05
"""The first update of an arm that rounds may have this relative error.

The error of fp16 is 3e-4, and that of a sum over two ranks is 1. PowerSGD does not compress its first steps.
"""
ROUNDING_MAKES = 1e-3
"""Trained parameters may differ by this share of how far they moved, and the cause may still be rounding.

It is ten thousand times the rounding of float32, because a training makes small differences grow.
"""
_OUTCOMES_WORST_FIRST: tuple[Outcome, ...] = ("failed", "incomparable", "nothing")
_UNTRAINED_ERROR = 1.0
"""All updates together of an arm that rounds or compresses may have this relative error.

The error is a share of the single process's update, so an arm that trains nothing has the error 1. The
largest relative difference of a step does not separate right arms from wrong ones.
"""


def check_gates(arm: Arm, ranks: list[RankResult], proof: Proof = "brief") -> list[Gate]:
    """Return the gates of one launch in this order: samples, the passes, the end, and the ranks.

    The ranks of the control never synchronise, so only their common start and their training are checked.
    """
    samples = check_samples(arm, ranks)
    training = check_training(arm, ranks, proof)
    return [*([samples] if samples else []), *training, _check_ranks(arm, ranks)]


def check_training(arm: Arm, ranks: list[RankResult], proof: Proof = "brief") -> list[Gate]:
    """Return the gates that compare one launch with a single process: its passes, then its end.

    The end is not checked if a pass failed or is incomparable. If the end passes on several ranks, a pass
    that proved nothing counts as passed too.
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
    """Return the ranks with the passes of the one launch in ``launches`` that they repeat.

    Ranks repeat a launch if each began and ended as the same rank of that launch did, bit for bit, because
    then both computed the same. Ranks that have passes of their own, or repeat no launch, are returned as
    they are.
    """
    fingerprints = [rank.fingerprint for rank in ranks]
    if None in fingerprints or any(rank.parity for rank in ranks):
        return ranks
    for launch in launches:
        proven = launch.ranks
        if all(rank.parity for rank in proven) and [rank.fingerprint for rank in proven] == fingerprints:
            return [
                msgspec.structs.replace(rank, parity=repeated.parity)
                for rank, repeated in zip(ranks, proven, strict=True)
            ]
    return ranks


def check_launches(launches: Sequence[tuple[Arm, list[RankResult]]], run: Run) -> None:
    """Require that no gate of the brief proof fails for any of the launches, given as arms with their ranks.

    A launch without passes takes those of an earlier launch in ``run`` that it repeats bit for bit.

    Raises:
        ParityError: a gate failed; the error describes the first one, with its likely cause if it is known.
    """
    proven = [(arm, with_passes(ranks, run.of(arm))) for arm, ranks in launches]
    failed = [
        (arm, gate)
        for arm, ranks in proven
        for gate in check_gates(arm, ranks, "none" if run.is_bare(arm) else "brief")
        if gate.outcome == "failed"
    ]
    if failed:
        gate = failed[0][1]
        alike = fail_alike(run, [(arm, gate.name) for arm, gate in failed])
        raise ParityError(gate.what, found=gate.found, remedy=alike or gate.remedy)


def fail_alike(run: Run, failed: Sequence[tuple[Arm, str]]) -> str:
    """Return the advice to suspect the workload if all arms fail at the gate ``float64``, else an empty text.

    ``failed`` has the arm and the name of each failed gate. Arms with a step of the user's own are left out.
    The advice is only for a workload of the user's own, and for two arms or more.
    """
    if run.dataset.name != "own":  # the built-in models remember nothing
        return ""
    checked = [arm for arm in run.config.synchronising if not arm.traits.own_step]
    labels = {arm.label for arm, name in failed if name == "float64"}
    if len(checked) < _FEWEST_ARMS or not all(arm.label in labels for arm in checked):
        return ""
    return (
        f"All {len(checked)} arms fail alike, so suspect the workload and not the arms: does it remember "
        "something outside the model, or does its loss depend on the rank?"
    )


# ---- the ranks ----


def _check_ranks(arm: Arm, ranks: list[RankResult]) -> Gate:
    if len({r.initial_hash for r in ranks}) > 1:
        return _different_models(arm, ranks, "initial_hash")
    for result in ranks:
        if result.final_hash == result.initial_hash:
            return _untrained_rank(arm, result, len(ranks))
    if not arm.traits.synchronises:
        return Gate(name="ranks", outcome="exempt")
    if arm.traits.in_shards and len(ranks) > 1:
        # Every rank gathers the same shards, so equal hashes are no evidence.
        return Gate(name="ranks", outcome="exempt", what="held in shards; proven by the reference alone")
    if len({r.final_hash for r in ranks}) > 1:
        return _different_models(arm, ranks, "final_hash")
    unmoved = ranks[0].unmoved
    what = f"{UNMOVED}: {shorten(unmoved)}" if unmoved else ""
    return Gate(name="ranks", outcome="passed", what=what)


def _untrained_rank(arm: Arm, rank: RankResult, ranks: int) -> Gate:
    what = f"{arm.label}: rank {rank.rank} on {rank.host} never trained."
    found = "Its parameters at the end are those of the start, bit for bit."
    proof = pass_of(rank, "float64")
    if not (proof and proof.is_exact):
        return failed_gate(arm, "ranks", what, found, "its step does not change the parameters.")
    if empty := why_nothing_proven(arm, ranks, proof):
        what, remedy = empty
        return Gate(name="ranks", outcome="nothing", what=what, found=found, remedy=remedy)
    found += f" In {proof.steps} float64 steps, however, it trained what a single process trains."
    remedy = "Is the learning rate too small for float32? Try a larger one."
    return Gate(name="ranks", outcome="failed", what=what, found=found, remedy=remedy)


def _different_models(arm: Arm, ranks: list[RankResult], when: Literal["initial_hash", "final_hash"]) -> Gate:
    verb = "started from" if when == "initial_hash" else "ended with"
    ranks_of: dict[str, list[int]] = {}
    for rank in ranks:
        ranks_of.setdefault(getattr(rank, when), []).append(rank.rank)
    each = listed(f"{numbered('rank', those)} {model[:12]}" for model, those in ranks_of.items())
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
    passes = {r.rank: one for r in ranks if (one := pass_of(r, kind))}
    if len(passes) < len(ranks):
        missing = next((r for r in ranks if r.rank not in passes), ranks[0])
        what = f"{arm.label}: rank {missing.rank} on {missing.host} has no {kind} pass."
        found = "Without it, the training of this arm is not proven."
        return failed_gate(arm, name, what, found, "every rank must take the parity steps.")
    figure = _worst_difference(passes[0])[0]
    if arm.traits.another_training:
        return Gate(name=name, outcome="exempt", figure=figure, what="another training by declaration")
    same = len({one.hash for one in passes.values()}) == 1
    # Every first update was the mean, except for rounding.
    right_at_first = all(_is_within(one.error_of_first_update, _ROUNDED_ERROR) for one in passes.values())
    if not arm.exact and figure is not None and same and right_at_first:
        return _check_lossy_steps(arm, passes[0], name)
    steps_once = all(count == 1 for one in passes.values() for count in one.optimizer_steps)
    if arm.exact and same and steps_once and all(one.is_exact for one in passes.values()):
        return _check_right_steps(arm, len(ranks), passes[0], name, pass_of(ranks[0], "float64"))
    return _check_wrong_steps(arm, passes, name)


def _check_wrong_steps(arm: Arm, passes: dict[int, ParityPass], name: GateName) -> Gate:
    """Return the gate of a pass with a wrong step: failed or incomparable with a single process."""
    figure, limit = _worst_difference(passes[0])
    incomparable = why_incomparable(passes, own_step=arm.traits.own_step)
    if incomparable:
        what, remedy = incomparable
        return Gate(name=name, outcome="incomparable", figure=figure, limit=limit, what=what, remedy=remedy)
    size = "not a number" if figure is None else f"{figure:.1e}"
    allowed = f"{limit:.0e}" if arm.exact else f"{_ROUNDED_ERROR:g} of the first update"
    return failed_gate(
        arm,
        name,
        f"{arm.label} does not train what a single process trains on the same samples.",
        f"Largest relative difference of rank 0 in {passes[0].steps} {name} steps: {size}. "
        f"Allowed: {allowed}, for rounding. " + diagnose(passes, in_shards=arm.traits.in_shards),
        _WORTHLESS_UNTIL_THEN,
        figure=figure,
        limit=limit,
    )


def _check_right_steps(
    arm: Arm, ranks: int, first: ParityPass, name: GateName, exact: ParityPass | None
) -> Gate:
    """Return the gate of a pass without a wrong step: passed, or *nothing* if it proves nothing.

    ``exact`` is the float64 pass of the same rank, if there is one.
    """
    figure, limit = _worst_difference(first)
    if empty := why_nothing_proven(arm, ranks, first):
        what, remedy = empty
        return Gate(name=name, outcome="nothing", figure=figure, limit=limit, what=what, remedy=remedy)
    points = [] if arm.same_training else [AT_PERIOD_1]
    if first.diverged:
        points.append(f"Proven by {first.steps} steps: the single process diverges after them.")
    what = "; ".join([*points, *open_points(first, exact)])
    return Gate(name=name, outcome="passed", figure=figure, limit=limit, what=what)


def _check_lossy_steps(arm: Arm, first: ParityPass, name: GateName) -> Gate:
    """Return the gate of an arm that rounds or compresses by design, and whose first update is right.

    It is exempt, and its figure is the largest difference of a step. But it fails if all updates together are
    further from the single process's than no training would be.
    """
    figure, error = _worst_difference(first)[0], first.error_of_whole_update
    if _is_within(error, _UNTRAINED_ERROR):
        return Gate(name=name, outcome="exempt", figure=figure)
    size = "not a number" if error is None else f"{error:.2g} times the size of that update"
    return failed_gate(
        arm,
        name,
        f"{arm.label}: rounding or compression cannot explain its difference from a single process.",
        f"Difference of the update after {first.steps} {name} steps: {size}. "
        f"Allowed: {_UNTRAINED_ERROR:g}, the difference without any training. "
        "The first update is right on every rank. Either something is left over from the step before, or the "
        "compression error is lost.",
        _WORTHLESS_UNTIL_THEN,
        figure=figure,
    )


def _worst_difference(parity_pass: ParityPass) -> tuple[float | None, float]:
    """Return the difference of the step that is worst in relation to its limit, and that limit.

    A difference that is not a number counts as the worst, and is None.
    """
    compared = list(zip(parity_pass.differences, parity_pass.limits, strict=True))
    return max(compared, key=lambda pair: math.inf if pair[0] is None else pair[0] / pair[1])


def _is_within(difference: float | None, limit: float) -> bool:
    return difference is not None and difference <= limit


# ---- all launches of an arm ----


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """What is proven of an arm, over all of its launches."""

    outcome: Outcome | Literal["none"]
    """The worst outcome of the gates that compare the arm with a single process.

    ``nothing``: a wrong step would pass as well. ``exempt``: the arm rounds or compresses by design, or
    declares another training. ``unfit``: the proof did not fit into memory. ``none``: a launch has no pass,
    as in the control.
    """
    why: str = ""
    """Why nothing is proven, with the remedy; empty if something is proven."""
    open: list[str] = []
    """What the proof leaves open, as phrases, such as parameters whose gradients are zero."""
    at_end: bool = False
    """Whether every launch took one more step after its training, and that step was right."""
    by_hash: int = 0
    """Number of launches without a pass of their own, because they repeat a proven launch bit for bit."""
    steps: int | None = None
    """Number of steps in the shortest pass of a launch; None without a pass."""
    difference: float | None = None
    """Largest relative difference after the last step of any pass; None if one is not a number."""


def parity_of(arm: Arm, launches: list[Launch]) -> Parity:
    """Return what all launches of an arm prove together."""
    without = [launch for launch in launches if not launch.ranks[0].parity]
    launches = [
        msgspec.structs.replace(launch, ranks=with_passes(launch.ranks, launches)) for launch in launches
    ]
    passes = [parity_pass for launch in launches if (parity_pass := pass_of(launch.ranks[0], "float64"))]
    if len(passes) < len(launches):
        return Parity(outcome="none")
    ends = [parity_pass.differences[-1] if parity_pass.differences else None for parity_pass in passes]
    numbers = [end for end in ends if end is not None]
    gates = [gate for launch in launches for gate in check_training(arm, launch.ranks)]
    of_passes = [gate for gate in gates if gate.name == "float64"]
    of_ends = [gate for gate in gates if gate.name == "end"]
    judged = [*of_passes, *(gate for gate in of_ends if gate.outcome == "failed")]
    by_outcome = {gate.outcome: gate for gate in reversed(judged)}
    worst = next((by_outcome[outcome] for outcome in _OUTCOMES_WORST_FIRST if outcome in by_outcome), None)
    # An arm that rounds by design was judged before its result was kept.
    exempt = not arm.exact or arm.traits.another_training
    outcome: Outcome = "exempt" if exempt else worst.outcome if worst else "passed"
    return Parity(
        outcome=outcome,
        by_hash=len(without),
        steps=min(parity_pass.steps for parity_pass in passes),
        difference=max(numbers) if len(numbers) == len(ends) else None,
        why=f"{worst.what}. {worst.remedy}" if worst and outcome in {"incomparable", "nothing"} else "",
        open=_open_points_of_arm(launches, passes, of_passes) if outcome == "passed" else [],
        at_end=len(of_ends) == len(launches) and all(gate.outcome == "passed" for gate in of_ends),
    )


def _open_points_of_arm(launches: list[Launch], passes: list[ParityPass], gates: list[Gate]) -> list[str]:
    """Return what the proofs of all launches leave open, as phrases, each once."""
    ranks = [launch.ranks[0] for launch in launches]
    at_end = [gate.what for gate in gates if gate.what.startswith(AT_THE_END)]
    bends = filter(None, [describe_bend(rank.end) for rank in ranks if rank.end])
    points = [point for one in passes for point in open_points(one)]
    unmoved = [f"{UNMOVED}: {shorten(rank.unmoved)}" for rank in ranks if rank.unmoved]
    return list(dict.fromkeys([*at_end, *bends, *points, *unmoved]))


def distance_of_ends(run: Run, names: Iterable[str]) -> float | None:
    """Return how far apart the arms' trained parameters are, as a share of how far they moved in training.

    ``names`` are the labels of the arms. The largest distance of a launch from the first one is divided by
    the largest movement, both by rank 0's sketches of its parameters. None if a launch has no sketch, or if
    the arms have no launch.
    """
    chosen = set(names)
    sketches = [launch.ranks[0].sketch for launch in run.launches if launch.arm in chosen]
    if not sketches or not all(sketches):
        return None
    first, *others = sketches
    moved = max(math.hypot(*sketch) for sketch in sketches)
    apart = max((math.dist(first, other) for other in others), default=0.0)
    return apart / moved if moved else 0.0
