"""Take flags from a file: ``--config`` and ``[tool.ringside]``."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import Enum
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from compare.cli.help import Command
from compare.cli.passing import with_parameters
from compare.errors import UsageError
from compare.text import printable

if TYPE_CHECKING:
    from compare.cli.settings_file import Flag, Flags, Kind

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
_HINTS: dict[str, Mapping[str, Any]] = {}
"""The annotations of each command's parameters, by the name of the command."""
_USED: ContextVar[Path | None] = ContextVar("_USED", default=None)
_TAKEN = f"{__name__}.taken"
"""Key in typer's context of the line that names the settings file and the keys taken from it."""
_NEVER = {"config"}
"""Flags that no file may give."""
_FILES: dict[str, Kind] = {"workload": "path", "against": "program"}
"""Flags whose text names a file."""
_KINDS: dict[type, Kind] = {bool: "switch", int: "whole number", float: "number", Path: "path"}
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


class ConfiguredCommand(Command):
    """A command whose flags a file may give."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and take the flags that they leave out from a file of settings.

        The file is that of ``--config``, or else what ``find_settings`` returns. Standard error names it with
        the keys that were taken, unless ``--quiet`` is given.

        Raises:
            UsageError: the file cannot be read, or a setting is wrong.
        """
        given: dict[str, Any] = {}
        if not ctx.resilient_parsing:  # else the shell completes a word
            given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        if ctx.resilient_parsing or given.get("help"):
            return super().parse_args(ctx, args)
        from compare.cli.settings_file import find_settings, read_settings, settings_for

        command = ctx.command_path.partition(" ")[2]
        named = given.get("config")
        file = read_settings(Path(named)) if named is not None else find_settings()
        if file is None:
            return super().parse_args(ctx, args)
        flags_of = {name: _flags_of(hints) for name, hints in _HINTS.items()}
        flags, settings = flags_of[command], settings_for(file, command, flags_of)
        replaced = {name for flag in given for name in (flag, *_RIVALS.get(flag, []))}
        taken = {key: value for key, value in settings.items() if flags[key].parameter not in replaced}
        quiet = given.get("quiet", taken.get("quiet", False))
        if (named is not None or taken) and not quiet:
            listed = ", ".join(taken) or f"none for `compare {command}`"
            typer.secho(printable(f"Settings of {file.path}: {listed}"), dim=True, err=True)
        ctx.meta[_TAKEN] = f"With settings of {file.path}: {', '.join(taken)}." if taken else ""
        ctx.default_map = {flags[key].parameter: value for key, value in taken.items()}
        _USED.set(file.path if taken and named is None else None)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            key = next((key for key in taken if flags[key].parameter == getattr(error.param, "name", "")), "")
            if not key:
                raise
            raise UsageError(
                f"{file.path}: {key}: {error.message.replace('Value error, ', '')}",
                remedy=f"`{ctx.command_path} --help` shows every flag and its choices.",
            ) from None

    def invoke(self, ctx: Any) -> Any:
        """Carry out the command; an error of usage also names the settings that were taken from a file.

        Raises:
            UsageError: a flag, or a setting in its place, is wrong.
        """
        try:
            return super().invoke(ctx)
        except UsageError as error:
            error.found = "\n".join(filter(None, [error.found, ctx.meta.get(_TAKEN)]))
            raise


def configurable(command: Callable[..., None], name: str) -> Callable[..., None]:
    """Return a command with ``--config`` added, and keep its annotations under ``name``."""
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    _HINTS[name] = hints

    @wraps(command)
    def called(*arguments: Any, config: Path | None = None, **options: Any) -> None:
        del config  # the parser has read it
        command(*arguments, **options)

    added = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile)
    parameters = [each.replace(annotation=hints[each.name]) for each in signature.parameters.values()]
    return with_parameters(called, [*parameters, added])


def command_line() -> list[str]:
    """Return the words of this program's command line, with secrets masked.

    If settings were taken from a file that the command line does not name, ``--config`` and its path are
    added.
    """
    from compare.schema.environment import masked

    used = _USED.get()
    words = [*masked(sys.argv[1:]), *(["--config", os.path.abspath(used)] if used else [])]  # noqa: PTH100
    # A path may hold bytes that are no text; they are shown, not lost.
    return ["compare", *(os.fsencode(word).decode(errors="replace") for word in words)]


def _flags_of(hints: Mapping[str, Any]) -> Flags:
    """Return the flags that a file may give to a command, from the annotations of its parameters."""
    found = {}
    for parameter, hint in hints.items():
        if get_origin(hint) is not Annotated:
            continue
        kind, *notes = get_args(hint)
        option = next((note for note in notes if isinstance(note, typer.models.OptionInfo)), None)
        if option is None:
            continue
        # With one name alone, typer keeps it in the place of the default.
        names = [option.default, *(option.param_decls or ())]
        written = [str(name) for name in names if str(name).startswith("--")] or [parameter]
        key = written[0].partition("/")[0].removeprefix("--").replace("-", "_")
        if key not in _NEVER:
            found[key] = _flag_of(parameter, key, kind, option)
    return found


def _flag_of(parameter: str, key: str, kind: Any, option: Any) -> Flag:
    from compare.cli.settings_file import Flag

    if get_origin(kind) is UnionType:
        kind = next(each for each in get_args(kind) if each is not type(None))
    many = get_origin(kind) is list
    if many:
        (kind,) = get_args(kind)
    if option.parser is not None:
        return Flag(parameter, "time", many)
    text = issubclass(kind, str | Enum)
    return Flag(parameter, _FILES.get(key, "text") if text else _KINDS[kind], many)
