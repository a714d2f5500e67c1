"""Run the user's code in one process, and refuse its calls to other ranks.

One process must be able to compute the loss, because the proof compares every arm with a single process. So
torch gets a fake group whose collectives do nothing, and a call to other ranks raises an error with the
user's line. This finds code that communicates only where a group exists, before a real group is joined.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, ModuleType
from typing import Any

import torch.distributed as dist

from compare.data.own import belongs
from compare.workload import WorkloadError

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

    def refuse(call: str, frame: FrameType, number: int = 0) -> None:
        asker: FrameType | None = frame
        while asker and not belongs(asker.f_code.co_filename, folder):
            asker = asker.f_back
        line = f"{asker.f_code.co_filename}:{number or asker.f_lineno}" if asker else ""
        refused.append(
            WorkloadError(f"one process cannot compute {what}: it calls {call}.\n{remedy}", where=line)
        )
        raise refused[0]

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        if refused or event != "call":
            return
        if call := _watched(frame, folder):
            refuse(call, frame)
        if has_mpi and belongs(frame.f_code.co_filename, folder) and (number := _line_with_mpi(frame)):
            refuse(_MPI, frame, number)

    has_mpi = _MPI in sys.modules

    with ExitStack() as ending:
        if dist.is_available() and not dist.is_initialized():
            ending.enter_context(pretended_group(ranks))
        ending.callback(sys.setprofile, sys.getprofile())
        sys.setprofile(watch)
        yield
    if refused:  # the user's code caught the error and continued
        raise refused[0]


def _watched(frame: FrameType, folder: str) -> str:
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


def _line_with_mpi(frame: FrameType) -> int:
    """Return the first line of a function that uses or imports mpi4py, or 0.

    The search reads the function's bytecode, because mpi4py's calls are compiled and no profiler sees them.
    """
    held = {**frame.f_globals, **frame.f_locals}
    for instruction in dis.get_instructions(frame.f_code):
        value = held.get(instruction.argval) if isinstance(instruction.argval, str) else None
        is_module = isinstance(value, ModuleType) and value.__name__ == _MPI
        is_mpi = is_module or type(value).__module__ == _MPI
        if is_mpi or (instruction.opname == "IMPORT_NAME" and instruction.argval.startswith("mpi4py")):
            return (instruction.positions and instruction.positions.lineno) or frame.f_lineno
    return 0


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
