"""Write the files that the agent of a host sends.

A host may be hostile, so it can write only the files of its own ranks and the log of its launcher. Each must
arrive without gaps, and its size is limited.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from compare.errors import HostError, OutputError
from compare.launch.agent.protocol import FileChunk, FileContent, ProtocolError
from compare.schema.hosts import Host
from compare.schema.launch_files import LaunchFiles
from compare.system.files import write_bytes

_FILE_BYTES = 4 << 30
"""Maximum size of a file that a host sends in chunks."""


class ReceivedFiles:
    """The files of one launch that one host sends.

    The host's name is added to that of the launcher's log, because every host may send one.
    """

    def __init__(self, host: Host, files: LaunchFiles, ranks: Collection[int]) -> None:
        self._host = host
        self._files = files
        self._ranks = ranks
        self._sizes: dict[str, int] = {}

    def write(self, message: FileChunk | FileContent) -> None:
        """Write a file or append its next chunk; ignore files of other ranks.

        Raises:
            HostError: a file is larger than any log should be.
            OutputError: a file cannot be written.
            ProtocolError: a file lies in another folder, or has a gap.
        """
        name, log = message.name, self._files.launcher_log
        if Path(name).name != name or name[:1] in {"", "."} or "\0" in name:
            raise ProtocolError(f"unexpected file: {name}")
        rank = self._files.rank_of(name)
        if name != log.name and (rank is None or rank not in self._ranks):
            return
        kept_as = f"{log.stem}-{self._host.name}{log.suffix}" if name == log.name else name
        path = self._files.directory / kept_as
        if isinstance(message, FileContent):
            write_bytes(path, message.data)
        else:
            self._append(path, message)

    def _append(self, path: Path, chunk: FileChunk) -> None:
        size = self._sizes.get(chunk.name, 0)
        if chunk.offset != size:
            raise ProtocolError(f"{chunk.name} goes on at {chunk.offset}, but has {size} bytes")
        if size + len(chunk.data) > _FILE_BYTES:
            raise HostError(
                f"Host {self._host.name} sends more than {_FILE_BYTES >> 30} GiB of {chunk.name}.",
                remedy="Does a program there print without end? Let it print less, and run again.",
            )
        self._sizes[chunk.name] = size + len(chunk.data)
        try:
            with path.open("ab") as file:
                file.write(chunk.data)
        except OSError as error:
            raise OutputError.unwritten(path, error) from None
