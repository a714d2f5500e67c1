"""Load one library in a process of its own and say what it is: ``python -m backends.probe LIBRARY``.

The answer is printed, in JSON and a line of its own. Libraries that were built for another torch raise, or
take the process with them; either is an answer, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.base import Facts


def probe_torch() -> Facts:
    """Say which process groups and devices torch has, and whether its ranks could share memory."""
    import torch
    import torch.distributed as dist

    from backends.strategies.shared_memory.sum import problem_here

    gpus = torch.cuda.device_count()
    return {
        "version": str(torch.__version__),
        "process_groups": [
            n
            for n, there in (("nccl", dist.is_nccl_available()), ("gloo", dist.is_gloo_available()))
            if there
        ],
        "gpus": gpus,
        "shared_memory_problem": problem_here(),
        "transport": "NCCL" if gpus and dist.is_nccl_available() else "Gloo over TCP",
    }


def probe_torch_build() -> Facts:
    """Return what a build against torch needs: CUDA, its toolkit, NCCL."""
    import torch

    facts: Facts = {"version": str(torch.__version__), "cuda": torch.version.cuda}
    if torch.version.cuda:
        from torch.utils.cpp_extension import CUDA_HOME

        gpus = range(torch.cuda.device_count())
        facts["cuda_home"] = CUDA_HOME
        facts["capabilities"] = sorted({"{}{}".format(*torch.cuda.get_device_capability(i)) for i in gpus})
        with contextlib.suppress(ImportError):
            import nvidia.nccl

            facts["nccl_home"] = next(iter(nvidia.nccl.__path__))
            facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts


def probe_horovod() -> Facts:
    """Say which controllers and operations Horovod was built with."""
    import horovod
    import horovod.torch as hvd

    # A library built for another torch makes horovod.torch only warn; importing it raises.
    import horovod.torch.mpi_lib_v2

    built = {"gloo": hvd.gloo_built(), "mpi": hvd.mpi_built(), "nccl": bool(hvd.nccl_built())}
    return {
        "version": horovod.__version__,
        "controllers": [name for name in ("gloo", "mpi") if built[name]],
        "nccl": built["nccl"],
        "transport": ", ".join(
            {"gloo": "Gloo over TCP", "mpi": "MPI", "nccl": "NCCL"}[n] for n in built if built[n]
        ),
    }


def probe_mpi4py() -> Facts:
    """Say which MPI mpi4py has loaded, without initialising it."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    library = MPI.Get_library_version().split(",")[0].strip("\x00 \n")
    return {"version": f"{version('mpi4py')} on {library}", "transport": "shared memory, TCP"}


PROBES = {
    "torch": probe_torch,
    "torch_build": probe_torch_build,
    "horovod": probe_horovod,
    "mpi4py": probe_mpi4py,
}


def end_with_parent() -> None:
    """Be ended by the system when the other end of standard input is closed: whoever asked is gone then.

    Nothing is done where that is no pipe; one that several processes share tells only one of them.
    By a signal, and not by a thread that reads: a library that hangs while it loads may let no other thread
    run. ``SIGIO`` ends whoever does not handle it.
    """
    if not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        return
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(sys.stdin, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sys.stdin, fcntl.F_SETFL, fcntl.fcntl(sys.stdin, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([sys.stdin], [], [], 0)[0]:  # gone before anybody listened
        sys.exit("left alone")


if __name__ == "__main__":
    end_with_parent()
    sys.stdout.write(f"{json.dumps(PROBES[sys.argv[1]]())}\n")
