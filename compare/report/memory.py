"""Show the memory of arms: a table by kind, a sentence for each arm that shards, and time beside memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compare.analysis.memory import ArmMemory, DoesNotFit
from compare.analysis.summary import ArmSummary, Summary
from compare.report.axes import SECONDS_FROM_ZERO, Axis, axis_from_zero
from compare.report.cells import format_ratio, format_size
from compare.report.document import Column, Table
from compare.report.pictures import Chart, Picture, Point, draw_lines
from compare.schema.memory import Limit
from compare.schema.results import Run
from compare.text import binary_size, in_form

_TITLE = "Memory of the rank that holds the most, in MB"
_MB = 1e6
_TWO_DECIMALS_BELOW = 10.0
_MEMORY_AXIS = Axis(
    "memory that a rank holds (from zero)",
    axis_from_zero,
    lambda size: format_size(size) if size else "0",
)
DOES_NOT_FIT = "does not fit"
"""Text of the cell for an arm that has no figures because it got no more memory."""
_LIMITS: dict[Limit, str] = {
    "address space": "address space",
    "control group": "memory that its processes share (a control group)",
    "host": "memory of its host",
    "GPU": "GPU memory",
}
_STAGES = {"parity": ", in its proof", "warm-up": ", in training", "train": ", in training"}
"""The words for the stage in which an arm got no more memory."""
NOTE = (
    "Memory: parameters, gradients, optimizer state and activations are tensors that a rank really holds. "
    "Library is what is kept or gathered beside them, such as buckets. What else the peak in training "
    "had is the rest, which belongs to none of these. By arithmetic: parameters + gradients + optimizer "
    "state."
)


def memory_table(summary: Summary) -> Iterator[Table]:
    """Yield the table of what ranks hold, by kind; nothing if no arm attests it, as in older results."""
    rows = [(arm.arm, arm.memory) for arm in summary.arms if arm.memory]
    if rows:
        yield Table.of(_COLUMNS, rows, title=_TITLE)


def memory_notes(summary: Summary) -> Iterator[str]:
    """Yield what the kinds of memory mean, if an arm attests them."""
    if any(arm.memory for arm in summary.arms):
        yield NOTE


def memory_sentences(run: Run, summary: Summary) -> Iterator[str]:
    """Yield for each arm that shards what a rank holds of the baseline's bytes, and the time it takes.

    The library's bytes count if they are known of both. Nothing is yielded if the baseline shards as well, or
    if one of the two attests no memory.
    """
    of = {arm.arm: arm for arm in summary.arms}
    sharding = {arm.label for arm in run.config.arms if arm.traits.shards != "nothing"}
    baseline = of.get(run.config.baseline)
    if baseline is None or baseline.memory is None or run.config.baseline in sharding:
        return
    for arm in summary.arms:
        if arm.arm not in sharding or arm.memory is None:
            continue
        held, whole = map(format_size, _comparable(arm.memory, baseline.memory))
        time = "" if summary.ranks_nothing else _time_against(arm)
        yield f"{arm.arm} holds {_part_of(held, whole, baseline.arm)} a rank{time}."


def unfit_sentences(arms: Sequence[DoesNotFit]) -> Iterator[str]:
    """Yield what each arm that did not fit into memory needs, as far as that is known, and its limit."""
    yield from (f"{unfit.arm} {DOES_NOT_FIT}{_room(unfit)}{_STAGES.get(unfit.stage, '')}." for unfit in arms)


def bare_sentences(arms: Sequence[DoesNotFit]) -> Iterator[str]:
    """Yield why each arm was timed without a proof: what its proof needs, and the limit."""
    yield from (
        f"NOT PROVEN: {bare.arm}, because a launch with its proof {DOES_NOT_FIT}{_room(bare)}."
        for bare in arms
    )


def _room(unfit: DoesNotFit) -> str:
    """Return what is needed of what is limited, or the limit alone, as a clause after ``does not fit``."""
    of = f"of {_LIMITS[unfit.limit]}"
    beside = " beside the other arms" if unfit.beside_others else ""
    size, limit = unfit.needs_bytes or unfit.least_bytes, binary_size(unfit.limit_bytes)
    if not size:
        return f"{beside} into {limit} {of}"
    about = "an estimated" if unfit.needs_bytes else "at least"
    return f"{beside}: it needs {about} {_part_of(binary_size(size), limit)} {of}"


def draw_frontier(run: Run, summary: Summary) -> Iterator[Picture]:
    """Draw each arm's step time over what a rank holds, if an arm shards and this is known of two.

    An arm whose library's buffers are not known would seem to hold less than others, so it is left out.
    """
    arms = {arm.label: arm for arm in run.config.synchronising}
    known = ((arm, arm.memory.held_bytes) for arm in summary.arms if arm.arm in arms and arm.memory)
    shown = [(arm, size) for arm, size in known if size is not None]
    if len(shown) < 2 or all(arms[arm.arm].traits.shards == "nothing" for arm, _ in shown):  # noqa: PLR2004
        return
    points = [
        (
            arm.arm,
            Point.of(size, arm.step_seconds, is_open=any(_beats(other, (arm, size)) for other in shown)),
        )
        for arm, size in shown
    ]
    chart = Chart.of(
        points,
        key="frontier",
        heading="Time and memory",
        caption="The time of a step, with its interval, over what the rank with the most holds: parameters, "
        "gradients, optimizer state and the library's buffers. An arm is missing if its buffers are not "
        "known. A hollow dot: another arm takes less of both.",
        x_axis=_MEMORY_AXIS,
        y_axis=SECONDS_FROM_ZERO,
    )
    yield from draw_lines(chart)


def _beats(other: tuple[ArmSummary, int], arm: tuple[ArmSummary, int]) -> bool:
    """Return whether another arm holds less than this one, and takes less time by more than the intervals."""
    (figures, size), (own, own_size) = other, arm
    return size < own_size and figures.step_seconds.high < own.step_seconds.low


def _comparable(arm: ArmMemory, baseline: ArmMemory) -> tuple[int, int]:
    """Return the bytes that an arm and the baseline hold, of those kinds that are known of both."""
    if arm.held_bytes is None or baseline.held_bytes is None:
        return arm.held.whole_bytes, baseline.held.whole_bytes
    return arm.held_bytes, baseline.held_bytes


def _part_of(part: str, whole: str, owner: str = "") -> str:
    """Return two sizes as ``1.9 of 6.1 GB``; the first has a unit only if it is another one.

    ``owner`` is the arm that holds the second, as in ``1.9 of ddp's 6.1 GB``.
    """
    number, unit = part.split()
    whose = f"{owner}'s " if owner else ""
    return f"{number if unit == whole.split()[1] else part} of {whose}{whole}"


def _time_against(arm: ArmSummary) -> str:
    """Return a clause with the ratio of an arm's step time to the baseline's; empty if it is not known."""
    verdict, speed = arm.verdict, arm.speed_against_baseline
    if verdict is None or verdict.low is None or verdict.high is None:
        return f", and takes {format_ratio(1 / speed.mean)} its time" if speed else ""
    state = ", which is still open" if verdict.kind == "open" else ""
    ratio = format_ratio(1 / verdict.speed_ratio, 1 / verdict.high, 1 / verdict.low)
    return f", and takes {ratio} its time{state}"


# ---- cells ----


def _megabytes(size: int | None) -> str:
    """Return a size in MB, with two decimals if it is small; – if it is not known."""
    if size is None:
        return "–"
    return in_form(size / _MB, ",.2f" if size < _TWO_DECIMALS_BELOW * _MB else ",.0f")


def _by_arithmetic(memory: ArmMemory) -> str:
    if memory.predicted is None:
        return "–"
    of = memory.predicted
    kinds = (of.parameter_bytes, of.gradient_bytes, of.optimizer_state_bytes)
    return " + ".join(map(_megabytes, kinds))


_COLUMNS: tuple[Column[tuple[str, ArmMemory]], ...] = (
    Column("arm", lambda row: row[0], is_text=True),
    Column("parameters", lambda row: _megabytes(row[1].held.parameter_bytes)),
    Column("gradients", lambda row: _megabytes(row[1].held.gradient_bytes)),
    Column("optimizer", lambda row: _megabytes(row[1].held.optimizer_state_bytes)),
    Column("by arithmetic", lambda row: _by_arithmetic(row[1])),
    Column("library", lambda row: _megabytes(row[1].library_bytes)),
    Column("activations", lambda row: _megabytes(row[1].activation_bytes)),
    Column("rest", lambda row: _megabytes(row[1].rest_bytes)),
)
