"""Find what is new of the ranks on this host, so that the parent need not look at their files."""

from __future__ import annotations

import os

from compare.launch.agent.protocol import RankNews
from compare.schema.job import Progress, RankExit, read_progress
from compare.schema.launch_files import LaunchFiles
from compare.system.files import read_json


class RankWatch:
    """Watches the ranks of one launch on this host by the files that they write."""

    def __init__(self, files: LaunchFiles) -> None:
        self._files = files
        self._sizes: dict[int, int] = {}
        """The size of each rank's progress file when it was last read."""
        self._done: set[int] = set()
        self._exited: set[int] = set()

    def look(self) -> RankNews | None:
        """Return what is new since the last call; None if nothing is.

        Raises:
            OutputError: the record of a rank's exit cannot be read.
        """
        try:
            names = {entry.name for entry in os.scandir(self._files.directory)}
        except OSError:  # the folder was removed meanwhile
            return None
        ranks = {rank for name in names if (rank := LaunchFiles.rank_of(name)) is not None} - self._exited
        progress = {rank: record for rank in ranks if (record := self._new_progress(rank))}
        exited = {rank for rank in ranks if self._files.exit(rank).name in names}
        # A rank writes its result before it exits, so results are looked for after exits.
        done = {rank for rank in ranks - self._done if self._files.result(rank).exists()}
        failed = {rank for rank in exited - done - self._done if self._has_failed(rank)}
        self._done |= done
        self._exited |= exited
        if not (progress or done or failed):
            return None
        return RankNews(progress=progress, done=sorted(done), failed=sorted(failed))

    def _new_progress(self, rank: int) -> Progress | None:
        """Return a rank's latest record; None if its file has not grown, or holds no record."""
        try:
            size = self._files.progress(rank).stat().st_size
        except OSError:
            return None
        if size == self._sizes.get(rank):
            return None
        self._sizes[rank] = size
        return read_progress(self._files, rank)

    def _has_failed(self, rank: int) -> bool:
        """Return whether a rank that exited without a result was not ended by its witness."""
        return not read_json(self._files.exit(rank), RankExit).ended_by
