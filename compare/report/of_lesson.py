"""Make the document of a lesson: a run's figures in sentences, with the code that synchronises.

The lesson states what a step sends, and how long that takes. Every figure comes from the run's results. Where
something was not measured, the lesson says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backends.code import Quote, code_of, summary_of
from compare.analysis import Analysis
from compare.analysis.lessons import Lesson, lessons
from compare.analysis.summary import Summary
from compare.report.causes import explain
from compare.report.cells import in_units
from compare.report.document import Column, Document, Listing, Row, Table
from compare.report.of_run import arrange
from compare.report.origin import headline, noise_warnings, warnings
from compare.report.sentences import conclusion, proof, why_marked
from compare.schema.arms import CONTROL
from compare.schema.results import Run
from compare.text import counted, percent

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
    "after": "After backward, one call after the other. The rank waits for them.",
    "overlap": "During backward: a call starts as soon as its bucket of gradients is full.",
    "fused": "During backward: a thread of the library collects what is ready, and sends it together.",
}


_NAMES = {
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "broadcast": "broadcast",
}
_WHOLE_RING = (
    "Gloo's reduce-scatter is a whole ring all-reduce, so it sends twice what a reduce-scatter needs."
)


def document_of(run: Run, analysis: Analysis, arms: Sequence[str] = ()) -> Document:
    """Return the lesson of a run.

    Its first table tells what every step needs. Each arm that communicates follows with a table and its code.
    ``arms`` are the labels of the arms to explain; if it is empty, all are explained. There are no tables if
    no such arm has a launch.
    """
    shown = arrange(analysis)
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
        listings=[Listing(f"{quote.file}:{quote.line}  {quote.function}", quote.text) for quote in quotes],
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
        yield "Takes", _takes(lesson, noisy=_is_noisy(analysis.summary))
    if lesson.schedule:
        yield "When", _SCHEDULES.get(lesson.schedule) or _when_in_shards(lesson)
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
    if lesson.calls:
        return f"{_kinds_of_calls(lesson)} in each step, {by}."
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
    if lesson.calls:
        return _sends_in_shards(lesson, lesson.sent_bytes)
    total = sum(lesson.figures.detail.message_bytes)
    in_a_row = lesson.messages_in_a_row
    waits = f", in {counted(int(in_a_row), 'message')} that wait for each other" if in_a_row else ""
    return (
        f"{_FORMS[lesson.form]} Among {counted(lesson.ranks, 'rank')}, each sends "
        f"{lesson.sent_bytes / total:.3g} × {_bytes(total)} = {_bytes(lesson.sent_bytes)}{waits}. This is "
        "arithmetic: no bytes were counted."
    )


def _sends_in_shards(lesson: Lesson, sent_bytes: float) -> str:
    """Return sentences on what a rank sends where the calls of a step were recorded."""
    terms = " + ".join(f"{calls.sent:.3g} × {_bytes(calls.message_bytes)}" for calls in lesson.calls)
    kept = sum(calls.sent_bytes for calls in lesson.calls if calls.on_one_host)
    all_reduce = 2 * (lesson.ranks - 1) / lesson.ranks * lesson.figures.detail.gradient_bytes
    whole_ring = any(
        calls.collective == "reduce_scatter" and calls.sent >= 1 and calls.ranks > 1 for calls in lesson.calls
    )
    on_average = " on average" if any(calls.collective == "broadcast" for calls in lesson.calls) else ""
    sentences = [
        f"Among {counted(lesson.ranks, 'rank')}, each sends {terms} = {_bytes(sent_bytes)}{on_average}."
    ]
    if kept:
        sentences.append(f"Of that, {_bytes(kept)} stay on its host.")
    if whole_ring:
        sentences.append(_WHOLE_RING)
    sentences.append(f"A ring all-reduce of the gradients would send {_bytes(all_reduce)}.")
    return " ".join([*sentences, "The calls were recorded, and what they send is arithmetic."])


def _kinds_of_calls(lesson: Lesson) -> str:
    """Return how many calls of each collective a step has, with their bytes, as words."""
    kinds = [
        f"{counted(calls.count, _NAMES[calls.collective])} of {_bytes(calls.message_bytes)}"
        for calls in lesson.calls
    ]
    all_of_them = f"{', '.join(kinds[:-1])} and {kinds[-1]}" if len(kinds) > 1 else kinds[0]
    groups = {calls.ranks for calls in lesson.calls}
    return f"{all_of_them}, each among {min(groups)} ranks," if groups != {lesson.ranks} else all_of_them


def _when_in_shards(lesson: Lesson) -> str:
    """Return when the calls of a step with shards run."""
    count = {calls.collective: calls.count for calls in lesson.calls}
    if "all_gather" not in count:
        broadcasts = ", and broadcasts after each rank has updated its part" if "broadcast" in count else ""
        return f"All-reduces during backward{broadcasts}."
    again = " and in backward" if count["all_gather"] > count.get("reduce_scatter", 0) else ""
    in_replicas = any(calls.ranks != lesson.ranks for calls in lesson.calls)
    replicas = " Replicas average their shards then." if in_replicas else ""
    return f"Before each unit computes, in forward{again}, and after its backward.{replicas}"


def _is_noisy(summary: Summary) -> bool:
    """Return whether the times of a run are too noisy to be split."""
    return summary.noise_hides_all or bool(summary.noisy_rounds)


def _takes(lesson: Lesson, *, noisy: bool) -> str:
    """Return a sentence on the calls alone, and one on the part that their size does not change.

    A run that is ``noisy`` has no second sentence, because its fit would be one of noise.
    """
    detail = lesson.figures.detail
    alone, bandwidth = detail.collective_seconds, detail.algorithm_bandwidth
    if alone is None or not detail.message_bytes:
        return "Its calls were not timed alone, without training."
    takes = "it takes" if len(detail.message_bytes) == 1 else "they take"
    rate = f", so {in_units(bandwidth.mean, _RATES)}" if bandwidth else ""
    fixed = lesson.fixed_seconds
    rest = "" if fixed is None or noisy else f" {_ms(fixed)} of that does not depend on the size."
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
        cost, share = _ms(figures.sync_seconds.mean), percent(figures.sync_share.mean)
        yield f"Synchronising costs {cost} of a step, {share}; a step of {CONTROL} is the comparison."


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
