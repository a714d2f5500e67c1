"""Draw the pictures of a run: time, speed, turns, message sizes, memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from compare.analysis import Analysis
from compare.analysis.cost_model import seconds_by_size
from compare.analysis.estimate import Estimate
from compare.analysis.step_times import turn_seconds
from compare.analysis.summary import ArmSummary
from compare.analysis.verdict import MARGIN, Verdict
from compare.report.columns import against_baseline
from compare.report.noise import VERDICTS_TOGETHER
from compare.report.pictures.canvas import LEFT, RIGHT, Picture
from compare.report.pictures.charts import BYTES, SECONDS, Point, draw_lines
from compare.report.pictures.scales import Scale, around, from_zero, linear_ticks, log_ticks
from compare.schema.arms import CONTROL
from compare.schema.results import Run

_BAR = 14
_STRIP = 40
_MIB = 1 << 20
_PARTS = (
    ("computing", "computing, as without communication"),
    ("background", "slowed by the library's threads and memory"),
    ("exposed", "communicating and waiting"),
)
_MOST_ROUND_LABELS = 10
_FEW_ROUNDS = 8
_LONGEST_LINE = 70


def draw(run: Run, analysis: Analysis) -> list[Picture]:
    """Return all pictures that the run has figures for."""
    if not analysis.summary.arms:
        return []
    found = [_time(analysis), _speed(run, analysis), _turns(run, analysis), *_sizes(run), _memory(analysis)]
    return [picture for picture in found if picture]


# ---- where a step's time goes ----


def _time(analysis: Analysis) -> Picture:
    """Draw a bar with the parts of each arm's step; a part below zero is only stated in words."""
    arms = analysis.summary.arms
    picture = Picture(
        "time",
        "Where a step's time goes",
        "Milliseconds of one training step. Geometric means over the rounds. A part below zero is stated, "
        "and not drawn.",
    )
    unsplit = any(arm.arm != CONTROL and len(_parts_of(arm)) == 1 for arm in arms)
    other = [("unsplit", "not split: see the notes")] if unsplit else []
    picture.legend([("rect", f"part {style}", words) for style, words in (*_PARTS, *other)])
    scale, top = from_zero((arm.step_seconds.mean * 1e3 for arm in arms), LEFT, RIGHT), picture.height
    for arm in arms:
        _stack(picture, arm, scale)
    picture.axis(scale, linear_ticks(scale.low, scale.high), lambda value: f"{value:g} ms", top=top)
    picture.description = "; ".join(f"{arm.arm}: {_in_words(arm)}" for arm in arms)
    return picture


def _stack(picture: Picture, arm: ArmSummary, scale: Scale) -> None:
    step, parts = arm.step_seconds.mean, _parts_of(arm)
    picture.name(arm.arm, f"{step * 1e3:.2f} ms")
    drawn = {style: seconds for style, seconds in parts.items() if seconds > 0}
    drawn["computing"] = step - sum(seconds for style, seconds in drawn.items() if style != "computing")
    x = 0.0
    for style, _ in _PARTS:
        if drawn.get(style, 0) > 0:
            left, right = scale.at(x * 1e3), scale.at((x + drawn[style]) * 1e3)
            title = f"{arm.arm}: {style} {drawn[style] * 1e3:.2f} ms"
            shown = "unsplit" if len(parts) == 1 and arm.arm != CONTROL else style
            picture.rect(f"part {shown}", left, max(right, left + 0.5), _BAR, title=title)
            x += drawn[style]
    picture.height += _BAR + 2
    for line in _lines(_in_words(arm)) if len(parts) > 1 else ():
        picture.height += 12
        picture.write("small", LEFT, picture.height, line)
    picture.height += 6


def _lines(words: str) -> list[str]:
    """Return the words in one line; if that is too long, in two, with the last part in the second."""
    first, plus, last = words.rpartition(" + ")
    return [words] if len(words) <= _LONGEST_LINE else [first, f"+ {last}"] if plus else [words]


def _parts_of(arm: ArmSummary) -> dict[str, float]:
    """Return the parts of a step in seconds, which add up to it; some may be negative."""
    detail, step = arm.detail, arm.step_seconds.mean
    if detail.background_seconds and detail.exposed_seconds:
        background, exposed = detail.background_seconds.mean, detail.exposed_seconds.mean
        return {"computing": step - background - exposed, "background": background, "exposed": exposed}
    if arm.sync_seconds:
        return {"computing": step - arm.sync_seconds.mean, "exposed": arm.sync_seconds.mean}
    return {"computing": step}


def _in_words(arm: ArmSummary) -> str:
    """Return the parts of a step in words, with their signs, which a bar cannot show."""
    parts, detail = _parts_of(arm), arm.detail
    if len(parts) == 1:
        return f"{arm.step_seconds.mean * 1e3:.2f} ms, not split"
    intervals = {"background": detail.background_seconds, "exposed": detail.exposed_seconds}
    if "background" not in parts:
        intervals = {"exposed": arm.sync_seconds}
    names = {"computing": "computing", "background": "slowed", "exposed": "communicating"}
    return " + ".join(
        f"{names[style]} {_signed(seconds)}{_caveat(seconds, intervals.get(style))}"
        for style, seconds in parts.items()
    )


def _signed(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}".replace("-", "−")


def _caveat(seconds: float, interval: Estimate | None) -> str:
    noise = interval is not None and interval.low <= 0 <= interval.high and interval.n > 1
    words = [*(["below noise"] if noise else []), *(["not drawn"] if seconds < 0 else [])]
    return f" ({', '.join(words)})" if words else ""


# ---- speed against the baseline ----


def _speed(run: Run, analysis: Analysis) -> Picture | None:
    """Draw the interval of each verdict, and the band of differences that do not matter.

    None if there is no verdict, or if noise hides every difference.
    """
    judged = [arm for arm in analysis.summary.arms if arm.verdict]
    if not judged or analysis.summary.noise_hides_all:
        return None
    picture = Picture(
        "speed",
        f"Speed against {run.config.baseline}",
        "Ratio of step times with its interval. Right is faster. The band of ±3 % does not matter. "
        f"A hollow dot is open: more rounds may settle it. {VERDICTS_TOGETHER}",
    )
    picture.legend([("rect", "band", "±3 %"), ("dot", "settled", "settled"), ("hollow dot", "open", "open")])
    ends = [end for arm in judged if arm.verdict for end in _ends(arm.verdict)]
    scale = around([*ends, 1 / (1 + MARGIN), 1 + MARGIN], LEFT, RIGHT)
    top = picture.height
    for arm in judged:
        if arm.verdict:
            _interval(picture, arm, arm.verdict, scale, against_baseline(run, analysis.summary, arm))
    left, right = scale.at(1 / (1 + MARGIN)), scale.at(1 + MARGIN)
    middle, bottom = scale.at(1), picture.height + 4
    picture.line("one", middle, top, middle, bottom)
    picture.band("band", left, right, top=top)
    picture.axis(scale, log_ticks(scale.low, scale.high), lambda value: f"{value:g}×", top=top)
    picture.description = "; ".join(
        f"{arm.arm}: {against_baseline(run, analysis.summary, arm)}" for arm in judged
    )
    return picture


def _ends(verdict: Verdict) -> Iterator[float]:
    yield verdict.speed_ratio
    if verdict.low and verdict.high and verdict.high / verdict.low < _WIDEST:
        yield from (verdict.low, verdict.high)


_WIDEST = 100.0
"""Ratio of an interval's ends from which the interval does not widen the axis, but is cut at its edge."""


def _interval(picture: Picture, arm: ArmSummary, verdict: Verdict, scale: Scale, words: str) -> None:
    picture.name(arm.arm, words)
    y, style = picture.height + 6, "open" if verdict.kind == "unresolved" else "settled"
    if verdict.low and verdict.high:
        low, high = max(verdict.low, scale.low), min(verdict.high, scale.high)
        picture.line(f"interval {style}", scale.at(low), y, scale.at(high), y)
    x = scale.at(verdict.speed_ratio)
    picture.dots(style, [(x, y)], f"{arm.arm}: {words}")
    if style == "open":
        picture.dots("hole", [(x, y)])
    picture.height += 16


# ---- every turn ----


class _Strips(NamedTuple):
    """What the strips of all arms have in common."""

    rounds: list[int]
    noisy: list[int]
    half: float
    """Logarithm of the largest ratio that a strip shows."""

    @property
    def wide(self) -> float:
        """Return the width of one round in a strip, in the units of the picture."""
        return (RIGHT - LEFT) / len(self.rounds)


def _turns(run: Run, analysis: Analysis) -> Picture:
    """Draw a strip for each arm, with each of its turns relative to the arm's own mean."""
    of = {arm.arm: arm.step_seconds.mean for arm in analysis.summary.arms}
    times = {
        arm.label: {
            (launch.round, turn): seconds / of[arm.label]
            for launch in run.of(arm)
            for turn, seconds in turn_seconds(launch).items()
        }
        for arm in run.config.arms
        if arm.label in of
    }
    rounds = sorted({round_ for own in times.values() for round_, _ in own})
    largest = max(abs(math.log(value)) for own in times.values() for value in own.values())
    strips = _Strips(rounds, analysis.summary.noisy_rounds, max(largest, 0.01))
    unit = "turn" if run.interleaved.mode == "blocks" else "launch"
    picture = Picture(
        "turns",
        f"Every {unit}",
        f"A dot is a {unit}, in order, round by round. The line is the arm's own mean; above is slower. "
        f"A strip spans a factor of {math.exp(strips.half):.3g} to either side.",
    )
    shaded = [("rect", "noisy", "noisy round")] if set(strips.noisy) & set(rounds) else []
    picture.legend([("dot", "series s0", f"a {unit}; higher is slower"), *shaded])
    for arm in analysis.summary.arms:
        _strip(picture, arm, times[arm.arm], strips)
    for index, round_ in enumerate(rounds):
        if index % math.ceil(len(rounds) / _MOST_ROUND_LABELS) == 0:
            words = f"round {round_}" if len(rounds) <= _FEW_ROUNDS else str(round_)
            picture.write("tick", LEFT + strips.wide * (index + 0.5), picture.height + 14, words)
    picture.height += 22
    picture.description = "; ".join(
        f"{arm}: between {min(own.values()) * 100:.0f} and {max(own.values()) * 100:.0f} % of its mean"
        for arm, own in times.items()
    )
    return picture


def _strip(picture: Picture, arm: ArmSummary, times: dict[tuple[int, int], float], strips: _Strips) -> None:
    """Draw the strip of one arm; ``times`` are relative to its mean, by round and turn."""
    picture.name(arm.arm, f"{arm.step_seconds.mean * 1e3:.2f} ms")
    top = picture.height
    middle = top + _STRIP / 2
    picture.rect("strip", LEFT, RIGHT, _STRIP)
    points = []
    for index, round_ in enumerate(strips.rounds):
        left = round(LEFT + strips.wide * index, 1)
        if round_ in strips.noisy:
            picture.rect("noisy", left, left + strips.wide, _STRIP)
        if index:
            picture.line("grid", left, top, left, top + _STRIP)
        turns = sorted(turn for other, turn in times if other == round_)
        for place, turn in enumerate(turns):
            x = left + strips.wide * (place + 0.5) / len(turns)
            y = middle - math.log(times[round_, turn]) / strips.half * (_STRIP / 2 - 4)
            points.append((round(x, 1), round(y, 1)))
    picture.line("mean", LEFT, middle, RIGHT, middle)
    picture.dots("series s0", points, arm.arm)
    picture.height = top + _STRIP + 6


# ---- the time of an all-reduce, by its size ----


def _sizes(run: Run) -> Iterator[Picture]:
    """Draw the time of an all-reduce over its size, for each arm that measured it."""
    picture = Picture(
        "sizes",
        "Time of one all-reduce, by message size",
        "The group's all-reduce alone, without training. Both axes are logarithmic.",
    )
    lines = {
        arm.label: [Point(size, seconds) for size, seconds in seconds_by_size(run.of(arm))]
        for arm in run.config.arms
    }
    return draw_lines(picture, lines, BYTES, SECONDS)


# ---- memory ----


def _memory(analysis: Analysis) -> Picture:
    """Draw the peak memory of every arm, while it trained and with the proof."""
    arms = analysis.summary.arms
    picture = Picture(
        "memory",
        "Memory of the largest rank",
        "Largest resident set while an arm trained. The outline includes the float64 proof before it.",
    )
    picture.legend([("rect", "part computing", "while it trained"), ("rect", "whole", "with the proof")])
    peaks = {arm.arm: (arm.peak_memory_bytes, arm.detail.whole_peak_memory_bytes or 0) for arm in arms}
    on_gpu = {arm.arm: found for arm in arms if (found := arm.peak_device_memory_bytes) is not None}
    scale = from_zero((max(both) / _MIB for both in peaks.values()), LEFT, RIGHT)
    top = picture.height
    for name, (trained, whole) in peaks.items():
        figure = f"{trained / _MIB:,.0f} MiB" + (f", with the proof {whole / _MIB:,.0f}" if whole else "")
        figure += f", on the GPU {on_gpu[name] / _MIB:,.0f}" if name in on_gpu else ""
        picture.name(name, figure)
        if whole:
            picture.rect("whole", LEFT, scale.at(whole / _MIB), _BAR)
        picture.rect("part computing", LEFT, scale.at(trained / _MIB), _BAR, title=name)
        picture.height += _BAR + 8
    picture.axis(scale, linear_ticks(scale.low, scale.high), lambda value: f"{value:g} MiB", top=top)
    each = (f"{name}: {trained / _MIB:.0f} MiB" for name, (trained, _) in peaks.items())
    picture.description = "; ".join(each)
    return picture
