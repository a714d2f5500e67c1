"""Monitor a launch by what its agents report, and find the root cause of a failure in its files."""

from __future__ import annotations

import errno
import math
import tempfile
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from compare.errors import LaunchError, OutputError, StalledError, system_reason
from compare.launch.agent.protocol import RankNews
from compare.launch.circumstances import Circumstances
from compare.launch.failures import Cause, Evidence, find_cause, find_unstarted, read_launcher_log
from compare.schema.job import Progress, RankExit, RankFailure
from compare.schema.launch_files import LaunchFiles
from compare.schema.memory import Shortage
from compare.system.files import read_json, tail
from compare.text import binary_size, counted, listed

T = TypeVar("T", bound="_OfRank")
_WATCHDOG_SECONDS = 5.0
"""Extra time in which a rank's own watchdog should end the rank, because it reports more."""
_TEARDOWN_SECONDS = 10.0
"""Minimum time that a launcher gets to exit after its ranks are done."""
_PROBE_BYTES = 1 << 20
"""Number of bytes that are written to see whether the disk is full."""
_LAUNCHERS_SHOWN = 3
"""Number of launchers whose last lines an error shows, since each of hundreds of hosts may have one."""
_LOG_CHARACTERS, _LOG_LINES = 100_000, 1000
"""How much is read at the end of a log, which may hold the stacks of several threads."""


class _OfRank(Protocol):
    """The result of a rank in any kind of launch."""

    @property
    def rank(self) -> int: ...

    @property
    def attestation(self) -> dict[str, Any]: ...


class Ending(NamedTuple):
    """How a launch ended."""

    status: int | None
    """The exit status of the launcher; None if it did not exit by itself."""
    seconds: float = 0.0
    """How long the launch was waited for if it ``timed_out``; otherwise 0."""
    timed_out: bool = False
    """Whether it took longer than ``--timeout`` allows a launch."""
    abandoned: bool = False
    """Whether agents ended the launch, because the parent sent no messages."""


class MemoryShortError(LaunchError):
    """A rank got no more memory."""

    def __init__(self, what: str, *, found: str, remedy: str, shortage: Shortage, stage: str) -> None:
        super().__init__(what, found=found, remedy=remedy)
        self.shortage = shortage
        """The limit that the rank has met."""
        self.stage = stage
        """The stage in which it did; empty if it is not known."""


SUCCEEDED = Ending(0)
"""How a launch ends whose launcher succeeded."""


@dataclass(eq=False)
class Monitor:
    """Watches a launch by the news of its ranks: call ``tick`` while it runs, ``conclude`` at its end."""

    files: LaunchFiles
    hosts: Sequence[str]
    """The name of each rank's host, in the order of ranks."""
    stall_seconds: float
    """Time without progress after which a rank counts as stalled, as ``--timeout`` sets it."""
    clock_ahead_seconds: Callable[[int], float] = lambda _: 0.0
    """Returns by how many seconds the clock of a rank's host is ahead of this machine's."""
    oversubscribed: bool = False
    """Whether a host has more ranks than cores. The error of a stall then adds that ranks may be slow."""
    circumstances: Circumstances | None = None
    """Known problems that may explain a failure, and are added to its error; None to add nothing."""
    progress: dict[int, Progress] = field(default_factory=dict, init=False)
    """The latest progress record of each rank that has one, by the rank's number."""
    _due_at: dict[int, float] = field(default_factory=dict, init=False)
    """The monotonic time by which each rank without a result must make progress, by the rank's number."""
    _done: set[int] = field(default_factory=set, init=False)
    """The ranks that have written their results."""
    _failed: set[int] = field(default_factory=set, init=False)
    """The ranks that exited without a result, and not because their witness ended them."""
    _checked_at: float = field(default=0.0, init=False)
    """Unix time of the last ``tick``."""
    _stuck: list[int] = field(default_factory=list, init=False)
    """The ranks that were stuck at the last ``tick``, the one first that was due first."""
    _done_at: float | None = field(default=None, init=False)
    """Monotonic time of the first ``tick`` after all ranks had written their results; None before."""

    @property
    def _ranks(self) -> range:
        return range(len(self.hosts))

    def note(self, news: RankNews) -> None:
        """Note what an agent reports of the ranks on its host.

        Times are measured on this machine, so it does not matter whether the hosts' clocks differ or are set.
        """
        now = time.monotonic()
        self.progress |= news.progress
        self._done.update(news.done)
        self._failed.update(news.failed)
        for rank, record in news.progress.items():
            self._due_at[rank] = now + record.limit_seconds + _WATCHDOG_SECONDS
        for rank in self._done.intersection([*news.progress, *news.done]):
            self._due_at.pop(rank, None)

    def tick(self) -> bool:
        """Return whether the launch may go on.

        It may not go on if a rank has failed, or made no progress for so long that its own watchdog must have
        failed, for example because it was stopped. It may not either if the launcher outlives its ranks.
        """
        self._checked_at = time.time()
        now = time.monotonic()
        if min(self._due_at.values(), default=math.inf) < now:
            in_order = sorted(self._due_at, key=self._due_at.__getitem__)
            self._stuck = [rank for rank in in_order if self._due_at[rank] < now]
        return not (self._failed or self._stuck or self._launcher_hangs())

    def conclude(self, where: str, ending: Ending, kind: type[T]) -> list[T]:
        """Return one result from every rank, in the order of ranks, or raise the root cause of a failure.

        Results share the parts in which they are equal, so these must not be changed.

        ``where`` names the launch in errors. ``ending`` is how it ended. ``kind`` is the struct of a result.

        Raises:
            StalledError: a rank stalled, the launch took too long, or the launcher did not exit.
            LaunchError: a rank raised an exception or died, the launcher failed, the parent fell silent, or a
                result is not one of its rank.
            MemoryShortError: a rank got no more memory; this is a LaunchError.
            OutputError: the disk is full.
        """
        missing = [rank for rank in self._ranks if not self._has_result(rank)]
        if not missing and ending.status == 0:
            known: dict[tuple[str, bytes], Any] = {}
            return [_shared(self._read_result(where, rank, kind), known) for rank in self._ranks]
        if missing:
            self._require_space()
        evidence = [self._read_evidence(rank) for rank in self._ranks]
        cause = find_cause(evidence) if missing and not ending.abandoned else None
        # A failure while a launch is ended for its length is not its cause.
        if cause and not (ending.timed_out and cause.at > self._checked_at):
            if (shortage := evidence[cause.rank].shortage) is not None:
                raise self._error_of_shortage(where, cause, evidence[cause.rank], shortage)
            error = self._error_of_cause(where, cause, evidence)
        else:
            error = self._error_without_cause(where, ending, evidence)
            if ending.abandoned or ending.timed_out:
                raise error
        trained = any(rank.progress and rank.progress.step for rank in evidence)
        raise self.circumstances.explain(error, trained=trained) if self.circumstances else error

    def _has_result(self, rank: int) -> bool:
        return self.files.result(rank).exists()

    def _read_result(self, where: str, rank: int, kind: type[T]) -> T:
        """Return the result of a rank; raise a ``LaunchError`` if its file holds something else."""
        try:
            result = read_json(self.files.result(rank), kind)
            found = f"It is the result of rank {result.rank}."
        except OutputError as error:
            result, found = None, error.found
        if result is None or result.rank != rank:
            raise LaunchError(
                f"{where}: what rank {rank} on {self.hosts[rank]} left is not its result.",
                found=found,
                remedy="Does that host have another version of Ringside, or a damaged disk? Examine it with "
                "`ringside doctor`, or leave it out.",
            )
        return result

    def _launcher_hangs(self) -> bool:
        """Return whether all ranks have been done for so long that their launcher should have exited."""
        now = time.monotonic()
        if self._done_at is None and len(self._done) == len(self.hosts):
            self._done_at = now
        limit = max(self.stall_seconds, _TEARDOWN_SECONDS)
        return self._done_at is not None and now - self._done_at > limit

    def _read_evidence(self, rank: int) -> Evidence:
        """Return what the files of a rank say, with all times converted to this machine's clock."""
        files, ahead = self.files, self.clock_ahead_seconds(rank)
        if failure := _read_if_there(files.failure(rank), RankFailure):
            failure = msgspec.structs.replace(failure, at=failure.at - ahead)
        if record := _read_if_there(files.exit(rank), RankExit):
            record = msgspec.structs.replace(record, time=record.time - ahead)
        return Evidence(
            rank=rank,
            host=self.hosts[rank],
            has_result=self._has_result(rank),
            failure=failure,
            exit=record,
            started=files.witness(rank).exists(),
            log=tail(files.log(rank), lines=_LOG_LINES)[-_LOG_CHARACTERS:],
            stacks=tail(files.stacks(rank), lines=_LOG_LINES),
            progress=self.progress.get(rank),
        )

    def _require_space(self) -> None:
        """Raise an ``OutputError`` if the disk of the launch's folder is full, or out of inodes or quota."""
        directory = self.files.directory
        try:
            with tempfile.NamedTemporaryFile(dir=directory, prefix=".room-") as file:
                file.write(b"\0" * _PROBE_BYTES)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                return
            raise OutputError(
                f"The disk under {directory} is full.",
                found=f"{system_reason(error)}.",
                remedy="Free some space, or choose another folder with --output.",
            ) from None

    def _error_of_cause(self, where: str, cause: Cause, evidence: list[Evidence]) -> LaunchError:
        """Return the error that reports a root cause, and names the file in which to read more."""
        printed, remedy = self._where_to_read(cause)
        found = "\n".join([cause.found, *printed, *([f"({cause.where})"] if cause.where else [])])
        did = {"raised": "failed", "died": "died"}.get(cause.kind, "made no progress")
        what = f"{where}: rank {cause.rank} on {cause.host} {did}"
        if cause.kind in {"raised", "died"}:
            return LaunchError(f"{what}.", found=found, remedy=remedy)
        if cause.kind == "deadlocked":
            what = f"{where}: all ranks waited for each other"
            question = "Do all call the same collectives in the same order?"
            remedy = f"{question} Their stacks are in {self.files.directory}."
        # The watchdog that fires first may belong to a rank that only waits for another one.
        unfinished = (rank.progress for rank in evidence if not rank.has_result)
        limit = min((p.limit_seconds for p in unfinished if p), default=self.stall_seconds)
        sets = "this limit" if round(limit, 1) == self.stall_seconds else "the minimum of this limit"
        slow = "Ranks outnumber the cores, so they may only be slow: " if self.oversubscribed else ""
        return StalledError(
            f"{what} for {round(limit, 1):g} s.",
            found=found,
            remedy=f"{remedy} {slow}stall in --timeout sets {sets}.",
        )

    def _error_of_shortage(
        self, where: str, cause: Cause, evidence: Evidence, shortage: Shortage
    ) -> MemoryShortError:
        """Return the error of a rank that got no more memory."""
        _, where_to_read = self._where_to_read(cause)
        return MemoryShortError(
            f"{where}: rank {cause.rank} on {cause.host} got no more memory.",
            found=f"The {shortage.limit} is limited to {binary_size(shortage.limit_bytes)}.\n{cause.found}",
            remedy=f"Use a smaller model or batch, or more memory. {where_to_read}",
            shortage=shortage,
            stage=evidence.progress.stage if evidence.progress else "",
        )

    def _where_to_read(self, cause: Cause) -> tuple[list[str], str]:
        """Return lines of the launcher that explain a cause, and a sentence that names the file to read.

        The list of lines is empty unless only the launcher printed a reason. If neither it nor the rank did,
        the sentence names the launch's folder.
        """
        log, stacks = self.files.log(cause.rank), self.files.stacks(cause.rank)
        # The watchdog prints stacks into the log. A rank that was ended before that has them in a file.
        if cause.kind == "stalled" and tail(stacks):
            return [], f"Its stacks are in {stacks}."
        if tail(log):
            return [], f"Its traceback and output are in {log}."
        for launcher_log in self.files.launcher_logs():
            if printed := read_launcher_log(tail(launcher_log, lines=_LOG_LINES)):
                lines = ["It printed nothing. Its launcher printed:", *printed]
                return lines, f"All of the launcher's output is in {launcher_log}."
        return (
            [],
            f"Neither the rank nor its launcher printed a reason. Their files are in {self.files.directory}.",
        )

    def _error_without_cause(self, where: str, ending: Ending, evidence: list[Evidence]) -> LaunchError:
        """Return the error of a failed launch whose root cause is not the failure of a rank."""
        remedy = f"The output of the launcher and the ranks is in {self.files.directory}."
        missing = [rank for rank in evidence if not rank.has_result]
        stuck = [rank for rank in self._stuck if not evidence[rank].has_result]
        shown = [evidence[rank] for rank in stuck] or missing or evidence
        progress = listed(map(_describe_progress, shown))
        if ending.abandoned or any(rank.exit and rank.exit.ended_by == "lease" for rank in missing):
            return LaunchError(
                f"{where}: its ranks were ended, because this program sent them no messages.",
                found=progress,
                remedy="Was this program (Ctrl-Z) or its machine suspended? Run again without suspending it.",
            )
        if ending.timed_out:
            return StalledError(
                f"{where}: the launch did not end within {ending.seconds:.0f} s.",
                found=progress,
                remedy="Allow more time with --timeout, or give it less work.",
            )
        if ending.status is None:
            what = "its ranks are done, but its launcher did not end"
            if missing:
                what = "the launch no longer makes progress"
            if stuck:
                first, others = stuck[0], len(stuck) - 1
                what = f"rank {first} on {self.hosts[first]} no longer makes progress"
                what += f", and neither do {counted(others, 'other rank')}" if others else ""
            return StalledError(f"{where}: {what}.", found=progress, remedy=remedy)
        if ending.status < 0:
            return LaunchError(
                f"{where}: the launcher was killed (signal {-ending.status}).",
                found=progress,
                remedy="Was it killed by hand, or was memory short? Its ranks were ended, too. Run again.",
            )
        what = "every rank finished"
        if missing:
            what = f"no result from rank {listed(f'{rank.rank} on {rank.host}' for rank in missing)}"
        if unstarted := find_unstarted(evidence):
            what = f"rank {unstarted.rank} on {unstarted.host} never started"
        return LaunchError(
            f"{where}: {what}, and the launcher exited with status {ending.status}.",
            found=self._launchers_output({rank.host for rank in ([unstarted] if unstarted else missing)}),
            remedy=remedy,
        )

    def _launchers_output(self, hosts: Container[str]) -> str:
        """Return the last lines of three launchers, those on ``hosts`` first, and how many others printed."""
        own_part = len(self.files.launcher_log.stem) + 1
        logs = sorted(self.files.launcher_logs(), key=lambda log: log.stem[own_part:] not in hosts)
        printed = list(filter(None, map(tail, logs)))
        others = len(printed) - _LAUNCHERS_SHOWN
        more = [f"{counted(others, 'other launcher')} printed something, too."] if others > 0 else []
        return "\n".join([*printed[:_LAUNCHERS_SHOWN], *more])


def _read_if_there(file: Path, kind: type[Any]) -> Any:
    return read_json(file, kind) if file.exists() else None


def _shared(result: Any, known: dict[tuple[str, bytes], Any]) -> Any:
    """Return a result whose parts come from ``known`` where they are equal; its other parts are added there.

    Hundreds of ranks report the same facts in every round, and all results stay in memory until a run ends.
    """

    def share(name: str, part: Any) -> Any:
        return known.setdefault((name, msgspec.json.encode(part)), part)

    facts = {name: share(f"attestation/{name}", fact) for name, fact in result.attestation.items()}
    fields = msgspec.structs.asdict(result).items()
    parts = {
        name: share(name, part) for name, part in fields if isinstance(part, str | list | msgspec.Struct)
    }
    return msgspec.structs.replace(result, **parts, attestation=facts)


def _describe_progress(rank: Evidence) -> str:
    if rank.progress is None:
        return f"rank {rank.rank} wrote no progress record"
    return f"rank {rank.rank} was at step {rank.progress.step} ({rank.progress.stage})"
