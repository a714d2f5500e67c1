"""Identify a workload of the user's own by the files in its folder."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from compare.data.catalogue import DatasetSource
from compare.errors import UsageError
from compare.text import listed

MOST_BYTES = 50_000_000
"""A workload's folder is copied to other hosts if its files have no more bytes together than this."""
_MOST_NAMED = 1000
"""The hash of each Python file is kept if there are no more files than this."""
_HASH_DIGITS = 12
"""Each kept hash has this number of hexadecimal digits."""
_MOST_QUOTED = 3
"""A message names no more changed files than this."""
_LEFT_OUT = {"__pycache__", "runs", "node_modules"}
_LIBRARY_FOLDERS = {"site-packages", "dist-packages"}
_TAKEN_MODULES = sys.stdlib_module_names | {
    *("backends", "compare", "horovod", "lightning_fabric", "mpi4py", "msgspec", "numpy", "psutil", "torch"),
}
"""Names of modules that a rank may import, some of them only after the user's file."""
_WORKLOAD_PATTERN = re.compile(r"(?P<file>.+\.py):(?P<factory>[A-Za-z_][A-Za-z0-9_]*)")


def own_source(written: str) -> DatasetSource:
    """Return the source that ``path.py:factory`` names, with hashes of the Python files below its folder.

    Raises:
        UsageError: the text has another form, there is no such file, or a file beside it hides a module.
    """
    matched = _WORKLOAD_PATTERN.fullmatch(written)
    if not matched:
        raise UsageError(
            f"--workload cannot be {written}.", remedy="Name a file and a function in it: train.py:make."
        )
    file = Path(matched["file"]).absolute()
    if not file.is_file():
        raise UsageError(
            f"--workload names {file}, which is not a file.",
            remedy="Name your Python file and a function in it: path/train.py:make.",
        )
    _require_own_names(file.parent)
    code = contents(file.parent, ".py")
    return DatasetSource(
        name="own",
        requested="own",
        directory=str(file.parent),
        workload=f"{file.name}:{matched['factory']}",
        sha256=digest(code),
        code=_short_hashes(code),
    )


def _require_own_names(folder: Path) -> None:
    """Require that no file in a workload's folder hides a module of Python or of the libraries.

    Ranks import from this folder first, so they would import such a file in place of the module.

    Raises:
        UsageError: there are such files; the error names them.
    """
    taken = [path for path in sorted(folder.iterdir()) if _module_of(path) in _TAKEN_MODULES]
    if taken:
        raise UsageError(
            f"{taken[0]} hides the module {_module_of(taken[0])}, which the ranks' libraries import.",
            found=f"Also: {listed(path.name for path in taken[1:])}." if taken[1:] else "",
            remedy="Rename the file, or move your workload to another folder.",
        )


def _module_of(path: Path) -> str:
    """Return the name by which Python imports a file or folder; empty if it is not a module."""
    if path.is_dir():
        return path.name if (path / "__init__.py").is_file() else ""
    return path.stem if path.suffix == ".py" else ""


def changed_files(source: DatasetSource) -> str:
    """Return a clause that names the Python files which were changed, added or removed since the run began.

    It names at most three of them, and none if there are too many files to keep their hashes.
    """
    before, now = source.code, _short_hashes(contents(Path(source.directory), ".py"))
    if not (before and now):
        return f"one of more than {_MOST_NAMED} Python files was changed"
    change = {name: "was changed" if name in now else "was removed" for name in before}
    names = [name for name in sorted(before | now) if before.get(name) != now.get(name)]
    quoted = [f"{name} {change.get(name, 'is new')}" for name in names[:_MOST_QUOTED]]
    more = len(names) - len(quoted)
    return ", ".join(quoted) + (f", and {more} more" if more else "")


def contents(folder: Path, suffix: str = "") -> dict[str, bytes]:
    """Return the contents of the files below a workload's folder, by their paths relative to the folder.

    Files whose names do not end with ``suffix`` are left out, as are hidden files and folders, virtual
    environments, and the folders ``__pycache__``, ``node_modules`` and ``runs``.
    """
    files = (path for path in _files(folder) if path.name.endswith(suffix))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def size_bytes(folder: Path) -> int:
    """Return the total size in bytes of the files that ``contents`` reads."""
    return sum(path.stat().st_size for path in _files(folder))


def digest(contents: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over files, given as their contents by name, in the order of the names."""
    total = hashlib.sha256()
    for name, content in sorted(contents.items()):
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def code_digest(folder: Path) -> str:
    """Return the SHA-256 over the names and bytes of the Python files below a workload's folder.

    Other files do not count, because some change during a run, such as logs.
    """
    return digest(contents(folder, ".py"))


def _short_hashes(code: dict[str, bytes]) -> dict[str, str]:
    """Return the first 12 digits of each file's SHA-256, by path; empty for more than a thousand files."""
    if len(code) > _MOST_NAMED:
        return {}
    return {name: hashlib.sha256(content).hexdigest()[:_HASH_DIGITS] for name, content in code.items()}


def belongs(file: str, folder: str) -> bool:
    """Return whether a file lies below ``folder``, but not in a library that is installed there."""
    path = Path(file)
    return path.is_relative_to(folder) and not _LIBRARY_FOLDERS & set(path.parts)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the paths of the files that ``contents`` reads, in a fixed order."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _LEFT_OUT)
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        yield from (Path(place, name) for name in sorted(names) if not name.startswith("."))
