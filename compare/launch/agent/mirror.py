"""Send the files of a launch to the parent while they grow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from compare.launch.agent.protocol import BACKLOG_BYTES, FileChunk, FileContent, MessagePipe
from compare.schema.launch_files import LaunchFiles

_CHUNK_BYTES = 1 << 16
_RECORD = LaunchFiles(Path()).exit(0).suffix


class Mirror:
    """Sends what is new in the files of a launch's folder.

    JSON files and exit records are sent whole, other files in chunks. The exit record of a rank comes last,
    after everything that the rank wrote. Folders below ``directory`` are left out, and so are the ``known``
    files, which the parent has already.
    """

    def __init__(self, directory: Path, known: set[str]) -> None:
        self._directory = directory
        self._known = known
        self._sent: dict[str, tuple[int, int]] = {}

    def send(self, pipe: MessagePipe) -> bool:
        """Send new content until the pipe's backlog is full; return whether all of it was sent."""
        # Records are listed before the other files: their ranks write nothing more.
        records = [path for path in self._files() if path.suffix == _RECORD]
        others = [path for path in self._files() if path.suffix != _RECORD]
        return self._send_all(others, pipe) and self._send_all(records, pipe)

    def _send_all(self, paths: list[Path], pipe: MessagePipe) -> bool:
        complete = True
        for path in paths:
            while pipe.backlog_bytes < BACKLOG_BYTES and self._send_some(path, pipe):
                pass
            complete = complete and pipe.backlog_bytes < BACKLOG_BYTES
        return complete

    def _files(self) -> Iterator[Path]:
        try:
            entries = [entry for entry in os.scandir(self._directory) if entry.is_file()]
        except OSError:  # the folder was removed meanwhile
            return
        for entry in sorted(entries, key=lambda entry: entry.name):
            # A name that begins with a dot belongs to a file that is still being written.
            if entry.name not in self._known and not entry.name.startswith("."):
                yield Path(entry.path)

    def _send_some(self, path: Path, pipe: MessagePipe) -> bool:
        """Send a file if it has changed, or its next chunk; return whether another chunk may follow."""
        if path.suffix in {".json", _RECORD}:
            found = path.stat()
            state = (found.st_ino, found.st_mtime_ns)
            if self._sent.get(path.name) != state:
                pipe.send(FileContent(path.name, path.read_bytes()))
                self._sent[path.name] = state
            return False
        _, offset = self._sent.get(path.name, (0, 0))
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(_CHUNK_BYTES)
        if data:
            pipe.send(FileChunk(path.name, offset, data))
            self._sent[path.name] = (0, offset + len(data))
        return len(data) == _CHUNK_BYTES
