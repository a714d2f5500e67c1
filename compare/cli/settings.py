"""Take flags from a TOML file: ``--config`` and ``[tool.ringside]``.

A key is a flag without its leading dashes. Keys outside tables hold for every command that has the flag. Keys
in a table with the name of a command hold for that command, and take precedence.
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
_USED_FILE: ContextVar[Path | None] = ContextVar("_USED_FILE", default=None)
"""The file whose settings this command uses, if the command line does not name it."""
_REPLACED_BY = {
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
"""For a flag on the command line, the other flags whose settings in a file it replaces."""


class Flag(NamedTuple):
    """A flag that a settings file may set."""

    parameter: str
    """Name of the command's parameter for it."""
    is_switch: bool = False
    """Whether its value is true or false."""
    is_path: bool = False
    is_list: bool = False
    """Whether it takes several values."""


Flags: TypeAlias = Mapping[str, Flag]
"""The flags of a command by their keys in a settings file, such as ``batch_size``."""


class SettingsFile(NamedTuple):
    """A settings file that was read."""

    path: Path
    table: Mapping[str, Any]
    """The settings and the tables of commands, as the TOML has them; not checked yet."""


class ConfiguredCommand(TyperCommand):
    """A command whose flags a settings file may set, and whose help shows flags in groups, and examples.

    The annotations of its callback must be types and not strings. Typer itself shows groups only with
    coloured help, which takes as long to load as all the rest.
    """

    def flags(self) -> dict[str, Flag]:
        """Return the flags that a settings file may set, by their keys."""
        parameters = inspect.signature(self.callback).parameters  # type: ignore[arg-type]
        flags = {}
        for option in self.params:
            if option.param_type_name == "option" and option.name != "config":
                first = next(name for name in option.opts if name.startswith("--"))
                kind = get_args(parameters[option.name].annotation)[0]
                kinds = [kind, *get_args(kind)]  # all of ``list[str] | None``, or one
                is_list = any(get_origin(one) is list for one in kinds)
                key = first.removeprefix("--").replace("-", "_")
                flags[key] = Flag(str(option.name), bool in kinds, Path in kinds, is_list)
        return flags

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and take the flags that they leave out from a settings file.

        The file is that of ``--config``, or else the one that ``find_settings`` finds. Its path and the keys
        that were taken are printed on standard error, unless ``--quiet`` is given.

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
        parameters = {key: flag.parameter for key, flag in self.flags().items()}
        replaced = {name for flag in given for name in (flag, *_REPLACED_BY.get(flag, []))}
        taken = {key: value for key, value in settings.items() if parameters[key] not in replaced}
        quiet = given.get("quiet", taken.get("quiet", False))
        if (named is not None or taken) and not quiet:
            listed = ", ".join(taken) or f"none for `compare {command}`"
            typer.secho(printable(f"Settings of {file.path}: {listed}"), dim=True, err=True)
        ctx.default_map = {parameters[key]: value for key, value in taken.items()}
        _USED_FILE.set(file.path if taken and named is None else None)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            key = next((key for key in taken if parameters[key] == getattr(error.param, "name", "")), "")
            if not key:
                raise
            raise UsageError(
                f"{file.path}: {key}: {error.message.replace('Value error, ', '')}",
                remedy=f"`{ctx.command_path} --help` shows every flag and its choices.",
            ) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the flags, with each group below its name."""
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
        """Write the command's examples without line breaks, so that they can be copied."""
        examples = EXAMPLES.get(ctx.command_path.partition(" ")[2], ())
        if examples:
            with formatter.section("Examples"):
                for line in examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def command_line() -> list[str]:
    """Return the words of this program's command line, with secrets masked, so that it can be repeated.

    If settings came from a file that the command line does not name, ``--config`` and its path are added.
    """
    from compare.schema.environment import hide_exports

    used = _USED_FILE.get()
    path = ["--config", os.path.abspath(used)] if used else []  # noqa: PTH100
    words = [*hide_exports(sys.argv[1:]), *path]
    # A path may hold bytes that are no text; they are shown, not lost.
    return ["compare", *(os.fsencode(word).decode(errors="replace") for word in words)]


def find_settings() -> SettingsFile | None:
    """Return the settings of the nearest pyproject.toml that has the table ``tool.ringside``.

    The search goes from the working folder up through its parents. None if there is no such file.

    Raises:
        UsageError: a pyproject.toml on the way cannot be read, or is not TOML.
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
            remedy="Make it a readable TOML file, or name another one: --config run.toml.",
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
    return SettingsFile(path, table if isinstance(table, dict) else {})


def settings_for(
    file: SettingsFile, command: str, flags_of: Mapping[str, Flags]
) -> dict[str, bool | float | str | list[str]]:
    """Return the settings that a file has for a command, by their keys.

    A relative path is joined to the folder of the file. ``flags_of`` maps every command to its flags, because
    the settings of all commands are checked.

    Raises:
        UsageError: a key is unknown, or a value has the wrong type.
    """
    settings: dict[str, dict[str, Any]] = {"": {}, command: {}}
    for owner, key, value in _settings_in(file, "", file.table, flags_of):
        if flag := flags_of[owner or command].get(key):  # else another command has it
            settings.setdefault(owner, {})[key] = _read_value(file.path, owner, key, flag, value)
    return settings[""] | settings[command]


def _every_command(group: Any, path: str = "") -> Iterator[tuple[str, Flags]]:
    """Yield the name and the flags of each command in a group of commands, and in the groups within it."""
    for name, command in group.commands.items():
        if isinstance(command, ConfiguredCommand):
            yield f"{path} {name}".strip(), command.flags()
        else:
            yield from _every_command(command, name)


def _settings_in(
    file: SettingsFile, owner: str, table: Mapping[str, Any], flags_of: Mapping[str, Flags]
) -> Iterator[tuple[str, str, Any]]:
    """Yield the owner, the key and the value of each setting in a table, and in the tables within it.

    The owner is the command of the table; it is empty for settings outside the tables of commands.

    Raises:
        UsageError: a key is unknown.
    """
    groups = {command.rpartition(" ")[0] for command in flags_of}
    keys = flags_of.get(owner, {}) if owner else {key for flags in flags_of.values() for key in flags}
    for written, value in table.items():
        key, inner = written.replace("-", "_"), f"{owner} {written}".strip()
        if isinstance(value, dict) and (inner in flags_of or inner in groups):
            yield from _settings_in(file, inner, value, flags_of)
        elif key in keys:
            yield owner, key, value
        else:
            names = [name.removeprefix(owner).strip() for name in flags_of if name.startswith(owner)]
            known = sorted(filter(None, names if isinstance(value, dict) else keys))
            close = difflib.get_close_matches(key, known)
            place = ""
            remedy = (
                "Settings are named like flags, and tables like commands: see `compare run --help` and "
                "`compare --help`."
            )
            if owner:
                place, remedy = f" in [{owner.replace(' ', '.')}]", f"Use one of: {', '.join(known)}."
            raise UsageError(
                f"{file.path}: there is no setting {written!r}{place}.",
                found=f"Did you mean {' or '.join(close)}?" if close else "",
                remedy=remedy,
            )


def _read_value(path: Path, owner: str, key: str, flag: Flag, value: Any) -> Any:
    """Return the value of a setting as the text, the switch or the list that its flag would get.

    Raises:
        UsageError: the value is true or false for a flag that is not a switch, or the reverse, or is nested.
    """
    values = value if flag.is_list and isinstance(value, list) else [value]
    if any(isinstance(one, list | dict) or isinstance(one, bool) != flag.is_switch for one in values):
        place = f"[{owner.replace(' ', '.')}] " if owner else ""
        as_toml = str(value).lower() if isinstance(value, bool) else repr(value)
        right = "true or false" if flag.is_switch else "a number, or text in quotes"
        raise UsageError(
            f"{path}: {place}{key} cannot be {as_toml}.",
            remedy=f"Use {right}{', or a list of them' if flag.is_list else ''}.",
        )
    read = [one if flag.is_switch else _joined(path.parent, key, flag, str(one)) for one in values]
    return read if flag.is_list else read[0]


def _joined(folder: Path, key: str, flag: Flag, text: str) -> str:
    """Return the text of a setting; if it is a path, it is joined to ``folder``.

    A program, as for ``--against``, is a path only if it has a slash.
    """
    is_path = flag.is_path or key == "workload" or (key == "against" and os.sep in text)
    if not is_path or text == "-":
        return text
    return str(folder / os.path.expanduser(text))  # noqa: PTH111 -- Path raises for an unknown user
