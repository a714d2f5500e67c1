"""One line an arm, in seconds and bytes, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import msgspec

from compare.stats import ArmSummary, Estimate

if TYPE_CHECKING:
    from compare.results import Run
    from compare.stats import Summary

_ESTIMATES = {
    *("step_seconds", "samples_per_second", "sync_seconds", "sync_share", "efficiency"),
    *("speed_against_baseline", "start_up_seconds"),
}


def render(run: Run, summary: Summary) -> str:
    """Render every field of the summary; an estimate becomes its median, low and high."""
    rows = [_flat(arm) | {"dataset": run.dataset.name, "complete": run.complete} for arm in summary.arms]
    out = io.StringIO()
    names = list(rows[0]) if rows else ["arm"]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


def _flat(arm: ArmSummary) -> dict[str, object]:
    row: dict[str, object] = {}
    for name in ArmSummary.__struct_fields__:
        value = getattr(arm, name)
        if name in _ESTIMATES:
            fields = msgspec.structs.asdict(value) if isinstance(value, Estimate) else {}
            row |= {
                name: fields.get("median"),
                f"{name}_low": fields.get("low"),
                f"{name}_high": fields.get("high"),
            }
        else:
            row[name] = value
    return row
