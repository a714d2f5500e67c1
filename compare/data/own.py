"""Find the folder of a workload of the user's own."""

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
"""Largest folder that is copied to other hosts."""
_MOST_NAMED = 1000
"""Most Python files that are remembered one by one."""
_MARK = 12
_QUOTED = 3
"""Changed files that a message names."""
_LEFT_OUT = {"__pycache__", "runs", "node_modules"}
_INSTALLED = {"site-packages", "dist-packages"}
_TAKEN = sys.stdlib_module_names | {
    *("backends", "compare", "horovod", "lightning_fabric", "mpi4py", "msgspec", "numpy", "psutil", "torch"),
}
"""Modules that a rank imports by these names, also after your file."""
_WRITTEN = re.compile(r"(?P<file>.+\.py):(?P<factory>[A-Za-z_][A-Za-z0-9_]*)")


def own_source(written: str) -> DatasetSource:
    """Read ``path.py:factory``, and identify the folder of the file.

    Raises:
        UsageError: it has another form, or there is no such file.
    """
    matched = _WRITTEN.fullmatch(written)
    if not matched:
        raise UsageError(
            f"--workload cannot be {written}.", remedy="Name a file and a function in it: train.py:make."
        )
    file = Path(matched["file"]).absolute()
    if not file.is_file():
        raise UsageError(
            f"--workload names {file}, which is no file.", remedy="Name your Python file: path/train.py:make."
        )
    _require_own_names(file.parent)
    code = _code(file.parent)
    return DatasetSource(
        name="own",
        requested="own",
        directory=str(file.parent),
        workload=f"{file.name}:{matched['factory']}",
        sha256=digest(code),
        code=_marks(code),
    )


def _require_own_names(folder: Path) -> None:
    """Refuse files that would hide modules of Python or of the libraries.

    Ranks import from this folder first.

    Raises:
        UsageError: names them.
    """
    taken = [path for path in sorted(folder.iterdir()) if _module_of(path) in _TAKEN]
    if taken:
        raise UsageError(
            f"{taken[0]} hides the module {_module_of(taken[0])}, which libraries of the ranks import.",
            found=f"Also: {listed(path.name for path in taken[1:])}." if taken[1:] else "",
            remedy="Rename it, or move your workload to another folder.",
        )


def _module_of(path: Path) -> str:
    """Return the name that imports a file or a package; else nothing."""
    if path.is_dir():
        return path.name if (path / "__init__.py").is_file() else ""
    return path.stem if path.suffix == ".py" else ""


def changed_files(source: DatasetSource) -> str:
    """Name the Python files that differ from the beginning of the run."""
    before, now = source.code, _marks(_code(Path(source.directory)))
    if not (before and now):
        return f"one of more than {_MOST_NAMED} Python files was changed"
    what = {name: "was changed" if name in now else "was removed" for name in before}
    differ = [name for name in sorted(before | now) if before.get(name) != now.get(name)]
    named = [f"{name} {what.get(name, 'is new')}" for name in differ[:_QUOTED]]
    return ", ".join(named) + (f", and {len(differ) - _QUOTED} more" if len(differ) > _QUOTED else "")


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a workload's folder, by their relative paths.

    Hidden files and compiled ones do not belong to it, nor do results of runs.
    """
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in _files(folder)}


def size_bytes(folder: Path) -> int:
    """Return the size of the files of a workload's folder."""
    return sum(path.stat().st_size for path in _files(folder))


def is_small(folder: Path) -> bool:
    """Return whether a workload's folder is small enough to copy."""
    return size_bytes(folder) <= MOST_BYTES


def digest(contents: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over names and bytes."""
    total = hashlib.sha256()
    for name, content in sorted(contents.items()):
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def code_digest(folder: Path) -> str:
    """Return the SHA-256 over the Python files of a workload's folder.

    Other files may change in a run, such as logs.
    """
    return digest(_code(folder))


def _code(folder: Path) -> dict[str, bytes]:
    code = (path for path in _files(folder) if path.suffix == ".py")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in code}


def _marks(code: dict[str, bytes]) -> dict[str, str]:
    """Return the start of each Python file's SHA-256, unless there are too many."""
    if len(code) > _MOST_NAMED:
        return {}
    return {name: hashlib.sha256(content).hexdigest()[:_MARK] for name, content in code.items()}


def belongs(file: str, folder: str) -> bool:
    """Return whether a file is the user's own, not an installed library."""
    path = Path(file)
    return path.is_relative_to(folder) and not _INSTALLED & set(path.parts)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the user's files, without those of virtual environments."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _LEFT_OUT)
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        yield from (Path(place, name) for name in sorted(names) if not name.startswith("."))
