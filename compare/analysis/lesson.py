"""Take from a run the figures of a lesson, which explains what each arm sends."""

from __future__ import annotations

import statistics

import msgspec

from compare.analysis.collectives import FORM_FROM_BYTES, FORMS, OfRanks, others_share
from compare.analysis.cost_model import Schedule, split_collectives
from compare.analysis.figures import LaunchFigures
from compare.analysis.measured import OTHER_MODES, form_of, library_of, schedule_of
from compare.analysis.summary import ArmSummary, Summary
from compare.schema.arms import CONTROL, Arm
from compare.schema.results import RankResult, Run

_PRIMITIVES: dict[str, tuple[OfRanks, OfRanks | None]] = {
    "ring": (lambda n: 2 * others_share(n), lambda n: 2 * (n - 1)),
    "reduce_scatter": (lambda n: 2 * others_share(n), None),
    "all_gather": (lambda n: n - 1, None),
}
"""Modes of ``manual`` whose source shows the bytes that a rank sends, and the rounds of ``ring``."""


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
        """Return the mean step time without synchronisation, measured in the arm's own processes.

        None if it was not measured.
        """
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
    mode, group = rank.attestation.get("replica", {}).get("mode"), rank.attestation.get("group", {})
    name, sent, rounds = _form(rank, str(mode), ranks) or ("", None, None)
    timed = [] if mode in OTHER_MODES else [split_collectives(LaunchFigures(launch)) for launch in launches]
    shares = [parts.latency / parts.seconds for parts in timed if parts]
    alone = own.detail.collective_seconds
    return Lesson(
        arm=arm,
        figures=own,
        ranks=ranks,
        library=str(group.get("library", "")),
        gradient_tensors=rank.gradient_tensors,
        form=name,
        sent_bytes=sent(ranks) * sum(rank.message_bytes) if sent else None,
        messages_in_a_row=rounds(ranks) if rounds else None,
        schedule=schedule_of(rank) if rank.message_bytes else None,
        fixed_seconds=statistics.fmean(shares) * alone.mean if shares and alone else None,
        fusion_bytes=int(group.get("fusion_bytes", 0)),
    )


def _form(rank: RankResult, mode: str, ranks: int) -> tuple[str, OfRanks, OfRanks | None] | None:
    """Return an algorithm's name, the bytes that a rank sends over those of the messages, and its rounds.

    None if the algorithm is not known. The rounds alone may be unknown, too.
    """
    if ranks < 2 or not rank.message_bytes:  # noqa: PLR2004 -- one rank sends nothing
        return None
    if mode in _PRIMITIVES:
        return mode, *_PRIMITIVES[mode]
    # Horovod fuses its requests, so its messages may be as large as all requests together.
    least = sum(rank.message_bytes) if library_of(rank) == "Horovod" else min(rank.message_bytes)
    if mode in OTHER_MODES or least < FORM_FROM_BYTES:
        return None
    known = (form for form in FORMS["all_reduce"] if form.name == form_of(rank))
    return next(((form.name, form.sent, form.rounds) for form in known), None)
