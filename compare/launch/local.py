"""Where a run takes place: what a launch needs of it, and the simplest one, this machine.

A launch is carried out the same way everywhere but for how its commands are started and how what its
ranks write is seen; that much is a ``Spot``. Here launchers are started directly and ranks write into
the run's own folder; ``many_hosts.py`` does the same through an agent on every host.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from compare.errors import OutputError
from compare.launch.agent.__main__ import free_port
from compare.launch.processes import Ending, supervise
from compare.launch.signals import uninterrupted
from compare.schema.environment import EXPORTED, MASK, SCRATCH
from compare.schema.files import make_temporary_folder, write_json, write_private
from compare.schema.hosts import LOOPBACK, Network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from backends.launchers.request import Command
    from compare.data import DatasetSource
    from compare.schema.hosts import Host
    from compare.schema.job import Job
    from compare.schema.launch_files import LaunchFiles

_RENEW_SECONDS = 0.5
_INHERIT = 'read -r _; for second in 0 1 2 3 4 5 6 7 8 9; do rm -rf -- "$@"; sleep 1; done'


class Folders(NamedTuple):
    """Folders of one launch for what launchers and libraries leave lying about when they are killed."""

    temporary: Path
    shared_memory: Path

    def settings(self) -> dict[str, str]:
        """Return the environment that leads to them."""
        return {
            "TMPDIR": str(self.temporary),
            # Open MPI's segments would survive a rank that was killed.
            "OMPI_MCA_btl_vader_backing_directory": str(self.shared_memory),
            SCRATCH: f"{self.temporary}{os.pathsep}{self.shared_memory}",
        }


class Spot(Protocol):
    """The place of one launch."""

    files: LaunchFiles
    """Where what the ranks write is seen here."""
    job_file: Path
    """What the ranks read, at the same path on every host."""
    mark: str
    """The launch's name, in the environment of every process of it."""

    def settings(self) -> dict[str, str]:
        """Return the environment of this launch alone."""

    def described(self) -> dict[str, str]:
        """Return the small files that a launch needs, by where they are put; values of ``-x`` masked."""

    def carry_out(
        self,
        commands: Sequence[Command],
        job: Job,
        *,
        deadline_seconds: float,
        on_tick: Callable[[], bool],
    ) -> Ending:
        """Execute the commands until they have ended or ``on_tick`` gives up; nothing of them is left then.

        Raises:
            HostError: a host cannot be reached any more, or could not begin.
            OutputError: a file cannot be written.
            UnavailableError: a command could not be executed.
        """

    def keep_up(self) -> None:
        """Give the ranks a sign of life, and take what has come from them.

        Raises:
            HostError: a host cannot be reached any more.
            OSError: the run's folder cannot be written.
        """

    def host_of(self, rank: int) -> str:
        """Name a rank's host."""

    def clock_ahead_seconds(self, rank: int) -> float:
        """Say how far the clock of a rank's host is ahead of this one."""


class Site(Protocol):
    """The hosts of a run."""

    hosts: tuple[Host, ...]
    """Each with the number of its ranks as slots."""
    network: Network
    exported: Mapping[str, str]
    """What every rank finds in its environment and nobody finds anywhere else."""

    def cpus(self) -> list[list[int]]:
        """Return the CPUs that ranks may use, host by host."""

    def gpus(self) -> list[int] | None:
        """Count GPUs, host by host; None where torch, which sees them itself, is to be asked here."""

    def require_launchers(self, names: set[str]) -> None:
        """Insist that launchers of these names can do their part from here.

        Raises:
            HostError: one cannot.
        """

    def deliver(self, source: DatasetSource, say: Callable[[str], None]) -> None:
        """See to it that every host has the data set.

        Raises:
            HostError: on one it cannot be put.
        """

    def free_port(self) -> int:
        """Return a port of the first host that is free now."""

    def spot(self, files: LaunchFiles) -> AbstractContextManager[Spot]:
        """Make the place of one launch, whose files are seen here as ``files``; it is removed after it."""


class ThisMachine:
    """A run on one machine, without ssh.

    Args:
        hosts: itself, with as many slots as there are ranks.
        affinity: the CPUs that every rank may use.
        exported: environment of the ranks that is written nowhere but where they read it.
        interface: network interface of all arms.
    """

    def __init__(
        self,
        hosts: tuple[Host, ...],
        affinity: list[int],
        exported: Mapping[str, str] | None = None,
        interface: str = LOOPBACK,
    ) -> None:
        self.hosts = hosts
        self.network = Network(interface=interface)
        self.exported = exported or {}
        self._affinity = affinity

    def cpus(self) -> list[list[int]]:
        """Return the CPUs that ranks may use."""
        return [self._affinity]

    def gpus(self) -> None:
        """Leave it to torch."""

    def require_launchers(self, names: set[str]) -> None:
        """Every launcher can start ranks beside it."""

    def deliver(self, source: DatasetSource, say: Callable[[str], None]) -> None:
        """Do nothing: the data set is where it was found."""

    def free_port(self) -> int:
        """Return a port that is free now."""
        return free_port("127.0.0.1")

    @contextmanager
    def spot(self, files: LaunchFiles) -> Iterator[Spot]:
        """Let the ranks write into the run's own folder."""
        with _scratch() as folders:
            exported = folders.temporary / "exported.json"
            write_private(exported, msgspec.json.encode(self.exported))
            yield _HereSpot(files, folders.settings() | {EXPORTED: str(exported)}, self.exported)


class _HereSpot:
    def __init__(self, files: LaunchFiles, settings: dict[str, str], exported: Mapping[str, str]) -> None:
        self.job_file = files.job
        # The whole path: another run may write into a folder of the same name.
        self.mark = str(files.directory)
        self.files = files
        self._settings = settings
        self._exported = exported
        self._renewed_at = 0.0

    def settings(self) -> dict[str, str]:
        return self._settings

    def described(self) -> dict[str, str]:
        return {self._settings[EXPORTED]: masked_json(self._exported)} if self._exported else {}

    def carry_out(
        self,
        commands: Sequence[Command],
        job: Job,
        *,
        deadline_seconds: float,
        on_tick: Callable[[], bool],
    ) -> Ending:
        write_json(self.files.job, job)
        return supervise(
            commands,
            name=self.mark,
            log=self.files.launcher_log,
            deadline_seconds=deadline_seconds,
            on_tick=on_tick,
        )

    def keep_up(self) -> None:
        if time.monotonic() - self._renewed_at > _RENEW_SECONDS:
            self.files.lease.touch()
            self._renewed_at = time.monotonic()

    def host_of(self, rank: int) -> str:
        del rank
        return socket.gethostname()

    def clock_ahead_seconds(self, rank: int) -> float:
        del rank
        return 0.0


def masked_json(exported: Mapping[str, str]) -> str:
    """Show what ``-x`` gives to the ranks without its values."""
    return msgspec.json.encode(dict.fromkeys(exported, MASK)).decode()


@contextmanager
def _scratch() -> Iterator[Folders]:
    shared = Path("/dev/shm")  # noqa: S108 -- where POSIX shared memory is on Linux
    prefix = f"ringside-{os.getpid()}-"
    temporary = make_temporary_folder(prefix)
    try:
        shared = make_temporary_folder(prefix, shared if os.access(shared, os.W_OK) else temporary)
    except OutputError:
        temporary.rmdir()
        raise
    folders = Folders(temporary, shared)
    with _heir(folders):
        try:
            yield folders
        finally:
            with uninterrupted():
                for folder in folders:
                    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _heir(folders: Folders) -> Iterator[None]:
    """Have a shell that removes folders when this process is gone, however it went.

    It waits for the end of a pipe that nobody else holds. Then it tries for as long as ranks may still
    write: those whose lease runs out remove the folders too, but there may be none left that is waiting.
    """
    heir = subprocess.Popen(
        ["/bin/sh", "-c", _INHERIT, "sh", *map(str, folders)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not meant for it
    )
    try:
        yield
    finally:
        with uninterrupted():
            heir.kill()  # before its pipe is closed
            heir.communicate()
