"""Define the columns of a run's tables, and write verdicts and figures in the units that people read."""

from __future__ import annotations

from functools import partial

from compare.analysis.estimate import Estimate
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.noise import half_width
from compare.analysis.summary import ArmSummary, Summary
from compare.analysis.verdict import Verdict
from compare.report.cells import with_interval, written
from compare.report.document import Column
from compare.schema.arms import CONTROL
from compare.schema.results import Run
from compare.text import counted

COST_TITLE = "Where the sync cost goes, in ms per step (docs/method.md defines the terms)"
BELOW_NOISE = "below noise"
"""Cell of a cost or an overlap whose interval reaches zero."""
_MIB = 1 << 20
_LONG_LABEL = 16


def speed_columns(run: Run, summary: Summary) -> list[Column[ArmSummary]]:
    """Return the columns of the full table: speed, sync cost, verdict, test results, memory and transport.

    If noise hides every difference, an efficiency or a ratio that it may explain is shown as ``noise``. If
    the ranks outnumber the cores, no ratio to the baseline is shown.
    """
    noisy = summary.noise_hides_all
    baseline = run.config.baseline if len(run.config.baseline) <= _LONG_LABEL else "baseline"
    on_gpu = any(arm.peak_device_memory_bytes is not None for arm in summary.arms)
    return [
        Column("samples/s", lambda arm: f"{arm.samples_per_second.mean:,.0f}"),
        Column("step ms", lambda arm: _milliseconds(arm.step_seconds)),
        Column("sync ms", _sync_milliseconds),
        Column("share", lambda arm: BELOW_NOISE if arm.below_noise else written(arm.sync_share, ".0%")),
        Column(
            "efficiency", lambda arm: "noise" if noisy and arm.below_noise else written(arm.efficiency, ".0%")
        ),
        Column(f"vs {baseline}", lambda arm: _ratio(summary, arm)),
        Column("verdict", _verdict, is_text=True),
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

    A user's own workload has its metric and the loss. A built-in model has the accuracy, and the loss only if
    an arm does not declare the same training.
    """
    name, form = ("metric", ".4g") if run.config.is_own else ("accuracy", ".2%")
    columns = [
        Column[ArmSummary](name, lambda arm: written(arm.accuracy, form)),
        Column[ArmSummary]("test loss", lambda arm: written(arm.test_loss, ".4g")),
    ]
    has_loss = run.config.is_own or not all(arm.same_training for arm in run.config.arms)
    return columns if has_loss else columns[:1]


def _graphs(run: Run, arm: ArmSummary) -> str:
    """Return how many graphs an arm compiled, and of breaks, where the code runs as it was written."""
    launch = next(launch for launch in run.launches if launch.arm == arm.arm)
    graphs, breaks = map(launch.ranks[0].attestation.get, ("compiled_graphs", "graph_breaks"))
    return f"{graphs} ({breaks})" if graphs else "–"


def cost_columns() -> list[Column[ArmSummary]]:
    """Return the columns of the detailed table: parts of the sync cost, the collectives alone, and load."""
    return [
        Column("sync ms", _sync_milliseconds),
        Column("= exposed", lambda arm: _milliseconds(arm.detail.exposed_seconds)),
        Column("+ background", lambda arm: _milliseconds(arm.detail.background_seconds)),
        Column("T_R ms", lambda arm: _milliseconds(arm.detail.reference_seconds)),
        *(_change_of(part) for part in ("blocked", "forward", "backward", "optimizer")),
        *(_change_of(part) for part in ("communication", "imbalance", "skew")),
        Column("slowest rank", lambda arm: str(arm.detail.slowest_rank)),
        Column("gradient MB", lambda arm: f"{arm.detail.gradient_bytes / 1e6:.1f}"),
        Column("calls", lambda arm: str(len(arm.detail.message_bytes) or "–")),
        Column("T_iso ms", lambda arm: _milliseconds(arm.detail.collective_seconds)),
        Column("algbw GB/s", lambda arm: written(arm.detail.algorithm_bandwidth, ".2f", 1e-9)),
        Column("busbw GB/s", lambda arm: written(arm.detail.bus_bandwidth, ".2f", 1e-9)),
        Column("overlap", _overlap),
        Column("cores/rank", lambda arm: f"{arm.detail.cores_per_rank.mean:.2f}"),
        Column("whole peak MiB", lambda arm: _mebibytes(arm.detail.whole_peak_memory_bytes)),
        Column("other load", lambda arm: written(arm.other_cpu_load, ".0%")),
    ]


def _change_of(part: str) -> Column[ArmSummary]:
    """Return the column of a part of the detail, as a change in ms with its sign."""
    return Column(part, lambda arm: written(getattr(arm.detail, f"{part}_seconds"), "+.2f", 1e3))


def _milliseconds(estimate: Estimate | None) -> str:
    return with_interval(estimate, ".2f", 1e3)


def _mebibytes(size: int | None) -> str:
    return written(size, ",.0f", 1 / _MIB)


# ---- verdicts ----


def describe(verdict: Verdict) -> str:
    """Return a verdict in a few words.

    *x % slower* means that the arm's step takes x % longer, and *x % faster* that the baseline's step does.
    So the figure stays the same if the two change places.
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
        width = size_of(half_width(low, high))
        either_way = f"±{width}" if width.endswith("%") else f"{width} either way"
        return f"unresolved: {either_way}, {_more_rounds(verdict.rounds_to_settle)}"
    if verdict.kind == "slower":
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    # Rounds after the look that settled the arm may have widened the interval.
    since = f" (by round {verdict.settled_after})" if low <= 1 and verdict.settled_after else ""
    if ratio >= 2:  # noqa: PLR2004 -- "3.1×" reads better than "212 % faster"
        return f"{ratio:.1f}× {verdict.kind} [{low:.1f}, {high:.1f}]{since}"
    return f"{in_percent(ratio)} % {verdict.kind} [{in_percent(low)}, {in_percent(high)}]{since}"


def _verdict(arm: ArmSummary) -> str:
    if arm.verdict is None:
        return "–"
    text = describe(arm.verdict)
    if arm.verdict.kind != "unresolved":
        return text
    text = text.partition(", ")[0]  # the rounds to settle it are in the notes
    if arm.verdict.n >= FIRST_LOOK:
        return text
    so_far = f"{arm.verdict.n} of {counted(FIRST_LOOK, 'round')}"
    # The interval of two or three rounds is often a factor of several: that helps no reader.
    return f"{text} ({so_far})" if "±" in text else f"unresolved: {so_far}"


def size_of(factor: float) -> str:
    """Return how far a factor of 1 or more exceeds 1, as text: ``12 %``, or from 2 on ``a factor of 3``."""
    return f"{in_percent(factor)} %" if factor < 2 else f"a factor of {factor:.3g}"  # noqa: PLR2004 -- as above


def _more_rounds(rounds: int | None) -> str:
    if rounds is None:
        return "and more rounds would hardly settle it"
    return f"about {rounds} more round{'s' if rounds > 1 else ''} would settle it"


def in_percent(ratio: float) -> str:
    """Return by how many per cent a ratio exceeds 1, as text without the sign ``%``."""
    percent = (ratio - 1) * 100
    return f"{percent:.1f}" if abs(percent) < 10 else f"{percent:.0f}"  # noqa: PLR2004 -- two digits are enough


def against_baseline(run: Run, summary: Summary, arm: ArmSummary) -> str:
    """Return an arm's verdict as the short table shows it; empty for the control.

    A run that can rank nothing has ``not ranked`` or ``noise`` in place of a ratio.
    """
    if arm.arm == run.config.baseline:
        return "baseline"
    if arm.arm == CONTROL:
        return ""
    if summary.oversubscribed:
        return "not ranked"
    if summary.noise_hides_all:
        return "noise"
    return "–" if arm.verdict is None else _verdict(arm).replace("unresolved", "open")


# ---- cells ----


def _sync_milliseconds(arm: ArmSummary) -> str:
    return BELOW_NOISE if arm.below_noise else _milliseconds(arm.sync_seconds)


def _ratio(summary: Summary, arm: ArmSummary) -> str:
    """Return the cell of an arm's speed over the baseline's; ``noise`` where noise may explain it."""
    ratio = arm.speed_against_baseline
    if summary.oversubscribed:
        return "not ranked"
    if ratio is None:
        return "–"
    in_noise = arm.verdict is not None or ratio.method == "range" or ratio.low < 1 < ratio.high
    return "noise" if summary.noise_hides_all and in_noise else f"{ratio.mean:.2f}×"


def _overlap(arm: ArmSummary) -> str:
    """Return the cell of the overlap: the share of the collectives' time alone that computation hides.

    It is ``none`` if the whole interval is below zero, because then the exposed time exceeds that of the
    collectives. Values above one are shown as 100 %.
    """
    hidden = arm.detail.overlap
    if hidden is None:
        return "–"
    if hidden.low <= 0 <= hidden.high:
        return BELOW_NOISE
    if hidden.high < 0:
        return "none"
    mean, low, high = (min(value, 1) for value in (hidden.mean, hidden.low, hidden.high))
    return with_interval(Estimate(mean, low, high, hidden.n, hidden.method), ".0%")
