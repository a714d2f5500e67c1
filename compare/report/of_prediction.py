"""Make the documents of ``ringside predict``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from compare.analysis.memory import ScaledMemory, scale_memory
from compare.analysis.predict import (
    PAYING_SHARE,
    VALIDATED_HOSTS,
    VALIDATED_RATES,
    ComparedPredictions,
    Comparison,
    Forecast,
    Prediction,
)
from compare.errors import OutputError
from compare.report.axes import SECONDS_FROM_ZERO, count_axis
from compare.report.cells import as_record, format_estimate, format_size
from compare.report.document import Column, Document, Table
from compare.report.pictures import Chart, Picture, Point, draw_lines
from compare.schema.results import Run
from compare.text import counted, percent

_NOT_MODELLED = (
    "Not modelled: the order of ranks, switches that share links, several ranks on a host, other traffic, "
    "what a host itself can move over a faster link, and another form with other hosts."
)


def document_of(forecast: Forecast) -> Document:
    """Return the document of a forecast: step times, and the number of hosts beyond which more do not pay."""
    notes = [*_notes(forecast), _NOT_MODELLED]
    statements = list(_statements(forecast))
    return Document(
        title=f"Predicted from {counted(forecast.measured_hosts, 'measured rank')}",
        tables=[Table.of(_PREDICTION_COLUMNS, forecast.predictions, is_grouped=True)],
        lead=statements,
        notes=notes,
        draw=lambda: _draw(forecast.predictions),
        records=lambda: [as_record(row) for row in forecast.predictions],
        content=lambda: {"rows": list(forecast.predictions), "notes": [*statements, *notes]},
    )


def document_against(against: ComparedPredictions) -> Document:
    """Return the document that compares predictions with the measurements of another run."""
    comparisons = against.comparisons
    covered = sum(comparison.covered for comparison in comparisons)
    worst = max(abs(comparison.error) for comparison in comparisons)
    held = f"{covered} of {len(comparisons)} intervals hold the measured time"
    lead = [f"Largest error {percent(worst, '.1f')}; {held}."]
    warnings = [f"{arm} is not compared: {reason}." for arm, reason in against.left_out.items()]
    if against.same_network:
        warnings.append("Both runs have the same hosts and link, so this tests nothing but their noise.")
    return Document(
        title="Predicted against measured",
        tables=[Table.of(_COMPARISON_COLUMNS, comparisons, is_grouped=True)],
        warnings=warnings,
        lead=lead,
        notes=[_NOT_MODELLED],
        records=lambda: [as_record(row) for row in comparisons],
        content=lambda: {"rows": list(comparisons), "notes": [*lead, *warnings, _NOT_MODELLED]},
    )


def document_of_memory(run: Run, scale: float, counts: Sequence[int] = ()) -> Document:
    """Return the document of what ranks would hold of a model with ``scale`` times the parameters.

    Raises:
        OutputError: the run tells of no arm what its ranks hold, as results from before that was measured.
    """
    rows = scale_memory(run, scale, counts)
    if not rows:
        raise OutputError(
            "The memory of this run's arms cannot be computed.",
            found="No launch has attested the model's parameters and the state of its optimizer.",
            remedy="Run the arms again with this version.",
        )
    assumed = (
        f"By arithmetic, for the rank that holds the most: every parameter has {scale:g} times its elements, "
        "with the same optimizer, dtypes and sharding."
    )
    measured = f"As measured: the run's own model, on {counted(run.config.ranks, 'rank')}."
    unknown = "Not known: activations, the library's buffers, what else a process takes, and the time."
    notes = [assumed, measured, unknown]
    return Document(
        title=f"Memory of a model with {scale:g} times the parameters",
        tables=[Table.of(_MEMORY_COLUMNS, rows, is_grouped=len(counts) > 1)],
        notes=notes,
        records=lambda: [as_record(row) for row in rows],
        content=lambda: {"rows": rows, "notes": notes},
    )


def _beyond(row: Prediction) -> str:
    """Return the cell that tells how far a prediction is from what was measured: in hosts and in rate."""
    hosts = f"hosts × {row.times_hosts:g}" if row.times_hosts != 1 else ""
    rate = f"rate × {row.times_rate:.3g}" if round(row.times_rate, 2) != 1 else ""
    far = "NOT VALIDATED" if _is_beyond(row) else ""
    return ", ".join(filter(None, [hosts, rate, far])) or "measured"


def _statements(forecast: Forecast) -> Iterator[str]:
    counts = sorted({prediction.hosts for prediction in forecast.predictions})
    for arm, knee in forecast.knees.items():
        if knee is not None:
            yield f"{arm}: adding hosts stops paying after {counted(knee, 'host')}."
        elif len(counts) > 1:
            yield f"{arm}: adding hosts pays up to {counts[-1]}, the last count here."
    for hosts, reason in sorted(forecast.worth_measuring.items()):
        yield f"Worth measuring: {counted(hosts, 'host')}, because {reason}."
    yield from (f"{arm} is not predicted: {reason}." for arm, reason in forecast.refused.items())


def _notes(forecast: Forecast) -> Iterator[str]:
    slow, fast = VALIDATED_RATES
    yield (
        "Off by: the factor, in either direction, by which predictions like this one missed in the tests "
        "of docs/predictions.md. It is the larger of Student's interval for one more test and the largest "
        "error. No interval is narrower. "
        "NOT VALIDATED: no test was like this, so the factor is the largest of all, and may be exceeded. "
        "Reasons are another library or timeline, latency, a step that bytes do not dominate, more than "
        f"{VALIDATED_HOSTS} hosts, and a rate below {slow:g} or above {fast:g} times the measured one. "
        "Others are a run of one host or one round and, with --link, a run of an unknown rate."
    )
    yield (
        f"Each host has its own batch. Hosts pay while throughput gains {percent(PAYING_SHARE)} of the "
        f"growth in hosts. A delay in fewer than one of {forecast.steps} steps is not in the skew."
    )
    if forecast.added_latency:
        yield (
            "The latency of the measured link is not known, so that of --link is added to it. "
            "--measured-link RATE,LATENCY replaces it."
        )
    if forecast.assumed_goodput:
        yield (
            "The rate of the measured link is not known. A share of the rate as in the lab is assumed; "
            "--measured-link RATE replaces it."
        )


def _is_beyond(row: Prediction) -> bool:
    return row.beyond_validation or row.regime == "other"


def _draw(predictions: Sequence[Prediction]) -> Iterator[Picture]:
    chart = Chart.of(
        ((row.arm, Point.of(row.hosts, row.step_seconds, is_open=_is_beyond(row))) for row in predictions),
        key="predicted",
        heading="Predicted step time over the number of hosts",
        caption="With the error that validation found. Hollow dots lie beyond what was validated.",
        x_axis=count_axis((row.hosts for row in predictions), "host"),
        y_axis=SECONDS_FROM_ZERO,
    )
    return draw_lines(chart)


_milliseconds = partial(format_estimate, form=".1f", factor=1e3, shows_narrow=False)
_PREDICTION_COLUMNS: tuple[Column[Prediction], ...] = (
    Column("arm", lambda row: row.arm, is_text=True),
    Column("hosts", lambda row: str(row.hosts)),
    Column("step ms", lambda row: _milliseconds(row.step_seconds)),
    Column("sync share", lambda row: percent(row.sync_share)),
    Column("efficiency", lambda row: percent(row.efficiency)),
    Column("limited by", lambda row: row.limit, is_text=True),
    Column("off by", lambda row: f"×÷ {1 + row.error:.2f}"),
    Column("beyond", _beyond, is_text=True),
)
_COMPARISON_COLUMNS: tuple[Column[Comparison], ...] = (
    Column("arm", lambda row: row.arm, is_text=True),
    Column("hosts", lambda row: str(row.hosts)),
    Column("predicted ms", lambda row: _milliseconds(row.predicted_seconds)),
    Column("measured ms", lambda row: _milliseconds(row.measured_seconds)),
    Column("error", lambda row: percent(row.error, "+.1f")),
    Column("in interval", lambda row: "yes" if row.covered else "NO", is_text=True),
)

_MEMORY_COLUMNS: tuple[Column[ScaledMemory], ...] = (
    Column("arm", lambda row: row.arm, is_text=True),
    Column("ranks", lambda row: str(row.ranks)),
    Column("parameters", lambda row: format_size(row.held.parameter_bytes)),
    Column("gradients", lambda row: format_size(row.held.gradient_bytes)),
    Column("optimizer", lambda row: format_size(row.held.optimizer_state_bytes)),
    Column("together", lambda row: format_size(row.whole_bytes)),
    Column("as measured", lambda row: "–" if row.measured_bytes is None else format_size(row.measured_bytes)),
)
