"""Name the likely cause of a wrong step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from compare.schema.parity import ParityPass, WrongStep

_CLOSE = 1e-3
"""Largest difference between a share and a value with a known meaning.

It is also the largest part of an update that may stay unexplained.
"""

_LEAST_KEPT = 1e-9
"""Smallest part of the mean that ``before_step`` must keep, because shares are divided by that part."""
_ROUNDED = 0.01
"""Largest error of a share that half precision explains."""
_SHARDS = "Check that the shards are the parts of every global batch."
_WRONG_SHARD = "A shard is not updated, or samples are left out. Check every rank's part of the work."
_PLAIN_MEAN = "It is the plain mean: the step leaves out what the workload's before_step does."
_SMALL = "It is nearly the mean: something small is added, such as weight decay or half precision."
_SAME_SAMPLES = f"Every rank trains on the same samples. {_SHARDS}"
_OTHER_SAMPLES = f"The ranks agree, on gradients of other samples or of another loss. {_SHARDS}"


_REMEMBERS = (
    "the workload remembers something that a new call of its function does not create anew",
    "Create such things inside the function, because a global or a file outlasts a call of it.",
)
_ROUNDS = (
    "each number is the mean except for half precision, so the step rounds on purpose",
    "Its test loss shows what the rounding costs in accuracy.",
)
_REFERENCE = "Give the workload a reference_step, which takes the batches of all ranks in one process."


def diagnose(passes: Mapping[int, ParityPass], *, in_shards: bool = False) -> str:
    """Describe where a failed pass goes wrong first, and the likely cause.

    The passes are those of all ranks, by rank. If ranks gather one model (``in_shards``), their agreement
    shows nothing.
    """
    first = _first_wrong(passes)
    # Every step calls optimizer.step() once.
    miscounted = min(
        (
            (number, rank, count)
            for rank, taken in passes.items()
            for number, count in enumerate(taken.optimizer_steps, start=1)
            if count != 1
        ),
        default=None,
    )
    if miscounted and (first is None or miscounted[0] <= first[1].step):
        number, rank, count = miscounted
        where = _where(*first) if first and first[1].step == number else f"Step {number} of rank {rank}."
        return f"{where} It calls optimizer.step() {count} times; one process calls it once."
    if first is None:
        return _without_a_wrong_step(passes)
    rank, step = first
    agree = len({taken.hash for taken in passes.values()}) == 1 and not in_shards
    cause = _cause(_with_shares(step, passes[rank]), agree=agree)
    if not cause and step.step > 1:
        cause = "Something is left over from the step before, or a rank leaves out a part."
    elif not cause and in_shards:
        cause = _WRONG_SHARD
    elif not cause and any(taken.wrong is None for taken in passes.values()):
        cause = "Other ranks' first steps are right: gradients do not reach every rank in full."
    elif not cause:
        cause = _OTHER_SAMPLES if agree else "Gradients are not averaged over the ranks."
    return f"{_where(*first)} {cause}"


def why_incomparable(passes: Mapping[int, ParityPass], *, own_step: bool) -> tuple[str, str] | None:
    """Return why a wrong step cannot be compared with a single process, and the remedy; None if it can.

    It cannot if the workload remembers earlier calls, or if a user's own step rounds or is no plain step.
    """
    wrong = [taken.wrong for taken in passes.values() if taken.wrong]
    first = _first_wrong(passes)
    if any(step.uncarried for step in wrong):
        return _REMEMBERS
    if first is None or not own_step:
        return None
    if all(step.rounded and _near(step.rate, 1) for step in wrong):
        return _ROUNDS
    rank, step = first
    if step.structure and not _cause(_with_shares(step, passes[rank]), agree=True):
        return f"its step is not a plain step of one loss ({step.structure})", _REFERENCE
    return None


def _first_wrong(passes: Mapping[int, ParityPass]) -> tuple[int, WrongStep] | None:
    """Return the rank and the step that is wrong first; None if no step is wrong."""
    wrong = [(rank, taken.wrong) for rank, taken in passes.items() if taken.wrong]
    return min(wrong, key=lambda found: (found[1].step, found[0]), default=None)


def _with_shares(wrong: WrongStep, taken: ParityPass) -> WrongStep:
    """Return a wrong step of a large model with shares, which follow from its whole first update.

    A rank with a large model keeps no gradient of each shard. But if its first update is a multiple of the
    right one, that multiple is the share of every shard. A step that has shares, or is not the first, is
    returned as it is.
    """
    share, error = taken.share_of_first_update, taken.error_of_first_update
    if wrong.shares or wrong.step > 1 or share is None or error is None:
        return wrong
    across = math.sqrt(max(0.0, error**2 - (share - 1) ** 2))
    return msgspec.structs.replace(wrong, shares=[share] * taken.shards, unexplained=across)


def _where(rank: int, wrong: WrongStep) -> str:
    size = "not a number" if wrong.difference is None else f"off by {wrong.difference:.1e}"
    only = ", and no other parameter," if wrong.only else ""
    return f"Rank {rank} is wrong from step {wrong.step}: {wrong.parameter}{only} is {size}."


def _without_a_wrong_step(passes: Mapping[int, ParityPass]) -> str:
    if any(None in taken.differences for taken in passes.values()):
        return (
            "The first update is right on every rank, and then the training diverges. SGD with a learning "
            "rate of 0.01 is too much for this model. Scale its inputs, its targets or its loss."
        )
    return "Every step is right on the ranks that compare it, but their models differ at the end."


def _cause(wrong: WrongStep, *, agree: bool) -> str:
    """Return the likely cause of a wrong update, by its shares; empty if they have no known meaning."""
    if wrong.difference is None:
        return "The loss or a gradient is not a number."
    if not wrong.shares or wrong.unexplained is None or wrong.unexplained > _CLOSE:
        return ""
    if abs(wrong.kept) < _LEAST_KEPT:
        return "The workload's before_step takes the whole update away, and this step does not."
    if not _near(wrong.left_over, 0):
        return f"It contains {wrong.left_over:.2g} times the update before, so gradients are not reset."
    shares = [share / wrong.kept for share in wrong.shares]
    if _are(shares, shares[0]):
        return _evenly(shares[0], wrong)
    return _unevenly(shares, agree=agree, first=wrong.step == 1)


def _unevenly(shares: list[float], *, agree: bool, first: bool) -> str:
    """Return the likely cause of an update in which the ranks' gradients have different shares."""
    count = len(shares)
    if all(abs(share - 1) < _ROUNDED for share in shares):
        return _SMALL
    missing = [index for index, share in enumerate(shares) if _near(share, 0)]
    if len(missing) == count - 1 and _near(max(shares), count):
        return (
            _SAME_SAMPLES if agree and first else "It applies only one rank's gradient, in place of the mean."
        )
    if missing:
        names = ", ".join(map(str, missing))
        if not agree:
            return f"Gradients are not averaged over the ranks: this update leaves out that of rank {names}."
        return f"The gradient of rank {names} is missing from the mean: that rank skips, or sends zeros."
    each = ", ".join(f"{share:.3g}" for share in shares)
    return (
        f"The shares of the ranks' gradients are {each}, not 1 each: they are scaled or clipped before the "
        "average. Clip after it."
    )


def _evenly(share: float, wrong: WrongStep) -> str:
    """Return the likely cause of an update that is a multiple of the right one."""
    count = len(wrong.shares)
    rate = (
        f"The learning rate is {wrong.rate:.3g} times the right one. Is it scaled by the number of ranks, is "
        "its schedule stepped more than once, or does the workload lack the same schedule?"
    )
    meanings = (
        (not _near(wrong.kept, 1) and _are(wrong.shares, 1), _PLAIN_MEAN),
        (_near(share, 1), _SMALL),
        (_near(share, 0), "The parameters do not change: the step does not reach them."),
        (not _near(wrong.rate, 1) and _near(share, wrong.rate), rate),
        (
            count > 1 and _near(share, count),
            f"It is {count} times the right one: a sum in place of the mean, or two steps in place of one.",
        ),
        (
            count > 1 and wrong.step == 1 and _near(share * count, 1),
            f"It is the right one divided by {count}: the mean is divided twice.",
        ),
    )
    scaled = f"It is {share:.3g} times the right one: gradients or the learning rate are scaled or clipped."
    return next((meaning for holds, meaning in meanings if holds), scaled)


def _are(shares: Sequence[float], value: float) -> bool:
    return all(_near(share, value) for share in shares)


def _near(found: float, value: float) -> bool:
    return abs(found - value) < _CLOSE * max(1.0, abs(value))
