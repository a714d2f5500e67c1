"""Load one library in a process of its own and say what it is: ``python -m backends.probe LIBRARY FILE``.

Libraries that were built for another torch raise, or take the process with them; either is the answer.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.base import Facts


def probe_torch() -> Facts:
    """Say which process groups and devices torch has, and whether its ranks could share memory."""
    import torch
    import torch.distributed as dist

    from backends.strategies.shared_memory import problem_here

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


PROBES = {"torch": probe_torch, "horovod": probe_horovod, "mpi4py": probe_mpi4py}

if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(PROBES[sys.argv[1]]()))
