"""Load one library, print its facts and exit: ``python -m backends.probe LIBRARY``.

The facts are one line of JSON, or ``null`` if MPICH is not installed. Any other library that is missing, or
was built for another torch, raises an error or crashes the process. The caller treats both as results.
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

from backends import evidence
from backends.base import Facts
from backends.launchers import hydra


def probe_torch() -> Facts:
    """Return torch's version, process groups, number of GPUs and transport.

    ``shared_memory_problem`` states why ranks cannot share memory here, and is empty if they can.
    """
    import torch
    import torch.distributed as dist

    from backends.shared_memory.memory import sharing_problem

    gpus = torch.cuda.device_count()
    return {
        "version": str(torch.__version__),
        "process_groups": [name for name in ("nccl", "gloo") if getattr(dist, f"is_{name}_available")()],
        "gpus": gpus,
        "shared_memory_problem": sharing_problem(),
        "transport": "NCCL" if gpus and dist.is_nccl_available() else "Gloo over TCP",
    }


def probe_torch_build() -> Facts:
    """Return what a build against torch depends on: versions, folders of CUDA and NCCL, and capabilities.

    If torch is built without CUDA, there are only ``version``, and ``cuda`` with the value None.
    """
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
    """Return Horovod's version, and the controllers and transports that it was built with."""
    import horovod
    import horovod.torch as hvd

    # With a library for another torch, horovod.torch only warns. This import raises.
    import horovod.torch.mpi_lib_v2

    transports = {"gloo": "Gloo over TCP", "mpi": "MPI", "nccl": "NCCL"}
    built = [name for name in transports if getattr(hvd, f"{name}_built")()]
    return {
        "version": horovod.__version__,
        "controllers": [name for name in built if name != "nccl"],
        "nccl": "nccl" in built,
        "transport": ", ".join(transports[name] for name in built),
    }


def probe_mpi4py() -> Facts:
    """Return the versions of mpi4py and of the MPI that it loads, without initialising MPI."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    library = evidence.mpi_library(MPI.Get_library_version())
    return {"version": f"{version('mpi4py')} on {library}", "transport": "shared memory, TCP"}


def probe_mpich() -> Facts | None:
    """Return the versions of mpi4py and of MPICH; None if MPICH is not installed.

    Raises:
        ImportError: mpi4py loads another MPI.
    """
    if not hydra.library().exists():
        return None
    os.environ["MPI4PY_LIBMPI"] = str(hydra.library())
    facts = probe_mpi4py()
    if " on MPICH " not in facts["version"]:
        raise ImportError(
            f"mpi4py {facts['version']} ignores MPI4PY_LIBMPI, which wheels of version 4.1 or later obey"
        )
    return facts | {"transport": "shared memory"}


def probe_lightning_fabric() -> Facts:
    """Return the version of Lightning Fabric, and the transport of torch, through which it communicates."""
    import lightning_fabric

    return {"version": lightning_fabric.__version__, "transport": probe_torch()["transport"]}


_PROBES = (probe_torch, probe_torch_build, probe_horovod, probe_mpi4py, probe_mpich, probe_lightning_fabric)
PROBES = {probe.__name__.removeprefix("probe_"): probe for probe in _PROBES}
"""The functions that load a library and return its facts, by the names that arms use for libraries."""


def end_with_parent() -> None:
    """Let the system end this process when its parent closes the other end of standard input.

    If standard input is not a pipe, this does nothing. Otherwise the system sends ``SIGIO``, which ends the
    process. A thread that reads the pipe would not do, because a library that hangs while it loads may block
    all threads. If several processes read the same pipe, only one of them gets the signal.
    """
    if not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        return
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(sys.stdin, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sys.stdin, fcntl.F_SETFL, fcntl.fcntl(sys.stdin, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([sys.stdin], [], [], 0)[0]:  # the parent ended before the signal was set up
        sys.exit("its parent has ended")


if __name__ == "__main__":
    end_with_parent()
    sys.stdout.write(f"{json.dumps(PROBES[sys.argv[1]]())}\n")
