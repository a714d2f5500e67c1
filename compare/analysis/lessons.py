"""Find what each arm of a run sends in a step, which lessons explain to learners."""

from __future__ import annotations

import statistics

import msgspec

from compare.analysis.collectives import FORM_FROM_BYTES, FORMS, OfRanks, others_share
from compare.analysis.cost_model import Schedule, split_collectives
from compare.analysis.figures import LaunchFigures
from compare.analysis.measured import (
    MODES_WITHOUT_ALL_REDUCE,
    form_of,
    library_of,
    schedule_of,
    sent_by_call,
)
from compare.analysis.summary import ArmSummary, Summary
from compare.schema.arms import Arm
from compare.schema.results import Launch, RankResult, Run

_MODES_WITH_KNOWN_BYTES: dict[str, tuple[OfRanks, OfRanks | None]] = {
    "ring": (lambda n: 2 * others_share(n), lambda n: 2 * (n - 1)),
    "reduce_scatter": (lambda n: 2 * others_share(n), None),
    "all_gather": (lambda n: n - 1, None),
}
"""For modes of ``manual``: the bytes that a rank sends, divided by those of the message, and the rounds.

The rounds are None if they depend on the library.
"""


class SentCalls(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one collective in a step, among the same number of ranks."""

    collective: str
    ranks: int
    """Number of ranks that take part in a call."""
    count: int
    message_bytes: int
    """Bytes of all messages together."""
    sent: float
    """Bytes that a rank sends on average, divided by ``message_bytes``."""
    on_one_host: bool
    """Whether every call stays among the ranks of one host, though the run has several hosts."""

    @property
    def sent_bytes(self) -> float:
        """Return the bytes that a rank sends on average, calculated from the algorithm and not counted."""
        return self.sent * self.message_bytes


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
    """Bytes that the busiest rank sends in a step, calculated from the algorithm and not counted.

    Where calls were recorded, it is the mean over ranks, because another rank is the root of each broadcast.
    """
    messages_in_a_row: float | None
    """Number of a call's messages that wait for each other in a row, calculated from the algorithm."""
    schedule: Schedule | None
    """When the calls run; None if a step has no messages."""
    fixed_seconds: float | None
    """Seconds of a step's calls that do not depend on message sizes, measured without training."""
    fusion_bytes: int
    """Maximum number of bytes that the library fuses into one message; 0 if it does not fuse."""
    calls: list[SentCalls] = []
    """The collectives of a step by their kind, if they were recorded; otherwise empty."""

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
    calls = _sent_calls(launches[-1])
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
        else sum(each.sent_bytes for each in calls) or None,
        messages_in_a_row=rounds(ranks) if rounds else None,
        schedule=schedule_of(rank) if rank.message_bytes else None,
        fixed_seconds=statistics.fmean(shares) * collective.mean if shares and collective else None,
        fusion_bytes=int(group.get("fusion_bytes", 0)),
        calls=calls,
    )


def _sent_calls(launch: Launch) -> list[SentCalls]:
    """Return the recorded calls of a step by collective and number of ranks, in the order of their first."""
    rank, hosts = launch.ranks[0], [rank.host for rank in launch.ranks]
    everyone = list(range(len(hosts)))
    by_kind: dict[tuple[str, int, bool], list[int]] = {}
    for call in rank.calls:
        ranks = call.ranks or everyone
        on_one_host = len(set(hosts)) > 1 and len({hosts[one] for one in ranks}) == 1
        by_kind.setdefault((call.collective, len(ranks), on_one_host), []).append(call.message_bytes)
    return [
        SentCalls(
            collective=collective,
            ranks=ranks,
            count=len(sizes),
            message_bytes=sum(sizes),
            sent=sent_by_call(library_of(rank), collective, ranks),
            on_one_host=on_one_host,
        )
        for (collective, ranks, on_one_host), sizes in by_kind.items()
    ]


def _algorithm(rank: RankResult, mode: str, ranks: int) -> tuple[str, OfRanks, OfRanks | None] | None:
    """Return the name of a call's algorithm, the bytes that a rank sends, and the number of rounds.

    The last two are functions of the number of ranks, and the bytes are divided by those of the messages. The
    result is None if the algorithm is not known, and the rounds are None if only they are not known.
    """
    if ranks < 2 or not rank.message_bytes or rank.calls:  # noqa: PLR2004 -- one rank sends nothing
        return None
    if mode in _MODES_WITH_KNOWN_BYTES:
        return mode, *_MODES_WITH_KNOWN_BYTES[mode]
    # Horovod fuses its requests, so its messages may be as large as all requests together.
    least = sum(rank.message_bytes) if library_of(rank) == "Horovod" else min(rank.message_bytes)
    if mode in MODES_WITHOUT_ALL_REDUCE or least < FORM_FROM_BYTES:
        return None
    known = (form for form in FORMS["all_reduce"] if form.name == form_of(rank))
    return next(((form.name, form.sent, form.rounds) for form in known), None)
