"""Reach hosts with the OpenSSH client.

The user's own configuration applies, with its jump hosts, keys and aliases. So this carrier reaches every
host that ``ssh HOST`` reaches. ssh never asks a question, because a question would hang a run. No secret is
ever an argument, because every user of either machine sees arguments. Secrets travel on standard input.

A handshake costs 0.2 to 0.4 s of computing, a command on a shared connection (ControlMaster) 0.03 s.
Connections are still not shared, because a run opens few to each host: its agent needs only one.
A shared connection would also outlive a ``kill -9``.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from compare.errors import HostError, UnavailableError
from compare.launch.engines import (
    OF_OTHER_HOSTS,
    AbsentHostError,
    Answer,
    Carrier,
    Options,
    describe_host,
    ssh_stand_in,
    whole_number,
)
from compare.schema.hosts import Host

_FAILED = 255
"""The exit status of ssh if ssh itself failed; any other status is that of the command."""
_KEEPALIVE_SECONDS = 3
"""Maximum time without a packet before ssh asks the host for one.

After two requests without an answer ssh gives up the host, because a dead link does not close a connection.
"""

# Which error is raised, what ssh prints, what that means, what to do. The first that fits counts.
_TROUBLES = (
    (
        HostError,
        ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED", "No matching host key"),
        "is not known to ssh, or its host key has changed",
        "Compare its key and accept it with {by_hand}; or add it to ~/.ssh/known_hosts.",
    ),
    (
        HostError,
        ("Permission denied", "Too many authentication failures", "no mutual signature"),
        "does not let you log in without a password",
        (
            "Set up a key with ssh-copy-id until {by_hand} asks nothing, or name the user and the key with "
            "--engine ssh:user=NAME,identity=FILE."
        ),
    ),
    (
        AbsentHostError,
        ("Could not resolve hostname", "Name or service not known"),
        "has a name that does not resolve",
        "Correct it in the hostfile or in DNS, or let a run wait for it: --engine ssh:wait=2m.",
    ),
    (
        AbsentHostError,
        ("Connection refused",),
        "has no sshd that listens at this port",
        "Start sshd there, or name the right port; or let a run wait for it: --engine ssh:wait=2m.",
    ),
    (
        AbsentHostError,
        (
            *("timed out", "No route to host", "Network is unreachable", "Connection closed"),
            *("Connection reset", "not responding", "Broken pipe", "kex_exchange_identification"),
        ),
        "cannot be reached",
        "Is it switched on and connected, and does {by_hand} work? If not, leave it out.",
    ),
)


def _read_file(text: str) -> str:
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise ValueError(f"There is no file {path}")
    return str(path)


OPTIONS: Options = {"port": whole_number(1, 65_535), "user": str, "identity": _read_file, **OF_OTHER_HOSTS}


class Ssh(Carrier, frozen=True, kw_only=True):
    """The carrier that logs in to hosts with ssh.

    Where an attribute is empty or None, the user's ssh configuration decides.

    Attributes:
        user: login name for hosts that name none themselves.
        port: port of sshd on every host.
        identity: path of the private key.
        connect_timeout_seconds: maximum time for a host to accept a connection.
    """

    user: str = ""
    port: int | None = None
    identity: str = ""
    connect_timeout_seconds: int = 10

    def _argv(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        _find_ssh()
        flags = self._flags(host.user or self.user)
        # ssh joins the words and a shell on the host splits them again, so they are quoted once.
        return ("ssh", *self._options(), *flags, "--", host.name, shlex.join(argv))

    def _by_hand(self, host: Host) -> str:
        """Return an ssh command with only those flags that the user gave."""
        return shlex.join(["ssh", *self._flags("" if host.user else self.user), host.destination])

    def _explain(self, answer: Answer) -> HostError | None:
        if answer.status != _FAILED:
            return None
        name, by_hand = describe_host(answer.host), f"`{self.by_hand(answer.host)}`"
        printed, found = answer.stderr.decode(errors="replace"), answer.last_lines
        for kind, marks, what, remedy in _TROUBLES:
            if any(mark in printed for mark in marks):
                return kind(f"{name} {what}.", found=found, remedy=remedy.format(by_hand=by_hand))
        return HostError(f"{name}: ssh failed.", found=found, remedy=f"Try {by_hand}.")

    def _remote_shell(self, hosts: Sequence[Host]) -> str:
        """Return the text of a program that logs in with the same options as ``_argv``.

        It is needed because launchers cannot pass on users and time-outs, and each passes on ports and keys
        in its own way. One of them turns host key checking off.
        """
        users = "".join(f"  {host.name}) user=-l{host.user} ;;\n" for host in hosts if host.user)
        default = shlex.quote(f"-l{self.user}") if self.user else ""
        command = shlex.join([_find_ssh(), *self._options(), *self._flags("")])
        choose = f"case $host in\n{users}  *) user={default} ;;\nesac"
        return ssh_stand_in(f'{choose}\nexec {command} ${{user:+"$user"}} -- "$host" "$*"')

    def _options(self) -> list[str]:
        """Return the options that Ringside gives to every ssh."""
        never = ("BatchMode=yes", "ForwardAgent=no", "ForwardX11=no", "EscapeChar=none")
        alive = (f"ServerAliveInterval={_KEEPALIVE_SECONDS}", "ServerAliveCountMax=2")
        settings = (*never, f"ConnectTimeout={self.connect_timeout_seconds}", *alive)
        return ["-T", *(f"-o{setting}" for setting in settings)]

    def _flags(self, user: str) -> list[str]:
        """Return the flags for the user's own settings, with a login name unless ``user`` is empty."""
        flags = [f"-p{self.port}"] if self.port else []
        flags += [f"-i{self.identity}"] if self.identity else []
        return flags + ([f"-l{user}"] if user else [])


def _find_ssh() -> str:
    """Return the path of the ssh client; raise an ``UnavailableError`` if it is not installed."""
    ssh = shutil.which("ssh")
    if ssh is None:
        raise UnavailableError(
            "ssh is not installed, but Ringside needs it to reach other hosts.",
            remedy="apt-get install openssh-client",
        )
    return ssh
