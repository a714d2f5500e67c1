"""Render one line per arm as CSV, in seconds and bytes."""

from __future__ import annotations

import msgspec

from compare.analysis import Analysis
from compare.analysis.estimate import Estimate
from compare.analysis.proven import Parity
from compare.analysis.summary import ArmSummary, Detail
from compare.report.rows import csv_text
from compare.schema.results import Run

_OF_VERDICTS = (
    "speed_ratio",
    "low",
    "high",
    "level",
    "p",
    "p_adjusted",
    "n",
    "settled_after",
    "rounds_to_settle",
)


def render(run: Run, analysis: Analysis, *, detail: bool = False) -> str:
    """Render every figure of every arm, always with every detail.

    An estimate becomes three columns: mean, low and high.
    """
    del detail
    summary = analysis.summary
    of_run = {
        "dataset": run.dataset.name,
        "complete": run.complete,
        "noise_hides_all": summary.noise_hides_all,
    }
    return csv_text([_flat(arm) | of_run for arm in summary.arms])


def _flat(value: ArmSummary | Detail, prefix: str = "") -> dict[str, object]:
    """Spread a struct over columns, the same ones for every arm."""
    row: dict[str, object] = {}
    for field in msgspec.structs.fields(value):
        found = getattr(value, field.name)
        name = f"{prefix}{field.name}"
        if isinstance(found, Detail):
            row |= _flat(found, "detail_")
        elif isinstance(found, Parity):
            row |= {name: found.outcome, f"{name}_steps": found.steps, f"{name}_difference": found.difference}
        elif field.name == "verdict":
            fields = msgspec.structs.asdict(found) if found else {}
            row |= {"verdict": fields.get("kind")}
            row |= {f"verdict_{key}": fields.get(key) for key in _OF_VERDICTS}
        elif "Estimate" in str(field.type):
            fields = msgspec.structs.asdict(found) if isinstance(found, Estimate) else {}
            row |= {
                name: fields.get("mean"),
                f"{name}_low": fields.get("low"),
                f"{name}_high": fields.get("high"),
            }
        elif isinstance(found, list):
            row[name] = " ".join(map(str, found))
        else:
            row[name] = found
    return row
