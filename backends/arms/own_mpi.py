"""Register the arm ``own_mpi``, which runs a user's own training step over mpi4py."""

from backends.arms import mpi
from backends.arms.shared import MPI_LIBRARY, own_step

ARM = own_step("own_mpi", "mpi4py", mpi.ARM, MPI_LIBRARY)
