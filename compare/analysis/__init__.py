"""Turn the raw samples of a run into figures and judgements, without side effects."""

from __future__ import annotations

import msgspec

from compare.analysis.causes import Cause, Condition, compare_conditions, find_causes
from compare.analysis.change import Changes, judge_gate
from compare.analysis.figures import Figures
from compare.analysis.noise import LoadDependence, find_load_dependence
from compare.analysis.ranking import AAResult, assess_aa_test
from compare.analysis.summary import Summary, TurnsSummary, summarise, summarise_turns
from compare.schema.results import Run

__all__ = ["Analysis", "analyse"]


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """All figures and judgements of one run, which every output format shows."""

    summary: Summary
    conditions: list[Condition]
    """The conditions that were compared between the arms, the controlled variables first."""
    causes: list[Cause]
    """Causes of the arms' sync costs, each with its evidence."""
    turns: TurnsSummary | None
    """CPU time and memory that waiting arms took from the others; None if arms took no turns."""
    load_dependence: list[LoadDependence]
    """Arms whose ratio to the baseline changes with the load of the machine."""
    aa: AAResult | None
    """Result of an A/A test; None for any other run, or if no comparison is complete."""
    gate: Changes | None
    """Changes that ``ringside gate`` found; None for any other run."""

    @property
    def unexplained_differences(self) -> list[Condition]:
        """Return the conditions in which arms differ although no option or backend says so."""
        return [condition for condition in self.conditions if condition.kind == "different"]


def analyse(run: Run) -> Analysis:
    """Derive all figures and judgements from a run."""
    figures = Figures(run)
    summary = summarise(figures)
    return Analysis(
        summary=summary,
        conditions=compare_conditions(run),
        causes=find_causes(figures, summary),
        turns=summarise_turns(run),
        load_dependence=[] if summary.ranks_nothing else find_load_dependence(figures),
        aa=assess_aa_test(figures),
        gate=judge_gate(figures),
    )
