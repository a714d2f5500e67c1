"""Import the user's file, call the function in it that makes a workload, and refuse what would harm the run.

This function is called the factory. A script may read the command line, join a group, end the process or set
its threads when it is imported. A loss may call other ranks, but one process must be able to compute it,
because the proof compares every arm with a single process. What a run cannot allow raises an error with the
user's line.
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
from typing import Any, NoReturn, TypeAlias
from unittest.mock import patch

import torch
import torch.distributed as dist

from compare.data import DatasetSource
from compare.data.own import belongs, changed_files, code_digest
from compare.schema.config import RunConfig
from compare.text import counted
from compare.worker.messages import describe_error, user_line_of
from compare.worker.randomness import same_randomness
from compare.workload import Workload, WorkloadError

_CALLS = 12
"""Number of calls of the factory in a launch, besides three for each rank's shard."""
_MOST_SECONDS = 5.0
"""Maximum time of all these calls together; a slower factory is called only once."""

_ARGUMENT_READERS = ("/argparse.py", "/optparse.py", "/getopt.py", "/click/", "/absl/", "/fire/", "/typer/")
"""Parts of the paths of libraries that read a command line."""
_NOT_AS_SCRIPT = (
    "Neither the import of the file nor its factory may do that. Put what a script does under "
    "`if __name__ == '__main__':`."
)
_LIBRARIES = ("/torch/distributed/", "/horovod/")
"""Parts of the paths of libraries that communicate."""
_WATCHED_FILES = {
    "/torch/distributed/distributed_c10d.py": "torch.distributed",
    "/torch/distributed/nn/functional.py": "torch.distributed.nn",
    "/torch/distributed/_functional_collectives.py": "torch.distributed",
    "/horovod/torch/mpi_ops.py": "horovod.torch",
    "/horovod/torch/functions.py": "horovod.torch",
    "/horovod/common/basics.py": "horovod.torch",
}
"""For each file whose functions are watched, by the end of its path, the module that a message names."""
_SENDING = ("reduce", "gather", "scatter", "broadcast", "all_to_all", "alltoall", "barrier", "send", "recv")
_JOINING = ("init_process_group", "new_group", "new_subgroups", "init", "join")
_ASKING = ("is_initialized", "get_world_size", "get_rank", "size", "rank", "local_rank", "local_size")
"""Functions of these files that ask for the rank or the number of ranks."""
_MPI = "mpi4py.MPI"
_setter_lines: dict[str, str] = {}
"""The line of the user's last call of each of torch's setters, as file:line, by the setter's name."""


MakeWorkload: TypeAlias = "Callable[[], Workload]"
"""A function without arguments that calls the user's factory and returns the new workload."""


def load_workload(source: DatasetSource, seed: int) -> MakeWorkload:
    """Import the user's file with seeded generators, and return a function that calls its factory.

    The returned one raises ``WorkloadError`` if the file has no such factory, if the factory returns no
    workload, or if it joins a group or ends the process. Errors of the user's own code stay as they are.

    Raises:
        WorkloadError: a Python file in the user's folder has changed since the run began, or the import joins
            a group or ends the process.
    """
    folder = Path(source.directory)
    if code_digest(folder) != source.sha256:
        raise WorkloadError(
            f"{folder} has changed since the run began: {changed_files(source)}. Run again, and save no "
            "Python file there before the run ends."
        )
    name, _, factory = source.workload.partition(":")
    # Here and not in the factory's first call, whose time decides how often it is called.
    with _refused_script_acts(source.directory, folder / name), same_randomness(torch.device("cpu"), seed):
        _import_once(folder / name, source.sha256)
    return partial(_make_workload, source, folder / name, factory)


def _make_workload(source: DatasetSource, file: Path, factory: str) -> Workload:
    """Return a new workload from the factory of this name in the user's file."""
    with _refused_script_acts(source.directory, file):
        make = getattr(_import_once(file, source.sha256), factory, None)
        if not callable(make):
            raise WorkloadError(
                f"{file} has no function {factory}. Name one that it has after the colon of --workload."
            )
        workload = make()
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"{file}:{factory} returned {type(workload).__name__}. Return a compare.workload.Workload."
        )
    return workload


class Factory:
    """A callable that returns a new workload at each call, by the user's factory ``make``.

    All but the data sets and the loader is new, so models and closures of each workload keep their own state.
    A slow factory is called only once; then each workload gets a copy of its model, but all share closures.
    """

    def __init__(self, make: MakeWorkload, config: RunConfig, device: torch.device) -> None:
        self._make, self._seed, self._device = make, config.seed, device
        begun = monotonic()
        self.first = self._call()
        """The first workload, whose data and loader all others share."""
        calls = _CALLS + 3 * config.ranks
        self._model_to_copy = None
        if (monotonic() - begun) * calls > _MOST_SECONDS:
            with suppress(RuntimeError, TypeError):  # a model that cannot be copied is made anew instead
                self._model_to_copy = copy.deepcopy(self.first.model)

    @property
    def is_slow(self) -> bool:
        """Return whether the user's factory is called only once, and its model copied for each workload."""
        return self._model_to_copy is not None

    def __call__(self) -> Workload:
        """Return a new workload, with the data and the loader of the first one."""
        if self._model_to_copy is not None:
            return dataclasses.replace(self.first, model=copy.deepcopy(self._model_to_copy))
        first = self.first
        return dataclasses.replace(
            self._call(), data=first.data, test_data=first.test_data, loader=first.loader
        )

    def _call(self) -> Workload:
        with same_randomness(self._device, self._seed):
            return self._make()


def require_threads(threads: int) -> None:
    """Check that torch uses the number of threads that the run gives each rank.

    Raises:
        WorkloadError: the user's code has set another number.
    """
    if (found := torch.get_num_threads()) != threads:
        raise WorkloadError(
            f"your code sets torch to {counted(found, 'thread')}, but this run gives each rank {threads}. "
            "The results would then state the wrong number of threads.\n"
            f"Remove your call of torch.set_num_threads, or run with --threads {found}.",
            where=_setter_lines.get("set_num_threads", ""),
        )


def default_dtype_of_user() -> str:
    """Return the default dtype that the user's code set, as ``DTYPE (FILE:LINE)``; empty if it set none."""
    where = _setter_lines.get("set_default_dtype")
    return f"{torch.get_default_dtype()} ({where})" if where else ""


@cache
def _import_once(file: Path, sha256: str) -> ModuleType:
    """Return the module of a file, which is imported only once as long as its ``sha256`` is the same."""
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
def _refused_script_acts(folder: str, file: Path) -> Iterator[None]:
    """Raise ``WorkloadError`` if the user's code in the block joins or needs a group, or ends the process.

    The lines of calls of torch's setters are kept in ``_setter_lines``. ``sys.argv`` has only the file,
    because Ringside's own arguments are not meant for the user's code.
    """
    user_line, process = partial(_running_user_line, folder), os.getpid()

    def refuse(why: str, *_: Any, **__: Any) -> NoReturn:
        raise WorkloadError(f"{why}\n{_NOT_AS_SCRIPT}", where=user_line())

    def note_and_set(name: str, setter: Callable[..., Any], *arguments: Any) -> Any:
        _setter_lines[name] = user_line()
        return setter(*arguments)

    def leave(status: int) -> None:
        if os.getpid() != process:  # a process that the user's code has started may end
            leave_really(status)
        refuse(f"your file ends the process: os._exit({status}).")

    leave_really = os._exit
    why = "your file joins a group itself, but each arm joins its own before it trains."
    with ExitStack() as ending:
        ending.enter_context(patch.object(dist, "init_process_group", partial(refuse, why)))
        if horovod := sys.modules.get("horovod.torch"):
            ending.enter_context(patch.object(horovod, "init", partial(refuse, why)))
        ending.enter_context(patch.object(os, "_exit", leave))
        for name in ("set_num_threads", "set_default_dtype"):
            ending.enter_context(patch.object(torch, name, partial(note_and_set, name, getattr(torch, name))))
        ending.enter_context(patch.object(sys, "argv", [str(file)]))
        try:
            yield
        except SystemExit as exit_:
            message = f"{_why_exit(exit_)}\n{_NOT_AS_SCRIPT}"
            raise WorkloadError(message, where=user_line_of(exit_, folder)) from None
        except (RuntimeError, ValueError) as error:
            if "has not been initialized" not in str(error):
                raise
            raise WorkloadError(
                f"your file asks for a group, but none exists yet.\n{describe_error(error)}\n"
                "Return the plain model and data. loader gets the rank and the number of ranks, and own_step "
                "may wrap the model.",
                where=user_line_of(error, folder),
            ) from error
    _require_no_group(imported_before=bool(horovod))


def _require_no_group(*, imported_before: bool) -> None:
    """Raise ``WorkloadError`` if the user's file was the first to import Horovod, and joined its group."""
    horovod = sys.modules.get("horovod.torch")
    if not imported_before and horovod and horovod.is_initialized():
        raise WorkloadError(
            f"your file calls hvd.init() itself, but each arm joins its own group.\n{_NOT_AS_SCRIPT}"
        )


def _why_exit(exit_: SystemExit) -> str:
    """Describe in a sentence why the user's code ended the process."""
    frames = traceback.extract_tb(exit_.__traceback__)
    if any(part in frame.filename for frame in frames for part in _ARGUMENT_READERS):
        return "your file reads the command line, but the arguments there are not meant for it."
    return f"your file ends the process: sys.exit({exit_.code!r})."


def _running_user_line(folder: str, frame: FrameType | None = None) -> str:
    """Return the innermost running line in the user's folder, as file:line; empty if there is none.

    The search begins at ``frame``; without one, at the caller.
    """
    frames = traceback.extract_stack(frame)
    lines = [f"{frame.filename}:{frame.lineno}" for frame in frames if belongs(frame.filename, folder)]
    return lines[-1] if lines else ""


# ---- in a single process ----


@contextmanager
def refused_calls_to_ranks(what: str, folder: str, ranks: int, remedy: str) -> Iterator[None]:
    """Run the block, and refuse its calls to other ranks.

    The user's files, in ``folder``, may not ask for the rank or the number of ranks either, because the
    answer would change what they compute. In the message, ``what`` is what the block computes, such as the
    loss, and ``remedy`` is the end. If there is no group, the block gets a fake one of ``ranks`` ranks.

    Raises:
        WorkloadError: the block calls other ranks, even if it catches the error itself.
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
            refused.append(WorkloadError(message, where=line or _running_user_line(folder, frame)))
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
    module = next((module for end, module in _WATCHED_FILES.items() if file.endswith(end)), None)
    if module is None:
        return ""
    caller = frame.f_back
    while caller and _is_library(caller.f_code.co_filename, folder):
        caller = caller.f_back
    by_user = caller is not None and belongs(caller.f_code.co_filename, folder)
    communicates = name in _JOINING or any(part in name for part in _SENDING)
    return f"{module}.{name}" if communicates or (by_user and name in _ASKING) else ""


def _is_library(file: str, folder: str) -> bool:
    return any(part in file for part in _LIBRARIES) and not belongs(file, folder)


def _line_with_mpi(frame: FrameType) -> str:
    """Return the first line of a called function that uses or imports mpi4py, as file:line.

    The result is empty if there is none. The function's bytecode is searched, because mpi4py's calls are
    compiled and no profiler sees them.
    """
    variables = {**frame.f_globals, **frame.f_locals}
    for instruction in dis.get_instructions(frame.f_code):
        value = variables.get(instruction.argval) if isinstance(instruction.argval, str) else None
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
