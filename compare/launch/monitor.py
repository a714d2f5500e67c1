"""Watch a launch from the parent: see which rank dies, and name the cause in the end."""

from __future__ import annotations

import errno
import tempfile
import time
from typing import TYPE_CHECKING

import msgspec

from compare.errors import LaunchError, OutputError, StalledError, system_reason
from compare.launch.failures import Cause, Evidence, find_cause, find_unseen
from compare.schema.files import read_json
from compare.schema.job import RankFailure, read_progress
from compare.schema.results import RankResult

if TYPE_CHECKING:
    from pathlib import Path

    from compare.launch.place import LaunchPlace
    from compare.launch.processes import Ending

_PATIENCE_SECONDS = 2.0
"""For a launcher to notice that a rank has died, and for the others to say what they saw."""
_GRACE_SECONDS = 5.0
"""For a rank's own watchdog, which knows more, to be first."""
_TEARDOWN_SECONDS = 10.0
"""For a launcher to end when its ranks have, on a busy machine."""
_LITTLE_BYTES = 1 << 20
_LOG_CHARACTERS, _LOG_LINES = 100_000, 1000
"""Of some threads with a hundred frames each, which is as many as are dumped."""


class Watch:
    """Watches one launch. ``tick`` goes on while the launch may; ``conclude`` takes its results."""

    def __init__(self, spot: LaunchPlace, ranks: int, stall_seconds: float) -> None:
        self._files = spot.files
        self._ranks = range(ranks)
        self._spot = spot
        self._stall_seconds = stall_seconds
        self._died_at: dict[int, float] = {}
        self._begun: set[int] = set()
        self._heard: dict[int, tuple[float, float]] = {}
        self._looked_at = 0.0
        self._first_seen: dict[str, float] = {}

    def tick(self) -> bool:
        """Look at the files of the ranks; return whether the launch may go on."""
        self._looked_at = time.time()
        for rank in self._ranks:
            died_at = self._gone_at(rank) if rank not in self._died_at else None
            if died_at is not None:
                self._died_at[rank] = died_at
        # What a launcher has not minded for as long as the roll took it minds no more: no patience then.
        if self._look_for_absent() or self._since("a death", self._died_at) > _PATIENCE_SECONDS:
            return False
        return not (self._is_over() or any(map(self._is_stuck, self._ranks)))

    def steps_done(self) -> int:
        """Return how many steps the first rank has done."""
        progress = read_progress(self._files, 0)
        return progress.step if progress else 0

    def conclude(self, where: str, ending: Ending) -> list[RankResult]:
        """Take exactly one result from every rank, or say which rank is the cause that some are missing.

        Raises:
            StalledError: a rank stalled, or all of them took too long.
            LaunchError: a rank raised or died, or the launcher did.
            OutputError: the disk is full.
        """
        missing = [rank for rank in self._ranks if not self._files.result(rank).exists()]
        if not missing and ending.status == 0:
            return [read_json(self._files.result(rank), RankResult) for rank in self._ranks]
        if missing:
            self._require_space()
        cause = find_cause([self._evidence(rank) for rank in self._ranks])
        # What ranks say while a launch is ended for its length is no cause of it.
        if cause is not None and missing and not (ending.timed_out and cause.at > self._looked_at):
            raise self._blaming(where, cause)
        raise self._without_cause(where, ending, missing)

    def _gone_at(self, rank: int) -> float | None:
        """Say when a rank's process ended, if it did without a word."""
        progress = read_progress(self._files, rank)
        if progress is None or self._files.result(rank).exists() or self._files.failure(rank).exists():
            return None
        gone_at = self._spot.gone_at(rank)
        # Looked at once more: its last word may have come while it was looked for.
        spoke = self._files.result(rank).exists() or self._files.failure(rank).exists()
        return None if spoke else gone_at

    def _look_for_absent(self) -> bool:
        """Note the ranks that are gone before their first word; return whether there are any."""
        silent = [rank for rank in self._ranks if rank not in self._begun and not self._has_spoken(rank)]
        self._begun = set(self._ranks).difference(silent)
        gone = self._spot.absent(self._begun) if silent else {}
        # Looked at once more, as above.
        absent = {rank: at for rank, at in gone.items() if not self._has_spoken(rank)}
        self._died_at = absent | self._died_at
        return bool(absent)

    def _has_spoken(self, rank: int) -> bool:
        files = self._files
        told = files.result(rank), files.failure(rank)
        return read_progress(files, rank) is not None or any(file.exists() for file in told)

    def _is_over(self) -> bool:
        """Whether all ranks were done long ago, and only the launcher goes on."""
        done = all(self._files.result(rank).exists() for rank in self._ranks)
        return self._since("all done", done) > max(self._stall_seconds, _TEARDOWN_SECONDS)

    def _since(self, what: str, holds: object) -> float:
        """Seconds since something was seen to hold first, by a clock that nobody sets; 0 if it does not."""
        now = time.monotonic()
        return now - self._first_seen.setdefault(what, now) if holds else 0.0

    def _is_stuck(self, rank: int) -> bool:
        """Whether even a rank's watchdog is silent: it was stopped, say.

        As with a lease only change counts: a clock that is set, here or where the rank runs, is no silence.
        """
        progress, now = read_progress(self._files, rank), time.monotonic()
        if progress is None or self._files.result(rank).exists():
            return False
        said_at, heard_at = self._heard.get(rank, (None, now))
        if said_at != progress.at:
            heard_at = now
            self._heard[rank] = (progress.at, heard_at)
        return now - heard_at > progress.patience_seconds + _GRACE_SECONDS

    def _evidence(self, rank: int) -> Evidence:
        files, log = self._files, self._files.log(rank)
        return Evidence(
            rank=rank,
            host=self._spot.host_of(rank),
            has_result=files.result(rank).exists(),
            failure=self._failure(rank),
            died_at=self._died_at.get(rank),
            log=tail(log, lines=_LOG_LINES)[-_LOG_CHARACTERS:],
            stacks=tail(files.stacks(rank), lines=_LOG_LINES),
            logged_at=log.stat().st_mtime if log.exists() else 0.0,
            progress=read_progress(files, rank),
        )

    def _failure(self, rank: int) -> RankFailure | None:
        """Read a rank's failure, its time by the clock of this machine."""
        file = self._files.failure(rank)
        if not file.exists():
            return None
        failure = read_json(file, RankFailure)
        return msgspec.structs.replace(failure, at=failure.at - self._spot.clock_ahead_seconds(rank))

    def _require_space(self) -> None:
        """Look whether the ranks could have written: nobody says what he cannot write down.

        Raises:
            OutputError: the disk is as good as full, or takes no new file (inodes, a quota).
        """
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

    def _blaming(self, where: str, cause: Cause) -> LaunchError:
        place = f"\n({cause.where})" if cause.where else ""
        remedy = self._where_to_read(self._files.log(cause.rank))
        if cause.kind in {"stalled", "deadlocked"}:
            patience = self._least_patience()
            sets = "the patience" if patience == self._stall_seconds else "the least patience"
            if cause.kind == "deadlocked":
                return StalledError(
                    f"{where}: all ranks waited for each other for {patience:g} s.",
                    found=cause.said,
                    remedy="Do all call the same collectives in the same order? Their stacks are in "
                    f"{self._files.directory}. --stall sets {sets}.",
                )
            return StalledError(
                f"{where}: rank {cause.rank} on {cause.host} made no progress for {patience:g} s.",
                found=f"{cause.said}{place}",
                remedy=f"{remedy} --stall sets {sets}.",
            )
        verb = "failed" if cause.kind == "raised" else "died"
        return LaunchError(
            f"{where}: rank {cause.rank} on {cause.host} {verb}.", found=f"{cause.said}{place}", remedy=remedy
        )

    def _where_to_read(self, log: Path) -> str:
        """Name a rank's log; it is opened with the rank's first word, which may never have come."""
        if log.exists():
            return f"Its traceback and output are in {log}."
        return f"It has no log; what the launcher printed is in {self._files.directory}."

    def _without_cause(self, where: str, ending: Ending, missing: list[int]) -> LaunchError:
        remedy = f"What the launcher and the ranks printed is in {self._files.directory}."
        said = "\n".join(filter(None, map(tail, self._files.launcher_logs())))
        if ending.timed_out:
            return StalledError(
                f"{where}: the launch did not end within {ending.seconds:.0f} s.",
                found=self._how_far(),
                remedy="Give it longer with --timeout, or train fewer --steps.",
            )
        if ending.status is None:
            what = (
                "the launch stopped moving" if missing else "its ranks are done, but its launcher did not end"
            )
            return StalledError(f"{where}: {what}.", found=self._how_far(), remedy=remedy)
        alone = [rank for rank in missing if "left alone" in tail(self._files.log(rank))]
        if alone:
            return LaunchError(
                f"{where}: its ranks ended themselves, because this program gave no sign of life.",
                found=self._how_far(),
                remedy="Was it suspended (Ctrl-Z), or the machine? Run again, and let it run.",
            )
        if ending.status < 0:
            return LaunchError(
                f"{where}: the launcher was killed (signal {-ending.status}).",
                found=self._how_far(),
                remedy="Its ranks were ended. Was it killed by hand, or was memory short?",
            )
        what = f"no result from rank {', '.join(map(str, missing))}" if missing else "every rank finished"
        if unseen := find_unseen([self._evidence(rank) for rank in self._ranks]):
            what = f"rank {unseen.rank} on {unseen.host} was gone before it had begun"
        return LaunchError(
            f"{where}: {what}, and the launcher ended with status {ending.status}.", found=said, remedy=remedy
        )

    def _least_patience(self) -> float:
        """Seconds after which a launch that stands still is ended: whose watchdog is first may only wait."""
        said = (read_progress(self._files, r) for r in self._ranks if not self._files.result(r).exists())
        return min((p.patience_seconds for p in said if p), default=self._stall_seconds)

    def _how_far(self) -> str:
        seen = {rank: read_progress(self._files, rank) for rank in self._ranks}
        return "; ".join(
            f"rank {rank} " + (f"was at step {p.step} ({p.stage})" if p else "never began")
            for rank, p in seen.items()
        )


def tail(path: Path, lines: int = 8) -> str:
    """Return the last lines of a file, or nothing where it cannot be read."""
    try:
        return "\n".join(path.read_text(errors="replace").strip().splitlines()[-lines:])
    except OSError:
        return ""
