"""Describe jobs of schedulers, and launchers, by their environment variables.

Each row describes one scheduler or launcher. A sign, ``NAME=PATTERN``, is a variable with a pattern that must
match its whole value. If a string has several signs, all of them must match. Some variables are no signs,
because shells outside a job have them as well: ``SGE_ROOT``, ``SLURM_CONF``, ``TACC_SYSTEM``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from compare.schema.hostfile import parse_hostfile, read_hostfile
from compare.schema.hosts import Host

_NUMBER, _LATER, _MANY = "[0-9]+", "0*[1-9][0-9]*", "0*(?:[2-9]|[1-9][0-9]+)"
_ONE_IN_JSON = r'.*"cluster"\s*:\s*\{\s*"[^"]*"\s*:\s*\[\s*"[^"]*"\s*\]\s*\}.*'
_EVERYWHERE = "It starts this command on every host by itself."

Reader = Callable[[str, str], tuple[Host, ...]]
"""Reads hosts from a variable's value; the second argument is the variable's name, for errors."""


def of_file(value: str, name: str) -> tuple[Host, ...]:
    """Read the hosts in the file at the path ``value``."""
    del name
    return read_hostfile(value)


def _of_names(value: str, name: str) -> tuple[Host, ...]:
    """Read ``n1 n1 n2``, ``n1,n2`` or ``n1;n2``, where each name is one slot."""
    return parse_hostfile("\n".join(re.split(r"[\s,;]+", value.strip())), name)


def _of_counts(value: str, name: str) -> tuple[Host, ...]:
    """Read ``n1 4 n2 4``, where each name is followed by its slots."""
    words = value.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return parse_hostfile("\n".join(f"{host} slots={count}" for host, count in pairs), name)


def _of_numbered_nodes(value: str, name: str) -> tuple[Host, ...]:
    """Read ``2 n1 4 n2 4``, where the number of hosts comes first."""
    return _of_counts(value.partition(" ")[2], name)


class Scheduler(NamedTuple):
    """A scheduler, and how a process in one of its jobs knows that."""

    name: str
    """The scheduler's name; with an article if it names the job itself, as ``the MPIJob``."""
    signs: tuple[str, ...]
    """Each of them alone shows a job."""
    hosts: tuple[tuple[str, Reader], ...] = ()
    """Variables that name the hosts, with their readers; the first that is set counts."""
    number: str = ""
    """Variable with the number of the job."""
    one: tuple[str, ...] = ()
    """Each of them alone shows that this machine is the job's only host."""
    hint: str = ""
    """Where the user finds the hosts, as a sentence."""
    file: str = ""
    """A file that only the jobs of this scheduler have."""
    launch_node: bool = False
    """Whether the first host may take no ranks."""


class Starter(NamedTuple):
    """A launcher that starts a program many times."""

    name: str
    signs: tuple[str, ...]
    """Each of them alone shows that the launcher started several processes."""
    unless: tuple[str, ...] = ()
    """Each of them alone shows that it started only one, despite ``signs``."""
    once: str = ""
    """A command with which it starts a program once, or empty."""


SCHEDULERS = (
    Scheduler(
        "the MPIJob",
        ("K_MPI_JOB_ROLE=launcher", "K_MPI_JOB_ROLE=worker"),
        (("OMPI_MCA_orte_default_hostfile", of_file),),
        file="/etc/mpi/hostfile",
        hint="Its launcher's pod has them in /etc/mpi/hostfile.",
    ),
    Scheduler(
        "PBS",
        ("PBS_NODEFILE=.+", "PBS_JOBID=.+"),
        (("PBS_NODEFILE", of_file),),
        number="PBS_JOBID",
        hint="PBS_NODEFILE is not set; `qstat -n` prints its hosts.",
    ),
    Scheduler(
        "LSF",
        ("LSB_JOBID=.+", "LSB_DJOB_HOSTFILE=.+", "LSB_MCPU_HOSTS=.+", "LSB_HOSTS=.+"),
        (("LSB_DJOB_HOSTFILE", of_file), ("LSB_MCPU_HOSTS", _of_counts), ("LSB_HOSTS", _of_names)),
        number="LSB_JOBID",
        hint="`bjobs -l` prints its hosts.",
        launch_node=True,
    ),
    Scheduler(
        "Grid Engine",
        (
            "PE_HOSTFILE=.+",
            *(f"JOB_ID={_NUMBER} {name}=.+" for name in ("SGE_O_HOST", "SGE_TASK_ID", "NHOSTS", "NSLOTS")),
        ),
        (("PE_HOSTFILE", of_file),),
        number="JOB_ID",
        one=("NHOSTS=1", "NSLOTS=1"),
        hint="PE_HOSTFILE is not set; `qstat -g t` prints its hosts.",
    ),
    Scheduler(
        "OAR",
        (
            *("OAR_NODEFILE=.+", "OAR_NODE_FILE=.+", "OAR_FILE_NODES=.+", "OAR_RESOURCE_PROPERTIES_FILE=.+"),
            *("OAR_JOB_ID=.+", "OAR_JOBID=.+"),
        ),
        (("OAR_NODEFILE", of_file), ("OAR_NODE_FILE", of_file), ("OAR_FILE_NODES", of_file)),
        number="OAR_JOB_ID",
        hint="`oarprint host` prints its hosts.",
    ),
    Scheduler(
        "Cobalt",
        ("COBALT_NODEFILE=.+", "COBALT_JOBID=.+", "COBALT_PARTNAME=.+"),
        (("COBALT_NODEFILE", of_file),),
        number="COBALT_JOBID",
        one=("COBALT_JOBSIZE=1",),
        hint="COBALT_NODEFILE is not set; `cqstat` prints its hosts.",
    ),
    Scheduler(
        "Flux",
        ("FLUX_JOB_ID=.+", "FLUX_ENCLOSING_ID=.+", "FLUX_URI=.+"),
        number="FLUX_JOB_ID",
        one=("FLUX_JOB_NNODES=1",),
        hint="`flux resource list -no {nodelist}` prints its hosts.",
    ),
    Scheduler(
        "HTCondor",
        ("_CONDOR_PROCNO=.+", f"_CONDOR_NPROCS={_MANY}"),
        one=("_CONDOR_NPROCS=1",),
        hint=_EVERYWHERE,
    ),
    Scheduler("HTCondor", ("_CONDOR_JOB_AD=.+",), one=("_CONDOR_JOB_AD=.+",)),
    Scheduler(
        "LoadLeveler",
        ("LOADL_STEP_ID=.+", "LOADL_HOSTFILE=.+", "LOADL_PROCESSOR_LIST=.+"),
        (("LOADL_HOSTFILE", of_file), ("LOADL_PROCESSOR_LIST", _of_names)),
        number="LOADL_STEP_ID",
    ),
    Scheduler(
        "Fujitsu's scheduler (PJM)",
        ("PJM_JOBID=.+", "PJM_O_NODEINF=.+"),
        (("PJM_O_NODEINF", of_file),),
        number="PJM_JOBID",
        one=("PJM_NODE=1",),
    ),
    Scheduler(
        "Moab",
        ("MOAB_NODELIST=.+", "MOAB_JOBID=.+"),
        number="MOAB_JOBID",
        one=("MOAB_NODECOUNT=1",),
        hint="MOAB_NODELIST names its hosts.",
    ),
    Scheduler(
        "SageMaker",
        ("SM_HOSTS=.+", "SM_CURRENT_HOST=.+", "TRAINING_JOB_ARN=arn:aws[^:]*:sagemaker:.+"),
        one=(r'SM_HOSTS=\[\s*"[^"]*"\s*\]',),
        hint=_EVERYWHERE,
    ),
    Scheduler(
        "AWS Batch",
        ("AWS_BATCH_JOB_NODE_INDEX=.+", f"AWS_BATCH_JOB_NUM_NODES={_MANY}"),
        number="AWS_BATCH_JOB_ID",
        one=("AWS_BATCH_JOB_NUM_NODES=1",),
        hint=_EVERYWHERE,
    ),
    Scheduler("AWS Batch", ("AWS_BATCH_JOB_ID=.+",), number="AWS_BATCH_JOB_ID", one=("AWS_BATCH_JOB_ID=.+",)),
    Scheduler(
        "Google Batch",
        ("BATCH_HOSTS_FILE=.+", "BATCH_JOB_UID=.+ BATCH_TASK_INDEX=.+"),
        (("BATCH_HOSTS_FILE", of_file),),
        number="BATCH_JOB_UID",
        one=("BATCH_TASK_COUNT=1",),
        hint=_EVERYWHERE,
    ),
    Scheduler(
        "Azure Batch",
        (
            *("AZ_BATCH_HOST_LIST=.+", "AZ_BATCH_NODE_LIST=.+", "AZ_BATCHAI_MPI_HOST_FILE=.+"),
            *("AZ_BATCH_MASTER_NODE=.+", "AZ_BATCH_IS_CURRENT_NODE_MASTER=.+"),
            f"AZUREML_NODE_COUNT={_MANY}",
        ),
        (
            ("AZ_BATCHAI_MPI_HOST_FILE", of_file),
            ("AZ_BATCH_HOST_LIST", _of_names),
            ("AZ_BATCH_NODE_LIST", _of_names),
            ("CCP_NODES", _of_numbered_nodes),
        ),
        number="AZ_BATCH_JOB_ID",
        one=("AZUREML_NODE_COUNT=1",),
    ),
    Scheduler("Azure Batch", ("AZ_BATCH_JOB_ID=.+",), number="AZ_BATCH_JOB_ID", one=("AZ_BATCH_JOB_ID=.+",)),
    Scheduler(
        "Microsoft HPC Pack",
        ("CCP_NODES=.+",),
        (("CCP_NODES", _of_numbered_nodes),),
        number="CCP_JOBID",
    ),
    Scheduler(
        "Vertex AI",
        ('CLUSTER_SPEC=.*"cluster".*', "CLOUD_ML_JOB_ID=.+"),
        number="CLOUD_ML_JOB_ID",
        one=(f"CLUSTER_SPEC={_ONE_IN_JSON}",),
        hint=_EVERYWHERE,
    ),
    Scheduler(
        "Volcano",
        ("VC_WORKER_HOSTS=.+", "VC_TASK_INDEX=.+", "VK_TASK_INDEX=.+"),
        one=("MA_NUM_HOSTS=1",),
        hint=_EVERYWHERE,
    ),
    Scheduler(
        "PyTorchJob or torchelastic",
        (
            *("PET_NNODES=.+", "PET_NODE_RANK=.+", "PET_RDZV_ENDPOINT=.+", "PET_MASTER_ADDR=.+"),
            *(f"WORLD_SIZE={_MANY} {name}=.+" for name in ("RANK", "NODE_RANK", "MASTER_ADDR")),
            *(f"{name}={_MANY} NODE_RANK=.+" for name in ("NNODES", "NUM_NODES")),
            f"NNODES={_MANY} GROUP_RANK=.+",
        ),
        one=("PET_NNODES=1(:1)?",),
        hint=_EVERYWHERE,
    ),
    Scheduler(
        "SkyPilot",
        (f"SKYPILOT_NUM_NODES={_MANY}", "SKYPILOT_NODE_RANK=.+"),
        one=("SKYPILOT_NUM_NODES=1",),
        hint=f"SKYPILOT_NODE_IPS names its hosts. {_EVERYWHERE}",
    ),
    Scheduler(
        "dstack",
        (f"DSTACK_NODES_NUM={_MANY}", "DSTACK_NODE_RANK=.+"),
        one=("DSTACK_NODES_NUM=1",),
        hint=f"DSTACK_NODES_IPS names its hosts. {_EVERYWHERE}",
    ),
    Scheduler("Determined", (f"DET_NUM_SLOTS={_MANY}", "DET_CLUSTER_ID=.+ DET_SLOT_IDS=.+")),
    Scheduler("Ray", ("RAY_JOB_CONFIG_JSON_ENV_VAR=.+",), hint="`ray list nodes` prints its hosts."),
    Scheduler("TFJob", ('TF_CONFIG=.*"cluster".*',), one=(f"TF_CONFIG={_ONE_IN_JSON}",), hint=_EVERYWHERE),
    Scheduler(
        "TACC's launcher",
        (
            *("LAUNCHER_HOSTFILE=.+", "LAUNCHER_NHOSTS=.+", "TACC_HOSTLIST=.+", "TACC_NODELIST=.+"),
            *("TACC_HOSTFILE=.+", "TACC_NODEFILE=.+"),
        ),
        (
            *(("LAUNCHER_HOSTFILE", of_file), ("TACC_HOSTFILE", of_file), ("TACC_NODEFILE", of_file)),
            *(("TACC_HOSTLIST", _of_names), ("TACC_NODELIST", _of_names)),
        ),
        one=("LAUNCHER_NHOSTS=1",),
    ),
    Scheduler(
        "Slurm",
        ("SLURM_JOB_NODELIST=.+", "SLURM_NODELIST=.+", "SLURM_TACC_NODES=.+"),
        hint="SLURM_JOB_ID is not set.",
    ),
    Scheduler(
        "Kubernetes with an index",
        (f"JOB_COMPLETION_INDEX={_NUMBER}", f"LWS_GROUP_SIZE={_MANY}"),
        hint="Each of its pods starts this command.",
    ),
)

STARTERS = (
    Starter("mpirun", (f"OMPI_COMM_WORLD_SIZE={_MANY}", f"OMPI_COMM_WORLD_RANK={_LATER}")),
    Starter(
        "srun",
        (
            *(f"SLURM_STEP_NUM_TASKS={_MANY}", f"SLURM_PROCID={_LATER}"),
            f"SLURM_NTASKS={_MANY} SLURM_STEP_ID=.+ SLURM_PROCID=.+",
        ),
        unless=("SLURM_STEP_NUM_TASKS=1",),
        once="srun -n1 compare run",
    ),
    Starter(
        "mpiexec of MPICH or Intel MPI",
        (f"PMI_SIZE={_MANY}", f"PMI_RANK={_LATER}", f"MPI_LOCALNRANKS={_MANY}"),
    ),
    Starter("mpirun of MVAPICH", (f"MV2_COMM_WORLD_SIZE={_MANY}", f"MV2_COMM_WORLD_RANK={_LATER}")),
    Starter("horovodrun", (f"HOROVOD_SIZE={_MANY}", f"HOROVOD_RANK={_LATER}")),
    Starter(
        "torchrun, or a launcher like it,",
        (
            *(f"WORLD_SIZE={_MANY} LOCAL_RANK=.+", f"WORLD_SIZE={_MANY} TORCHELASTIC_RUN_ID=.+"),
            *(f"LOCAL_WORLD_SIZE={_MANY}", f"LOCAL_RANK={_LATER}"),
        ),
    ),
    Starter("flux run", (f"FLUX_JOB_SIZE={_MANY} FLUX_TASK_RANK=.+", f"FLUX_TASK_RANK={_LATER}")),
    Starter("jsrun", (f"JSM_NAMESPACE_SIZE={_MANY}", f"JSM_NAMESPACE_RANK={_LATER}")),
    Starter("aprun", (f"PALS_RANKID={_LATER}", f"PALS_LOCAL_SIZE={_MANY}", f"ALPS_APP_PE={_LATER}")),
    Starter("poe", (f"MP_PROCS={_MANY} MP_CHILD=.+", f"MP_CHILD={_LATER}")),
    Starter(
        "a launcher with PMIx",
        ("PMIX_RANK=.+",),
        unless=("OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=1", "SLURM_STEP_NUM_TASKS=1"),
    ),
)
