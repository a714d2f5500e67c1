"""Write a run as a lesson, with the code that synchronises.

The lesson states what a step sends, and how long that takes. Every figure comes from the run's results. Where
something was not measured, the lesson says so.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from backends.code import Quote, code_of, summary_of
from compare.analysis import Analysis
from compare.analysis.lesson import Lesson, control_seconds, lessons
from compare.report.causes import explain
from compare.report.cells import in_units, markdown_text
from compare.report.limits import noise_first, warnings
from compare.report.origin import short_headline
from compare.report.sentences import conclusion, proof, why_marked
from compare.schema.arms import CONTROL
from compare.schema.results import Run
from compare.text import counted, printable

WIDTH = 80
_LABEL = 11
_CODE = "    "
_FIXED_SPACE = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=(?:ms|µs|[kMG]?B|[MG]B/s|bytes|ranks?|samples?|tensors?|calls?)\b)")
_BYTES = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}
_SLOW = 0.1
"""A rate below this, in GB/s, is written in MB/s."""
_SHORT_SECONDS = 50e-6
_SAME = 1.05
"""Times within this factor of each other are called the same."""
_FORMS = {
    "ring": "In a ring, each rank passes parts to its neighbour until all have the sum.",
    "Rabenseifner": "By Rabenseifner's algorithm, ranks exchange halves, sum them, and gather the sums.",
    "reduce_scatter": "Each rank sums one part, then all ranks gather the parts.",
    "all_gather": "Each rank sends all it has to every other, and each sums by itself.",
}
_WHEN = {
    "after": "After backward, one call after the other. The rank waits for them.",
    "overlap": "During backward: a call starts as soon as its bucket of gradients is full.",
    "fused": "During backward: a thread of the library collects what is ready, and sends it together.",
}


class Section(NamedTuple):
    """One section of the lesson: a heading, its paragraphs with a label each, and code."""

    heading: str
    parts: list[tuple[str, str]]
    quotes: Sequence[Quote] = ()


def text(run: Run, analysis: Analysis, arms: Sequence[str] = ()) -> str:
    """Return the lesson for a terminal, at most 80 columns wide; ``arms`` as for ``sections``."""
    lines = _wrapped(_first(run, analysis))
    for section in sections(run, analysis, arms):
        lines += ["", *_wrapped([section.heading])]
        for label, words in section.parts:
            lines += _wrapped([words], f"  {label:<{_LABEL}} ", " " * (_LABEL + 3))
        for quote in section.quotes:
            lines += ["", f"  {quote.file}:{quote.line}  {quote.function}"]
            lines += [f"{_CODE}{line}" for line in _folded(quote)]
    return "\n".join([*lines, "", *_wrapped(_last(run, analysis))])


def markdown(run: Run, analysis: Analysis, arms: Sequence[str] = ()) -> str:
    """Return the lesson as Markdown, with the code in fences; ``arms`` as for ``sections``."""
    first, *rest = _first(run, analysis)
    lines = [f"**{first}**", *(f"\n{line}" for line in rest)]
    parts = [markdown_text(lines)]
    for section in sections(run, analysis, arms):
        listed = [f"- **{label}.** {words}" for label, words in section.parts]
        parts.append(markdown_text([f"## {section.heading}", "", *listed]))
        for quote in section.quotes:
            parts.append(f"`{quote.function}` at `{quote.file}:{quote.line}`:")
            parts.append(f"```python\n{quote.text}\n```")
    return "\n\n".join([*parts, markdown_text(f"**{line}**" for line in _last(run, analysis))])


RENDERERS: dict[str, Callable[..., str]] = {"text": text, "markdown": markdown}


def sections(run: Run, analysis: Analysis, arms: Sequence[str] = ()) -> Iterator[Section]:
    """Yield a section on what every step needs, then one for each arm that communicates.

    ``arms`` are the labels of the arms to explain; if it is empty, all are explained. Code that several arms
    share is quoted once. Without a launch of such an arm, there is no section.
    """
    found = lessons(run, analysis.summary)
    if not found:
        return
    computing = control_seconds(analysis.summary)
    yield Section("What every step needs", list(_needs(run, found, computing)))
    quoted: set[Quote] = set()
    for lesson in found:
        if arms and lesson.figures.arm not in arms:
            continue
        quotes = [quote for quote in code_of(lesson.arm.backend, lesson.arm.options) if quote not in quoted]
        quoted.update(quotes)
        yield Section(lesson.figures.arm, list(_of_arm(analysis, lesson, computing)), quotes)


def _first(run: Run, analysis: Analysis) -> Iterator[str]:
    yield short_headline(run, analysis.summary)
    noise = noise_first(run, analysis.summary)
    yield from noise
    yield from (line for line in warnings(run, analysis) if line not in noise)


def _last(run: Run, analysis: Analysis) -> Iterator[str]:
    yield from proof(run, analysis.summary)
    yield conclusion(run, analysis)


# ---- what every step needs ----


def _needs(run: Run, found: Sequence[Lesson], computing: float | None) -> Iterator[tuple[str, str]]:
    config, one = run.config, found[0]
    size = _bytes(one.figures.detail.gradient_bytes)
    samples = config.batch_size_per_rank * config.accumulate
    words = (
        f"Each of {counted(config.ranks, 'rank')} computes gradients from its own "
        f"{counted(samples, 'sample')}. They are {size} in {counted(one.gradient_tensors, 'tensor')}. "
        "Before a step, every rank needs their mean over all ranks. Otherwise the ranks would train "
        "different models."
    )
    yield "Gradients", words
    if computing is None:
        words = f"The control {CONTROL} has no finished launch, so computing alone was not measured."
    else:
        words = (
            f"A step of {CONTROL} takes {_ms(computing)}: the same loop and ranks, without communication. "
            "Any longer step pays for synchronising."
        )
    yield "Computing", words


# ---- one arm ----


def _of_arm(analysis: Analysis, lesson: Lesson, computing: float | None) -> Iterator[tuple[str, str]]:
    yield "Is", f"{summary_of(lesson.arm.backend, lesson.arm.options)}."
    yield "Sends", _sends(lesson)
    if lesson.ranks > 1 and not lesson.in_shared_memory:
        yield "Each rank", _each_rank(lesson)
    if lesson.ranks > 1:
        yield "Takes", _takes(lesson)
    if lesson.schedule:
        yield "When", _WHEN[lesson.schedule]
    yield "So", " ".join(_so(lesson, computing))
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
    total = sum(lesson.figures.detail.message_bytes)
    row = lesson.messages_in_a_row
    waits = f", in {counted(int(row), 'message')} that wait for each other" if row else ""
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
    rate = f", so {_rate(bandwidth.mean)}" if bandwidth else ""
    fixed = lesson.fixed_seconds
    rest = "" if fixed is None else f" {_ms(fixed)} of that does not depend on the size."
    return f"Alone, without training, {takes} {_ms(alone.mean)}{rate}.{rest}"


def _so(lesson: Lesson, computing: float | None) -> Iterator[str]:
    """Yield sentences that compare a step with its computing and communicating, and state the sync cost."""
    own, step = lesson.figures, lesson.figures.step_seconds.mean
    compute = computing if computing is not None else lesson.compute_seconds
    alone = own.detail.collective_seconds.mean if own.detail.collective_seconds else None
    if compute is None:
        yield f"A step takes {_ms(step)}."
    elif alone is None or not own.detail.message_bytes:
        yield f"Computing takes {_ms(compute)}, and a step takes {_ms(step)}."
    else:
        yield from _added(lesson, compute, alone, step)
    if own.below_noise:
        yield "The cost of synchronising is below the noise of this run."
    elif own.sync_seconds and own.sync_share:
        yield (
            f"Synchronising costs {_ms(own.sync_seconds.mean)} of a step, {own.sync_share.mean:.0%}; a step "
            f"of {CONTROL} is the comparison."
        )


def _added(lesson: Lesson, compute: float, alone: float, step: float) -> Iterator[str]:
    both, longer = compute + alone, max(compute, alone)
    parts = f"computing ({_ms(compute)}) and communicating ({_ms(alone)})"
    yield f"One after the other, {parts} take {_ms(both)}; perfectly overlapped, {_ms(longer)}."
    if step > both * _SAME:
        yield (
            f"A step takes {_ms(step)}. The other {_ms(step - both)} are waiting for each other, copying and "
            "slower computing."
        )
    elif step >= both / _SAME:
        hidden = "" if lesson.schedule == "after" else ", so next to nothing overlaps"
        yield f"A step takes {_ms(step)}, as long as both{hidden}."
    elif lesson.schedule == "after":
        yield f"A step takes {_ms(step)}, less than both: alone, the calls took longer than in the step."
    else:
        yield f"A step takes {_ms(step)}, so computing hides {_ms(both - step)} of communicating."


# ---- words and lines ----


def _ms(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < _SHORT_SECONDS else f"{seconds * 1e3:.2f} ms"


def _rate(bandwidth: float) -> str:
    gigabytes = bandwidth / 1e9
    return f"{gigabytes:.2f} GB/s" if gigabytes >= _SLOW else f"{gigabytes * 1e3:.2g} MB/s"


def _bytes(size: float) -> str:
    return in_units(size, _BYTES)


def _wrapped(lines: Iterable[str], first: str = "", rest: str = "") -> list[str]:
    """Return lines wrapped at ``WIDTH``, but never between a figure and its unit."""
    return [
        part.replace(_FIXED_SPACE, " ")
        for line in lines
        for part in textwrap.wrap(
            _UNIT.sub(_FIXED_SPACE, printable(line)),
            WIDTH,
            initial_indent=first,
            subsequent_indent=rest,
            break_on_hyphens=False,
        )
    ]


def _folded(quote: Quote) -> Iterator[str]:
    """Yield the lines of quoted code; those that are too wide are folded."""
    for line in quote.text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        more = indent + ("# " if line.lstrip().startswith("#") else "        ")
        yield from textwrap.wrap(
            line, WIDTH - len(_CODE), subsequent_indent=more, break_long_words=False, break_on_hyphens=False
        ) or [""]
