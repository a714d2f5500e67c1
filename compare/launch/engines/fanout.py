"""Reach hosts: run a command on one or on five hundred, put files there and get them, over ssh or here.

The OpenSSH client connects, with the user's own configuration, so that whatever ``ssh HOST`` can do by
hand works here as well: jump hosts, keys, aliases. It never asks: a question would hang a run. Nothing
that is secret is ever an argument, because arguments are seen by everybody on either machine; it goes by
standard input.

An ssh handshake costs 0.2 to 0.4 s of computing, a command over a connection that is shared
(ControlMaster) 0.03 s. Connections are not shared all the same: a run opens one long channel to each
host (see ``link.py``) and sends everything through it, and a shared one would be one more thing that
outlives a ``kill -9``.
"""

from __future__ import annotations

import io
import logging
import resource
import shlex
import shutil
import tarfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from compare import PACKAGE_ROOT
from compare.errors import HostError, UnavailableError
from compare.schema.hosts import is_local

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from compare.schema.hosts import Host

SSH_FAILED = 255
"""The status with which ssh ends when it could not do its part; a command's own is passed on."""
KEEPALIVE_SECONDS = 3
"""After twice this long without a sign of a host, ssh gives it up: a link that went down says nothing."""

NOT_THERE = (126, 127)
"""Statuses with which a shell, or env, says that it could not execute what it should."""

_SHOWN_HOSTS = 8
_SPARE_FILES = 128
_FILES_PER_HOST = 6
_PACKAGES = str(PACKAGE_ROOT)

# In a fixed program the folder is an argument and never part of the text.
_RECEIVE = (
    'set -eu; umask 077; new="$1.new.$$"; trap \'rm -rf "$new"\' EXIT; '
    'mkdir -p "$new"; tar -x --no-same-owner -f - -C "$new"; mv -T "$new" "$1"'
)
_SEND = 'exec tar -c -f - -C "$1" .'


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """How to log in to hosts; what is left open here, the user's ssh configuration decides.

    Attributes:
        user: for hosts that name none themselves.
        port: of sshd.
        identity: file of the private key.
        connect_timeout_seconds: until a host that does not answer counts as unreachable.
    """

    user: str = ""
    port: int | None = None
    identity: str = ""
    connect_timeout_seconds: int = 10


class Answer(NamedTuple):
    """What came of a command on a host."""

    host: Host
    status: int | None
    """Its exit status, or that of ssh; None where it was ended for want of an answer."""
    stdout: bytes
    stderr: bytes
    seconds: float
    began_at: float = 0.0
    """Unix time at which it was started here."""
    by_hand: str = ""
    """What logs in there as this did, for the user to try; empty for what no flags were given to."""


def by_hand(host: Host, reach: Reach) -> str:
    """Say what logs in to a host by hand, with the flags that were given."""
    flags = [f"-p{reach.port}"] if reach.port else []
    flags += [f"-i{reach.identity}"] if reach.identity else []
    flags += [f"-l{reach.user}"] if reach.user and not host.user else []
    return shlex.join(["ssh", *flags, host.destination])


def command(host: Host, argv: Sequence[str], reach: Reach) -> tuple[str, ...]:
    """Say what to execute here so that ``argv`` is executed on a host: itself, where that is this machine.

    The shell at the other end takes apart what ssh puts together, so ``argv`` is quoted, and only here.
    """
    if is_local(host):
        return tuple(argv)
    user, options = host.user or reach.user, [f"-oConnectTimeout={reach.connect_timeout_seconds}"]
    options += [f"-oServerAliveInterval={KEEPALIVE_SECONDS}", "-oServerAliveCountMax=2"]
    options += [f"-p{reach.port}"] if reach.port else []
    options += [f"-i{reach.identity}"] if reach.identity else []
    options += [f"-l{user}"] if user else []
    never = ("-oBatchMode=yes", "-oForwardAgent=no", "-oForwardX11=no", "-oEscapeChar=none")
    return ("ssh", "-T", *never, *options, "--", host.name, shlex.join(argv))


def python_command(python: str, module: str, *arguments: str) -> tuple[str, ...]:
    """Return the argv that runs a module of ours on a host, found where it is found here."""
    return (*_with_packages(python), "-m", module, *arguments)


def script_command(python: str, *arguments: str) -> tuple[str, ...]:
    """Return the argv that runs a program given as standard input; it finds our modules where they are."""
    return (*_with_packages(python), "-", *arguments)


def _with_packages(python: str) -> tuple[str, ...]:
    return ("env", f"PYTHONPATH={_PACKAGES}", "PYTHONSAFEPATH=1", python)


def run_everywhere(
    hosts: Sequence[Host], argv: Sequence[str], *, reach: Reach, timeout_seconds: float, stdin: bytes = b""
) -> list[Answer]:
    """Execute one command on all hosts at the same time, so that all take as long as the slowest.

    Args:
        hosts: where; this machine is reached without ssh.
        argv: what; no shell sees it but the one that ssh needs, quoted.
        reach: how to log in.
        timeout_seconds: after which a host counts as not answering, from its own start.
        stdin: what the command reads, on every host the same.

    Returns:
        An answer for every host, in their order; look at them with ``trouble`` or ``require``.

    Raises:
        UnavailableError: there is no ssh here.
    """
    commands = [command(host, argv, reach) for host in hosts]
    if any(line[0] == "ssh" for line in commands) and shutil.which("ssh") is None:
        raise UnavailableError(
            "Other hosts are reached by ssh, which is not there.", remedy="apt-get install openssh-client"
        )
    outcomes = _execute(commands, stdin, timeout_seconds)
    return [
        Answer(host, *outcome, by_hand(host, reach)) for host, outcome in zip(hosts, outcomes, strict=True)
    ]


def put(
    hosts: Sequence[Host],
    directory: str,
    files: Mapping[str, bytes],
    *,
    reach: Reach,
    timeout_seconds: float,
) -> list[Answer]:
    """Make a folder of small files on all hosts, readable by their owner alone; it is there whole or not.

    A folder of this name that holds anything is left as it is, and the answer's status is not 0.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600
            tar.addfile(entry, io.BytesIO(content))
    receive = ["sh", "-c", _RECEIVE, "sh", directory]
    return run_everywhere(
        hosts, receive, reach=reach, timeout_seconds=timeout_seconds, stdin=archive.getvalue()
    )


def get(
    hosts: Sequence[Host], directory: str, *, reach: Reach, timeout_seconds: float
) -> list[tuple[Answer, dict[str, bytes]]]:
    """Read the regular files of a folder on all hosts, by their names below it; none where it failed."""
    send = ["sh", "-c", _SEND, "sh", directory]
    answers = run_everywhere(hosts, send, reach=reach, timeout_seconds=timeout_seconds)
    return [(answer, _unpack(answer.stdout) if answer.status == 0 else {}) for answer in answers]


def end_everywhere(
    hosts: Sequence[Host], mark: str, *, python: str, reach: Reach, timeout_seconds: float
) -> list[Answer]:
    """End every process of a launch on all hosts, found by its mark.

    Args:
        hosts: where to look.
        mark: the launch's name, as ``supervise`` knows it.
        python: the interpreter on the hosts.
        reach: how to log in.
        timeout_seconds: how long a host may take.
    """
    end = python_command(python, "compare.launch.agent", "end", mark)
    return run_everywhere(hosts, end, reach=reach, timeout_seconds=timeout_seconds)


def require(answers: Sequence[Answer]) -> None:
    """Insist that the command succeeded on every host.

    Raises:
        HostError: on some it did not; they are named, with what ssh or the command said.
    """
    troubles = [error for error in map(trouble, answers) if error]
    if troubles:
        raise together(troubles, of=len(answers))


def together(troubles: Sequence[HostError], *, of: int) -> HostError:
    """Make one error of those of several hosts, out of so many."""
    if len(troubles) == 1:
        return troubles[0]
    shown = [f"{error.what} {error.found}" for error in troubles[:_SHOWN_HOSTS]]
    more = len(troubles) - len(shown)
    return HostError(
        f"{len(troubles)} of {of} hosts cannot be used.",
        found="\n".join(shown + ([f"and {more} more"] if more else [])),
        remedy="\n".join(dict.fromkeys(error.remedy for error in troubles[:_SHOWN_HOSTS])),
    )


def trouble(answer: Answer) -> HostError | None:
    """Say why a host cannot be used, and what to do; None where its command succeeded."""
    if answer.status == 0:
        return None
    host, said = answer.host, _last_words(answer.stderr)
    name = f"Host {host.name} ({host.source})" if host.source else f"Host {host.name}"
    by_hand = f"`{answer.by_hand or f'ssh {host.destination}'}`"
    if answer.status is None:
        return HostError(
            f"{name} did not answer within {answer.seconds:.0f} s.",
            found=said,
            remedy=f"Does {by_hand} work? If the host is merely slow, try again.",
        )
    if answer.status == SSH_FAILED and not is_local(host):
        for marks, what, remedy in _SSH_TROUBLES:
            if any(mark in answer.stderr.decode(errors="replace") for mark in marks):
                return HostError(f"{name} {what}.", found=said, remedy=remedy.format(by_hand=by_hand))
        return HostError(f"{name}: ssh failed.", found=said, remedy=f"Try {by_hand}.")
    if answer.status in NOT_THERE:
        return HostError(
            f"{name} cannot execute what it should.",
            found=said,
            remedy="Ringside and its Python must be at the same path on every host.",
        )
    remedy = "What it said is above; it was the command that failed, not ssh."
    if "No module named" in said:
        remedy = "Is Ringside installed there, for this Python and in the same version?"
    return HostError(f"{name}: a command failed with status {answer.status}.", found=said, remedy=remedy)


@contextmanager
def enough_files(hosts: int) -> Iterator[int]:
    """Allow this process the open files that so many hosts need; yield for how many at once they suffice."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _SPARE_FILES + _FILES_PER_HOST * hosts
    unlimited = resource.RLIM_INFINITY  # which is -1
    allowed = needed if soft == unlimited else max(soft, needed)
    allowed = allowed if hard == unlimited else min(allowed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    try:
        yield max(1, min(hosts, (allowed - _SPARE_FILES) // _FILES_PER_HOST))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


_SSH_TROUBLES = (
    # What ssh says, what that means, what to do. The first that fits counts.
    (
        ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED", "No matching host key"),
        "is not known to ssh, or has another key than it had",
        "Compare its key and accept it with {by_hand}; or add it to ~/.ssh/known_hosts.",
    ),
    (
        ("Permission denied", "Too many authentication failures", "no mutual signature"),
        "lets nobody in without a password",
        "Set up a key with ssh-copy-id until {by_hand} asks nothing; or name user and key.",
    ),
    (
        ("Could not resolve hostname", "Name or service not known"),
        "has a name that nothing knows",
        "Correct the name in the hostfile, or make it known (DNS, /etc/hosts, ~/.ssh/config).",
    ),
    (
        ("Connection refused",),
        "runs no sshd at this port",
        "Start sshd there, or name the right port.",
    ),
    (
        (
            *("timed out", "No route to host", "Network is unreachable", "Connection closed"),
            *("Connection reset", "not responding", "Broken pipe", "kex_exchange_identification"),
        ),
        "cannot be reached",
        "Is it switched on and connected, and does {by_hand} work? Take it out of the hostfile otherwise.",
    ),
)


def _last_words(stderr: bytes) -> str:
    """Return the end of what was said, without the greetings that many hosts print first."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip("@ \r\n")]
    return "\n".join(lines[-3:])


def _unpack(archive: bytes) -> dict[str, bytes]:
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isreg() else None
            if content is not None:
                files[entry.name.removeprefix("./")] = content.read()
    return files


# ---- ClusterShell's part: many processes at once ---------------------------------------------------------


class _Outcome(NamedTuple):
    status: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    began_at: float


def _execute(commands: Sequence[Sequence[str]], stdin: bytes, timeout_seconds: float) -> list[_Outcome]:
    """Execute commands here side by side; every one gets the same input and as many seconds."""
    if not commands:
        return []
    # Only here: a run on one machine need not wait for it.
    from ClusterShell.NodeSet import NodeSet
    from ClusterShell.Task import task_self
    from ClusterShell.Worker.Exec import ExecClient, ExecWorker

    # A host that is gone before it has read its input is told by its status, not by a warning.
    logging.getLogger("ClusterShell").addHandler(logging.NullHandler())
    began: list[float] = [0.0] * len(commands)
    began_at: list[float] = [0.0] * len(commands)
    ended: list[tuple[int | None, float]] = [(None, timeout_seconds)] * len(commands)
    streams: dict[tuple[int, str], list[bytes]] = {}

    class Client(ExecClient):  # type: ignore[misc]
        """One process, named after its place in ``commands``; its output is bytes, not lines."""

        def _build_cmd(self) -> tuple[list[str], None]:
            began[self.rank], began_at[self.rank] = time.monotonic(), time.time()
            return list(commands[self.rank]), None

        def _handle_read(self, sname: str) -> None:
            streams.setdefault((self.rank, sname), []).append(self._read(sname))

        def _on_nodeset_close(self, nodes: Any, rc: int) -> None:
            ended[self.rank] = (rc, time.monotonic() - began[self.rank])
            super()._on_nodeset_close(nodes, rc)

    class Worker(ExecWorker):  # type: ignore[misc]
        SHELL_CLASS = Client

    task = task_self()
    # Not the hosts' names: ClusterShell would take user@host for a group, and ::1 apart.
    worker = Worker(
        NodeSet(f"h[0-{len(commands) - 1}]"),
        handler=None,
        timeout=timeout_seconds,
        command="named by _build_cmd",
        stderr=True,
    )
    with enough_files(len(commands)) as fan_out:
        task.set_info("fanout", fan_out)
        try:
            task.schedule(worker)
            worker.write(stdin)
            worker.set_write_eof()
            task.resume()
        except BaseException:
            task.abort()
            raise
    said = {
        name: [b"".join(streams.get((number, name), ())) for number in range(len(commands))]
        for name in (worker.SNAME_STDOUT, worker.SNAME_STDERR)
    }
    return [
        _Outcome(status, out, errors, seconds, at)
        for (status, seconds), out, errors, at in zip(
            ended, said[worker.SNAME_STDOUT], said[worker.SNAME_STDERR], began_at, strict=True
        )
    ]
