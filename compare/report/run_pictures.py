"""Draw the pictures of a run: parts of the step time, speed, turns, message sizes, and memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from compare.analysis import Analysis
from compare.analysis.cost_model import seconds_by_size
from compare.analysis.figures import Estimate, Figures
from compare.analysis.summary import ArmSummary
from compare.analysis.verdict import MARGIN
from compare.report.axes import (
    BYTES,
    SECONDS,
    Axis,
    AxisScale,
    axis_from_zero,
    linear_ticks,
    log_axis,
    log_ticks,
)
from compare.report.cells import format_estimate
from compare.report.columns import against_baseline
from compare.report.memory import draw_frontier
from compare.report.pictures import LEFT, RIGHT, WIDEST, Chart, Mark, Picture, Point, draw_lines
from compare.schema.arms import CONTROL
from compare.schema.results import Run
from compare.text import in_form, percent

_BAR_HEIGHT = 14
_STRIP_HEIGHT, _STRIP_LEFT = 56, 56
_STRIP_MARGIN = 1.25
"""By how much the logarithm that a strip spans exceeds that of the largest ratio in it."""
_TICK_DISTANCE = 15.0
"""Least distance between two labels of a strip."""
_MB = 1e6
_PARTS = {
    "computing": "computing, as without communication",
    "background": "slowed by the library's threads and memory",
    "exposed": "communicating and waiting",
}
_MEANING_OF_NEGATIVE = (
    "Each part is a difference of two measured times. A negative one means that the step took less than the "
    "parts before it, which nearly always is noise."
)
_MEANING_OF_NOISE = "Below noise: the part may as well be zero."
_PARTS_IN_SHORT = {"computing": "computing", "background": "slowed", "exposed": "communicating"}
_MILLISECONDS = Axis("milliseconds of one training step", axis_from_zero, "{:g}".format)
_MEGABYTES = Axis("MB (10⁶ bytes)", axis_from_zero, "{:g}".format)
_MOST_ROUND_LABELS = 10
_LONGEST_LINE = 60
_WIDEST_RATIO = 100.0
"""Largest ratio to which an interval widens the axis; beyond it, the interval is cut at the edge."""


def draw(run: Run, analysis: Analysis) -> Iterator[Picture]:
    """Yield the pictures for which the run has figures; none if no launch has finished."""
    if analysis.summary.arms:
        yield _draw_times(analysis)
        yield from _draw_speeds(run, analysis)
        yield _draw_turns(run, analysis)
        yield from draw_frontier(run, analysis.summary)
        yield from _draw_sizes(run)
        yield _draw_memory(analysis)


# ---- where a step's time goes ----


def _draw_times(analysis: Analysis) -> Picture:
    """Draw a bar with the parts of each arm's step time; a part below zero is taken off its end."""
    arms = analysis.summary.arms
    picture = Picture(
        "time",
        "Where a step's time goes",
        "The parts of one training step, as geometric means over the rounds. The thin line is the interval "
        "of the whole step.",
    )
    parts = {arm.arm: _parts(arm) for arm in arms}
    remarks = [_MEANING_OF_NEGATIVE] if any(map(_has_negative, parts.values())) else []
    if any(_below_noise(cost) for arm in arms for cost in _cost_parts(arm).values()):
        remarks.append(_MEANING_OF_NOISE)
    picture.caption = " ".join([picture.caption, *remarks])
    legend = [("rect", f"part {style}", words) for style, words in _PARTS.items()]
    if any(map(_is_unsplit, arms)):
        legend.append(("rect", "part unsplit", "not split: see the notes"))
    if any(map(_has_negative, parts.values())):
        legend.append(("rect", "taken", "a negative part, taken off"))
    picture.legend(legend)
    ends = [sum(seconds for seconds in costs.values() if seconds > 0) for costs in parts.values()]
    ends += [min(arm.step_seconds.high, arm.step_seconds.mean * WIDEST) for arm in arms]
    scale, top = _MILLISECONDS.make_scale((end * 1e3 for end in ends), LEFT, RIGHT), picture.height
    for arm in arms:
        _draw_bar(picture, arm, scale)
    picture.axis(_MILLISECONDS, scale, top=top)
    picture.description = "; ".join(f"{arm.arm}: {_parts_in_words(arm)}" for arm in arms)
    return picture


def _has_negative(parts: Mapping[str, float]) -> bool:
    return any(seconds < 0 for seconds in parts.values())


def _parts(arm: ArmSummary) -> dict[str, float]:
    """Return the seconds of computing and of each further part by style; their sum is the step's mean."""
    costs = {style: cost.mean for style, cost in _cost_parts(arm).items()}
    return {"computing": arm.step_seconds.mean - sum(costs.values()), **costs}


def _cost_parts(arm: ArmSummary) -> dict[str, Estimate]:
    """Return the parts of a step beyond computing, in seconds by style; empty if the step is not split."""
    detail = arm.detail
    if detail.background_seconds and detail.exposed_seconds:
        return {"background": detail.background_seconds, "exposed": detail.exposed_seconds}
    return {"exposed": arm.sync_seconds} if arm.sync_seconds else {}


def _is_unsplit(arm: ArmSummary) -> bool:
    return arm.arm != CONTROL and not _cost_parts(arm)


def _draw_bar(picture: Picture, arm: ArmSummary, scale: AxisScale) -> None:
    """Draw the parts of an arm's step one after another, so that the last one ends at the step's time."""
    step = arm.step_seconds
    picture.row_heading(arm.arm, f"{format_estimate(step, '.2f', 1e3)} ms")
    x = 0.0
    for style, seconds in sorted(_parts(arm).items(), key=lambda part: part[1] < 0):
        left, right = sorted((scale.pixel(x * 1e3), scale.pixel((x + seconds) * 1e3)))
        shown = "unsplit" if _is_unsplit(arm) else style
        title = f"{arm.arm}: {style} {in_form(seconds * 1e3, '.2f')} ms"
        picture.rect(f"part {shown}" if seconds >= 0 else "taken", left, right, _BAR_HEIGHT, title=title)
        x += seconds
    if step.low < step.high:
        middle = picture.height + _BAR_HEIGHT / 2
        low, high = (scale.pixel_within(end * 1e3) for end in (step.low, step.high))
        picture.line("interval", low, middle, high, middle)
    picture.height += _BAR_HEIGHT + 2
    words = _parts_in_words(arm) if _cost_parts(arm) else ""
    first, plus, last = words.rpartition(" + ") if len(words) > _LONGEST_LINE else (words, "", "")
    for line in filter(None, [first, f"{plus.strip()} {last}".strip()]):
        picture.height += 14
        picture.write("small", LEFT, picture.height, line)
    picture.height += 10


def _parts_in_words(arm: ArmSummary) -> str:
    """Return the parts of a step in words, with a remark on each that is below noise."""
    costs = _cost_parts(arm)
    if not costs:
        return f"{arm.step_seconds.mean * 1e3:.2f} ms, not split"
    return " + ".join(
        f"{_PARTS_IN_SHORT[style]} {in_form(seconds * 1e3, '.2f')}{_below_noise(costs.get(style))}"
        for style, seconds in _parts(arm).items()
    )


def _below_noise(interval: Estimate | None) -> str:
    noise = interval is not None and interval.low <= 0 <= interval.high and interval.n > 1
    return " (below noise)" if noise else ""


# ---- speed against the baseline ----


def _draw_speeds(run: Run, analysis: Analysis) -> Iterator[Picture]:
    """Draw the interval of each arm's verdict, and the band of differences that do not matter.

    Nothing is yielded if there is no verdict, or if noise hides every difference.
    """
    rows = [(arm, arm.verdict) for arm in analysis.summary.arms if arm.verdict]
    if not rows or analysis.summary.noise_hides_all:
        return
    band = f"within {percent(MARGIN, 'g')}"
    picture = Picture(
        "speed",
        f"Speed against {run.config.baseline}",
        f"Ratio of step times with its interval. A difference {band} does not matter. "
        "A hollow dot is open: more rounds may settle it.",
    )
    picture.legend([("rect", "band", band), ("dot", "settled", "settled"), ("hollow dot", "open", "open")])
    ends = [verdict.speed_ratio for _, verdict in rows]
    intervals = [end for _, verdict in rows for end in (verdict.low, verdict.high) if end]
    ends += [min(max(end, 1 / _WIDEST_RATIO), _WIDEST_RATIO) for end in intervals]
    low, high = 1 / (1 + MARGIN), 1 + MARGIN
    axis = Axis("speed, above 1× is faster (logarithmic)", log_axis, "{:g}×".format)
    scale, top = axis.make_scale([*ends, low, high], LEFT, RIGHT), picture.height
    words = {arm.arm: against_baseline(run, analysis.summary, arm) for arm, _ in rows}
    for arm, verdict in rows:
        picture.row_heading(arm.arm, words[arm.arm])
        y, style = picture.height + 6, "open" if verdict.kind == "open" else "settled"
        if verdict.low and verdict.high:
            left, right = map(scale.pixel_within, (verdict.low, verdict.high))
            picture.line(f"interval {style}", left, y, right, y)
        middle = scale.pixel(verdict.speed_ratio)
        picture.dots(style, [(middle, y)], f"{arm.arm}: {words[arm.arm]}")
        if style == "open":
            picture.dots("hole", [(middle, y)])
        picture.height += 16
    picture.marks.insert(0, Mark("path", "one", {"d": f"M{scale.pixel(1):g} {top:g}V{picture.height + 4:g}"}))
    picture.band("band", scale.pixel(low), scale.pixel(high), top=top)
    picture.axis(axis, scale, top=top)
    picture.description = "; ".join(f"{arm}: {text}" for arm, text in words.items())
    yield picture


# ---- every turn ----


def _draw_turns(run: Run, analysis: Analysis) -> Picture:
    """Draw a strip for each arm, with a dot for the step time of each turn, in their order.

    If the arms took no turns, a dot stands for a launch. All strips show the same factor around the arm's
    mean, so that equal scatter looks equal.
    """
    means = {arm.arm: arm.step_seconds for arm in analysis.summary.arms}
    figures = Figures(run)
    times = {
        arm: {place: turn.seconds for place, turn in figures.turns(arm).items()}
        for arm in figures.by_arm
        if arm in means
    }
    numbers = sorted({round_number for turns in times.values() for round_number, _ in turns})
    rounds = {round_number: round_number in analysis.summary.noisy_rounds for round_number in numbers}
    ratios = [seconds / means[arm].mean for arm, turns in times.items() for seconds in turns.values()]
    factor = max([1.01, *(max(ratio, 1 / ratio) for ratio in ratios)]) ** _STRIP_MARGIN
    unit = "turn" if run.interleaved.mode == "blocks" else "launch"
    picture = Picture(
        "turns",
        f"Every {unit}",
        f"Milliseconds of a step in each {unit}, in order, round by round. The line is the arm's own mean, "
        "in its interval. Every strip spans the same factor around it.",
    )
    shaded = [("rect", "noisy", "noisy round")] if any(rounds.values()) else []
    interval = [("rect", "band", "interval of the mean")]
    picture.legend([("dot", "series s0", f"a {unit}; higher is slower"), *interval, *shaded])
    for arm, mean in means.items():
        picture.row_heading(arm, f"{format_estimate(mean, '.2f', 1e3)} ms")
        _draw_strip(picture, arm, times[arm], rounds, mean, factor)
    round_width = (RIGHT - _STRIP_LEFT) / len(rounds)
    for index, round_number in enumerate(rounds):
        if index % math.ceil(len(rounds) / _MOST_ROUND_LABELS) == 0:
            picture.write(
                "tick", _STRIP_LEFT + round_width * (index + 0.5), picture.height + 12, str(round_number)
            )
    picture.write("tick", (_STRIP_LEFT + RIGHT) / 2, picture.height + 30, "round")
    picture.height += 38
    picture.description = "; ".join(
        f"{arm}: from {min(turns.values()) * 1e3:.2f} to {max(turns.values()) * 1e3:.2f} ms"
        for arm, turns in times.items()
    )
    return picture


def _draw_strip(  # noqa: PLR0917 -- a strip and what it shows
    picture: Picture,
    arm: str,
    times: Mapping[tuple[int, int], float],
    rounds: Mapping[int, bool],
    mean: Estimate,
    factor: float,
) -> None:
    """Draw the strip of one arm, from its mean over ``factor`` to its mean times ``factor``.

    ``times`` are seconds a step, by round and turn. ``rounds`` maps every round to whether it was noisy.
    """
    top, round_width = picture.height, (RIGHT - _STRIP_LEFT) / len(rounds)
    scale = AxisScale(mean.mean / factor, mean.mean * factor, top + _STRIP_HEIGHT, top, is_log=True)
    picture.rect("strip", _STRIP_LEFT, RIGHT, _STRIP_HEIGHT)
    _draw_levels(picture, scale, mean)
    points = []
    for index, (round_number, is_noisy) in enumerate(rounds.items()):
        left = round(_STRIP_LEFT + round_width * index, 1)
        if is_noisy:
            picture.rect("noisy", left, left + round_width, _STRIP_HEIGHT)
        if index:
            picture.line("grid", left, top, left, top + _STRIP_HEIGHT)
        turns = sorted(turn for other, turn in times if other == round_number)
        for position, turn in enumerate(turns):
            x = left + round_width * (position + 0.5) / len(turns)
            points.append((round(x, 1), scale.pixel(times[round_number, turn])))
    picture.dots("series s0", points, arm)
    picture.height = top + _STRIP_HEIGHT + 6


def _draw_levels(picture: Picture, scale: AxisScale, mean: Estimate) -> None:
    """Draw the ticks of a strip, the arm's mean, and the interval of that mean."""
    for tick, y in _strip_ticks(scale):
        picture.line("grid", _STRIP_LEFT, y, RIGHT, y)
        picture.write("tick end", _STRIP_LEFT - 6, y + 4, f"{tick:g}")
    high, low = map(scale.pixel_within, (mean.high, mean.low))
    picture.rect("band", _STRIP_LEFT, RIGHT, low - high, top=high)
    picture.line("mean", _STRIP_LEFT, scale.pixel(mean.mean), RIGHT, scale.pixel(mean.mean))


def _strip_ticks(scale: AxisScale) -> list[tuple[float, float]]:
    """Return two ticks or more of a strip in milliseconds, round if they can be, each with its height."""
    low, high = scale.low * 1e3, scale.high * 1e3
    ends = [low * (high / low) ** share for share in (0.2, 0.8)]
    choices = [
        linear_ticks(low, high),
        log_ticks(low, high),
        *([float(f"{end:.{digits}g}") for end in ends] for digits in range(1, 6)),
    ]
    placed = (_placed(scale, ticks) for ticks in choices)
    return next((ticks for ticks in placed if len(ticks) > 1), [])


def _placed(scale: AxisScale, ticks: Iterable[float]) -> list[tuple[float, float]]:
    """Return those ticks in milliseconds whose labels fit into a strip, each with its height."""
    placed: list[tuple[float, float]] = []
    for tick in ticks:
        y = scale.pixel(tick / 1e3) if tick > 0 else scale.start
        last = placed[-1][1] if placed else math.inf
        if scale.end + 5 <= y <= min(scale.start - 5, last - _TICK_DISTANCE):
            placed.append((tick, y))
    return placed


# ---- the time of an all-reduce, by its size ----


def _draw_sizes(run: Run) -> Iterator[Picture]:
    """Draw the time of an all-reduce over its message size, for each arm that measured it."""
    chart = Chart.of(
        (
            (arm.label, Point.of(size, seconds))
            for arm in run.config.arms
            for size, seconds in seconds_by_size(run.of(arm))
        ),
        key="sizes",
        heading="Time of one all-reduce, by message size",
        caption="The group's all-reduce alone, without training: means over the launches, with intervals.",
        x_axis=BYTES,
        y_axis=SECONDS,
    )
    return draw_lines(chart)


# ---- memory ----


def _draw_memory(analysis: Analysis) -> Picture:
    """Draw each arm's peak memory while it trained; an outline shows the peak with the proof before it."""
    arms = analysis.summary.arms
    picture = Picture(
        "memory",
        "Memory of the largest rank",
        "Largest resident set while an arm trained. Outline and brackets include the proof before it.",
    )
    legend = {"part computing": "while it trained", "whole": "(with the proof)"}
    picture.legend([("rect", style, words) for style, words in legend.items()])
    peaks = {
        arm.arm: (
            arm.peak_memory_bytes / _MB,
            (arm.detail.whole_peak_memory_bytes or 0) / _MB if arm.parity.steps else 0.0,
        )
        for arm in arms
    }
    on_gpu = {arm.arm: peak / _MB for arm in arms if (peak := arm.peak_device_memory_bytes) is not None}
    scale, top = _MEGABYTES.make_scale(map(max, peaks.values()), LEFT, RIGHT), picture.height
    for name, (trained, whole) in peaks.items():
        figure = f"{trained:,.0f}" + (f" ({whole:,.0f})" if whole else "") + " MB"
        figure += f", GPU {on_gpu[name]:,.0f}" if name in on_gpu else ""
        picture.row_heading(name, figure)
        if whole:
            picture.rect("whole", LEFT, scale.pixel(whole), _BAR_HEIGHT)
        picture.rect("part computing", LEFT, scale.pixel(trained), _BAR_HEIGHT, title=name)
        picture.height += _BAR_HEIGHT + 8
    picture.axis(_MEGABYTES, scale, top=top)
    picture.description = "; ".join(f"{name}: {trained:.0f} MB" for name, (trained, _) in peaks.items())
    return picture
