"""Send the files of a launch to the parent while they grow, and write them on the parent's machine.

A host may be hostile, so it can write only the files of its own ranks and the log of its launcher. Each file
must arrive without gaps, and its size is limited.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from compare.errors import HostError, OutputError
from compare.launch.agent.protocol import BACKLOG_BYTES, FileData, MessagePipe, ProtocolError
from compare.schema.hosts import Host
from compare.schema.job import Progress, append_progress, open_progress
from compare.schema.launch_files import LaunchFiles

_CHUNK_BYTES = 1 << 16
_FILE_BYTES = 4 << 30
"""Maximum size of a file that a host sends in chunks."""
_EXIT_SUFFIX = LaunchFiles(Path()).exit(0).suffix
_PROGRESS_SUFFIX = LaunchFiles(Path()).progress(0).suffix


class Mirror:
    """Sends what is new in the files of a launch's folder to the parent.

    JSON files and exit records are sent whole, other files in chunks. The exit record of a rank comes last,
    after everything that the rank wrote. Folders below ``directory`` are left out, and so are the files whose
    names are in ``known``, because the parent does not need them. Progress travels as ``RankNews``.
    """

    def __init__(self, directory: Path, known: set[str]) -> None:
        self._directory = directory
        self._known_names = known
        self._sent: dict[str, tuple[int, int]] = {}
        """What was sent: the inode and time of each whole file, or 0 and the size of its chunks."""

    def send(self, pipe: MessagePipe) -> bool:
        """Send new content until the pipe's backlog is full, and return whether all of it was sent."""
        # Exit records are listed before the other files: their ranks write nothing more.
        exit_records = [path for path in self._files() if path.suffix == _EXIT_SUFFIX]
        other_files = [path for path in self._files() if path.suffix != _EXIT_SUFFIX]
        for path in (*other_files, *exit_records):
            while pipe.backlog_bytes < BACKLOG_BYTES and self._send_some(path, pipe):
                pass
            if pipe.backlog_bytes >= BACKLOG_BYTES:
                return False
        return True

    def _files(self) -> Iterator[Path]:
        try:
            entries = [entry for entry in os.scandir(self._directory) if entry.is_file()]
        except OSError:  # the folder was removed meanwhile
            return
        for entry in sorted(entries, key=lambda entry: entry.name):
            # A name that begins with a dot belongs to a file that is still being written.
            if not entry.name.startswith(".") and not self._is_known(entry.name):
                yield Path(entry.path)

    def _is_known(self, name: str) -> bool:
        return name in self._known_names or name.endswith(_PROGRESS_SUFFIX)

    def _send_some(self, path: Path, pipe: MessagePipe) -> bool:
        """Send a file if it has changed, or its next chunk; return whether another chunk may follow."""
        if path.suffix in {".json", _EXIT_SUFFIX}:
            status = path.stat()
            state = (status.st_ino, status.st_mtime_ns)
            if self._sent.get(path.name) != state:
                pipe.send(FileData(path.name, path.read_bytes()))
                self._sent[path.name] = state
            return False
        _, offset = self._sent.get(path.name, (0, 0))
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(_CHUNK_BYTES)
        if data:
            pipe.send(FileData(path.name, data, offset))
            self._sent[path.name] = (0, offset + len(data))
        return len(data) == _CHUNK_BYTES


class ReceivedFiles:
    """Writes the files of one launch that one host sends, into the launch's folder on this machine.

    Only files of ``ranks``, which are those of the host, are accepted, and the log of its launcher. The
    log gets the host's name as a part of its own name, because every host may send one.
    """

    def __init__(self, host: Host, files: LaunchFiles, ranks: Collection[int]) -> None:
        self._host = host
        self._files = files
        self._ranks = ranks
        self._sizes: dict[str, int] = {}
        self._stages: set[tuple[int, str]] = set()

    def write_progress(self, records: Mapping[int, Progress]) -> None:
        """Append each rank's record to its file if that is the first record of its stage.

        Raises:
            OutputError: a file cannot be written.
        """
        for rank, record in records.items():
            if (rank, record.stage) not in self._stages:
                self._stages.add((rank, record.stage))
                try:
                    with open_progress(self._files, rank) as file:
                        append_progress(file, record)
                except OSError as error:
                    raise OutputError.unwritten(self._files.progress(rank), error) from None

    def write(self, message: FileData) -> None:
        """Write a whole file or append its next chunk; ignore unknown files, and those of other hosts.

        Raises:
            HostError: a file is larger than 4 GiB, as no log should be.
            OutputError: a file cannot be written.
            ProtocolError: a file lies in another folder, or has a gap.
        """
        name, log = message.name, self._files.launcher_log
        if Path(name).name != name or name[:1] in {"", "."} or "\0" in name:
            raise ProtocolError(f"It sent an unexpected file: {name}")
        rank = self._files.rank_of(name)
        if name != log.name and (rank is None or rank not in self._ranks):
            return
        own_name = f"{log.stem}-{self._host.name}{log.suffix}" if name == log.name else name
        path = self._files.directory / own_name
        if message.offset is None:
            self._write(path, message.data, "wb")
            return
        size = self._sizes.get(name, 0)
        if message.offset != size:
            raise ProtocolError(
                f"It sent {name} from byte {message.offset:,} on, but {size:,} bytes of it are here."
            )
        if size + len(message.data) > _FILE_BYTES:
            raise HostError(
                f"Host {self._host.name} sends more than {_FILE_BYTES >> 30} GiB of {name}.",
                remedy="Does a program there print without end? Make it print less, and run again.",
            )
        self._sizes[name] = size + len(message.data)
        self._write(path, message.data, "ab")

    def _write(self, path: Path, data: bytes, mode: Literal["wb", "ab"]) -> None:
        # No other program reads the file meanwhile, so it needs no temporary one; thousands arrive at once.
        try:
            with path.open(mode) as file:
                file.write(data)
        except OSError as error:
            if mode == "wb":
                with suppress(OSError):
                    path.unlink()  # half a result would count as one
            raise OutputError.unwritten(path, error) from None
