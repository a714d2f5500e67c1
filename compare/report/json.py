"""The whole run with its summary: raw samples and what was derived from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from compare.analysis.aa import assess
from compare.analysis.causes import explain
from compare.analysis.conditions import compare_conditions

if TYPE_CHECKING:
    from compare.analysis.summary import Summary
    from compare.schema.results import Run


def render(run: Run, summary: Summary, *, detail: bool = False) -> str:
    """Render ``{"summary": …, "run": …}``, always with every detail."""
    del detail
    derived = msgspec.to_builtins(summary) | {
        "fairness": compare_conditions(run),
        "why": explain(run, summary),
        "null": assess(run),
    }
    return msgspec.json.format(msgspec.json.encode({"summary": derived, "run": run}), indent=1).decode()
