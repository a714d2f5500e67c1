"""Name the likely cause of a wrong step.

A step updates the parameters by a sum of the gradients of all shards, and each rank usually has one shard.
The share of a gradient is its factor in that sum, times the number of shards. In the mean, every share is 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from compare.schema.parity import ParityPass, WrongStep

_SHARE_TOLERANCE = 1e-3
"""A share counts as a value if it differs by no more than this.

An update counts as explained by its shares if no larger part of it remains.
"""
_LEAST_KEPT = 1e-9
"""If ``before_step`` keeps a smaller part of the mean, shares are not divided by that part."""
_ROUNDED_SHARE_ERROR = 0.01
"""Half precision explains an error of a share up to this one."""
_SHARDING_ADVICE = "Check that the shards are the parts of every global batch."
_WRONG_SHARD = "A shard is not updated, or samples are left out. Check every rank's part of the work."
_PLAIN_MEAN = "It is the plain mean: the step leaves out what the workload's before_step does."
_SMALL_ADDITION = "It is nearly the mean: something small is added, such as weight decay or half precision."
_SAME_SAMPLES = f"Every rank trains on the same samples. {_SHARDING_ADVICE}"
_OTHER_SAMPLES = f"The ranks agree, on gradients of other samples or of another loss. {_SHARDING_ADVICE}"


_WORKLOAD_WITH_MEMORY = (
    "the workload remembers something that a new call of its function does not create anew",
    "Create such things inside the function, because a global or a file outlasts a call of it.",
)
_ROUNDING_STEP = (
    "each number is the mean except for half precision, so the step rounds on purpose",
    "Its test loss shows what the rounding costs in accuracy.",
)
_REFERENCE_ADVICE = "Give the workload a reference_step, which takes the batches of all ranks in one process."


def diagnose(passes: Mapping[int, ParityPass], *, in_shards: bool = False) -> str:
    """Return sentences that state where a failed proof goes wrong first, and the likely cause.

    ``passes`` has the pass of each rank. If each rank holds a shard of one model (``in_shards``), all ranks
    gather the same parameters, so their agreement shows nothing.
    """
    first = _first_wrong(passes)
    # Every step calls optimizer.step() once.
    miscounted = min(
        (
            (number, rank, count)
            for rank, parity_pass in passes.items()
            for number, count in enumerate(parity_pass.optimizer_steps, start=1)
            if count != 1
        ),
        default=None,
    )
    if miscounted and (first is None or miscounted[0] <= first[1].step):
        number, rank, count = miscounted
        where = _place(*first) if first and first[1].step == number else f"Step {number} of rank {rank}."
        return f"{where} It calls optimizer.step() {count} times; one process calls it once."
    if first is None:
        return _without_a_wrong_step(passes)
    rank, step = first
    agree = len({parity_pass.hash for parity_pass in passes.values()}) == 1 and not in_shards
    cause = _cause(_with_shares(step, passes[rank]), agree=agree)
    if not cause and step.step > 1:
        cause = "Something is left over from the step before, or a rank leaves out a part."
    elif not cause and in_shards:
        cause = _WRONG_SHARD
    elif not cause and any(parity_pass.wrong is None for parity_pass in passes.values()):
        cause = "Other ranks' first steps are right: gradients do not reach every rank in full."
    elif not cause:
        cause = _OTHER_SAMPLES if agree else "Gradients are not averaged over the ranks."
    return f"{_place(*first)} {cause}"


def why_incomparable(passes: Mapping[int, ParityPass], *, own_step: bool) -> tuple[str, str] | None:
    """Return why a wrong step cannot be compared with a single process, and the remedy; None if it can.

    It cannot if the workload remembers earlier calls. A user's own step cannot either if it rounds on
    purpose, or if it is not a plain step of one loss.
    """
    wrong = [parity_pass.wrong for parity_pass in passes.values() if parity_pass.wrong]
    first = _first_wrong(passes)
    if any(step.uncarried for step in wrong):
        return _WORKLOAD_WITH_MEMORY
    if first is None or not own_step:
        return None
    if all(step.rounded and _is_near(step.rate, 1) for step in wrong):
        return _ROUNDING_STEP
    rank, step = first
    if step.structure and not _cause(_with_shares(step, passes[rank]), agree=True):
        return f"its step is not a plain step of one loss ({step.structure})", _REFERENCE_ADVICE
    return None


def _first_wrong(passes: Mapping[int, ParityPass]) -> tuple[int, WrongStep] | None:
    """Return the earliest wrong step and its rank, the lowest one; None if no step is wrong."""
    wrong = [(rank, parity_pass.wrong) for rank, parity_pass in passes.items() if parity_pass.wrong]
    return min(wrong, key=lambda pair: (pair[1].step, pair[0]), default=None)


def _with_shares(wrong: WrongStep, parity_pass: ParityPass) -> WrongStep:
    """Return the first step of a large model with the shares that follow from its whole update.

    A rank with a large model does not keep the gradient of each shard. But if its first update is a multiple
    of the right one, that multiple is the share of every shard. A step that has shares, or that is not the
    first, is returned as it is.
    """
    share, error = parity_pass.share_of_first_update, parity_pass.error_of_first_update
    if wrong.shares or wrong.step > 1 or share is None or error is None:
        return wrong
    across = math.sqrt(max(0.0, error**2 - (share - 1) ** 2))
    return msgspec.structs.replace(wrong, shares=[share] * parity_pass.shards, unexplained=across)


def _place(rank: int, wrong: WrongStep) -> str:
    size = "not a number" if wrong.difference is None else f"off by {wrong.difference:.1e}"
    only = ", and no other parameter," if wrong.only else ""
    return f"Rank {rank} is wrong from step {wrong.step}: {wrong.parameter}{only} is {size}."


def _without_a_wrong_step(passes: Mapping[int, ParityPass]) -> str:
    if any(None in parity_pass.differences for parity_pass in passes.values()):
        return (
            "The first update is right on every rank, and then the training diverges. SGD with a learning "
            "rate of 0.01 is too much for this model. Scale its inputs, its targets or its loss."
        )
    return "Every step is right on the ranks that compare it, but their models differ at the end."


def _cause(wrong: WrongStep, *, agree: bool) -> str:
    """Return a sentence with the likely cause of a wrong update; empty if its shares have no known meaning.

    ``agree`` is whether all ranks end with the same parameters.
    """
    if wrong.difference is None:
        return "The loss or a gradient is not a number."
    if not wrong.shares or wrong.unexplained is None or wrong.unexplained > _SHARE_TOLERANCE:
        return ""
    if abs(wrong.kept) < _LEAST_KEPT:
        return "The workload's before_step takes the whole update away, and this step does not."
    if not _is_near(wrong.left_over, 0):
        return f"It contains {wrong.left_over:.2g} times the update before, so gradients are not reset."
    shares = [share / wrong.kept for share in wrong.shares]
    if _are_near(shares, shares[0]):
        return _cause_of_multiple(shares[0], wrong)
    return _cause_of_unequal_shares(shares, agree=agree, is_first_step=wrong.step == 1)


def _cause_of_unequal_shares(shares: list[float], *, agree: bool, is_first_step: bool) -> str:
    """Return the likely cause of an update in which the gradients have unequal shares."""
    count = len(shares)
    if all(abs(share - 1) < _ROUNDED_SHARE_ERROR for share in shares):
        return _SMALL_ADDITION
    missing = [index for index, share in enumerate(shares) if _is_near(share, 0)]
    if len(missing) == count - 1 and _is_near(max(shares), count):
        return (
            _SAME_SAMPLES
            if agree and is_first_step
            else "It applies only one rank's gradient, in place of the mean."
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


def _cause_of_multiple(share: float, wrong: WrongStep) -> str:
    """Return the likely cause of an update that is ``share`` times the right one."""
    count = len(wrong.shares)
    rate = (
        f"The learning rate is {wrong.rate:.3g} times the right one. Is it scaled by the number of ranks, is "
        "its schedule stepped more than once, or does the workload lack the same schedule?"
    )
    meanings = (
        (not _is_near(wrong.kept, 1) and _are_near(wrong.shares, 1), _PLAIN_MEAN),
        (_is_near(share, 1), _SMALL_ADDITION),
        (_is_near(share, 0), "The parameters do not change: the step does not reach them."),
        (not _is_near(wrong.rate, 1) and _is_near(share, wrong.rate), rate),
        (
            count > 1 and _is_near(share, count),
            f"It is {count} times the right one: a sum in place of the mean, or two steps in place of one.",
        ),
        (
            count > 1 and wrong.step == 1 and _is_near(share * count, 1),
            f"It is the right one divided by {count}: the mean is divided twice.",
        ),
    )
    scaled = f"It is {share:.3g} times the right one: gradients or the learning rate are scaled or clipped."
    return next((meaning for holds, meaning in meanings if holds), scaled)


def _are_near(shares: Sequence[float], value: float) -> bool:
    return all(_is_near(share, value) for share in shares)


def _is_near(share: float, value: float) -> bool:
    return abs(share - value) < _SHARE_TOLERANCE * max(1.0, abs(value))
