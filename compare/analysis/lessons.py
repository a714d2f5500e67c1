"""Find what each arm of a run sends in a step, which lessons explain to learners."""

from __future__ import annotations

import statistics

import msgspec

from compare.analysis.collectives import FORM_FROM_BYTES, FORMS, OfRanks, others_share
from compare.analysis.cost_model import Schedule, split_collectives
from compare.analysis.figures import LaunchFigures
from compare.analysis.measured import MODES_WITHOUT_ALL_REDUCE, form_of, library_of, schedule_of
from compare.analysis.summary import ArmSummary, Summary
from compare.schema.arms import Arm
from compare.schema.results import RankResult, Run

_MODES_WITH_KNOWN_BYTES: dict[str, tuple[OfRanks, OfRanks | None]] = {
    "ring": (lambda n: 2 * others_share(n), lambda n: 2 * (n - 1)),
    "reduce_scatter": (lambda n: 2 * others_share(n), None),
    "all_gather": (lambda n: n - 1, None),
}
"""For modes of ``manual``: the bytes that a rank sends, divided by those of the message, and the rounds.

The rounds are None if they depend on the library.
"""


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm sends in a step; a figure that is not known is None."""

    arm: Arm
    figures: ArmSummary
    ranks: int
    library: str
    gradient_tensors: int
    form: str
    """Name of the algorithm of the arm's calls; empty if it is not known."""
    sent_bytes: float | None
    """Bytes that the busiest rank sends in a step, calculated from the algorithm and not counted."""
    messages_in_a_row: float | None
    """Number of a call's messages that wait for each other in a row, calculated from the algorithm."""
    schedule: Schedule | None
    """When the calls run; None if a step has no messages."""
    fixed_seconds: float | None
    """Seconds of a step's calls that do not depend on message sizes, measured without training."""
    fusion_bytes: int
    """Maximum number of bytes that the library fuses into one message; 0 if it does not fuse."""
    gathers: int | None = None
    """How often a step gathers the parameters, if ranks hold shards of them; None if each holds them all."""

    @property
    def in_shared_memory(self) -> bool:
        """Return whether the ranks send nothing, because they sum gradients in memory that they share."""
        return self.arm.options.get("mode") == "shared_memory"


def lessons(run: Run, summary: Summary) -> list[Lesson]:
    """Return a lesson for each arm that communicates, in the order of the summary."""
    arms = {arm.label: arm for arm in run.config.arms if arm.traits.communicates}
    return [_lesson(run, arms[figures.arm], figures) for figures in summary.arms if figures.arm in arms]


def _lesson(run: Run, arm: Arm, figures: ArmSummary) -> Lesson:
    launches = run.of(arm)
    rank, ranks = launches[-1].ranks[0], len(launches[-1].ranks)
    mode, group = rank.attestation.get("replica", {}).get("mode"), rank.attestation.get("group", {})
    name, sent, rounds = _algorithm(rank, str(mode), ranks) or ("", None, None)
    timed = (
        []
        if mode in MODES_WITHOUT_ALL_REDUCE
        else [split_collectives(LaunchFigures(launch)) for launch in launches]
    )
    gathers = _gathers(rank, run.config.accumulate) if arm.traits.in_shards else None
    shares = [parts.latency / parts.seconds for parts in timed if parts]
    collective = figures.detail.collective_seconds
    return Lesson(
        arm=arm,
        figures=figures,
        ranks=ranks,
        library=str(group.get("library", "")),
        gradient_tensors=rank.gradient_tensors,
        form=name,
        sent_bytes=sent(ranks) * sum(rank.message_bytes)
        if sent
        else _sent_in_shards(figures, gathers, ranks),
        messages_in_a_row=rounds(ranks) if rounds else None,
        schedule=schedule_of(rank) if rank.message_bytes else None,
        fixed_seconds=statistics.fmean(shares) * collective.mean if shares and collective else None,
        fusion_bytes=int(group.get("fusion_bytes", 0)),
        gathers=gathers,
    )


def _gathers(rank: RankResult, passes: int) -> int | None:
    """Return how often a step gathers all parameters that are held in shards; None if it is not known.

    Each pass gathers them before forward. It gathers them again before backward, but not those of the model's
    own unit, which is the only one if no layer is a unit by itself.
    """
    units = rank.attestation.get("replica", {}).get("units")
    return None if units is None else passes * (2 if units > 1 else 1)


def _sent_in_shards(figures: ArmSummary, gathers: int | None, ranks: int) -> float | None:
    """Return the bytes that a rank sends in a step to gather parameters, and once to sum the gradients."""
    whole = figures.detail.gradient_bytes
    return None if gathers is None else (gathers + 1) * others_share(ranks) * whole


def _algorithm(rank: RankResult, mode: str, ranks: int) -> tuple[str, OfRanks, OfRanks | None] | None:
    """Return the name of a call's algorithm, the bytes that a rank sends, and the number of rounds.

    The last two are functions of the number of ranks, and the bytes are divided by those of the messages. The
    result is None if the algorithm is not known, and the rounds are None if only they are not known.
    """
    if ranks < 2 or not rank.message_bytes:  # noqa: PLR2004 -- one rank sends nothing
        return None
    if mode in _MODES_WITH_KNOWN_BYTES:
        return mode, *_MODES_WITH_KNOWN_BYTES[mode]
    # Horovod fuses its requests, so its messages may be as large as all requests together.
    least = sum(rank.message_bytes) if library_of(rank) == "Horovod" else min(rank.message_bytes)
    if mode in MODES_WITHOUT_ALL_REDUCE or least < FORM_FROM_BYTES:
        return None
    known = (form for form in FORMS["all_reduce"] if form.name == form_of(rank))
    return next(((form.name, form.sent, form.rounds) for form in known), None)
