"""Make the document of a lesson: a run's figures in sentences, with the code that synchronises.

The lesson states what a step sends, and how long that takes. Every figure comes from the run's results. Where
something was not measured, the lesson says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backends.code import Quote, code_of, summary_of
from compare.analysis import Analysis
from compare.analysis.lessons import Lesson, lessons
from compare.report.causes import explain
from compare.report.cells import in_units
from compare.report.document import Column, Document, Row, Table
from compare.report.of_run import arrange
from compare.report.origin import headline, noise_warnings, warnings
from compare.report.sentences import conclusion, proof, why_marked
from compare.schema.arms import CONTROL
from compare.schema.results import Run
from compare.text import counted

_BYTES = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}
_RATES = {"GB/s": 1e9, "MB/s": 1e6}
_SHORT_SECONDS = 50e-6
_SAME_FACTOR = 1.05
"""Two times count as the same if their ratio is at most this factor."""
_FORMS = {
    "ring": "In a ring, each rank passes parts to its neighbour until all have the sum.",
    "Rabenseifner": "By Rabenseifner's algorithm, ranks exchange halves, sum them, and gather the sums.",
    "reduce_scatter": "Each rank sums one part, then all ranks gather the parts.",
    "all_gather": "Each rank sends all it has to every other, and each sums by itself.",
}
_SCHEDULES = {
    "shards": "Before each layer computes, in forward and in backward, and after its backward.",
    "after": "After backward, one call after the other. The rank waits for them.",
    "overlap": "During backward: a call starts as soon as its bucket of gradients is full.",
    "fused": "During backward: a thread of the library collects what is ready, and sends it together.",
}


def document_of(run: Run, analysis: Analysis, arms: Sequence[str] = ()) -> Document:
    """Return the lesson of a run.

    Its first table tells what every step needs. Each arm that communicates follows with a table and its code.
    ``arms`` are the labels of the arms to explain; if it is empty, all are explained. There are no tables if
    no such arm has a launch.
    """
    shown = arrange(analysis, None)
    alerts = noise_warnings(run, shown.summary)
    return Document(
        title=headline(run, shown.summary),
        alerts=alerts,
        tables=list(_tables(run, shown, arms)),
        warnings=[line for line in warnings(run, shown) if line not in alerts],
        lead=list(proof(run, shown.summary)),
        conclusion=conclusion(run, shown),
    )


def _tables(run: Run, analysis: Analysis, arms: Sequence[str]) -> Iterator[Table]:
    """Yield a table of sentences for each section; code that several arms share is quoted once."""
    every_lesson = lessons(run, analysis.summary)
    if not every_lesson:
        return
    steps = {arm.arm: arm.step_seconds.mean for arm in analysis.summary.arms}
    computing_seconds = steps.get(CONTROL)
    yield _table("What every step needs", _common_rows(run, every_lesson[0], computing_seconds))
    quoted: set[Quote] = set()
    for lesson in every_lesson:
        if arms and lesson.figures.arm not in arms:
            continue
        quotes = [quote for quote in code_of(lesson.arm.backend, lesson.arm.options) if quote not in quoted]
        quoted.update(quotes)
        yield _table(lesson.figures.arm, _arm_rows(analysis, lesson, computing_seconds), quotes)


def _table(title: str, rows: Iterator[tuple[str, str]], quotes: Sequence[Quote] = ()) -> Table:
    """Return a table of two columns: a word for the topic, and sentences about it. The code follows below."""
    return Table(
        columns=[Column("", str, is_text=True)] * 2,
        rows=[*map(Row, rows)],
        title=title,
        is_prose=True,
        listings=[(f"{quote.file}:{quote.line}  {quote.function}", quote.text) for quote in quotes],
    )


# ---- what every step needs ----


def _common_rows(run: Run, lesson: Lesson, computing_seconds: float | None) -> Iterator[tuple[str, str]]:
    """Yield the rows on what is the same for all arms; ``lesson`` may be that of any arm."""
    config = run.config
    size = _bytes(lesson.figures.detail.gradient_bytes)
    samples = config.batch_size_per_rank * config.accumulate
    words = (
        f"Each of {counted(config.ranks, 'rank')} computes gradients from its own "
        f"{counted(samples, 'sample')}. They are {size} in {counted(lesson.gradient_tensors, 'tensor')}. "
        "Before a step, every rank needs their mean over all ranks. Otherwise the ranks would train "
        "different models."
    )
    yield "Gradients", words
    if computing_seconds is None:
        words = f"The control {CONTROL} has no finished launch, so computing alone was not measured."
    else:
        words = (
            f"A step of {CONTROL} takes {_ms(computing_seconds)}: the same loop and ranks, without "
            "communication. Any longer step pays for synchronising."
        )
    yield "Computing", words


# ---- one arm ----


def _arm_rows(
    analysis: Analysis, lesson: Lesson, computing_seconds: float | None
) -> Iterator[tuple[str, str]]:
    """Yield the rows of one arm. ``computing_seconds`` is the control's step time, or None without it."""
    yield "Is", f"{summary_of(lesson.arm.backend, lesson.arm.options)}."
    yield "Sends", _sends(lesson)
    if lesson.ranks > 1 and not lesson.in_shared_memory:
        yield "Each rank", _each_rank(lesson)
    if lesson.ranks > 1:
        yield "Takes", _takes(lesson)
    if lesson.schedule or lesson.gathers:
        yield "When", _SCHEDULES[lesson.schedule or "shards"]
    yield "So", " ".join(_conclusions(lesson, computing_seconds))
    causes = [cause for cause in analysis.causes if cause.arm == lesson.figures.arm]
    for line in explain(causes, noisy=bool(analysis.summary.noisy_rounds)):
        yield "Why", line.removeprefix("Why: ")
    if why := why_marked(lesson.arm):
        yield "Note", f"This arm is not the same training: {why}."


def _sends(lesson: Lesson) -> str:
    sizes = lesson.figures.detail.message_bytes
    by = f"by {lesson.figures.transport} ({lesson.library})"
    if lesson.ranks == 1:
        return "There is one rank, so it sends nothing."
    if lesson.in_shared_memory:
        size = _bytes(lesson.figures.detail.gradient_bytes)
        return (
            f"Nothing. Ranks write their shares of {size} into memory that all of them map. Each adds up its "
            "own part there."
        )
    if lesson.gathers:
        size = _bytes(lesson.figures.detail.gradient_bytes)
        return (
            f"Layer by layer, {size} of parameters, which are gathered {counted(lesson.gathers, 'time')} in "
            f"each step, and {size} of gradients, which are summed so that each rank gets its shard; {by}."
        )
    if not sizes:
        return f"The sizes of its messages were not recorded; {by}."
    calls = counted(len(sizes), "request" if lesson.fusion_bytes else "call")
    several = len(sizes) > 1
    fuses = f" The library fuses up to {_bytes(lesson.fusion_bytes)} into one message."
    return (
        f"{calls} of {_bytes(sum(sizes))}{' together' if several else ''} in each step, {by}."
        f"{fuses if several and lesson.fusion_bytes else ''}"
    )


def _each_rank(lesson: Lesson) -> str:
    if lesson.sent_bytes is None:
        return "How its messages travel is not known, and no bytes were counted."
    if lesson.gathers:
        whole, parts = lesson.figures.detail.gradient_bytes, lesson.gathers + 1
        return (
            f"Of each of these {parts} rounds a rank sends what it does not keep: among "
            f"{counted(lesson.ranks, 'rank')}, {lesson.sent_bytes / whole:.3g} × {_bytes(whole)} = "
            f"{_bytes(lesson.sent_bytes)}. An all-reduce would be two of them. This is arithmetic: no bytes "
            "were counted."
        )
    total = sum(lesson.figures.detail.message_bytes)
    in_a_row = lesson.messages_in_a_row
    waits = f", in {counted(int(in_a_row), 'message')} that wait for each other" if in_a_row else ""
    return (
        f"{_FORMS[lesson.form]} Among {counted(lesson.ranks, 'rank')}, each sends "
        f"{lesson.sent_bytes / total:.3g} × {_bytes(total)} = {_bytes(lesson.sent_bytes)}{waits}. This is "
        "arithmetic: no bytes were counted."
    )


def _takes(lesson: Lesson) -> str:
    detail = lesson.figures.detail
    alone, bandwidth = detail.collective_seconds, detail.algorithm_bandwidth
    if alone is None or not detail.message_bytes:
        return "Its calls cannot run without training, so their time alone was not measured."
    takes = "it takes" if len(detail.message_bytes) == 1 else "they take"
    rate = f", so {in_units(bandwidth.mean, _RATES)}" if bandwidth else ""
    fixed = lesson.fixed_seconds
    rest = "" if fixed is None else f" {_ms(fixed)} of that does not depend on the size."
    return f"Alone, without training, {takes} {_ms(alone.mean)}{rate}.{rest}"


def _conclusions(lesson: Lesson, computing_seconds: float | None) -> Iterator[str]:
    """Yield sentences that compare a step with its computing and communicating, and state the sync cost."""
    figures, step = lesson.figures, lesson.figures.step_seconds.mean
    reference = figures.detail.reference_seconds
    compute = reference.mean if reference and computing_seconds is None else computing_seconds
    alone = figures.detail.collective_seconds.mean if figures.detail.collective_seconds else None
    if compute is None:
        yield f"A step takes {_ms(step)}."
    elif alone is None or not figures.detail.message_bytes:
        yield f"Computing takes {_ms(compute)}, and a step takes {_ms(step)}."
    else:
        yield from _compare_with_sum(lesson, compute, alone, step)
    if figures.below_noise:
        yield "The cost of synchronising is below the noise of this run."
    elif figures.sync_seconds and figures.sync_share:
        cost, share = _ms(figures.sync_seconds.mean), figures.sync_share.mean
        yield f"Synchronising costs {cost} of a step, {share:.0%}; a step of {CONTROL} is the comparison."


def _compare_with_sum(lesson: Lesson, compute: float, alone: float, step: float) -> Iterator[str]:
    """Yield sentences that compare a step with the sum of its computing and its communicating alone.

    All times are in seconds.
    """
    both, longer = compute + alone, max(compute, alone)
    parts = f"computing ({_ms(compute)}) and communicating ({_ms(alone)})"
    yield f"One after the other, {parts} take {_ms(both)}; perfectly overlapped, {_ms(longer)}."
    if step > both * _SAME_FACTOR:
        yield (
            f"A step takes {_ms(step)}. The other {_ms(step - both)} are waiting for each other, copying and "
            "slower computing."
        )
    elif step >= both / _SAME_FACTOR:
        hidden = "" if lesson.schedule == "after" else ", so next to nothing overlaps"
        yield f"A step takes {_ms(step)}, as long as both{hidden}."
    elif lesson.schedule == "after":
        yield f"A step takes {_ms(step)}, less than both: alone, the calls took longer than in the step."
    else:
        yield f"A step takes {_ms(step)}, so computing hides {_ms(both - step)} of communicating."


# ---- words ----


def _ms(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < _SHORT_SECONDS else f"{seconds * 1e3:.2f} ms"


def _bytes(size: float) -> str:
    return in_units(size, _BYTES)
