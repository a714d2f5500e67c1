"""Stage the data set: find it on every host, or copy it there.

``python -m compare.launch.staging DATASET DIRECTORY KEY`` prints where its host has the data set. If it
gets the files on standard input, as MessagePack, it keeps a copy of them first.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from compare import data
from compare.data import DatasetName, DatasetSource
from compare.errors import HostError
from compare.launch.engines import Answer, Carrier
from compare.launch.engines.commands import host_error, join_errors, python_command, run_everywhere
from compare.schema.hosts import Host, is_local

_LOOK_SECONDS = 60.0
"""Maximum time for a host to answer where it has the data set."""
_COPY_SECONDS = 600.0
"""Maximum time for a host to receive a copy and to answer."""


class DatasetPlace(msgspec.Struct, frozen=True):
    """Where a host has the data set, or would keep a copy."""

    directory: str
    """Folder of the data set, whose content was verified; empty if the host lacks the data set."""
    cache: str
    """Folder in which the host keeps a copy, or would keep one."""


def stage(
    hosts: Sequence[Host], source: DatasetSource, *, python: str, carrier: Carrier, say: Callable[[str], None]
) -> list[str]:
    """Return the folder of the data set on every host, in the order of hosts, after copying where needed.

    Hosts that lack the data set get a copy, and ``say`` receives a line of text before. This machine is not
    asked, because the data set was found on it before.

    Raises:
        HostError: a host cannot be asked, its copy did not arrive whole, or the data is too large to copy.
    """
    other_hosts = [host for host in hosts if not is_local(host)]
    places = _ask(other_hosts, source, python, carrier)
    if lacking := [host for host in other_hosts if not places[host].directory]:
        if not data.is_copied(source):
            raise not_copied(lacking[0], source)
        receivers = lacking[0].name if len(lacking) == 1 else f"{len(lacking)} hosts"
        files = data.files_of(source)
        say(f"Copying {_described(source)} ({sum(map(len, files.values())) / 1e6:.0f} MB) to {receivers}")
        places |= _ask(lacking, source, python, carrier, msgspec.msgpack.encode(files))
    for host in other_hosts:
        if not places[host].directory:
            raise HostError(
                f"Host {host.name} did not get a whole copy of {_described(source)}.",
                found=f"After copying, {places[host].cache} does not hold the files that were sent.",
                remedy="Free space there if its disk is full, remove that folder, and run again.",
            )
    return [places[host].directory if host in places else source.directory for host in hosts]


def _described(source: DatasetSource) -> str:
    return "the workload's folder" if source.workload else source.name


def not_copied(host: Host, source: DatasetSource) -> HostError:
    """Return the error that a host lacks the user's workload, which is too large to be copied."""
    folder, quoted = source.directory, shlex.quote(source.directory)
    return HostError(
        f"Host {host.name} does not have the folder of the workload.",
        found=f"{folder} has {data.size_bytes(Path(folder)) / 1e6:.0f} MB here, and only up to "
        f"{data.MOST_BYTES / 1e6:.0f} MB are copied. On the host, its Python files are missing or different.",
        remedy=f"Copy it to the same path: rsync -a {quoted}/ {host.name}:{quoted}/. "
        "Or keep the data outside of it, on every host.",
    )


def _ask(
    hosts: Sequence[Host], source: DatasetSource, python: str, carrier: Carrier, files: bytes = b""
) -> dict[Host, DatasetPlace]:
    """Return where each host has the data set, after it kept a copy of ``files`` if there are any."""
    if not hosts:
        return {}
    answers = ask_hosts(hosts, source, python=python, carrier=carrier, files=files)
    if errors := [error for answer in answers if (error := host_error(answer, carrier))]:
        raise join_errors(errors, of=len(answers))
    return {answer.host: read_place(answer) for answer in answers}


def ask_hosts(
    hosts: Sequence[Host], source: DatasetSource, *, python: str, carrier: Carrier, files: bytes = b""
) -> list[Answer]:
    """Ask hosts where they have a data set; return their answers in order, which ``read_place`` decodes.

    If ``files`` are given, encoded as MessagePack, each host keeps a copy of them first.
    """
    words = ("-m", "compare.launch.staging", source.name, source.directory, data.key_of(source))
    ask, seconds = python_command(python, *words), _COPY_SECONDS if files else _LOOK_SECONDS
    return run_everywhere(hosts, ask, carrier=carrier, timeout_seconds=seconds, stdin=files)


def read_place(answer: Answer) -> DatasetPlace:
    """Return where a host has the data set, as it answered to ``ask_hosts``.

    Raises:
        HostError: the answer does not come from this program.
    """
    # The last line: a login shell may have printed something before.
    lines = answer.stdout.strip().splitlines()
    try:
        return msgspec.json.decode(lines[-1] if lines else b"", type=DatasetPlace)
    except msgspec.DecodeError as error:
        raise HostError(
            f"Host {answer.host.name} did not answer where it has the data set.",
            found=str(error),
            remedy="Is the same version of Ringside installed there? Does the login shell print text?",
        ) from None


def main(dataset: DatasetName, directory: str, key: str, files: bytes = b"") -> DatasetPlace:
    """Return where this machine has a data set or a user's own workload.

    A copy of the ``files`` is kept first, if there are any. ``directory`` is searched first, then the folder
    for copies. ``key`` is the hash that the content must have.
    """
    cache = data.default_root() / "delivered" / f"{dataset}-{key[:12]}"
    if files:
        with suppress(OSError):  # a full disk, or a host that shares the folder was first
            _keep(cache, msgspec.msgpack.decode(files, type=dict[str, bytes]))
    holder = next((str(p) for p in (Path(directory), cache) if data.is_in(p, dataset, key)), "")
    return DatasetPlace(holder, str(cache))


def _keep(folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder with these files that appears whole or not at all, and that only its owner can read."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as new:
        for name, content in files.items():
            path = Path(new, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o600)
        Path(new).rename(folder)


if __name__ == "__main__":
    place_here = main(*sys.argv[1:], files=sys.stdin.buffer.read())  # type: ignore[arg-type, misc]
    sys.stdout.buffer.write(msgspec.json.encode(place_here) + b"\n")
