"""Define the columns of a run's tables, and write verdicts and figures in the units that people read."""

from __future__ import annotations

from functools import partial

from compare.analysis.budget import FIRST_LOOK
from compare.analysis.figures import Estimate
from compare.analysis.summary import ArmSummary, Summary
from compare.analysis.verdict import Verdict
from compare.report.cells import format_estimate, format_figure, format_ratio
from compare.report.document import Column
from compare.schema.arms import CONTROL
from compare.schema.results import Run
from compare.text import counted, percent

COST_TITLE = "Where the sync cost goes, in ms per step (docs/method.md defines the terms)"
BELOW_NOISE = "below noise"
"""Text of the cell for a cost or an overlap whose interval reaches zero."""
_LONGEST_LABEL = 16


def speed_columns(run: Run, summary: Summary) -> list[Column[ArmSummary]]:
    """Return the columns of the full table: speed, sync cost, verdict, test results, memory and transport.

    If noise hides every difference, ``open`` stands in place of each efficiency that it may explain.
    """
    noisy = summary.noise_hides_all
    baseline = run.config.baseline if len(run.config.baseline) <= _LONGEST_LABEL else "baseline"
    on_gpu = any(arm.peak_device_memory_bytes is not None for arm in summary.arms)
    return [
        Column("samples/s", lambda arm: f"{arm.samples_per_second.mean:,.0f}"),
        Column("step ms", lambda arm: _milliseconds(arm.step_seconds)),
        Column("sync ms", _sync_milliseconds),
        Column("share", lambda arm: BELOW_NOISE if arm.below_noise else _share(arm.sync_share)),
        Column(
            "efficiency",
            lambda arm: "open" if noisy and arm.below_noise else _share(arm.efficiency),
        ),
        Column(f"against {baseline}", partial(against_baseline, run, summary), is_text=True),
        *_test_columns(run),
        *([Column[ArmSummary]("graphs (breaks)", partial(_graphs, run))] if run.config.compile else []),
        Column("peak MB", lambda arm: _megabytes(arm.peak_memory_bytes)),
        *(
            [Column[ArmSummary]("GPU MB", lambda arm: _megabytes(arm.peak_device_memory_bytes))]
            if on_gpu
            else []
        ),
        Column("start-up s", lambda arm: f"{arm.start_up_seconds.mean:.1f}"),
        Column("transport", lambda arm: arm.transport, is_text=True),
    ]


def _share(share: float | Estimate | None, form: str = ".0f") -> str:
    """Return a share, or the mean of one, in per cent; – for None."""
    mean = share.mean if isinstance(share, Estimate) else share
    return "–" if mean is None else percent(mean, form)


def _test_columns(run: Run) -> list[Column[ArmSummary]]:
    """Return the columns with the results on the test set.

    A user's own workload has its metric and the loss. A built-in model has the accuracy, and also the loss
    if an arm declares that it does not train the same.
    """
    metric = (
        Column[ArmSummary]("metric", lambda arm: format_figure(arm.accuracy, ".4g"))
        if run.config.is_own
        else Column[ArmSummary]("accuracy", lambda arm: _share(arm.accuracy, ".2f"))
    )
    columns = [
        metric,
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
        Column("own computing", lambda arm: _milliseconds(arm.detail.reference_seconds)),
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
        Column("whole peak MB", lambda arm: _megabytes(arm.detail.whole_peak_memory_bytes)),
        Column("other load", lambda arm: _share(arm.other_cpu_load)),
    ]


def _part_column(part: str) -> Column[ArmSummary]:
    return Column(part, lambda arm: format_figure(getattr(arm.detail, f"{part}_seconds"), "+.2f", 1e3))


def _milliseconds(estimate: Estimate | None) -> str:
    return format_estimate(estimate, ".2f", 1e3)


def _megabytes(size: int | None) -> str:
    return format_figure(size, ",.0f", 1e-6)


# ---- verdicts ----


def describe_verdict(verdict: Verdict) -> str:
    """Return a verdict as a ratio with its interval: ``0.72× (0.68–0.76)``, or ``1.02× (0.94–1.11) open``.

    If rounds after the look that settled the arm widened its interval beyond 1, that look is named.
    """
    low, high = verdict.low, verdict.high
    state = str(verdict.kind) if verdict.kind in {"open", "same"} else ""
    if not state and low is not None and high is not None and low <= 1 <= high and verdict.settled_after:
        state = f"by round {verdict.settled_after}"
    return format_ratio(verdict.speed_ratio, low, high, state)


def why_open(verdict: Verdict) -> str:
    """Return a clause on why a verdict is open, and on what would settle it."""
    if verdict.uneven_load:
        return "the load was uneven"
    if verdict.n == 1:
        return "one round has no spread"
    if verdict.rounds_to_settle is None:
        return "more rounds would hardly settle it"
    return f"about {counted(verdict.rounds_to_settle, 'more round')} would settle it"


def against_baseline(run: Run, summary: Summary, arm: ArmSummary) -> str:
    """Return the cell that compares an arm with the baseline, in the tables of a run.

    It is the arm's verdict. An arm without one has its ratio, and the control an empty cell. Where nothing
    can be ranked, and before the first look, there is no ratio.
    """
    if arm.arm in {run.config.baseline, CONTROL}:
        return "" if arm.arm == CONTROL else "baseline"
    if summary.oversubscribed:
        return "not ranked"
    if summary.noise_hides_all:
        return "open"
    if arm.verdict is None:
        ratio = arm.speed_against_baseline
        return format_ratio(ratio.mean, ratio.low, ratio.high) if ratio else "–"
    if arm.verdict.n < FIRST_LOOK:
        return f"open ({arm.verdict.n} of {counted(FIRST_LOOK, 'round')})"
    return describe_verdict(arm.verdict)


# ---- cells ----


def _sync_milliseconds(arm: ArmSummary) -> str:
    return BELOW_NOISE if arm.below_noise else _milliseconds(arm.sync_seconds)


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
    return f"{format_estimate(Estimate(mean, low, high, overlap.n, overlap.method), '.0f', 100)} %"
