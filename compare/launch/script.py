"""Start a user's own script under a launcher, as if the user had started it, and wait for its end.

The launcher keeps the terminal: its streams, its process group and the environment are those of the shell.
So the script prints, reads and is interrupted as it would be without Ringside. On another host, torchrun gets
the shell's settings of libraries, and ends when this program does.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from backends.launchers import LAUNCHERS, find_launcher, missing_launcher_clause
from backends.launchers.request import Command, Request
from compare.errors import UnavailableError, UsageError
from compare.launch.engines import Carrier
from compare.schema.environment import inherited_variables, library_settings
from compare.schema.hosts import Host, Network, is_local

ScriptLauncher: TypeAlias = Literal["torchrun", "horovodrun", "mpirun", "none"]
"""The launchers that can start a user's own script; ``none`` for one that starts its ranks itself."""
_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_PR_SET_PDEATHSIG = 1
_TICK_SECONDS = 1.0
_GRACE_SECONDS = 5.0
"""Time that launchers have to end by themselves after one of them has failed."""
_ON_A_HOST = """\
while IFS= read -r line && [ -n "$line" ]; do export "$line"; done
cd "$0" || exit
exec 3<&0
"$@" </dev/null 3<&- &
launcher=$!
{ cat <&3 >/dev/null; kill $launcher; } >/dev/null 2>&1 &
exec 3<&-
wait $launcher
"""
"""A shell script that starts a launcher in the folder ``$0`` of a host.

Its input has the environment variables, one a line up to an empty line, so no command line shows their
values. When the input ends, because the program here has ended, the launcher gets SIGTERM.
"""


class Ended(NamedTuple):
    """How a script's launchers ended."""

    status: int
    """Exit status of the first launcher that failed, or 0; negative for the signal that killed it."""
    was_interrupted: bool
    """Whether this program was interrupted while the script ran."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the ranks of a script run."""

    hosts: tuple[Host, ...]
    """The hosts in the order of ranks, each with as many slots as it has ranks."""
    carrier: Carrier
    network: Network
    port: int
    """A port that is free on the first host."""


class Attached(NamedTuple):
    """A command that is executed with the terminal's output."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables that are set beside those of the shell."""
    stdin: bytes | None = None
    """The first bytes of its input, which stays open while this program lives; None for the terminal."""


def script_commands(
    launcher: ScriptLauncher, place: Place, words: Sequence[str], settings: Mapping[str, str]
) -> list[Attached]:
    """Return the commands that start a script on every rank: one, or for torchrun one for each host.

    Args:
        launcher: what starts the ranks; with ``none``, the script is started once.
        place: where they run; launchers other than torchrun start them on this machine alone.
        words: the path of the script, and its arguments.
        settings: variables for every rank, beside those of the shell.

    Raises:
        UnavailableError: a launcher, or the program that reaches hosts, is not installed.
        UsageError: a variable cannot be sent to other hosts.
    """
    if launcher == "none":
        return [Attached((sys.executable, *words), settings)]
    executable = find_launcher(launcher)
    if executable is None:
        raise UnavailableError(
            f"The script cannot be started: {launcher} is not installed.",
            found=f"{missing_launcher_clause(launcher)}.",
            remedy=LAUNCHERS[launcher].REMEDY,
        )
    request = Request(
        executable=executable,
        python=Path(sys.executable),
        hosts=place.hosts,
        module="",
        arguments=tuple(words),
        port=place.port,
        environment=settings,
        interface=place.network.interface,
        options={"controller": "gloo"},
        address=place.network.addresses[0],
        network=place.network.network,
    )
    return [_attached(command, place) for command in LAUNCHERS[launcher].commands(request)]


def _attached(command: Command, place: Place) -> Attached:
    """Return the command as this machine executes it."""
    host = next((host for host in place.hosts if command.host and host.name == command.host.name), None)
    if host is None or is_local(host):
        return Attached(command.argv, command.environment)
    variables = library_settings(inherited_variables(os.environ)) | dict(command.environment)
    if name := next((name for name, value in variables.items() if "\n" in value), ""):
        raise UsageError(
            f"{name} cannot be sent to {host.name}.", found="It has several lines.", remedy="Unset it."
        )
    lines = [f"{name}={value}\n" for name, value in variables.items()]
    argv = place.carrier.argv(host, ("sh", "-c", _ON_A_HOST, str(Path.cwd()), *command.argv))
    return Attached(argv, {}, "".join([*lines, "\n"]).encode())


def run_attached(commands: Sequence[Attached]) -> Ended:
    """Execute commands in the foreground until all have ended, and return how they did.

    A Ctrl-C in the terminal reaches the commands by itself. A signal that was sent to this program alone is
    passed on. If this program is killed, they get SIGTERM. If one of them fails, the others get it soon.

    Raises:
        UnavailableError: a command could not be executed.
    """
    heeded = {each for each in _PASSED_ON if signal.getsignal(each) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*heeded, signal.SIGCHLD})
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.extend(_start(command, before) for command in commands)
        return _wait(processes, heeded)
    finally:
        for process in processes:
            _send(process, signal.SIGTERM)  # where another one could not be started
            if process.stdin:
                process.stdin.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(processes: Sequence[subprocess.Popen[bytes]], heeded: set[signal.Signals]) -> Ended:
    """Wait until all processes have ended, and pass signals on; the signals must be blocked."""
    was_interrupted, failed_at, status = False, None, 0
    while alive := [process for process in processes if process.poll() is None]:
        arrived = signal.sigtimedwait({*heeded, signal.SIGCHLD}, _TICK_SECONDS)
        if arrived and arrived.si_signo != signal.SIGCHLD:
            was_interrupted = True
            # The terminal sends a signal to the processes as well, but another process only to this one.
            for process in alive if arrived.si_code <= 0 else ():
                _send(process, arrived.si_signo)
        if failed_at is None and (failed := [one for one in processes if one.poll()]):
            failed_at, status = time.monotonic(), failed[0].returncode
        if failed_at is not None and time.monotonic() > failed_at + _GRACE_SECONDS:
            for process in alive:
                _send(process, signal.SIGTERM)
            failed_at = math.inf  # once, because a launcher may take a second for an order to kill
    return Ended(status or next((one.returncode for one in processes if one.returncode), 0), was_interrupted)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _start(command: Attached, mask: set[int | signal.Signals]) -> subprocess.Popen[bytes]:
    """Start a command whose blocked signals are those of ``mask``, and return its process."""
    libc = ctypes.CDLL(None)

    def in_the_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        process = subprocess.Popen(
            command.argv,
            env=dict(os.environ) | dict(command.environment),
            stdin=None if command.stdin is None else subprocess.PIPE,
            preexec_fn=in_the_child,  # noqa: PLW1509 -- this process has one thread
        )
    except OSError as error:
        raise UnavailableError.unexecuted(command.argv[0], error) from None
    if process.stdin and command.stdin:
        with suppress(BrokenPipeError):  # it has failed already, which shows at its end
            process.stdin.write(command.stdin)
            process.stdin.flush()
    return process
