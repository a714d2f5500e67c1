"""Take the hosts of a scheduler's job, which its environment variables name, and reach them with ssh.

Each row of ``SCHEDULERS`` describes one scheduler. A sign, ``NAME=PATTERN``, is a variable with a pattern
that must match its whole value. If a string has several signs, all of them must match. Some variables cannot
be signs, because shells outside a job have them as well: ``SGE_ROOT``, ``SLURM_CONF``, ``TACC_SYSTEM``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from compare.errors import UsageError
from compare.launch.engines import HOSTS_REMEDY, LOCAL_REMEDY, Allocation, Carrier
from compare.launch.engines.ssh import Ssh
from compare.schema.hostfile import format_hosts, parse_hostfile, read_hostfile
from compare.schema.hosts import Host, local_host, printable_line
from compare.text import counted

NUMBER, MANY = "[0-9]+", "0*(?:[2-9]|[1-9][0-9]+)"
"""Patterns of any whole number, and of one above 1."""

_ONE_IN_JSON = r'.*"cluster"\s*:\s*\{\s*"[^"]*"\s*:\s*\[\s*"[^"]*"\s*\]\s*\}.*'
_EVERYWHERE = "The scheduler itself starts this command on every host."
_OF_MPIJOB = "/etc/mpi/hostfile"
"""Path of an MPIJob's hostfile, which counts as a variable if it exists, because no other job has it."""
_LAUNCH_NODE = re.compile(r"batch|launch|login", re.IGNORECASE)


def _names(value: str) -> str:
    """Return a hostfile's text for ``n1 n1 n2``, ``n1,n2`` or ``n1;n2``, where each name is one slot."""
    return "\n".join(re.split(r"[\s,;]+", value.strip()))


def _counts(value: str) -> str:
    """Return a hostfile's text for ``n1 4 n2 4`` or ``n1:4,n2:4``, where slots follow each name."""
    words = re.split(r"[\s,:]+", value.strip())
    # With ``slots=``, because n1:22 in a hostfile may mean a port.
    return "\n".join(f"{host} slots={slots}" for host, slots in zip(words[::2], words[1::2], strict=True))


def _numbered(value: str) -> str:
    """Return a hostfile's text for ``2 n1 4 n2 4``, where the number of hosts comes first."""
    return _counts(value.partition(" ")[2])


class Scheduler(NamedTuple):
    """A scheduler, and the environment variables that show its jobs and their hosts."""

    name: str
    """The scheduler's name; with an article if it names the job itself, as ``the MPIJob``."""
    signs: tuple[str, ...]
    """Any of these signs alone shows that a process belongs to a job of this scheduler."""
    files: tuple[str, ...] = ()
    """Variables that hold the path of a hostfile; the first that is set counts."""
    lists: tuple[tuple[str, Callable[[str], str]], ...] = ()
    """Variables that hold the hosts themselves, each with a function that returns a hostfile's text."""
    number: str = ""
    """The variable that holds the job's number; empty if there is none."""
    one: tuple[str, ...] = ()
    """Any of these signs alone shows that this machine is the job's only host."""
    hint: str = ""
    """Where the user finds the names of the hosts, as a sentence."""
    launch_node: bool = False
    """Whether the first host of a job may be one that takes no ranks."""

    def job_name(self, environ: Mapping[str, str]) -> str:
        """Return the name of this scheduler's job for messages, such as ``Grid Engine job 7``."""
        if number := environ.get(self.number):
            return f"{self.name} job {printable_line(number)}"
        return self.name if self.name.startswith("the ") else f"a job of {self.name}"


SCHEDULERS = (
    Scheduler(
        "the MPIJob",
        ("K_MPI_JOB_ROLE=launcher", "K_MPI_JOB_ROLE=worker", f"{_OF_MPIJOB}=.+"),
        files=("OMPI_MCA_orte_default_hostfile", _OF_MPIJOB),
        hint="Its launcher's pod has them in /etc/mpi/hostfile.",
    ),
    Scheduler(
        "PBS",
        ("PBS_NODEFILE=.+", "PBS_JOBID=.+"),
        files=("PBS_NODEFILE",),
        number="PBS_JOBID",
        hint="PBS_NODEFILE is not set; `qstat -n` prints the hosts.",
    ),
    Scheduler(
        "LSF",
        ("LSB_JOBID=.+", "LSB_DJOB_HOSTFILE=.+", "LSB_MCPU_HOSTS=.+", "LSB_HOSTS=.+"),
        files=("LSB_DJOB_HOSTFILE",),
        lists=(("LSB_MCPU_HOSTS", _counts), ("LSB_HOSTS", _names)),
        number="LSB_JOBID",
        hint="`bjobs -l` prints the hosts.",
        launch_node=True,
    ),
    Scheduler(
        "Grid Engine",
        (
            "PE_HOSTFILE=.+",
            *(f"JOB_ID={NUMBER} {name}=.+" for name in ("SGE_O_HOST", "SGE_TASK_ID", "NHOSTS", "NSLOTS")),
        ),
        files=("PE_HOSTFILE",),
        number="JOB_ID",
        one=("NHOSTS=1", "NSLOTS=1"),
        hint="PE_HOSTFILE is not set; `qstat -g t` prints the hosts.",
    ),
    Scheduler(
        "OAR",
        (
            *("OAR_NODEFILE=.+", "OAR_NODE_FILE=.+", "OAR_FILE_NODES=.+", "OAR_RESOURCE_PROPERTIES_FILE=.+"),
            *("OAR_JOB_ID=.+", "OAR_JOBID=.+"),
        ),
        files=("OAR_NODEFILE", "OAR_NODE_FILE", "OAR_FILE_NODES"),
        number="OAR_JOB_ID",
        hint="`oarprint host` prints the hosts.",
    ),
    Scheduler(
        "Cobalt",
        ("COBALT_NODEFILE=.+", "COBALT_JOBID=.+", "COBALT_PARTNAME=.+"),
        files=("COBALT_NODEFILE",),
        number="COBALT_JOBID",
        one=("COBALT_JOBSIZE=1",),
        hint="COBALT_NODEFILE is not set; `cqstat` prints the hosts.",
    ),
    Scheduler(
        "Flux",
        ("FLUX_JOB_ID=.+", "FLUX_ENCLOSING_ID=.+", "FLUX_URI=.+"),
        number="FLUX_JOB_ID",
        one=("FLUX_JOB_NNODES=1",),
        hint="`flux resource list -no {nodelist}` prints the hosts.",
    ),
    Scheduler(
        "HTCondor",
        ("_CONDOR_PROCNO=.+", f"_CONDOR_NPROCS={MANY}"),
        one=("_CONDOR_NPROCS=1",),
        hint=_EVERYWHERE,
    ),
    Scheduler("HTCondor", ("_CONDOR_JOB_AD=.+",), one=("_CONDOR_JOB_AD=.+",)),
    Scheduler(
        "LoadLeveler",
        ("LOADL_STEP_ID=.+", "LOADL_HOSTFILE=.+", "LOADL_PROCESSOR_LIST=.+"),
        files=("LOADL_HOSTFILE",),
        lists=(("LOADL_PROCESSOR_LIST", _names),),
        number="LOADL_STEP_ID",
    ),
    Scheduler(
        "Fujitsu's scheduler (PJM)",
        ("PJM_JOBID=.+", "PJM_O_NODEINF=.+"),
        files=("PJM_O_NODEINF",),
        number="PJM_JOBID",
        one=("PJM_NODE=1",),
    ),
    Scheduler(
        "Moab",
        ("MOAB_NODELIST=.+", "MOAB_JOBID=.+"),
        number="MOAB_JOBID",
        one=("MOAB_NODECOUNT=1",),
        hint="MOAB_NODELIST names the hosts.",
    ),
    Scheduler(
        "SageMaker",
        ("SM_HOSTS=.+", "SM_CURRENT_HOST=.+", "TRAINING_JOB_ARN=arn:aws[^:]*:sagemaker:.+"),
        one=(r'SM_HOSTS=\[\s*"[^"]*"\s*\]',),
        hint=_EVERYWHERE,
    ),
    Scheduler(
        "AWS Batch",
        ("AWS_BATCH_JOB_NODE_INDEX=.+", f"AWS_BATCH_JOB_NUM_NODES={MANY}"),
        number="AWS_BATCH_JOB_ID",
        one=("AWS_BATCH_JOB_NUM_NODES=1",),
        hint=_EVERYWHERE,
    ),
    Scheduler("AWS Batch", ("AWS_BATCH_JOB_ID=.+",), number="AWS_BATCH_JOB_ID", one=("AWS_BATCH_JOB_ID=.+",)),
    Scheduler(
        "Google Batch",
        ("BATCH_HOSTS_FILE=.+", "BATCH_JOB_UID=.+ BATCH_TASK_INDEX=.+"),
        files=("BATCH_HOSTS_FILE",),
        number="BATCH_JOB_UID",
        one=("BATCH_TASK_COUNT=1",),
        hint=_EVERYWHERE,
    ),
    Scheduler(
        "Azure Batch",
        (
            *("AZ_BATCH_HOST_LIST=.+", "AZ_BATCH_NODE_LIST=.+", "AZ_BATCHAI_MPI_HOST_FILE=.+"),
            *("AZ_BATCH_MASTER_NODE=.+", "AZ_BATCH_IS_CURRENT_NODE_MASTER=.+"),
            f"AZUREML_NODE_COUNT={MANY}",
        ),
        files=("AZ_BATCHAI_MPI_HOST_FILE",),
        lists=(("AZ_BATCH_HOST_LIST", _names), ("AZ_BATCH_NODE_LIST", _names), ("CCP_NODES", _numbered)),
        number="AZ_BATCH_JOB_ID",
        one=("AZUREML_NODE_COUNT=1",),
    ),
    Scheduler("Azure Batch", ("AZ_BATCH_JOB_ID=.+",), number="AZ_BATCH_JOB_ID", one=("AZ_BATCH_JOB_ID=.+",)),
    Scheduler("Microsoft HPC Pack", ("CCP_NODES=.+",), lists=(("CCP_NODES", _numbered),), number="CCP_JOBID"),
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
            *(f"WORLD_SIZE={MANY} {name}=.+" for name in ("RANK", "NODE_RANK", "MASTER_ADDR")),
            *(f"{name}={MANY} NODE_RANK=.+" for name in ("NNODES", "NUM_NODES")),
            f"NNODES={MANY} GROUP_RANK=.+",
        ),
        one=("PET_NNODES=1(:1)?",),
        hint=_EVERYWHERE,
    ),
    Scheduler(
        "SkyPilot",
        (f"SKYPILOT_NUM_NODES={MANY}", "SKYPILOT_NODE_RANK=.+"),
        one=("SKYPILOT_NUM_NODES=1",),
        hint=f"SKYPILOT_NODE_IPS names the hosts. {_EVERYWHERE}",
    ),
    Scheduler(
        "dstack",
        (f"DSTACK_NODES_NUM={MANY}", "DSTACK_NODE_RANK=.+"),
        one=("DSTACK_NODES_NUM=1",),
        hint=f"DSTACK_NODES_IPS names the hosts. {_EVERYWHERE}",
    ),
    Scheduler("Determined", (f"DET_NUM_SLOTS={MANY}", "DET_CLUSTER_ID=.+ DET_SLOT_IDS=.+")),
    Scheduler("Ray", ("RAY_JOB_CONFIG_JSON_ENV_VAR=.+",), hint="`ray list nodes` prints the hosts."),
    Scheduler("TFJob", ('TF_CONFIG=.*"cluster".*',), one=(f"TF_CONFIG={_ONE_IN_JSON}",), hint=_EVERYWHERE),
    Scheduler(
        "TACC's launcher",
        (
            *("LAUNCHER_HOSTFILE=.+", "LAUNCHER_NHOSTS=.+", "TACC_HOSTLIST=.+", "TACC_NODELIST=.+"),
            *("TACC_HOSTFILE=.+", "TACC_NODEFILE=.+"),
        ),
        files=("LAUNCHER_HOSTFILE", "TACC_HOSTFILE", "TACC_NODEFILE"),
        lists=(("TACC_HOSTLIST", _names), ("TACC_NODELIST", _names)),
        one=("LAUNCHER_NHOSTS=1",),
    ),
    Scheduler(
        "Slurm",
        ("SLURM_JOB_NODELIST=.+", "SLURM_NODELIST=.+", "SLURM_TACC_NODES=.+"),
        hint="SLURM_JOB_ID is not set.",
    ),
    Scheduler(
        "Kubernetes with an index",
        (f"JOB_COMPLETION_INDEX={NUMBER}", f"LWS_GROUP_SIZE={MANY}"),
        hint="Each of its pods starts this command.",
    ),
)


def detect(environ: Mapping[str, str]) -> Allocation | None:
    """Return the hosts of the scheduler's job that the environment shows; None outside any job.

    If it shows several jobs, one whose hosts are known is preferred. If the only host of the job is this
    machine, the allocation needs no ssh.

    Raises:
        UsageError: the job's hosts are not known or cannot be read, or the first may be a launch node.
    """
    if Path(_OF_MPIJOB).exists():
        environ = {**environ, _OF_MPIJOB: _OF_MPIJOB}
    schedulers = [scheduler for scheduler in SCHEDULERS if matching_variables(scheduler.signs, environ)]
    for scheduler in schedulers:
        for variable, form in (*((file, None) for file in scheduler.files), *scheduler.lists):
            if value := environ.get(variable):
                job = scheduler.job_name(environ)
                hosts = _read(value, variable, form, job)
                if scheduler.launch_node:
                    _require_no_launch_node(hosts, variable, job)
                return Allocation(hosts, Ssh(), f"{job}, from {variable}")
    if not schedulers:
        return None
    job, first = schedulers[0].job_name(environ), schedulers[0]
    if one := matching_variables(first.one, environ):
        source = f"this machine, the only host of {job} ({format_variables(one)})"
        return Allocation((local_host(1),), Carrier(), source)
    raise UsageError(
        f"Ringside runs in {job}, but does not know its hosts.",
        found=f"{format_variables(matching_variables(first.signs, environ))}. {first.hint}".strip(),
        remedy=HOSTS_REMEDY,
    )


def matching_variables(signs: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the first sign that matches, with their values; empty if no sign matches."""
    for sign in signs:
        parts = [part.partition("=")[::2] for part in re.split(r" (?=[A-Z_]+=)", sign)]
        if all(re.fullmatch(value, environ.get(name, ""), re.DOTALL) for name, value in parts):
            return {name: environ[name] for name, _ in parts}
    return {}


def format_variables(signs: Mapping[str, str]) -> str:
    """Return variables with their values for messages, as ``A=1, B=2``."""
    return ", ".join(f"{name}={printable_line(value)}" for name, value in signs.items())


def _read(value: str, variable: str, form: Callable[[str], str] | None, job: str) -> tuple[Host, ...]:
    """Return the hosts in the hostfile at the path ``value``, or those that ``form`` reads from ``value``."""
    try:
        return parse_hostfile(form(value), variable) if form else read_hostfile(value)
    except (UsageError, ValueError) as error:
        found = str(error) if isinstance(error, UsageError) else printable_line(value)
        what = f"{variable} does not name the hosts of {job} in a form that Ringside knows."
        raise UsageError(what, found="\n".join(found.split("\n")[:2]), remedy=HOSTS_REMEDY) from None


def _require_no_launch_node(hosts: tuple[Host, ...], variable: str, job: str) -> None:
    """Raise a ``UsageError`` if the first host looks like a launch node, which takes no ranks.

    It looks like one if only its name begins with batch, launch or login, or only it has a single slot.
    """
    first, others = hosts[0], hosts[1:]
    only_name = _LAUNCH_NODE.match(first.name) and not any(_LAUNCH_NODE.match(host.name) for host in others)
    if others and (only_name or (first.slots == 1 and all(host.slots > 1 for host in others))):
        raise UsageError(
            f"The first host of {job}, {first.name}, may be its launch node, which takes no ranks.",
            found="Only its name begins as that of a launch node does."
            if only_name
            else f"{variable} gives it {counted(first.slots, 'slot')}, and {others[0].name} "
            f"{counted(others[0].slots, 'slot')}.",
            remedy=f"Name the hosts: -H {format_hosts(others)} without the launch node, or -H "
            f"{format_hosts(hosts)} if it takes ranks; or {LOCAL_REMEDY}",
        )
