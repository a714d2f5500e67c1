"""Import the user's file, and refuse what would harm the run.

A script may read the command line, join a group, end the process or set its threads when it is imported. What
a run cannot allow raises an error with the user's line.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from compare.data.own import belongs
from compare.text import counted
from compare.worker.randomness import same_randomness
from compare.worker.users_error import place_of, text_of
from compare.workload import WorkloadError

if TYPE_CHECKING:
    from compare.data import DatasetSource

_READERS = ("/argparse.py", "/optparse.py", "/getopt.py", "/click/", "/absl/", "/fire/", "/typer/")
"""Files of libraries that read a command line."""
_AS_SCRIPT = "Put what a script does under `if __name__ == '__main__':`."
_set_at: dict[str, str] = {}
"""For each of torch's setters that was called, by name: the user's file:line of the last call."""


def call_factory(source: DatasetSource) -> Any:
    """Call the user's factory, and return its result; only the first call imports the file.

    Raises:
        WorkloadError: the file has no such function, or the code joins a group or ends the process.
        Exception: any error of the user's own code.
    """
    file, factory = (
        Path(source.directory, source.workload.partition(":")[0]),
        source.workload.partition(":")[2],
    )
    with _watched(source.directory, file):
        with same_randomness(torch.device("cpu")):  # so that the factory draws the same at every call
            module = _imported(file, source.sha256)
        make = getattr(module, factory, None)
        if not callable(make):
            raise WorkloadError(f"{file} has no function {factory}: name one that is there.")
        return make()


def require_threads(threads: int) -> None:
    """Require that torch has the number of threads that the run asked for.

    Raises:
        WorkloadError: the user's code has set another number.
    """
    if (found := torch.get_num_threads()) != threads:
        raise WorkloadError(
            f"your code sets torch to {counted(found, 'thread')}, but each rank of this run has {threads}. "
            "The figures would then be of other threads than they state.\n"
            f"Leave the call out, or run with --threads {found}.",
            where=_set_at.get("set_num_threads", ""),
        )


def set_dtype() -> str:
    """Return the default dtype and the line where the user's code has set it; empty if it has not."""
    where = _set_at.get("set_default_dtype")
    return f"{torch.get_default_dtype()} ({where})" if where else ""


@cache
def _imported(file: Path, sha256: str) -> ModuleType:
    """Import a file, and return its module; the same module if it was imported with this content."""
    del sha256
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None  # noqa: S101 -- the name ends with .py
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that its classes can be pickled by its loaders
    spec.loader.exec_module(module)
    return module


@contextmanager
def _watched(folder: str, file: Path) -> Iterator[None]:
    """Refuse code in this block that joins a group or ends the process, and note calls of torch's setters.

    ``sys.argv`` has only the file, because Ringside's own arguments are not meant for the user's code.
    """
    line, process = partial(_users_line, folder), os.getpid()

    def refuse(why: str, *_: Any, **__: Any) -> NoReturn:
        raise WorkloadError(f"{why}\n{_AS_SCRIPT}", where=line())

    def noting(name: str, setter: Callable[..., Any], *arguments: Any) -> Any:
        _set_at[name] = line()
        return setter(*arguments)

    def leave(status: int) -> None:
        if os.getpid() != process:  # a process that the user's code has started may end
            leave_really(status)
        refuse(f"your file ends the process: os._exit({status}).")

    leave_really = os._exit
    joins = "your file joins a group itself, but each arm joins its own before it trains."
    with ExitStack() as ending:
        ending.enter_context(_replaced(torch.distributed, "init_process_group", partial(refuse, joins)))
        if horovod := sys.modules.get("horovod.torch"):
            ending.enter_context(_replaced(horovod, "init", partial(refuse, joins)))
        ending.enter_context(_replaced(os, "_exit", leave))
        for name in ("set_num_threads", "set_default_dtype"):
            ending.enter_context(_replaced(torch, name, partial(noting, name, getattr(torch, name))))
        ending.enter_context(_replaced(sys, "argv", [str(file)]))
        try:
            yield
        except SystemExit as exit_:
            frames = traceback.extract_tb(exit_.__traceback__)
            reads = any(part in frame.filename for frame in frames for part in _READERS)
            why = (
                "your file reads the command line, which is not its own here."
                if reads
                else f"your file ends the process: sys.exit({exit_.code!r})."
            )
            raise WorkloadError(f"{why}\n{_AS_SCRIPT}", where=place_of(exit_, folder)) from None
        except (RuntimeError, ValueError) as error:
            if "has not been initialized" not in str(error):
                raise
            raise WorkloadError(
                f"your file asks for a group, and none exists yet.\n{text_of(error)}\n"
                "Hand over the plain model and data. The loader is given rank and ranks, and own_step wraps.",
                where=place_of(error, folder),
            ) from error
    _require_no_group(horovod=sys.modules.get("horovod.torch"), before=bool(horovod))


def _require_no_group(*, horovod: Any, before: bool) -> None:
    """Raise ``WorkloadError`` if the file has imported Horovod itself, and has joined its group."""
    if horovod and not before and horovod.is_initialized():
        raise WorkloadError(
            "your file calls hvd.init() itself, but each arm joins its own group.\n" + _AS_SCRIPT
        )


def _users_line(folder: str) -> str:
    """Return the innermost running line of the user's code, as file:line; empty if there is none."""
    frames = traceback.extract_stack()
    users = [f"{frame.filename}:{frame.lineno}" for frame in frames if belongs(frame.filename, folder)]
    return users[-1] if users else ""


@contextmanager
def _replaced(owner: Any, name: str, other: Any) -> Iterator[None]:
    real = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, real)
