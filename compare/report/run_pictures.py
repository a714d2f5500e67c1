"""Draw the pictures of a run: parts of the step time, speed, turns, message sizes, and memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from compare.analysis import Analysis
from compare.analysis.cost_model import seconds_by_size
from compare.analysis.figures import Estimate, Figures
from compare.analysis.summary import ArmSummary
from compare.analysis.verdict import MARGIN
from compare.report.columns import against_baseline
from compare.report.pictures import (
    BYTES,
    LEFT,
    RIGHT,
    SECONDS,
    Axis,
    AxisScale,
    Picture,
    Point,
    axis_from_zero,
    draw_lines,
    log_axis,
)
from compare.report.sentences import VERDICTS_TOGETHER
from compare.schema.arms import CONTROL
from compare.schema.results import Run

_BAR_HEIGHT = 14
_STRIP_HEIGHT = 40
_MIB = 1 << 20
_PARTS = {
    "computing": "computing, as without communication",
    "background": "slowed by the library's threads and memory",
    "exposed": "communicating and waiting",
}
_PARTS_IN_SHORT = {"background": "slowed", "exposed": "communicating"}
_MILLISECONDS = Axis(axis_from_zero, lambda value: f"{value:g} ms")
_RATIO = Axis(log_axis, lambda value: f"{value:g}×")
_MEBIBYTES = Axis(axis_from_zero, lambda value: f"{value:g} MiB")
_MOST_ROUND_LABELS = 10
_FEW_ROUNDS = 8
_LONGEST_LINE = 70
_WIDEST_RATIO = 100.0
"""Largest ratio to which an interval widens the axis; beyond it, the interval is cut at the edge."""


def draw(run: Run, analysis: Analysis) -> Iterator[Picture]:
    """Yield the pictures for which the run has figures; none if no launch has finished."""
    if analysis.summary.arms:
        yield _draw_times(analysis)
        yield from _draw_speeds(run, analysis)
        yield _draw_turns(run, analysis)
        yield from _draw_sizes(run)
        yield _draw_memory(analysis)


# ---- where a step's time goes ----


def _draw_times(analysis: Analysis) -> Picture:
    """Draw a bar with the parts of each arm's step time; a part below zero is only stated in words."""
    arms = analysis.summary.arms
    picture = Picture(
        "time",
        "Where a step's time goes",
        "Milliseconds of one training step. Geometric means over the rounds. A part below zero is stated, "
        "and not drawn.",
    )
    legend = [("rect", f"part {style}", words) for style, words in _PARTS.items()]
    if any(map(_is_unsplit, arms)):
        legend.append(("rect", "part unsplit", "not split: see the notes"))
    picture.legend(legend)
    steps = (arm.step_seconds.mean * 1e3 for arm in arms)
    scale, top = _MILLISECONDS.make_scale(steps, LEFT, RIGHT), picture.height
    for arm in arms:
        _draw_bar(picture, arm, scale)
    picture.axis(_MILLISECONDS, scale, top=top)
    picture.description = "; ".join(f"{arm.arm}: {_parts_in_words(arm)}" for arm in arms)
    return picture


def _cost_parts(arm: ArmSummary) -> dict[str, Estimate]:
    """Return the parts of a step beyond computing, in seconds by style; empty if the step is not split."""
    detail = arm.detail
    if detail.background_seconds and detail.exposed_seconds:
        return {"background": detail.background_seconds, "exposed": detail.exposed_seconds}
    return {"exposed": arm.sync_seconds} if arm.sync_seconds else {}


def _is_unsplit(arm: ArmSummary) -> bool:
    return arm.arm != CONTROL and not _cost_parts(arm)


def _draw_bar(picture: Picture, arm: ArmSummary, scale: AxisScale) -> None:
    """Draw the parts of an arm's step that are above zero, which together are as long as the step."""
    step = arm.step_seconds.mean
    picture.row_heading(arm.arm, f"{step * 1e3:.2f} ms")
    costs = {style: cost.mean for style, cost in _cost_parts(arm).items() if cost.mean > 0}
    x = 0.0
    for style, seconds in {"computing": step - sum(costs.values()), **costs}.items():
        if seconds > 0:
            left, right = scale.pixel(x * 1e3), scale.pixel((x + seconds) * 1e3)
            title = f"{arm.arm}: {style} {seconds * 1e3:.2f} ms"
            shown = "unsplit" if _is_unsplit(arm) else style
            picture.rect(f"part {shown}", left, max(right, left + 0.5), _BAR_HEIGHT, title=title)
            x += seconds
    picture.height += _BAR_HEIGHT + 2
    words = _parts_in_words(arm) if _cost_parts(arm) else ""
    first, plus, last = words.rpartition(" + ") if len(words) > _LONGEST_LINE else (words, "", "")
    for line in filter(None, [first, f"{plus.strip()} {last}".strip()]):
        picture.height += 12
        picture.write("small", LEFT, picture.height, line)
    picture.height += 6


def _parts_in_words(arm: ArmSummary) -> str:
    """Return the parts of a step in words, because a bar cannot show their signs."""
    costs, step = _cost_parts(arm), arm.step_seconds.mean
    if not costs:
        return f"{step * 1e3:.2f} ms, not split"
    computing = step - sum(cost.mean for cost in costs.values())
    each = (f"{_PARTS_IN_SHORT[style]} {_signed(cost.mean, cost)}" for style, cost in costs.items())
    return " + ".join([f"computing {_signed(computing)}", *each])


def _signed(seconds: float, interval: Estimate | None = None) -> str:
    """Return a part of a step in ms, with a remark if it is below noise or not drawn."""
    noise = interval is not None and interval.low <= 0 <= interval.high and interval.n > 1
    caveats = [*(["below noise"] if noise else []), *(["not drawn"] if seconds < 0 else [])]
    return f"{seconds * 1e3:.2f}".replace("-", "−") + (f" ({', '.join(caveats)})" if caveats else "")


# ---- speed against the baseline ----


def _draw_speeds(run: Run, analysis: Analysis) -> Iterator[Picture]:
    """Draw the interval of each arm's verdict, and the band of differences that do not matter.

    Nothing is yielded if there is no verdict, or if noise hides every difference.
    """
    rows = [(arm, arm.verdict) for arm in analysis.summary.arms if arm.verdict]
    if not rows or analysis.summary.noise_hides_all:
        return
    band = f"±{MARGIN * 100:g} %"
    picture = Picture(
        "speed",
        f"Speed against {run.config.baseline}",
        f"Ratio of step times with its interval. Right is faster. The band of {band} does not matter. "
        f"A hollow dot is open: more rounds may settle it. {VERDICTS_TOGETHER}",
    )
    picture.legend([("rect", "band", band), ("dot", "settled", "settled"), ("hollow dot", "open", "open")])
    ends = [verdict.speed_ratio for _, verdict in rows]
    intervals = [end for _, verdict in rows for end in (verdict.low, verdict.high) if end]
    ends += [min(max(end, 1 / _WIDEST_RATIO), _WIDEST_RATIO) for end in intervals]
    low, high = 1 / (1 + MARGIN), 1 + MARGIN
    scale, top = _RATIO.make_scale([*ends, low, high], LEFT, RIGHT), picture.height
    words = {arm.arm: against_baseline(run, analysis.summary, arm) for arm, _ in rows}
    for arm, verdict in rows:
        picture.row_heading(arm.arm, words[arm.arm])
        y, style = picture.height + 6, "open" if verdict.kind == "unresolved" else "settled"
        if verdict.low and verdict.high:
            left, right = max(verdict.low, scale.low), min(verdict.high, scale.high)
            picture.line(f"interval {style}", scale.pixel(left), y, scale.pixel(right), y)
        middle = scale.pixel(verdict.speed_ratio)
        picture.dots(style, [(middle, y)], f"{arm.arm}: {words[arm.arm]}")
        if style == "open":
            picture.dots("hole", [(middle, y)])
        picture.height += 16
    picture.line("one", scale.pixel(1), top, scale.pixel(1), picture.height + 4)
    picture.band("band", scale.pixel(low), scale.pixel(high), top=top)
    picture.axis(_RATIO, scale, top=top)
    picture.description = "; ".join(f"{arm}: {text}" for arm, text in words.items())
    yield picture


# ---- every turn ----


def _draw_turns(run: Run, analysis: Analysis) -> Picture:
    """Draw a strip for each arm, with a dot for each turn's step time relative to the arm's mean.

    If the arms took no turns, a dot stands for a launch.
    """
    means = {arm.arm: arm.step_seconds.mean for arm in analysis.summary.arms}
    figures = Figures(run)
    times = {
        arm: {place: turn.seconds / means[arm] for place, turn in figures.turns(arm).items()}
        for arm in figures.by_arm
        if arm in means
    }
    numbers = sorted({round_number for turns in times.values() for round_number, _ in turns})
    rounds = {round_number: round_number in analysis.summary.noisy_rounds for round_number in numbers}
    log_span = max([0.01, *(abs(math.log(ratio)) for turns in times.values() for ratio in turns.values())])
    unit = "turn" if run.interleaved.mode == "blocks" else "launch"
    picture = Picture(
        "turns",
        f"Every {unit}",
        f"A dot is a {unit}, in order, round by round. The line is the arm's own mean; above is slower. "
        f"A strip spans a factor of {math.exp(log_span):.3g} to either side.",
    )
    shaded = [("rect", "noisy", "noisy round")] if any(rounds.values()) else []
    picture.legend([("dot", "series s0", f"a {unit}; higher is slower"), *shaded])
    for arm, mean in means.items():
        picture.row_heading(arm, f"{mean * 1e3:.2f} ms")
        _draw_strip(picture, arm, times[arm], rounds, log_span)
    round_width = (RIGHT - LEFT) / len(rounds)
    for index, round_number in enumerate(rounds):
        if index % math.ceil(len(rounds) / _MOST_ROUND_LABELS) == 0:
            words = f"round {round_number}" if len(rounds) <= _FEW_ROUNDS else str(round_number)
            picture.write("tick", LEFT + round_width * (index + 0.5), picture.height + 14, words)
    picture.height += 22
    picture.description = "; ".join(
        f"{arm}: between {min(turns.values()) * 100:.0f} and {max(turns.values()) * 100:.0f} % of its mean"
        for arm, turns in times.items()
    )
    return picture


def _draw_strip(
    picture: Picture,
    arm: str,
    times: Mapping[tuple[int, int], float],
    rounds: Mapping[int, bool],
    log_span: float,
) -> None:
    """Draw the strip of one arm.

    ``times`` are relative to the arm's mean, by round and turn. ``rounds`` maps every round to whether it was
    noisy. ``log_span`` is the logarithm of the largest ratio that a strip shows.
    """
    top, round_width = picture.height, (RIGHT - LEFT) / len(rounds)
    middle = top + _STRIP_HEIGHT / 2
    picture.rect("strip", LEFT, RIGHT, _STRIP_HEIGHT)
    points = []
    for index, (round_number, is_noisy) in enumerate(rounds.items()):
        left = round(LEFT + round_width * index, 1)
        if is_noisy:
            picture.rect("noisy", left, left + round_width, _STRIP_HEIGHT)
        if index:
            picture.line("grid", left, top, left, top + _STRIP_HEIGHT)
        turns = sorted(turn for other, turn in times if other == round_number)
        for position, turn in enumerate(turns):
            x = left + round_width * (position + 0.5) / len(turns)
            y = middle - math.log(times[round_number, turn]) / log_span * (_STRIP_HEIGHT / 2 - 4)
            points.append((round(x, 1), round(y, 1)))
    picture.line("mean", LEFT, middle, RIGHT, middle)
    picture.dots("series s0", points, arm)
    picture.height = top + _STRIP_HEIGHT + 6


# ---- the time of an all-reduce, by its size ----


def _draw_sizes(run: Run) -> Iterator[Picture]:
    """Draw the time of an all-reduce over its message size, for each arm that measured it."""
    picture = Picture(
        "sizes",
        "Time of one all-reduce, by message size",
        "The group's all-reduce alone, without training. Both axes are logarithmic.",
    )
    points = [
        (arm.label, Point(size, seconds))
        for arm in run.config.arms
        for size, seconds in seconds_by_size(run.of(arm))
    ]
    return draw_lines(picture, points, BYTES, SECONDS)


# ---- memory ----


def _draw_memory(analysis: Analysis) -> Picture:
    """Draw each arm's peak memory while it trained; an outline shows the peak with the proof before it."""
    arms = analysis.summary.arms
    picture = Picture(
        "memory",
        "Memory of the largest rank",
        "Largest resident set while an arm trained. The outline includes the float64 proof before it.",
    )
    picture.legend([("rect", "part computing", "while it trained"), ("rect", "whole", "with the proof")])
    peaks = {
        arm.arm: (arm.peak_memory_bytes / _MIB, (arm.detail.whole_peak_memory_bytes or 0) / _MIB)
        for arm in arms
    }
    on_gpu = {arm.arm: peak / _MIB for arm in arms if (peak := arm.peak_device_memory_bytes) is not None}
    scale, top = _MEBIBYTES.make_scale(map(max, peaks.values()), LEFT, RIGHT), picture.height
    for name, (trained, whole) in peaks.items():
        figure = f"{trained:,.0f} MiB" + (f", with the proof {whole:,.0f}" if whole else "")
        figure += f", on the GPU {on_gpu[name]:,.0f}" if name in on_gpu else ""
        picture.row_heading(name, figure)
        if whole:
            picture.rect("whole", LEFT, scale.pixel(whole), _BAR_HEIGHT)
        picture.rect("part computing", LEFT, scale.pixel(trained), _BAR_HEIGHT, title=name)
        picture.height += _BAR_HEIGHT + 8
    picture.axis(_MEBIBYTES, scale, top=top)
    picture.description = "; ".join(f"{name}: {trained:.0f} MiB" for name, (trained, _) in peaks.items())
    return picture
