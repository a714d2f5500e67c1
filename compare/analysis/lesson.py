"""Take the figures of a lesson from a run."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec

from compare.analysis.cost_model import split_collectives
from compare.analysis.forms import FORMS
from compare.analysis.measured import form_of, library_of, schedule_of
from compare.analysis.summary import ArmSummary, Summary
from compare.analysis.timeline import Schedule
from compare.schema.arms import CONTROL, Arm
from compare.schema.results import RankResult, Run

FORM_FROM_BYTES = 64 << 10
"""Minimum size of messages whose form is known."""
_PRIMITIVES = {"ring", "reduce_scatter", "all_gather"}
"""Modes of manual whose own lines tell what a rank sends."""
_OTHERS = {*_PRIMITIVES, "shared_memory", "reduce_broadcast"}
"""Modes whose calls are not the all-reduce that is timed over sizes."""


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm sends in a step; None is not known."""

    arm: Arm
    figures: ArmSummary
    ranks: int
    library: str
    gradient_tensors: int
    form: str
    """Algorithm of its calls; empty if it is not known."""
    sent_bytes: float | None
    """What a rank sends in a step by that algorithm; no count."""
    messages_in_a_row: float | None
    """Messages of a call that wait for each other, by that algorithm."""
    schedule: Schedule | None
    fixed_seconds: float | None
    """Time of the calls alone that does not depend on their size."""
    fusion_bytes: int
    """Most that the library fuses into a message, or 0."""

    @property
    def in_shared_memory(self) -> bool:
        """Return whether ranks send nothing, and sum in memory that they map."""
        return self.arm.options.get("mode") == "shared_memory"

    @property
    def compute_seconds(self) -> float | None:
        """Return the time of a step in the same processes, without synchronisation."""
        reference = self.figures.detail.reference_seconds
        return reference.mean if reference else None


def control_seconds(summary: Summary) -> float | None:
    """Return the step time of the control, if it ran."""
    return next((arm.step_seconds.mean for arm in summary.arms if arm.arm == CONTROL), None)


def lessons(run: Run, summary: Summary) -> list[Lesson]:
    """Return a lesson for each arm that communicates, in the summary's order."""
    arms = {arm.label: arm for arm in run.config.arms if arm.traits.communicates}
    return [_lesson(run, arms[own.arm], own) for own in summary.arms if own.arm in arms]


def _lesson(run: Run, arm: Arm, own: ArmSummary) -> Lesson:
    launches = run.of(arm)
    rank, ranks = launches[-1].ranks[0], len(launches[-1].ranks)
    replica, group = _facts(rank, "replica"), _facts(rank, "group")
    name, sent, rounds = _form(rank, replica, ranks)
    timed = [] if replica.get("mode") in _OTHERS else list(map(split_collectives, launches))
    shares = [parts.fixed_seconds / parts.seconds for parts in timed if parts]
    alone = own.detail.collective_seconds
    return Lesson(
        arm=arm,
        figures=own,
        ranks=ranks,
        library=str(group.get("library", "")),
        gradient_tensors=rank.gradient_tensors,
        form=name,
        sent_bytes=None if sent is None else sent * sum(rank.message_bytes),
        messages_in_a_row=rounds,
        schedule=schedule_of(rank) if rank.message_bytes else None,
        fixed_seconds=statistics.fmean(shares) * alone.mean if shares and alone else None,
        fusion_bytes=int(group.get("fusion_bytes", 0)),
    )


def _facts(rank: RankResult, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = rank.attestation.get(name, {})
    return facts


def _form(rank: RankResult, replica: dict[str, Any], ranks: int) -> tuple[str, float | None, float | None]:
    """Return an algorithm's name, bytes over the message, and rounds."""
    mode = str(replica.get("mode", ""))
    if ranks < 2 or not rank.message_bytes:  # noqa: PLR2004 -- one rank sends nothing
        return "", None, None
    if mode in _PRIMITIVES:
        return mode, *_of_primitive(mode, ranks)
    known = form_of(rank)
    # Horovod fuses its requests, so that messages are as large as they are together.
    fuses = library_of(rank) == "Horovod"
    least = sum(rank.message_bytes) if fuses else min(rank.message_bytes)
    if not known or mode in _OTHERS or least < FORM_FROM_BYTES:
        return "", None, None
    form = next(form for form in FORMS["all_reduce"] if form.name == known)
    return known, form.sent(ranks), form.rounds(ranks)


def _of_primitive(mode: str, ranks: int) -> tuple[float, float | None]:
    """Return bytes over the message, and rounds, of a mode."""
    others = ranks - 1
    if mode == "ring":
        return 2 * others / ranks, 2 * others
    return (2 * others / ranks, None) if mode == "reduce_scatter" else (others, None)
