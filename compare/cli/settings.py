"""Take flags from the table ``[tool.ringside]`` of the nearest pyproject.toml.

A key is a flag without its leading dashes. Keys outside tables hold for every command that has the flag. Keys
in a table with the name of a command hold for that command, and take precedence. The name of a command with
two words is in quotes: ``["setup data"]``.
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
from typing import Any, NamedTuple, TypeAlias, get_args

import typer
from typer.core import TyperCommand

from compare.cli.help import EXAMPLES, MOST_USED
from compare.cli.replaced import setting_anew
from compare.errors import UsageError, system_reason
from compare.text import printable

PYPROJECT = "pyproject.toml"
"""Name of the file that is looked for; its table ``tool.ringside`` holds the settings."""
Table: TypeAlias = Mapping[str, Any]
"""The settings of a file and its tables of commands, as the TOML has them; not checked yet."""
_FLAGS_OF_FILE: ContextVar[tuple[str, ...]] = ContextVar("_FLAGS_OF_FILE", default=())
"""The settings that this command takes from a file, as they would be written on the command line."""
DATASETS = {"auto", "mnist", "digits"}
"""Values of ``--data`` that are not folders."""
_REPLACED_BY = {
    "hosts": ["hostfile"],
    "hostfile": ["hosts"],
    "quiet": ["verbose"],
    "verbose": ["quiet"],
    "backend": ["baseline"],
    "workload": ["model", "data", "optimizer"],
    **{key: ["workload"] for key in ("model", "data", "optimizer")},
}
"""For a flag on the command line, the other flags whose settings in a file it replaces."""


class Flag(NamedTuple):
    """A flag that a settings file may set."""

    option: Any
    """The parser's description of it."""
    is_path: bool


Flags: TypeAlias = Mapping[str, Flag]
"""The flags of a command by their keys in a settings file, such as ``batch_size``."""


class ConfiguredCommand(TyperCommand):
    """A command whose flags a settings file may set, and whose help shows flags in groups, and examples.

    The annotations of its callback must be types and not strings. Typer itself shows groups only with
    coloured help, which takes as long to load as all the rest.
    """

    def flags(self) -> Flags:
        """Return the flags that a settings file may set."""
        parameters = inspect.signature(self.callback).parameters  # type: ignore[arg-type]
        flags = {}
        for option in self.params:
            if option.param_type_name == "option":
                first = next(name for name in option.opts if name.startswith("--"))
                kind = get_args(parameters[option.name].annotation)[0]
                is_path = Path in (kind, *get_args(kind)) or option.name in {
                    "workload",
                    "export",
                    "data",
                    "folder",
                }
                flags[first.removeprefix("--").replace("-", "_")] = Flag(option, is_path)
        return flags

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and take the flags that they leave out from a settings file.

        The path of the file and the keys that were taken are printed on standard error, unless ``--quiet`` is
        given.

        Raises:
            UsageError: the file cannot be read, or a setting is wrong.
        """
        if ctx.resilient_parsing:  # the shell completes a word
            return super().parse_args(ctx, args)
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        if given.get("help"):
            return super().parse_args(ctx, args)
        command = ctx.command_path.partition(" ")[2]
        file = find_settings()
        if file is None:
            return super().parse_args(ctx, args)
        path, table = file
        parameters = {key: str(flag.option.name) for key, flag in self.flags().items()}
        replaced = {name for flag in given for name in (flag, *_REPLACED_BY.get(flag, []))}
        settings = settings_for(path, table, command, dict(_every_command(ctx.find_root().command)))
        taken = {key: value for key, value in settings.items() if parameters[key] not in replaced}
        if taken and not given.get("quiet", taken.get("quiet", False)):
            typer.secho(printable(f"Settings of {path}: {', '.join(taken)}"), dim=True, err=True)
        ctx.default_map = {parameters[key]: value for key, value in taken.items()}
        flags = self.flags()
        _FLAGS_OF_FILE.set(tuple(word for key in taken for word in _as_words(flags[key].option, taken[key])))
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            key = next((key for key in taken if parameters[key] == getattr(error.param, "name", "")), "")
            if not key:
                raise
            raise UsageError(
                f"{path}: {key}: {error.message.replace('Value error, ', '')}",
                remedy=f"`{ctx.command_path} --help` shows every flag and its choices.",
            ) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the flags, with each group below its name."""
        first = MOST_USED.get(ctx.command_path.partition(" ")[2], [])
        parameters = self.get_params(ctx)
        most_used = [next(one for one in parameters if flag in one.opts) for flag in first]
        groups: dict[str, list[tuple[str, str]]] = {"Most used": []} if most_used else {}
        for parameter in [*most_used, *(one for one in parameters if one not in most_used)]:
            if described := parameter.get_help_record(ctx):
                argument = parameter.param_type_name == "argument"
                name = getattr(parameter, "rich_help_panel", None) or ("Arguments" if argument else "Options")
                groups.setdefault("Most used" if parameter in most_used else name, []).append(described)
        names_width = min(30, formatter.width - 42)  # else a narrow terminal breaks words
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines, col_max=names_width)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the command's examples without line breaks, so that they can be copied."""
        examples = EXAMPLES.get(ctx.command_path.partition(" ")[2], ())
        if examples:
            with formatter.section("Examples"):
                for line in examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def command_line() -> list[str]:
    """Return the words of this program's command line, with secrets masked, so that it can be repeated.

    Settings that came from a file are added as flags.
    """
    from compare.schema.environment import hide_exports

    words = hide_exports([*sys.argv[1:], *_FLAGS_OF_FILE.get()])
    # A path may hold bytes that are no text; they are shown, not lost.
    return ["ringside", *(os.fsencode(word).decode(errors="replace") for word in words)]


def _as_words(option: Any, value: Any) -> list[str]:
    """Return the words that set an option on the command line; none for a switch that is off anyway."""
    if isinstance(value, bool):
        return (option.opts if value else option.secondary_opts)[:1]
    values = value if isinstance(value, list) else [value]
    return [word for one in values for word in (max(option.opts, key=len), one)]


def find_settings() -> tuple[Path, Table] | None:
    """Return the nearest pyproject.toml that has the table ``tool.ringside``, and its settings.

    The search goes from the working folder up through its parents. None if there is no such file.

    Raises:
        UsageError: a pyproject.toml on the way cannot be read, or is not TOML.
    """
    with suppress(FileNotFoundError):  # the command itself says that the working folder was removed
        for up in range(len(Path.cwd().parts)):
            path = Path(*[".."] * up, PYPROJECT)
            # ``Path.is_file`` raises for a folder that may not be searched.
            if os.path.isfile(path) and (table := read_settings(path)):  # noqa: PTH113
                return path, table
    return None


def read_settings(path: Path) -> Table:
    """Return the settings of a file; those of a pyproject.toml are in its table ``tool.ringside``.

    Raises:
        UsageError: the file cannot be read, or is not TOML.
    """
    from compare.system.files import read_bytes

    is_pyproject = path.name == PYPROJECT
    try:
        content = read_bytes(path)
    except OSError as error:
        raise UsageError(
            f"{path}: the settings cannot be read.",
            found=f"{system_reason(error)}.",
            remedy="Change its permissions, or work in a folder without it.",
        ) from None
    # Most projects have no settings of this program, so their files may be wrong for all it knows.
    unrelated = is_pyproject and b"ringside" not in content
    try:
        table: Any = {} if unrelated else tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # the parser's own errors are values, too
        raise UsageError(
            f"{path} is not valid TOML.",
            found=f"{error}.",
            remedy=f"Correct it there. A setting{' in [tool.ringside]' if is_pyproject else ''} looks like "
            'this: backend = ["ddp", "horovod"]',
        ) from None
    for name in ("tool", "ringside") if is_pyproject else ():
        table = table.get(name, {}) if isinstance(table, dict) else {}
    return table if isinstance(table, dict) else {}


def settings_for(path: Path, table: Table, command: str, commands: Mapping[str, Flags]) -> dict[str, Any]:
    """Return what the settings of the file ``path`` say for the flags of a command, by their keys.

    A relative path is joined to the folder of the file. ``commands`` maps every command to its flags, because
    a setting outside the tables may be for any of them.

    Raises:
        UsageError: a key is unknown, or a value has the wrong type.
    """
    shared = {key: value for key, value in table.items() if not (key in commands and isinstance(value, dict))}
    own = table.get(command)
    every_flag = {key: flag for flags in commands.values() for key, flag in flags.items()}
    read = {}
    for place, settings, known in (
        ("", shared, every_flag),
        (f"[{command}] ", own if isinstance(own, dict) else {}, commands[command]),
    ):
        for written, value in settings.items():
            key = written.replace("-", "_")
            if key not in known or isinstance(value, dict):  # no flag takes a table
                if new := setting_anew(command if place else "run", settings, written):
                    raise UsageError(f"{path}: {place}{written} is of an earlier version.", remedy=new)
                close = difflib.get_close_matches(key, [*known, *(() if place else commands)])
                raise UsageError(
                    f"{path}: {place}there is no setting {written!r}.",
                    found=f"Did you mean {' or '.join(close)}?" if close else "",
                    remedy="Settings are named like flags, and tables like commands: see "
                    f"`ringside {command} --help` and `ringside --help`.",
                )
            value_read = _read_value(f"{path}: {place}{key}", path.parent, known[key], value)
            if key in commands[command]:  # else another command has it
                read[key] = value_read
    return read


def _every_command(group: Any, path: str = "") -> Iterator[tuple[str, Flags]]:
    """Yield the name and the flags of each command in a group of commands, and in the groups within it."""
    for name, command in group.commands.items():
        if isinstance(command, ConfiguredCommand):
            yield f"{path} {name}".strip(), command.flags()
        else:
            yield from _every_command(command, name)


def _read_value(subject: str, folder: Path, flag: Flag, value: Any) -> Any:
    """Return the value of a setting as the text, the switch or the list that its flag would get.

    A relative path is joined to ``folder``. The program of ``--against`` is a path only if it has a slash.

    Raises:
        UsageError: the value is true or false for a flag that is not a switch, or the reverse, or is nested.
            The error names the ``subject``.
    """
    is_list, is_switch = flag.option.multiple, flag.option.is_flag
    values = value if is_list and isinstance(value, list) else [value]
    if any(isinstance(one, list | dict) or isinstance(one, bool) != is_switch for one in values):
        as_toml = str(value).lower() if isinstance(value, bool) else repr(value)
        right = "true or false" if is_switch else "a number, or text in quotes"
        raise UsageError(
            f"{subject} cannot be {as_toml}.",
            remedy=f"Use {right}{', or a list of them' if is_list else ''}.",
        )
    if is_switch:
        return value

    def joined(text: str) -> str:
        is_name = text.startswith("-") or text.partition(":")[0] in DATASETS
        if not is_name and (flag.is_path or (flag.option.name == "against" and os.sep in text)):
            return str(folder / os.path.expanduser(text))  # noqa: PTH111 -- Path raises for an unknown user
        return text

    return [joined(str(one)) for one in values] if is_list else joined(str(value))
