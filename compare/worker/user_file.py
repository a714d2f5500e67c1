"""Import the user's file, call its factory as often as a launch needs, and refuse what would harm the run.

A script may read the command line, join a group, end the process or set its threads when it is imported. Its
loss may call other ranks, but one process must be able to compute the loss, because the proof compares every
arm with a single process. What a run cannot allow raises an error with the user's line.
"""

from __future__ import annotations

import copy
import dataclasses
import dis
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from time import monotonic
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch
import torch.distributed as dist

from compare.data.own import belongs, changed_files, code_digest
from compare.text import counted
from compare.worker.messages import place_of, text_of
from compare.worker.randomness import same_randomness
from compare.workload import Workload, WorkloadError

if TYPE_CHECKING:
    from compare.data import DatasetSource
    from compare.schema.config import RunConfig

_CALLS = 12
"""Calls of the factory in a launch, besides three for each rank's shard."""
_MOST_SECONDS = 5.0
"""Most time that all these calls may take; a slower factory is called only once."""

_READERS = ("/argparse.py", "/optparse.py", "/getopt.py", "/click/", "/absl/", "/fire/", "/typer/")
"""Files of libraries that read a command line."""
_AS_SCRIPT = (
    "Neither the import of the file nor its factory may do that. Put what a script does under "
    "`if __name__ == '__main__':`."
)
_LIBRARIES = ("/torch/distributed/", "/horovod/")
_FILES = {
    "/torch/distributed/distributed_c10d.py": "torch.distributed",
    "/torch/distributed/nn/functional.py": "torch.distributed.nn",
    "/torch/distributed/_functional_collectives.py": "torch.distributed",
    "/horovod/torch/mpi_ops.py": "horovod.torch",
    "/horovod/torch/functions.py": "horovod.torch",
    "/horovod/common/basics.py": "horovod.torch",
}
"""Ends of the paths of files whose functions are watched, and the module that a message names."""
_MOVES = ("reduce", "gather", "scatter", "broadcast", "all_to_all", "alltoall", "barrier", "send", "recv")
_MAKES = ("init_process_group", "new_group", "new_subgroups", "init", "join")
_ASKS = ("is_initialized", "get_world_size", "get_rank", "size", "rank", "local_rank", "local_size")
_MPI = "mpi4py.MPI"
_set_at: dict[str, str] = {}
"""For each of torch's setters that was called, by name: the user's file:line of the last call."""


MakeWorkload: TypeAlias = "Callable[[], Workload]"
"""A call of the user's factory, which returns a new workload."""


def load_workload(source: DatasetSource, seed: int) -> MakeWorkload:
    """Check the user's folder, import the file with seeded generators, and return a call of its factory.

    The call raises ``WorkloadError`` if the file has no such factory, if the factory returns no workload, or
    if the code joins a group or ends the process. Errors of the user's own code are raised as they are.

    Raises:
        WorkloadError: a Python file in the folder has changed since the run began, or the file acts as a
            script.
    """
    folder = Path(source.directory)
    if code_digest(folder) != source.sha256:
        raise WorkloadError(
            f"{folder} has changed since the run began: {changed_files(source)}. Run again, and save no "
            "Python file there before the run ends."
        )
    name, _, factory = source.workload.partition(":")
    # Here and not in the factory's first call, whose time decides how often it is called.
    with _watched(source.directory, folder / name), same_randomness(torch.device("cpu"), seed):
        _imported(folder / name, source.sha256)
    return partial(_make_workload, source, folder / name, factory)


def _make_workload(source: DatasetSource, file: Path, factory: str) -> Workload:
    with _watched(source.directory, file):
        make = getattr(_imported(file, source.sha256), factory, None)
        if not callable(make):
            raise WorkloadError(f"{file} has no function {factory}. Name one that it has.")
        made = make()
    if not isinstance(made, Workload):
        raise WorkloadError(
            f"{file}:{factory} returned {type(made).__name__}. Return a compare.workload.Workload."
        )
    return made


class Factory:
    """A callable that returns a new workload for each use.

    All but the data and the loader is new, so each use has its own state in the model and in closures. A slow
    factory is called only once. Then each use gets a copy of its model, and all share its closures.
    """

    def __init__(self, make: MakeWorkload, config: RunConfig, device: torch.device) -> None:
        self._make, self._seed, self._device = make, config.seed, device
        begun = monotonic()
        self.first = self._call()
        calls = _CALLS + 3 * config.ranks
        self._copied = None
        if (monotonic() - begun) * calls > _MOST_SECONDS:
            with suppress(RuntimeError, TypeError):  # a model that cannot be copied is made anew instead
                self._copied = copy.deepcopy(self.first.model)

    @property
    def is_slow(self) -> bool:
        """Return whether the user's factory is called only once, and its model copied for each use."""
        return self._copied is not None

    def __call__(self) -> Workload:
        """Return a new workload, with the data and the loader of the first one."""
        if self._copied is not None:
            return dataclasses.replace(self.first, model=copy.deepcopy(self._copied))
        first = self.first
        return dataclasses.replace(
            self._call(), data=first.data, test_data=first.test_data, loader=first.loader
        )

    def _call(self) -> Workload:
        with same_randomness(self._device, self._seed):
            return self._make()


def require_threads(threads: int) -> None:
    """Require that torch has the number of threads that the run asked for.

    Raises:
        WorkloadError: the user's code has set another number.
    """
    if (found := torch.get_num_threads()) != threads:
        raise WorkloadError(
            f"your code sets torch to {counted(found, 'thread')}, but this run gives each rank {threads}. "
            "The results would then state the wrong number of threads.\n"
            f"Remove your call of torch.set_num_threads, or run with --threads {found}.",
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
        ending.enter_context(_replaced(dist, "init_process_group", partial(refuse, joins)))
        if horovod := sys.modules.get("horovod.torch"):
            ending.enter_context(_replaced(horovod, "init", partial(refuse, joins)))
        ending.enter_context(_replaced(os, "_exit", leave))
        for name in ("set_num_threads", "set_default_dtype"):
            ending.enter_context(_replaced(torch, name, partial(noting, name, getattr(torch, name))))
        ending.enter_context(_replaced(sys, "argv", [str(file)]))
        try:
            yield
        except SystemExit as exit_:
            raise WorkloadError(f"{_why_exit(exit_)}\n{_AS_SCRIPT}", where=place_of(exit_, folder)) from None
        except (RuntimeError, ValueError) as error:
            if "has not been initialized" not in str(error):
                raise
            raise WorkloadError(
                f"your file asks for a group, but none exists yet.\n{text_of(error)}\n"
                "Return the plain model and data. loader gets the rank and the number of ranks, and own_step "
                "may wrap the model.",
                where=place_of(error, folder),
            ) from error
    _require_no_group(before=bool(horovod))


def _require_no_group(*, before: bool) -> None:
    """Raise ``WorkloadError`` if the file has imported Horovod itself, and has joined its group."""
    horovod = sys.modules.get("horovod.torch")
    if not before and horovod and horovod.is_initialized():
        raise WorkloadError(
            f"your file calls hvd.init() itself, but each arm joins its own group.\n{_AS_SCRIPT}"
        )


def _why_exit(exit_: SystemExit) -> str:
    frames = traceback.extract_tb(exit_.__traceback__)
    if any(part in frame.filename for frame in frames for part in _READERS):
        return "your file reads the command line, which is not its own here."
    return f"your file ends the process: sys.exit({exit_.code!r})."


def _users_line(folder: str, frame: FrameType | None = None) -> str:
    """Return the innermost running line of the user's code, as file:line; empty if there is none.

    The search begins at ``frame``, or at the caller.
    """
    frames = traceback.extract_stack(frame)
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


# ---- in one process alone ----


@contextmanager
def alone(what: str, folder: str, ranks: int, remedy: str) -> Iterator[None]:
    """Run the block, and refuse its calls to other ranks.

    ``what`` names the block in the message, such as the loss, and ``remedy`` ends the message. The user's
    files, in ``folder``, may not ask for rank or number of ranks either, because the answer would change what
    they compute. Where no group exists, the block gets a fake one of ``ranks`` ranks.

    Raises:
        WorkloadError: the block calls other ranks, even if it catches the error; it has the user's line.
    """
    refused: list[WorkloadError] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        if refused or event != "call":
            return
        call, line = _refused_call(frame, folder), ""
        if has_mpi and not call and belongs(frame.f_code.co_filename, folder):
            line = _line_with_mpi(frame)
        if call or line:
            message = f"one process cannot compute {what}: it calls {call or _MPI}.\n{remedy}"
            refused.append(WorkloadError(message, where=line or _users_line(folder, frame)))
            raise refused[0]

    has_mpi = _MPI in sys.modules
    with ExitStack() as ending:
        if dist.is_available() and not dist.is_initialized():
            ending.enter_context(pretended_group(ranks))
        ending.callback(sys.setprofile, sys.getprofile())
        sys.setprofile(watch)
        yield
    if refused:  # the user's code caught the error and continued
        raise refused[0]


def _refused_call(frame: FrameType, folder: str) -> str:
    """Return the name of a refused call, such as ``torch.distributed.all_reduce``; empty if it is allowed."""
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    module = next((module for end, module in _FILES.items() if file.endswith(end)), None)
    if module is None:
        return ""
    asker = frame.f_back
    while asker and _is_library(asker.f_code.co_filename, folder):
        asker = asker.f_back
    by_user = asker is not None and belongs(asker.f_code.co_filename, folder)
    moves = name in _MAKES or any(part in name for part in _MOVES)
    return f"{module}.{name}" if moves or (by_user and name in _ASKS) else ""


def _is_library(file: str, folder: str) -> bool:
    return any(part in file for part in _LIBRARIES) and not belongs(file, folder)


def _line_with_mpi(frame: FrameType) -> str:
    """Return the first line of a function that uses or imports mpi4py, as file:line; empty if none does.

    The search reads the function's bytecode, because mpi4py's calls are compiled and no profiler sees them.
    """
    held = {**frame.f_globals, **frame.f_locals}
    for instruction in dis.get_instructions(frame.f_code):
        value = held.get(instruction.argval) if isinstance(instruction.argval, str) else None
        is_module = isinstance(value, ModuleType) and value.__name__ == _MPI
        is_mpi = is_module or type(value).__module__ == _MPI
        if is_mpi or (instruction.opname == "IMPORT_NAME" and instruction.argval.startswith("mpi4py")):
            line = (instruction.positions and instruction.positions.lineno) or frame.f_lineno
            return f"{frame.f_code.co_filename}:{line}"
    return ""


@contextmanager
def pretended_group(ranks: int) -> Iterator[None]:
    """Give torch a fake group of ``ranks`` ranks during the block; its collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook  # torch puts its own around it with every group
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
