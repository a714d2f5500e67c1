"""Take from a run the figures of a lesson, which explains what each arm sends."""

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
"""Smallest size in bytes of a message whose form is known."""
_PRIMITIVES = {"ring", "reduce_scatter", "all_gather"}
"""Modes of ``manual`` whose source shows what a rank sends."""
_OTHERS = {*_PRIMITIVES, "shared_memory", "reduce_broadcast"}
"""Modes of ``manual`` whose calls are not the all-reduce that the sweep times."""


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm sends in a step; a figure that is not known is None."""

    arm: Arm
    figures: ArmSummary
    ranks: int
    library: str
    gradient_tensors: int
    form: str
    """Algorithm of the arm's calls; empty if it is not known."""
    sent_bytes: float | None
    """Bytes that the busiest rank sends in a step by that algorithm, calculated and not counted."""
    messages_in_a_row: float | None
    """Number of messages of a call that wait for each other, by that algorithm."""
    schedule: Schedule | None
    """When the calls run; None if a step has no messages."""
    fixed_seconds: float | None
    """Seconds of a step's calls that do not depend on their size, measured without training."""
    fusion_bytes: int
    """Most bytes that the library fuses into one message; 0 if it does not fuse."""

    @property
    def in_shared_memory(self) -> bool:
        """Return whether ranks send nothing, because they sum gradients in memory that all of them map."""
        return self.arm.options.get("mode") == "shared_memory"

    @property
    def compute_seconds(self) -> float | None:
        """Return the mean step time without synchronisation, in the same processes; None if not timed."""
        reference = self.figures.detail.reference_seconds
        return reference.mean if reference else None


def control_seconds(summary: Summary) -> float | None:
    """Return the control's mean step time; None if the control did not run."""
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
    """Return an algorithm's name, the bytes that a rank sends over those of the messages, and its rounds.

    The name is empty, and the figures are None, if the algorithm is not known.
    """
    mode = str(replica.get("mode", ""))
    if ranks < 2 or not rank.message_bytes:  # noqa: PLR2004 -- one rank sends nothing
        return "", None, None
    if mode in _PRIMITIVES:
        return mode, *_of_primitive(mode, ranks)
    known = form_of(rank)
    # Horovod fuses its requests, so its messages may be as large as all requests together.
    fuses = library_of(rank) == "Horovod"
    least = sum(rank.message_bytes) if fuses else min(rank.message_bytes)
    if not known or mode in _OTHERS or least < FORM_FROM_BYTES:
        return "", None, None
    form = next(form for form in FORMS["all_reduce"] if form.name == known)
    return known, form.sent(ranks), form.rounds(ranks)


def _of_primitive(mode: str, ranks: int) -> tuple[float, float | None]:
    """Return a rank's sent bytes over those of the messages, and the rounds if the mode is ``ring``."""
    others = ranks - 1
    if mode == "ring":
        return 2 * others / ranks, 2 * others
    return (2 * others / ranks, None) if mode == "reduce_scatter" else (others, None)
