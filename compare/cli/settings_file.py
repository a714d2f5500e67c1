"""Read settings: flags that a TOML file gives.

A key is a flag without its dashes. Keys outside tables hold for every command that has the flag. Those in a
table named after a command hold for that command, and win.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from compare.errors import UsageError, system_reason
from compare.schema.hosts import shown
from compare.system.files import STANDARD_OUTPUT, read_bytes

PYPROJECT = "pyproject.toml"
"""Name of the file that is looked for; its table ``tool.ringside`` holds the settings."""
MAX_FILE_BYTES = 2**20
_SECTION = "tool.ringside"
_MOST_CLOSE = 3
_MOST_DOTS = 250
"""Maximum number of dots in a key.

The time of the parser grows with their square.
"""
_NO_KEY = re.compile(rb"[^\w.\"' \t-]+")

Kind: TypeAlias = Literal["switch", "whole number", "number", "time", "text", "path", "program"]
"""The kind of value that a flag takes.

A ``program`` is a path only if it has a slash.
"""
_RIGHT: dict[Kind, str] = {
    "switch": "true or false",
    "whole number": "a whole number, without quotes",
    "number": "a number, without quotes",
    "time": 'seconds, or a time such as "90s" or "5m"',
    "text": "text in quotes",
    "path": "a path in quotes",
    "program": "a program in quotes",
}

_TYPES: dict[Kind, tuple[type, ...]] = {
    "switch": (bool,),
    "whole number": (int,),
    "number": (int, float),
    "time": (int, float, str),
    "text": (str, int, float),
    "path": (str,),
    "program": (str,),
}


class Flag(NamedTuple):
    """A flag that a file may give."""

    parameter: str
    """Name of the command's parameter for it."""
    kind: Kind
    many: bool = False
    """Whether it takes a list."""


Flags: TypeAlias = Mapping[str, Flag]
"""The flags of a command by their keys, which have no dashes."""


class SettingsFile(NamedTuple):
    """A file of settings, as it was read."""

    path: Path
    table: Mapping[str, Any]


def find_settings() -> SettingsFile | None:
    """Return the settings of the nearest pyproject.toml that has the table ``tool.ringside``.

    The search goes from the working folder up through its parents. None if there is no such file.

    Raises:
        UsageError: such a file cannot be read, or is not TOML.
    """
    try:
        depth = len(Path.cwd().parts)
    except FileNotFoundError:  # the command itself says that the folder was removed
        return None
    for path in (Path(*[".."] * up, PYPROJECT) for up in range(depth)):
        with suppress(FileNotFoundError, PermissionError):  # nothing to be seen there
            if stat.S_ISREG(path.stat().st_mode) and (found := _read_pyproject(path)) is not None:
                return found
    return None


def read_settings(path: Path) -> SettingsFile:
    """Return the settings of a file that the user named.

    Those of a pyproject.toml are in its table ``tool.ringside``. Without this table, there are none.

    Raises:
        UsageError: it cannot be read, or is not TOML.
    """
    if path.name == PYPROJECT:
        return _read_pyproject(path) or SettingsFile(path, {})
    return SettingsFile(path, _parse(path, _read(path)))


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
        flags = flags_of[owner or command]
        if key in flags:  # else another command has it
            found.setdefault(owner, {})[key] = _read_value(file, owner, key, flags[key], value)
    return found[""] | found[command]


def _read_pyproject(path: Path) -> SettingsFile | None:
    content = _read(path)
    if b"ringside" not in content:  # most are of other projects
        return None
    table: Any = _parse(path, content)
    for name in _SECTION.split("."):
        table = table.get(name, {}) if isinstance(table, dict) else {}
    return SettingsFile(path, table) if isinstance(table, dict) and table else None


def _read(path: Path) -> bytes:
    remedy = "Name a TOML file: --config run.toml."
    try:
        content = read_bytes(path, MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{path}: the settings cannot be read.", found=f"{system_reason(error)}.", remedy=remedy
        ) from None
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(
            f"{path}: the settings are too long.", found=f"More than {MAX_FILE_BYTES:,} bytes.", remedy=remedy
        )
    return content


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    if any(part.count(b".") > _MOST_DOTS for part in _NO_KEY.split(content)):
        raise UsageError(
            f"{path}: a key has too many parts.",
            found=f"More than {_MOST_DOTS} dots.",
            remedy="Write it as tables, or shorten it.",
        )
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # the parser's own errors are values, too
        raise UsageError(
            f"{path} is not TOML.",
            found=f"{shown(str(error))}.",
            remedy='Write one setting a line: backend = ["ddp", "horovod"]',
        ) from None


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
            raise _unknown(file, owner, written, names if isinstance(value, dict) else keys)


def _unknown(file: SettingsFile, owner: str, written: str, known: Iterable[str]) -> UsageError:
    known = sorted(filter(None, known))
    close = difflib.get_close_matches(written.replace("-", "_"), known, n=_MOST_CLOSE)
    place = f" in [{owner.replace(' ', '.')}]" if owner else ""
    listed = f"Use one of: {', '.join(known)}." if owner else "It has the flags of every command: see --help."
    return UsageError(
        f"{file.path}: there is no setting {shown(written)!r}{place}.",
        found=f"Did you mean {' or '.join(close)}?" if close else "",
        remedy=listed,
    )


def _read_value(file: SettingsFile, owner: str, key: str, flag: Flag, value: Any) -> Any:
    values = value if flag.many and isinstance(value, list) else [value]
    read = [_read_one(file.path.parent, flag, one) for one in values]
    if None in read:
        of = f"[{owner.replace(' ', '.')}] " if owner else ""
        raise UsageError(
            f"{file.path}: {of}{key} cannot be {shown(_spell(value))}.",
            remedy=f"Use {_RIGHT[flag.kind]}{', or a list of them' if flag.many else ''}.",
        )
    return read if flag.many else read[0]


def _read_one(folder: Path, flag: Flag, value: Any) -> Any:
    """Return a value as its flag takes it; None if it has the wrong type."""
    kinds: Any = _TYPES[flag.kind]  # else the checker takes the value for an object
    if not isinstance(value, kinds) or (isinstance(value, bool) and flag.kind != "switch"):
        return None
    if flag.kind == "text":
        return str(value)
    is_path = flag.kind == "path" or (flag.kind == "program" and os.sep in value)
    if is_path and value != str(STANDARD_OUTPUT):
        return str(folder / os.path.expanduser(value))  # noqa: PTH111 -- Path raises for an unknown user
    return value


def _spell(value: Any) -> str:
    """Write a value as TOML does, where that differs from Python."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
