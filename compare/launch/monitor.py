"""Monitor a launch, and report the root cause of a failure."""

from __future__ import annotations

import errno
import tempfile
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from compare.errors import LaunchError, OutputError, StalledError, system_reason
from compare.launch.circumstances import Circumstances
from compare.launch.crash_log import read_launcher_log
from compare.launch.failures import Cause, Evidence, find_cause, find_unstarted
from compare.launch.place import LaunchPlace
from compare.launch.processes import Ending
from compare.schema.job import Progress, RankExit, RankFailure, read_progress
from compare.system.files import read_json

T = TypeVar("T")
_WATCHDOG_SECONDS = 5.0
"""Extra time for a rank's own watchdog to end the rank first, because it reports more."""
_TEARDOWN_SECONDS = 10.0
"""Least time that a launcher gets to exit after its ranks are done."""
_LITTLE_BYTES = 1 << 20
_TAIL_BYTES = 1 << 20
_LOG_CHARACTERS, _LOG_LINES = 100_000, 1000
"""Maximum that is read of a log: the stacks of some threads, of a hundred frames each."""


class Monitor:
    """Watches one launch through the files of its ranks.

    Call ``tick`` while the launch runs, then ``conclude``. If a host is ``oversubscribed``, it has more ranks
    than cores, so the error of a stalled rank adds that the rank may only be slow. Known problems in
    ``circumstances`` that may explain a failure are added to its error.
    """

    def __init__(
        self,
        place: LaunchPlace,
        ranks: int,
        stall_seconds: float,
        *,
        oversubscribed: bool = False,
        circumstances: Circumstances | None = None,
    ) -> None:
        self._files = place.files
        self._ranks = range(ranks)
        self._place = place
        self._stall_seconds = stall_seconds
        self._oversubscribed = oversubscribed
        self._circumstances = circumstances or Circumstances()
        self._received: dict[int, tuple[float, float]] = {}
        self._checked_at = 0.0
        self._done_at: float | None = None

    def tick(self) -> bool:
        """Read the files of the ranks, and return whether the launch may go on.

        It may not if a rank has failed or stalled, or if the launcher does not exit after its ranks.
        """
        self._checked_at = time.time()
        return not (
            any(map(self._has_failed, self._ranks))
            or self._is_over()
            or any(map(self._is_stuck, self._ranks))
        )

    def progress(self) -> Progress | None:
        """Return the latest progress record of rank 0, or None before the first."""
        return read_progress(self._files, 0)

    def conclude(self, where: str, ending: Ending, kind: type[T]) -> list[T]:
        """Return one result from every rank, in their order, or raise the root cause.

        ``where`` names the launch in errors. ``kind`` is the struct of a result.

        Raises:
            StalledError: a rank stalled, or the launch took too long.
            LaunchError: a rank raised or died, or the launcher failed.
            OutputError: the disk is full, or a result cannot be read.
        """
        missing = [rank for rank in self._ranks if not self._has_result(rank)]
        if not missing and ending.status == 0:
            return [read_json(self._files.result(rank), kind) for rank in self._ranks]
        if missing:
            self._require_space()
        cause = find_cause([self._evidence(rank) for rank in self._ranks])
        # A failure while a launch is ended for its length, or for a suspended parent, is not its cause.
        too_late = ending.abandoned or (ending.timed_out and cause and cause.at > self._checked_at)
        if cause is not None and missing and not too_late:
            raise self._explained(self._root_cause(where, cause))
        error = self._without_cause(where, ending, missing)
        raise error if ending.abandoned or ending.timed_out else self._explained(error)

    def _has_failed(self, rank: int) -> bool:
        """Return whether a rank exited by itself and left no result."""
        record = self._exit(rank)
        return record is not None and not record.ended_by and not self._has_result(rank)

    def _has_result(self, rank: int) -> bool:
        return self._files.result(rank).exists()

    def _is_over(self) -> bool:
        """Return whether all ranks were done long ago, but the launcher has not exited."""
        now = time.monotonic()
        if self._done_at is None and all(map(self._has_result, self._ranks)):
            self._done_at = now
        limit = max(self._stall_seconds, _TEARDOWN_SECONDS)
        return self._done_at is not None and now - self._done_at > limit

    def _is_stuck(self, rank: int) -> bool:
        """Return whether a rank wrote no new record for so long that its own watchdog must have failed.

        The rank may have been stopped, for example. The time since the last change of a record is measured on
        this machine, so the clocks of the hosts may differ or be set.
        """
        progress, now = read_progress(self._files, rank), time.monotonic()
        if progress is None or self._has_result(rank):
            return False
        latest, received_at = self._received.get(rank, (None, now))
        if latest != progress.at:
            received_at = now
            self._received[rank] = (progress.at, now)
        return now - received_at > progress.limit_seconds + _WATCHDOG_SECONDS

    def _evidence(self, rank: int) -> Evidence:
        files = self._files
        return Evidence(
            rank=rank,
            host=self._place.host_of(rank),
            has_result=self._has_result(rank),
            failure=self._failure(rank),
            exit=self._exit(rank),
            started=files.witness(rank).exists(),
            log=tail(files.log(rank), lines=_LOG_LINES)[-_LOG_CHARACTERS:],
            stacks=tail(files.stacks(rank), lines=_LOG_LINES),
            progress=read_progress(files, rank),
        )

    def _exit(self, rank: int) -> RankExit | None:
        """Return the exit record of a rank, with its time by this machine's clock; None without a record."""
        file = self._files.exit(rank)
        if not file.exists():
            return None
        record = read_json(file, RankExit)
        return msgspec.structs.replace(record, time=record.time - self._place.clock_ahead_seconds(rank))

    def _failure(self, rank: int) -> RankFailure | None:
        """Return the exception of a rank, with its time by this machine's clock; None if it raised none."""
        file = self._files.failure(rank)
        if not file.exists():
            return None
        failure = read_json(file, RankFailure)
        return msgspec.structs.replace(failure, at=failure.at - self._place.clock_ahead_seconds(rank))

    def _require_space(self) -> None:
        """Require that the disk of the launch's folder is not full, and has inodes and quota left."""
        directory = self._files.directory
        try:
            with tempfile.NamedTemporaryFile(dir=directory, prefix=".room-") as file:
                file.write(b"\0" * _LITTLE_BYTES)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                return
            raise OutputError(
                f"The disk under {directory} is full.",
                found=f"{system_reason(error)}.",
                remedy="Free some space or choose another folder with --output.",
            ) from None

    def _root_cause(self, where: str, cause: Cause) -> LaunchError:
        place = f"\n({cause.where})" if cause.where else ""
        printed, remedy = self._where_to_read(cause)
        cause = cause._replace(found="\n".join([cause.found, *printed]))
        if cause.kind in {"stalled", "deadlocked"}:
            limit = round(self._least_limit(), 1)
            sets = "this limit" if limit == self._stall_seconds else "the least limit"
            slow = "Ranks outnumber the cores, so they may only be slow: " if self._oversubscribed else ""
            if cause.kind == "deadlocked":
                return StalledError(
                    f"{where}: all ranks waited for each other for {limit:g} s.",
                    found=cause.found,
                    remedy="Do all call the same collectives in the same order? Their stacks are in "
                    f"{self._files.directory}. {slow}--stall sets {sets}.",
                )
            return StalledError(
                f"{where}: rank {cause.rank} on {cause.host} made no progress for {limit:g} s.",
                found=f"{cause.found}{place}",
                remedy=f"{remedy} {slow}--stall sets {sets}.",
            )
        verb = "failed" if cause.kind == "raised" else "died"
        return LaunchError(
            f"{where}: rank {cause.rank} on {cause.host} {verb}.",
            found=f"{cause.found}{place}",
            remedy=remedy,
        )

    def _explained(self, error: LaunchError) -> LaunchError:
        seen = [read_progress(self._files, rank) for rank in self._ranks]
        return self._circumstances.beside(error, trained=any(p.step for p in seen if p))

    def _where_to_read(self, cause: Cause) -> tuple[list[str], str]:
        """Return lines of the launcher that explain a cause, and a sentence that names the file to read.

        There are such lines only if the rank itself printed nothing. If its launcher printed nothing either,
        the sentence names the folder.
        """
        log, stacks = self._files.log(cause.rank), self._files.stacks(cause.rank)
        # The watchdog prints stacks into the log. A rank that was ended before that has them in a file.
        if cause.kind == "stalled" and tail(stacks):
            return [], f"Its stacks are in {stacks}."
        if tail(log):
            return [], f"Its traceback and output are in {log}."
        for launchers in self._files.launcher_logs():
            if printed := read_launcher_log(tail(launchers, lines=_LOG_LINES)):
                lines = ["It printed nothing. Its launcher printed:", *printed]
                return lines, f"All of the launcher's output is in {launchers}."
        return (
            [],
            f"Neither it nor its launcher printed a reason; their files are in {self._files.directory}.",
        )

    def _without_cause(self, where: str, ending: Ending, missing: list[int]) -> LaunchError:
        remedy = f"The output of the launcher and the ranks is in {self._files.directory}."
        records = [self._exit(rank) for rank in missing]
        if ending.abandoned or any(record and record.ended_by == "lease" for record in records):
            return LaunchError(
                f"{where}: its ranks were ended, because this program sent no messages.",
                found=self._how_far(),
                remedy="Was it suspended (Ctrl-Z), or the machine? Run again, and let it run.",
            )
        if ending.timed_out:
            return StalledError(
                f"{where}: the launch did not end within {ending.seconds:.0f} s.",
                found=self._how_far(),
                remedy="Give it longer with --timeout, or less to do.",
            )
        if ending.status is None:
            what = (
                "the launch stopped moving" if missing else "its ranks are done, but its launcher did not end"
            )
            return StalledError(f"{where}: {what}.", found=self._how_far(), remedy=remedy)
        if ending.status < 0:
            return LaunchError(
                f"{where}: the launcher was killed (signal {-ending.status}).",
                found=self._how_far(),
                remedy="Its ranks were ended. Was it killed by hand, or was memory short?",
            )
        what = f"no result from rank {', '.join(map(str, missing))}" if missing else "every rank finished"
        if unstarted := find_unstarted([self._evidence(rank) for rank in self._ranks]):
            what = f"rank {unstarted.rank} on {unstarted.host} never started"
        output = "\n".join(filter(None, map(tail, self._files.launcher_logs())))
        return LaunchError(
            f"{where}: {what}, and the launcher exited with status {ending.status}.",
            found=output,
            remedy=remedy,
        )

    def _least_limit(self) -> float:
        """Return the shortest limit, in seconds, of the ranks without a result.

        A launch without progress ends after that time. The watchdog that fires first may belong to a rank
        that only waits for another one.
        """
        unfinished = (read_progress(self._files, r) for r in self._ranks if not self._has_result(r))
        return min((p.limit_seconds for p in unfinished if p), default=self._stall_seconds)

    def _how_far(self) -> str:
        seen = {rank: read_progress(self._files, rank) for rank in self._ranks}
        return "; ".join(
            f"rank {rank} " + (f"was at step {p.step} ({p.stage})" if p else "wrote no progress record")
            for rank, p in seen.items()
        )


def tail(path: Path, lines: int = 8) -> str:
    """Return the last lines of a file; empty if it cannot be read.

    A rank may have written gigabytes, so only the last MiB is read.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            end = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(end.strip().splitlines()[-lines:])
