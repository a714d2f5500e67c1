"""Write a launch as commands for a shell."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from backends.launchers.request import Command
from compare.launch.arm import commands_for
from compare.launch.place import LaunchPlace
from compare.launch.unreached import INTERFACE, Unreached
from compare.schema.environment import EXPORTED, MASK, inherited, library_settings
from compare.schema.hosts import Host, is_local
from compare.schema.job import Job


class ShellCommand(NamedTuple):
    """One command for a shell, and what it is."""

    title: str
    text: str


def shell_commands(job: Job, place: LaunchPlace, hosts: Unreached) -> list[ShellCommand]:
    """Return the commands of a launch, each for one host."""
    folder = place.job_file.parent
    files = {place.job_file: msgspec.json.encode(job).decode()}
    own: dict[str, str] = {} if hosts.is_this_machine else library_settings(inherited(os.environ))
    if hosts.exported:
        exported = folder / "exported.json"
        files[exported] = msgspec.json.encode(dict.fromkeys(hosts.exported, MASK)).decode()
        own[EXPORTED] = str(exported)
    label = job.arm.label
    commands = commands_for(job.config, job.arm, place, own)
    if hosts.is_this_machine:
        return [ShellCommand(label, _shell(folder, files, commands[0]))]
    with_command = {command.host: command for command in commands if command.host}
    if with_command:
        return [
            ShellCommand(f"{label} on {host.name}", _shell(folder, files, command))
            for host, command in with_command.items()
        ]
    (command,) = commands
    others = [host for host in hosts.hosts if not is_local(host)]
    programs = {place.programs / name: text for name, text in hosts.remote_shell(place.programs).items()}
    path = f"{place.programs / 'bin'}{os.pathsep}{command.environment['PATH']}"
    here = Command(command.argv, {**command.environment, "PATH": path}) if programs else command
    return [
        ShellCommand(f"{label} on {_names(others)}, first; it ends with Ctrl-C", _shell(folder, files, None)),
        ShellCommand(f"{label}, here", _shell(folder, files, here, programs)),
    ]


def _names(hosts: Iterable[Host]) -> str:
    return ", ".join(host.name for host in hosts)


def _shell(
    folder: Path,
    files: Mapping[Path, str],
    command: Command | None,
    programs: Mapping[Path, str] = MappingProxyType({}),
) -> str:
    """Write a subshell that runs a command with its files.

    It keeps the lease of the ranks. Without a command, it does so until it is ended.
    """
    lines = ["(", "set -eu", "umask 077"]
    parents = dict.fromkeys([folder, *(path.parent for path in programs)])
    lines.append(f"mkdir -p {' '.join(map(_quote, map(str, parents)))}")
    for path, text in {**files, **programs}.items():
        lines += [f"cat >{_quote(str(path))} <<'END_OF_FILE'", text.rstrip("\n"), "END_OF_FILE"]
    if programs:
        lines.append(f"chmod u+x {' '.join(map(_quote, map(str, programs)))}")
    keep = f"while touch {_quote(str(folder / 'lease'))}; do sleep 1; done"
    if command is None:
        return "\n".join([*lines, keep, ")"])
    settings = [f"{name}={_quote(value)}" for name, value in command.environment.items()]
    words = " \\\n  ".join(["env", *settings, " ".join(map(_quote, command.argv))])
    return "\n".join([*lines, f"{keep} &", 'trap "kill $!" EXIT', words, ")"])


def _quote(word: str) -> str:
    """Quote a word for a shell, which fills in the interface."""
    parts = [shlex.quote(part) if part else "" for part in word.split(INTERFACE)]
    return f'"${{{INTERFACE}:?}}"'.join(parts) or "''"
