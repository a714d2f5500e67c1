"""List the engines, with those that find a job, and refuse a launcher that starts this program many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from compare.errors import UsageError
from compare.launch.engines import INTERFACE, Allocation, Options, rehearsal, schedulers, slurm, ssh
from compare.launch.engines.schedulers import MANY, format_variables, matching_variables

ENGINES: tuple[Callable[[Mapping[str, str]], Allocation | None], ...] = (slurm.detect, schedulers.detect)
"""The engines that find a job in environment variables; the first that finds one counts."""
OPTIONS: Mapping[str, Options] = {
    "auto": {**ssh.OPTIONS, **slurm.OPTIONS},
    "local": INTERFACE,
    "ssh": ssh.OPTIONS,
    "slurm": slurm.OPTIONS,
    "rehearsal": rehearsal.OPTIONS,
}
"""The options of each engine; those of ``auto`` are for the engine that it finds."""

_LATER = "0*[1-9][0-9]*"
"""Pattern of a process's number, from 0, that matches any process except the first."""
_COUNT_ENDINGS = ("SIZE", "TASKS", "PROCS", "NRANKS")
"""Endings of the names of those variables that hold the number of processes."""


class Starter(NamedTuple):
    """A launcher that starts a program many times; ``schedulers.py`` says what a sign is."""

    name: str
    signs: tuple[str, ...]
    """Any of these signs alone shows that the launcher started several processes."""
    unless: tuple[str, ...] = ()
    """Any of these signs alone shows that it started only one process, despite ``signs``."""
    once: str = ""
    """A command with which the launcher starts the program only once; empty if none is known."""


STARTERS = (
    Starter("mpirun", (f"OMPI_COMM_WORLD_SIZE={MANY}", f"OMPI_COMM_WORLD_RANK={_LATER}")),
    Starter(
        "srun",
        (
            *(f"SLURM_STEP_NUM_TASKS={MANY}", f"SLURM_PROCID={_LATER}"),
            f"SLURM_NTASKS={MANY} SLURM_STEP_ID=.+ SLURM_PROCID=.+",
        ),
        unless=("SLURM_STEP_NUM_TASKS=1",),
        once="srun -n1 ringside run",
    ),
    Starter(
        "mpiexec of MPICH or Intel MPI",
        (f"PMI_SIZE={MANY}", f"PMI_RANK={_LATER}", f"MPI_LOCALNRANKS={MANY}"),
    ),
    Starter("mpirun of MVAPICH", (f"MV2_COMM_WORLD_SIZE={MANY}", f"MV2_COMM_WORLD_RANK={_LATER}")),
    Starter("horovodrun", (f"HOROVOD_SIZE={MANY}", f"HOROVOD_RANK={_LATER}")),
    Starter(
        "torchrun, or a launcher like it,",
        (
            *(f"WORLD_SIZE={MANY} LOCAL_RANK=.+", f"WORLD_SIZE={MANY} TORCHELASTIC_RUN_ID=.+"),
            *(f"LOCAL_WORLD_SIZE={MANY}", f"LOCAL_RANK={_LATER}"),
        ),
    ),
    Starter("flux run", (f"FLUX_JOB_SIZE={MANY} FLUX_TASK_RANK=.+", f"FLUX_TASK_RANK={_LATER}")),
    Starter("jsrun", (f"JSM_NAMESPACE_SIZE={MANY}", f"JSM_NAMESPACE_RANK={_LATER}")),
    Starter("aprun", (f"PALS_RANKID={_LATER}", f"PALS_LOCAL_SIZE={MANY}", f"ALPS_APP_PE={_LATER}")),
    Starter("poe", (f"MP_PROCS={MANY} MP_CHILD=.+", f"MP_CHILD={_LATER}")),
    Starter(
        "a launcher with PMIx",
        ("PMIX_RANK=.+",),
        unless=("OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=1", "SLURM_STEP_NUM_TASKS=1"),
    ),
)


def require_started_once(environ: Mapping[str, str]) -> None:
    """Require that no launcher started this program several times.

    Raises:
        UsageError: a launcher did, so each copy of the program would start all ranks.
    """
    for starter in STARTERS:
        signs = matching_variables(starter.signs, environ)
        if not signs or matching_variables(starter.unless, environ):
            continue
        count = next((value for name, value in signs.items() if name.endswith(_COUNT_ENDINGS)), "")
        once = f", or start it once: {starter.once}" if starter.once else ""
        raise UsageError(
            f"{starter.name} starts ringside {f'{int(count)} times' if count else 'many times'}, "
            "and each copy would start all ranks.",
            found=f"{format_variables(signs)}.",
            remedy="If no launcher started it, unset these variables. Otherwise call ringside directly, "
            f"because it starts all ranks itself{once}",
        )
