"""Check the one more step that each replica of the run took after its training."""

from __future__ import annotations

import math
from collections.abc import Iterator

from compare.analysis.failed_gate import failed_gate
from compare.schema.arms import Arm
from compare.schema.parity import EndStep
from compare.schema.results import Gate, RankResult

_FROM_ZERO = 1e9
"""Ratio that the ranks record for a learning rate that should be zero and is not."""
_SCHEDULED = 1e-4
"""Largest relative error of a learning rate."""


def check_end(arm: Arm, ranks: list[RankResult]) -> Iterator[Gate]:
    """Yield the gate ``end`` of one launch; nothing if no rank took a step after its training.

    The gate is exempt, with the reason, if the ranks compared nothing, or if the gradients are too small to
    tell a wrong step. A failed gate describes the first rank that is wrong.
    """
    ends = {r.rank: r.end for r in ranks if r.end and not r.end.why_not}
    if not ends:
        yield from (Gate(name="end", outcome="exempt", what=r.end.why_not) for r in ranks[:1] if r.end)
        return
    wrong = {rank: cause for rank, end in ends.items() if (cause := _wrong_end(end))}
    if wrong:
        rank, cause = next(iter(wrong.items()))
        end = ends[rank]
        yield failed_gate(
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
    yield Gate(name="end", outcome="passed", figure=end.error, limit=end.limit, what=unseen_bend(end))


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
        return "its learning rate is not zero, as the schedule has it."
    if abs(end.rate - 1) > _SCHEDULED:
        return f"its learning rate is {end.rate:.3g} times what the schedule says."
    if end.error is None:
        return "a gradient is not a number."
    return _wrong_gradients(end, end.error) if end.error > end.limit else ""


def _wrong_gradients(end: EndStep, error: float) -> str:
    found = f"its gradients differ from the mean by {error:.2g} of its size (rounding allows {end.limit:.0e})"
    across = math.sqrt(max(0.0, error**2 - (end.share - 1) ** 2))
    is_multiple = across <= max(end.limit, _SCHEDULED)
    times = f"{end.share:.3g} times the mean" if abs(end.share) > _SCHEDULED else "zero"
    return f"{found}. They are {times}." if is_multiple else f"{found}."
