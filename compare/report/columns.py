"""Define the columns of a run's tables, and write verdicts and figures in the units that people read."""

from __future__ import annotations

from functools import partial

from compare.analysis.budget import FIRST_LOOK
from compare.analysis.figures import Estimate
from compare.analysis.noise import half_width
from compare.analysis.summary import ArmSummary, Summary
from compare.analysis.verdict import Verdict
from compare.report.cells import format_estimate, format_figure
from compare.report.document import Column
from compare.schema.arms import CONTROL
from compare.schema.results import Run
from compare.text import counted

COST_TITLE = "Where the sync cost goes, in ms per step (docs/method.md defines the terms)"
BELOW_NOISE = "below noise"
"""Text of the cell for a cost or an overlap whose interval reaches zero."""
_MIB = 1 << 20
_LONGEST_LABEL = 16


def speed_columns(run: Run, summary: Summary) -> list[Column[ArmSummary]]:
    """Return the columns of the full table: speed, sync cost, verdict, test results, memory and transport.

    If noise hides every difference, ``noise`` stands in place of each efficiency and ratio that it may
    explain. If threads outnumber the cores, no arm has a ratio to the baseline.
    """
    noisy = summary.noise_hides_all
    baseline = run.config.baseline if len(run.config.baseline) <= _LONGEST_LABEL else "baseline"
    on_gpu = any(arm.peak_device_memory_bytes is not None for arm in summary.arms)
    return [
        Column("samples/s", lambda arm: f"{arm.samples_per_second.mean:,.0f}"),
        Column("step ms", lambda arm: _milliseconds(arm.step_seconds)),
        Column("sync ms", _sync_milliseconds),
        Column("share", lambda arm: BELOW_NOISE if arm.below_noise else format_figure(arm.sync_share, ".0%")),
        Column(
            "efficiency",
            lambda arm: "noise" if noisy and arm.below_noise else format_figure(arm.efficiency, ".0%"),
        ),
        Column(f"vs {baseline}", lambda arm: _ratio_cell(summary, arm)),
        Column("verdict", _verdict_cell, is_text=True),
        *_test_columns(run),
        *([Column[ArmSummary]("graphs (breaks)", partial(_graphs, run))] if run.config.compile else []),
        Column("peak MiB", lambda arm: _mebibytes(arm.peak_memory_bytes)),
        *(
            [Column[ArmSummary]("GPU MiB", lambda arm: _mebibytes(arm.peak_device_memory_bytes))]
            if on_gpu
            else []
        ),
        Column("start-up s", lambda arm: f"{arm.start_up_seconds.mean:.1f}"),
        Column("transport", lambda arm: arm.transport, is_text=True),
    ]


def _test_columns(run: Run) -> list[Column[ArmSummary]]:
    """Return the columns with the results on the test set.

    A user's own workload has its metric and the loss. A built-in model has the accuracy, and also the loss
    if an arm declares that it does not train the same.
    """
    name, form = ("metric", ".4g") if run.config.is_own else ("accuracy", ".2%")
    columns = [
        Column[ArmSummary](name, lambda arm: format_figure(arm.accuracy, form)),
        Column[ArmSummary]("test loss", lambda arm: format_figure(arm.test_loss, ".4g")),
    ]
    has_loss = run.config.is_own or not all(arm.same_training for arm in run.config.arms)
    return columns if has_loss else columns[:1]


def _graphs(run: Run, arm: ArmSummary) -> str:
    """Return an arm's number of compiled graphs, with its number of graph breaks in brackets; – for none."""
    launch = next(launch for launch in run.launches if launch.arm == arm.arm)
    graphs, breaks = map(launch.ranks[0].attestation.get, ("compiled_graphs", "graph_breaks"))
    return f"{graphs} ({breaks})" if graphs else "–"


def cost_columns() -> list[Column[ArmSummary]]:
    """Return the columns of the detailed table: parts of the sync cost, collectives alone, CPU and memory."""
    return [
        Column("sync ms", _sync_milliseconds),
        Column("= exposed", lambda arm: _milliseconds(arm.detail.exposed_seconds)),
        Column("+ background", lambda arm: _milliseconds(arm.detail.background_seconds)),
        Column("T_R ms", lambda arm: _milliseconds(arm.detail.reference_seconds)),
        *(_part_column(part) for part in ("blocked", "forward", "backward", "optimizer")),
        *(_part_column(part) for part in ("communication", "imbalance", "skew")),
        Column("slowest rank", lambda arm: str(arm.detail.slowest_rank)),
        Column("gradient MB", lambda arm: f"{arm.detail.gradient_bytes / 1e6:.1f}"),
        Column("calls", lambda arm: str(len(arm.detail.message_bytes) or "–")),
        Column("T_iso ms", lambda arm: _milliseconds(arm.detail.collective_seconds)),
        Column("algbw GB/s", lambda arm: format_figure(arm.detail.algorithm_bandwidth, ".2f", 1e-9)),
        Column("busbw GB/s", lambda arm: format_figure(arm.detail.bus_bandwidth, ".2f", 1e-9)),
        Column("overlap", _overlap_cell),
        Column("cores/rank", lambda arm: f"{arm.detail.cores_per_rank.mean:.2f}"),
        Column("whole peak MiB", lambda arm: _mebibytes(arm.detail.whole_peak_memory_bytes)),
        Column("other load", lambda arm: format_figure(arm.other_cpu_load, ".0%")),
    ]


def _part_column(part: str) -> Column[ArmSummary]:
    return Column(part, lambda arm: format_figure(getattr(arm.detail, f"{part}_seconds"), "+.2f", 1e3))


def _milliseconds(estimate: Estimate | None) -> str:
    return format_estimate(estimate, ".2f", 1e3)


def _mebibytes(size: int | None) -> str:
    return format_figure(size, ",.0f", 1 / _MIB)


# ---- verdicts ----


def describe_verdict(verdict: Verdict) -> str:
    """Return a verdict in a few words, such as ``12 % slower [11, 13]`` or ``unresolved`` with the reason.

    *x % slower* means that the arm's step takes x % longer, and *x % faster* that the baseline's step does.
    So the figure stays the same if arm and baseline change places.
    """
    ratio, low, high = verdict.speed_ratio, verdict.low, verdict.high
    if verdict.uneven_load and verdict.kind == "unresolved":
        return "unresolved: uneven load"
    if verdict.kind == "equivalent":
        return f"equivalent within {verdict.margin * 100:g} %"
    if low is None or high is None:
        reason = "one round has no spread" if verdict.n == 1 else _more_rounds(verdict.rounds_to_settle)
        return f"unresolved: {reason}"
    if verdict.kind == "unresolved":
        width = describe_factor(half_width(low, high))
        either_way = f"±{width}" if width.endswith("%") else f"{width} either way"
        return f"unresolved: {either_way}, {_more_rounds(verdict.rounds_to_settle)}"
    if verdict.kind == "slower":
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    # Rounds after the look that settled the arm may have widened the interval.
    since = f" (by round {verdict.settled_after})" if low <= 1 and verdict.settled_after else ""
    if ratio >= 2:  # noqa: PLR2004 -- "3.1×" reads better than "212 % faster"
        return f"{ratio:.1f}× {verdict.kind} [{low:.1f}, {high:.1f}]{since}"
    return f"{in_percent(ratio)} % {verdict.kind} [{in_percent(low)}, {in_percent(high)}]{since}"


def _verdict_cell(arm: ArmSummary) -> str:
    if arm.verdict is None:
        return "–"
    text = describe_verdict(arm.verdict)
    if arm.verdict.kind != "unresolved":
        return text
    text = text.partition(", ")[0]  # the rounds to settle it are in the notes
    if arm.verdict.n >= FIRST_LOOK:
        return text
    so_far = f"{arm.verdict.n} of {counted(FIRST_LOOK, 'round')}"
    # The interval of two or three rounds is often a factor of several: that helps no reader.
    return f"{text} ({so_far})" if "±" in text else f"unresolved: {so_far}"


def describe_factor(factor: float) -> str:
    """Return how far a factor of 1 or more exceeds 1: ``12 %``, or from 2 on ``a factor of 3``."""
    return f"{in_percent(factor)} %" if factor < 2 else f"a factor of {factor:.3g}"  # noqa: PLR2004 -- as above


def _more_rounds(rounds: int | None) -> str:
    if rounds is None:
        return "and more rounds would hardly settle it"
    return f"about {rounds} more round{'s' if rounds > 1 else ''} would settle it"


def in_percent(ratio: float) -> str:
    """Return by how many per cent a ratio exceeds 1, as text without the sign ``%``: 1.12 gives ``12``."""
    percent = (ratio - 1) * 100
    return f"{percent:.1f}" if abs(percent) < 10 else f"{percent:.0f}"  # noqa: PLR2004 -- two digits are enough


def against_baseline(run: Run, summary: Summary, arm: ArmSummary) -> str:
    """Return the cell of the short table that compares an arm with the baseline.

    It is the arm's verdict, or – if there is none. For the baseline it is ``baseline``, and for the control
    it is empty. Where nothing can be ranked, it is ``not ranked`` or ``noise``.
    """
    if arm.arm == run.config.baseline:
        return "baseline"
    if arm.arm == CONTROL:
        return ""
    if summary.oversubscribed:
        return "not ranked"
    if summary.noise_hides_all:
        return "noise"
    return "–" if arm.verdict is None else _verdict_cell(arm).replace("unresolved", "open")


# ---- cells ----


def _sync_milliseconds(arm: ArmSummary) -> str:
    return BELOW_NOISE if arm.below_noise else _milliseconds(arm.sync_seconds)


def _ratio_cell(summary: Summary, arm: ArmSummary) -> str:
    """Return the cell with an arm's speed over the baseline's, or ``noise`` if noise may explain it."""
    ratio = arm.speed_against_baseline
    if summary.oversubscribed:
        return "not ranked"
    if ratio is None:
        return "–"
    in_noise = arm.verdict is not None or ratio.method == "range" or ratio.low < 1 < ratio.high
    return "noise" if summary.noise_hides_all and in_noise else f"{ratio.mean:.2f}×"


def _overlap_cell(arm: ArmSummary) -> str:
    """Return the cell with the share of the collectives' time that computation hides.

    It is ``none`` if the whole interval is below zero, because then the exposed time is longer than the
    collectives take alone. Shares above one are shown as 100 %.
    """
    overlap = arm.detail.overlap
    if overlap is None:
        return "–"
    if overlap.low <= 0 <= overlap.high:
        return BELOW_NOISE
    if overlap.high < 0:
        return "none"
    mean, low, high = (min(share, 1) for share in (overlap.mean, overlap.low, overlap.high))
    return format_estimate(Estimate(mean, low, high, overlap.n, overlap.method), ".0%")
