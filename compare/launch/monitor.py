"""Monitor a launch through the files of its ranks, and report the root cause of a failure."""

from __future__ import annotations

import errno
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from compare.errors import LaunchError, OutputError, StalledError, system_reason
from compare.launch.circumstances import Circumstances
from compare.launch.failures import Cause, Evidence, find_cause, find_unstarted, read_launcher_log
from compare.schema.job import RankExit, RankFailure, read_progress
from compare.schema.launch_files import LaunchFiles
from compare.system.files import read_json, tail

T = TypeVar("T")
_WATCHDOG_SECONDS = 5.0
"""Extra time in which a rank's own watchdog should end the rank, because it reports more."""
_TEARDOWN_SECONDS = 10.0
"""Minimum time that a launcher gets to exit after its ranks are done."""
_PROBE_BYTES = 1 << 20
"""Number of bytes that are written to see whether the disk is full."""
_LOG_CHARACTERS, _LOG_LINES = 100_000, 1000
"""How much is read at the end of a log, which may hold the stacks of several threads."""


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


SUCCEEDED = Ending(0)
"""How a launch ends whose launcher succeeded."""


@dataclass(eq=False)
class Monitor:
    """Watches a launch by the files of its ranks: call ``tick`` while it runs, ``conclude`` at its end."""

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
    _latest_progress: dict[int, tuple[float, float]] = field(default_factory=dict, init=False)
    """The time in each rank's latest progress record, and the monotonic time at which it was first seen."""
    _checked_at: float = field(default=0.0, init=False)
    """Unix time of the last ``tick``."""
    _done_at: float | None = field(default=None, init=False)
    """Monotonic time at which the results of all ranks were first seen; None before."""

    @property
    def _ranks(self) -> range:
        return range(len(self.hosts))

    def tick(self) -> bool:
        """Read the files of the ranks, and return whether the launch may go on.

        It may not go on if a rank has failed or stalled, or if the launcher does not exit after its ranks.
        """
        self._checked_at = time.time()
        return not (
            any(map(self._has_failed, self._ranks))
            or self._launcher_hangs()
            or any(map(self._is_stuck, self._ranks))
        )

    def conclude(self, where: str, ending: Ending, kind: type[T]) -> list[T]:
        """Return one result from every rank, in the order of ranks, or raise the root cause of a failure.

        ``where`` names the launch in errors. ``ending`` is how it ended. ``kind`` is the struct of a result.

        Raises:
            StalledError: a rank stalled, the launch took too long, or the launcher did not exit.
            LaunchError: a rank raised an exception or died, the launcher failed, or the parent fell silent.
            OutputError: the disk is full, or a result cannot be read.
        """
        missing = [rank for rank in self._ranks if not self._has_result(rank)]
        if not missing and ending.status == 0:
            return [read_json(self.files.result(rank), kind) for rank in self._ranks]
        if missing:
            self._require_space()
        evidence = [self._read_evidence(rank) for rank in self._ranks]
        cause = find_cause(evidence) if missing and not ending.abandoned else None
        # A failure while a launch is ended for its length is not its cause.
        if cause and not (ending.timed_out and cause.at > self._checked_at):
            error = self._error_of_cause(where, cause, evidence)
        else:
            error = self._error_without_cause(where, ending, evidence)
            if ending.abandoned or ending.timed_out:
                raise error
        trained = any(rank.progress and rank.progress.step for rank in evidence)
        raise self.circumstances.explain(error, trained=trained) if self.circumstances else error

    def _has_failed(self, rank: int) -> bool:
        """Return whether a rank exited without a result, and not because its witness ended it."""
        record = _read_if_there(self.files.exit(rank), RankExit)
        return record is not None and not record.ended_by and not self._has_result(rank)

    def _has_result(self, rank: int) -> bool:
        return self.files.result(rank).exists()

    def _launcher_hangs(self) -> bool:
        """Return whether all ranks have been done for so long that their launcher should have exited."""
        now = time.monotonic()
        if self._done_at is None and all(map(self._has_result, self._ranks)):
            self._done_at = now
        limit = max(self.stall_seconds, _TEARDOWN_SECONDS)
        return self._done_at is not None and now - self._done_at > limit

    def _is_stuck(self, rank: int) -> bool:
        """Return whether a rank made no progress for so long that its own watchdog must have failed.

        The rank may have been stopped, for example. The time since the last change of its progress record is
        measured on this machine, so it does not matter whether the hosts' clocks differ or are set.
        """
        progress, now = read_progress(self.files, rank), time.monotonic()
        if progress is None or self._has_result(rank):
            return False
        latest, seen_at = self._latest_progress.get(rank, (None, now))
        if latest != progress.at:
            seen_at = now
            self._latest_progress[rank] = (progress.at, now)
        return now - seen_at > progress.limit_seconds + _WATCHDOG_SECONDS

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
            progress=read_progress(files, rank),
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
        progress = "; ".join(map(_describe_progress, evidence))
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
            return StalledError(f"{where}: {what}.", found=progress, remedy=remedy)
        if ending.status < 0:
            return LaunchError(
                f"{where}: the launcher was killed (signal {-ending.status}).",
                found=progress,
                remedy="Was it killed by hand, or was memory short? Its ranks were ended, too. Run again.",
            )
        what = "every rank finished"
        if missing:
            what = f"no result from rank {', '.join(str(rank.rank) for rank in missing)}"
        if unstarted := find_unstarted(evidence):
            what = f"rank {unstarted.rank} on {unstarted.host} never started"
        return LaunchError(
            f"{where}: {what}, and the launcher exited with status {ending.status}.",
            found="\n".join(filter(None, map(tail, self.files.launcher_logs()))),
            remedy=remedy,
        )


def _read_if_there(file: Path, kind: type[T]) -> T | None:
    return read_json(file, kind) if file.exists() else None


def _describe_progress(rank: Evidence) -> str:
    if rank.progress is None:
        return f"rank {rank.rank} wrote no progress record"
    return f"rank {rank.rank} was at step {rank.progress.step} ({rank.progress.stage})"
