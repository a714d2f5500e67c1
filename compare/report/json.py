"""The whole run with its summary: raw samples and what was derived from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from compare.explain import explain
from compare.fairness import compare_conditions
from compare.null import assess

if TYPE_CHECKING:
    from compare.results import Run
    from compare.stats import Summary


def render(run: Run, summary: Summary, *, detail: bool = False) -> str:
    """Render ``{"summary": …, "run": …}``, always with every detail."""
    del detail
    derived = msgspec.to_builtins(summary) | {
        "fairness": compare_conditions(run),
        "why": explain(run, summary),
        "null": assess(run),
    }
    return msgspec.json.format(msgspec.json.encode({"summary": derived, "run": run}), indent=1).decode()
