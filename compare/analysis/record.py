"""The one record of everything that is derived from a run."""

from __future__ import annotations

import msgspec

from compare.analysis.aa import AAResult, assess
from compare.analysis.causes import Cause, find_causes
from compare.analysis.change import Changes
from compare.analysis.conditions import Condition, compare_conditions
from compare.analysis.gate import judge_gate
from compare.analysis.load import LoadDependence, find_load_dependence
from compare.analysis.summary import Summary, summarise
from compare.analysis.waiting import TurnsSummary, summarise_turns
from compare.schema.results import Run


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """All figures and judgements of one run, computed once for every format."""

    summary: Summary
    conditions: list[Condition]
    """What was compared between the arms, the controlled variables first."""
    causes: list[Cause]
    """Why synchronising costs what it costs."""
    turns: TurnsSummary | None
    """None if the arms took no turns."""
    load_dependence: list[LoadDependence]
    """Ratios that change with the load of the machine."""
    aa: AAResult | None
    """None except for an A/A test."""
    gate: Changes | None
    """None except for ``compare gate``."""

    @property
    def different(self) -> list[Condition]:
        """Return the conditions that differ, and that no option declares."""
        return [condition for condition in self.conditions if condition.kind == "different"]


def analyse(run: Run) -> Analysis:
    """Derive all figures and judgements from a run."""
    summary = summarise(run)
    return Analysis(
        summary=summary,
        conditions=compare_conditions(run),
        causes=find_causes(run, summary),
        turns=summarise_turns(run),
        load_dependence=find_load_dependence(run),
        aa=assess(run),
        gate=judge_gate(run),
    )
