"""Take flags from a TOML file: ``--config`` and ``[tool.ringside]``.

A key is a flag without its dashes. Keys outside tables hold for every command that has the flag. Those in a
table named after a command hold for that command, and win.
"""

from __future__ import annotations

import difflib
import inspect
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_origin

import typer
from typer.core import TyperCommand

from compare.cli.help import EXAMPLES
from compare.errors import UsageError, system_reason
from compare.text import printable

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        rich_help_panel="Settings",
        show_default="[tool.ringside] of the nearest pyproject.toml",
        help="TOML file with flags, as backend = ['ddp', 'mpi']. Flags of the command line win.",
    ),
]
PYPROJECT = "pyproject.toml"
"""Name of the file that is looked for; its table ``tool.ringside`` holds the settings."""
_USED: ContextVar[Path | None] = ContextVar("_USED", default=None)
_RIVALS = {
    "hosts": ["hostfile"],
    "hostfile": ["hosts"],
    "num_proc": ["nproc_per_node"],
    "nproc_per_node": ["num_proc"],
    "quiet": ["verbose"],
    "verbose": ["quiet"],
    "backend": ["baseline"],
    "epochs": ["steps"],
    "steps": ["epochs"],
    "workload": ["model", "dataset", "data_dir", "optimizer", "lr", "epochs"],
    **{key: ["workload"] for key in ("model", "dataset", "data_dir", "optimizer", "lr")},
}
"""For a flag on the command line, the settings of other flags that it replaces."""


class Flag(NamedTuple):
    """A flag that a file may give."""

    parameter: str
    """Name of the command's parameter for it."""
    is_switch: bool = False
    """Whether it takes true or false."""
    is_path: bool = False
    many: bool = False
    """Whether it takes a list."""


Flags: TypeAlias = Mapping[str, Flag]
"""The flags of a command by their keys, which have no dashes."""


class SettingsFile(NamedTuple):
    """A file of settings, as it was read."""

    path: Path
    table: Mapping[str, Any]


class ConfiguredCommand(TyperCommand):
    """A command whose flags a file may give, and whose help shows them in groups, and examples.

    The annotations of its callback are evaluated. Typer itself shows groups only with coloured help, which
    takes as long to load as all the rest.
    """

    def flags(self) -> dict[str, Flag]:
        """Return the flags that a file may give, by their keys."""
        parameters = inspect.signature(self.callback).parameters  # type: ignore[arg-type]
        found = {}
        for option in self.params:
            if option.param_type_name == "option" and option.name != "config":
                first = next(name for name in option.opts if name.startswith("--"))
                kind = get_args(parameters[option.name].annotation)[0]
                kinds = [kind, *get_args(kind)]  # all of ``list[str] | None``, or one
                many = any(get_origin(one) is list for one in kinds)
                key = first.removeprefix("--").replace("-", "_")
                found[key] = Flag(str(option.name), bool in kinds, Path in kinds, many)
        return found

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and take the flags that they leave out from a file of settings.

        The file is that of ``--config``, or else what ``find_settings`` returns. Standard error names it with
        the keys that were taken, unless ``--quiet`` is given.

        Raises:
            UsageError: the file cannot be read, or a setting is wrong.
        """
        if ctx.resilient_parsing:  # the shell completes a word
            return super().parse_args(ctx, args)
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        if given.get("help"):
            return super().parse_args(ctx, args)
        command = ctx.command_path.partition(" ")[2]
        named = given.get("config")
        file = read_settings(Path(named)) if named is not None else find_settings()
        if file is None:
            return super().parse_args(ctx, args)
        settings = settings_for(file, command, dict(_every_command(ctx.find_root().command)))
        name_of = {key: flag.parameter for key, flag in self.flags().items()}
        replaced = {name for flag in given for name in (flag, *_RIVALS.get(flag, []))}
        taken = {key: value for key, value in settings.items() if name_of[key] not in replaced}
        quiet = given.get("quiet", taken.get("quiet", False))
        if (named is not None or taken) and not quiet:
            listed = ", ".join(taken) or f"none for `compare {command}`"
            typer.secho(printable(f"Settings of {file.path}: {listed}"), dim=True, err=True)
        ctx.default_map = {name_of[key]: value for key, value in taken.items()}
        _USED.set(file.path if taken and named is None else None)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            key = next((key for key in taken if name_of[key] == getattr(error.param, "name", "")), "")
            if not key:
                raise
            raise UsageError(
                f"{file.path}: {key}: {error.message.replace('Value error, ', '')}",
                remedy=f"`{ctx.command_path} --help` shows every flag and its choices.",
            ) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each group of flags below its name."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if described := parameter.get_help_record(ctx):
                argument = parameter.param_type_name == "argument"
                name = getattr(parameter, "rich_help_panel", None) or ("Arguments" if argument else "Options")
                groups.setdefault(name, []).append(described)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples without line breaks, so that they can be copied."""
        examples = EXAMPLES.get(ctx.command_path.partition(" ")[2], ())
        if examples:
            with formatter.section("Examples"):
                for line in examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def command_line() -> list[str]:
    """Return the words of this program's command line, with secrets masked.

    If settings were taken from a file that the command line does not name, ``--config`` and its path are
    added.
    """
    from compare.schema.environment import hide_exports

    used = _USED.get()
    path = ["--config", os.path.abspath(used)] if used else []  # noqa: PTH100
    words = [*hide_exports(sys.argv[1:]), *path]
    # A path may hold bytes that are no text; they are shown, not lost.
    return ["compare", *(os.fsencode(word).decode(errors="replace") for word in words)]


def find_settings() -> SettingsFile | None:
    """Return the settings of the nearest pyproject.toml that has the table ``tool.ringside``.

    The search goes from the working folder up through its parents. None if there is no such file.

    Raises:
        UsageError: such a file cannot be read, or is not TOML.
    """
    with suppress(FileNotFoundError):  # the command itself says that the working folder was removed
        for up in range(len(Path.cwd().parts)):
            path = Path(*[".."] * up, PYPROJECT)
            # ``Path.is_file`` raises for a folder that may not be searched.
            if os.path.isfile(path) and (found := read_settings(path)).table:  # noqa: PTH113
                return found
    return None


def read_settings(path: Path) -> SettingsFile:
    """Return the settings of a file; those of a pyproject.toml are in its table ``tool.ringside``.

    Raises:
        UsageError: it cannot be read, or is not TOML.
    """
    from compare.system.files import read_bytes

    of_a_project = path.name == PYPROJECT
    try:
        content = read_bytes(path)
    except OSError as error:
        raise UsageError(
            f"{path}: the settings cannot be read.",
            found=f"{system_reason(error)}.",
            remedy="Make it a readable TOML file, or name another one: --config run.toml.",
        ) from None
    # Most projects have no settings of this program, so their files may be wrong for all it knows.
    unrelated = of_a_project and b"ringside" not in content
    try:
        table: Any = {} if unrelated else tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # the parser's own errors are values, too
        raise UsageError(
            f"{path} is not valid TOML.",
            found=f"{error}.",
            remedy='Write one setting a line: backend = ["ddp", "horovod"]',
        ) from None
    for name in ("tool", "ringside") if of_a_project else ():
        table = table.get(name, {}) if isinstance(table, dict) else {}
    return SettingsFile(path, table if isinstance(table, dict) else {})


def settings_for(
    file: SettingsFile, command: str, flags_of: Mapping[str, Flags]
) -> dict[str, bool | float | str | list[str]]:
    """Return the settings of a command by their keys.

    A relative path is joined to the folder of the file. ``flags_of`` has the flags of every command, because
    the whole file is checked.

    Raises:
        UsageError: a key is unknown, or a value has the wrong type.
    """
    found: dict[str, dict[str, Any]] = {"": {}, command: {}}
    for owner, key, value in _entries(file, "", file.table, flags_of):
        if flag := flags_of[owner or command].get(key):  # else another command has it
            found.setdefault(owner, {})[key] = _read_value(file.path, owner, key, flag, value)
    return found[""] | found[command]


def _every_command(group: Any, path: str = "") -> Iterator[tuple[str, Flags]]:
    """Yield each command below a group with its flags."""
    for name, command in group.commands.items():
        if isinstance(command, ConfiguredCommand):
            yield f"{path} {name}".strip(), command.flags()
        else:
            yield from _every_command(command, name)


def _entries(
    file: SettingsFile, owner: str, table: Mapping[str, Any], flags_of: Mapping[str, Flags]
) -> Iterator[tuple[str, str, Any]]:
    """Yield the command, the key and the value of each setting; the command is empty outside its tables.

    Raises:
        UsageError: a key is unknown.
    """
    groups = {command.rpartition(" ")[0] for command in flags_of}
    keys = flags_of.get(owner, {}) if owner else {key for flags in flags_of.values() for key in flags}
    for written, value in table.items():
        key, inner = written.replace("-", "_"), f"{owner} {written}".strip()
        if isinstance(value, dict) and (inner in flags_of or inner in groups):
            yield from _entries(file, inner, value, flags_of)
        elif key in keys:
            yield owner, key, value
        else:
            names = [name.removeprefix(owner).strip() for name in flags_of if name.startswith(owner)]
            known = sorted(filter(None, names if isinstance(value, dict) else keys))
            raise _unknown(file.path, owner, written, known)


def _unknown(path: Path, owner: str, written: str, known: list[str]) -> UsageError:
    close = difflib.get_close_matches(written.replace("-", "_"), known)
    place = f" in [{owner.replace(' ', '.')}]" if owner else ""
    listed = f"Use one of: {', '.join(known)}." if owner else "Settings are named like flags: see --help."
    return UsageError(
        f"{path}: there is no setting {written!r}{place}.",
        found=f"Did you mean {' or '.join(close)}?" if close else "",
        remedy=listed,
    )


def _read_value(path: Path, owner: str, key: str, flag: Flag, value: Any) -> Any:
    """Return a value as the command line would give it to its flag, which reads it further.

    Raises:
        UsageError: it is true or false where the flag takes another value, or the reverse, or it is nested.
    """
    values = value if flag.many and isinstance(value, list) else [value]
    if any(isinstance(one, list | dict) or isinstance(one, bool) != flag.is_switch for one in values):
        place = f"[{owner.replace(' ', '.')}] " if owner else ""
        as_toml = str(value).lower() if isinstance(value, bool) else repr(value)
        right = "true or false" if flag.is_switch else "a number, or text in quotes"
        raise UsageError(
            f"{path}: {place}{key} cannot be {as_toml}.",
            remedy=f"Use {right}{', or a list of them' if flag.many else ''}.",
        )
    read = [one if flag.is_switch else _joined(path.parent, key, flag, str(one)) for one in values]
    return read if flag.many else read[0]


def _joined(folder: Path, key: str, flag: Flag, text: str) -> str:
    """Return a text, or a path joined to ``folder``; a program is a path only if it has a slash."""
    is_path = flag.is_path or key == "workload" or (key == "against" and os.sep in text)
    if not is_path or text == "-":
        return text
    return str(folder / os.path.expanduser(text))  # noqa: PTH111 -- Path raises for an unknown user
