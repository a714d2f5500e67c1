"""Jobs of schedulers are taken with their hosts, or refused by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from compare.errors import UsageError
from compare.experiment.allocation import choose_allocation, find_allocation
from compare.launch.engines.detect import ENGINES, require_started_once
from compare.launch.engines.ssh import Ssh

TWO_AND_ONE = ("a\na\nb\n", {"a": 2, "b": 1})
ONE_EACH = ("a\nb\n", {"a": 1, "b": 1})
ADDRESSES = ("", {"10.0.0.4": 1, "10.0.0.5": 1})
PE_HOSTFILE = "a.example 4 all.q@a.example UNDEFINED\nb.example 2 all.q@b.example <NULL>\n"
QUEUES = "a 4 all.q@a UNDEFINED\nb 2 all.q@b 0,0\na 1 big.q@a UNDEFINED\n"


def allocated(environ, engine="auto", ranks=None):
    return choose_allocation(find_allocation(engine, {}, None, None, environ=environ), ranks)


def hosts(allocation):
    return {host.name: host.slots for host in allocation.hosts}


# Variables of a job, first the one that names its hosts, with FILE for a file; the contents of that file; the
# hosts; the job.
TAKEN = [
    ({"PBS_NODEFILE": "FILE", "PBS_JOBID": "9.pbs", "PBS_O_WORKDIR": "/home"}, *TWO_AND_ONE, "PBS job 9.pbs"),
    (
        {"LSB_DJOB_HOSTFILE": "FILE", "LSB_JOBID": "8", "LSB_MCPU_HOSTS": "x 1", "LSB_HOSTS": "x"},
        *(*TWO_AND_ONE, "LSF job 8"),
    ),
    ({"LSB_MCPU_HOSTS": "a 4 b 4 ", "LSB_JOBID": "8", "LSB_HOSTS": "x"}, "", {"a": 4, "b": 4}, "LSF job 8"),
    ({"LSB_HOSTS": "a a b b", "LSB_JOBID": "8"}, "", {"a": 2, "b": 2}, "LSF job 8"),
    ({"LSB_MCPU_HOSTS": "a:22,b:22"}, "", {"a": 22, "b": 22}, "a job of LSF"),
    (
        {"PE_HOSTFILE": "FILE", "JOB_ID": "7", "NSLOTS": "6", "NHOSTS": "2", "SGE_ROOT": "/opt/sge"},
        *(PE_HOSTFILE, {"a.example": 4, "b.example": 2}, "Grid Engine job 7"),
    ),
    ({"PE_HOSTFILE": "FILE"}, QUEUES, {"a": 5, "b": 2}, "a job of Grid Engine"),
    ({"OAR_NODEFILE": "FILE", "OAR_JOB_ID": "5", "OAR_NODE_FILE": "FILE"}, *TWO_AND_ONE, "OAR job 5"),
    ({"COBALT_NODEFILE": "FILE", "COBALT_JOBID": "4", "COBALT_JOBSIZE": "2"}, *ONE_EACH, "Cobalt job 4"),
    ({"AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5", "AZ_BATCH_JOB_ID": "j"}, *ADDRESSES, "Azure Batch job j"),
    ({"AZ_BATCH_NODE_LIST": "10.0.0.4;10.0.0.5"}, *ADDRESSES, "a job of Azure Batch"),
    (
        {"BATCH_HOSTS_FILE": "FILE", "BATCH_JOB_UID": "u", "BATCH_TASK_INDEX": "0"},
        *(*ONE_EACH, "Google Batch job u"),
    ),
    ({"CCP_NODES": "2 a 4 b 4", "CCP_JOBID": "3"}, "", {"a": 4, "b": 4}, "Microsoft HPC Pack job 3"),
    ({"LOADL_HOSTFILE": "FILE", "LOADL_STEP_ID": "s.1"}, *TWO_AND_ONE, "LoadLeveler job s.1"),
    ({"PJM_O_NODEINF": "FILE", "PJM_JOBID": "2"}, *ONE_EACH, "Fujitsu's scheduler (PJM) job 2"),
    ({"LAUNCHER_HOSTFILE": "FILE", "TACC_SYSTEM": "frontera"}, *ONE_EACH, "a job of TACC's launcher"),
    (
        {"OMPI_MCA_orte_default_hostfile": "FILE", "K_MPI_JOB_ROLE": "launcher"},
        *("a slots=2\nb slots=2\n", {"a": 2, "b": 2}, "the MPIJob"),
    ),
]


@pytest.mark.parametrize(("environ", "written", "expected", "job"), TAKEN, ids=[job for *_, job in TAKEN])
def test_job_that_names_its_hosts_is_taken_with_them(tmp_path, environ, written, expected, job):
    (tmp_path / "hosts").write_text(written)
    environ = {name: value.replace("FILE", str(tmp_path / "hosts")) for name, value in environ.items()}
    found = allocated(environ)
    assert found.source == f"2 of {job}, from {next(iter(environ))}"
    assert (hosts(found), type(found.carrier)) == (expected, Ssh)
    assert hosts(allocated(environ, "local")) == {"localhost": 2}


TORCH = {"MASTER_ADDR": "pod-0", "MASTER_PORT": "23456"}
REFUSED = {
    "PBS": ({"PBS_JOBID": "9"}, "runs in PBS job 9"),
    "LSF": ({"LSB_JOBID": "8"}, "runs in LSF job 8"),
    "Grid Engine": ({"JOB_ID": "7", "SGE_O_HOST": "login", "NHOSTS": "2"}, "Grid Engine job 7"),
    "Grid Engine, slots": ({"JOB_ID": "7", "NSLOTS": "6", "QUEUE": "all.q"}, "Grid Engine job 7"),
    "OAR": ({"OAR_JOBID": "5"}, "a job of OAR"),
    "Cobalt": ({"COBALT_PARTNAME": "0-1", "COBALT_JOBID": "4"}, "Cobalt job 4"),
    "Flux": ({"FLUX_URI": "local:///run/flux/local-0", "FLUX_ENCLOSING_ID": "f1"}, "a job of Flux"),
    "Flux, a task": ({"FLUX_JOB_ID": "f2", "FLUX_JOB_NNODES": "2"}, "Flux job f2"),
    "HTCondor": ({"_CONDOR_PROCNO": "0", "_CONDOR_NPROCS": "2", "_CONDOR_JOB_AD": "/x"}, "HTCondor"),
    "Moab": ({"MOAB_JOBID": "6", "MOAB_NODELIST": "a&b"}, "Moab job 6"),
    "SageMaker": ({"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-1"}, "a job of SageMaker"),
    "SageMaker, own image": ({"TRAINING_JOB_ARN": "arn:aws:sagemaker:eu-west-1:1:job/x"}, "SageMaker"),
    "AWS Batch": ({"AWS_BATCH_JOB_ID": "j", "AWS_BATCH_JOB_NUM_NODES": "2"}, "AWS Batch job j"),
    "AWS Batch, a node": ({"AWS_BATCH_JOB_NODE_INDEX": "0"}, "a job of AWS Batch"),
    "Azure Batch": ({"AZ_BATCH_JOB_ID": "j", "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000"}, "Azure Batch job j"),
    "Azure ML": ({"AZUREML_NODE_COUNT": "2"}, "a job of Azure Batch"),
    "Vertex AI": ({"CLUSTER_SPEC": '{"cluster":{"workerpool0":["a:1","b:1"]}}'}, "a job of Vertex AI"),
    "Volcano": ({"VC_WORKER_HOSTS": "w0,w1", "VC_TASK_INDEX": "0"}, "a job of Volcano"),
    "PyTorchJob": (TORCH | {"WORLD_SIZE": "2", "RANK": "0"}, "a job of PyTorchJob"),
    "PyTorchJob, elastic": ({"PET_NNODES": "1:2", "PET_RDZV_ENDPOINT": "pod-0:23456"}, "PyTorchJob"),
    "numbered nodes": ({"NNODES": "2", "NODE_RANK": "1"}, "a job of PyTorchJob or torchelastic"),
    "SkyPilot": ({"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}, "SkyPilot"),
    "dstack": ({"DSTACK_NODES_NUM": "2", "DSTACK_NODE_RANK": "0"}, "a job of dstack"),
    "Ray": ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}, "a job of Ray"),
    "TFJob": ({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {}}'}, "a job of TFJob"),
    "MPIJob, a worker": ({"K_MPI_JOB_ROLE": "worker"}, "the MPIJob"),
    "TACC": ({"LAUNCHER_NHOSTS": "2"}, "a job of TACC's launcher"),
    "Kubernetes": ({"JOB_COMPLETION_INDEX": "0"}, "a job of Kubernetes with an index"),
    "Slurm": ({"SLURM_JOB_NODELIST": "n[1-2]"}, "a job of Slurm"),
}


@pytest.mark.parametrize(("environ", "says"), REFUSED.values(), ids=REFUSED)
def test_job_without_known_hosts_is_refused_by_its_name(environ, says):
    with pytest.raises(UsageError) as caught:
        allocated(environ)
    assert says in caught.value.what
    shown, value = caught.value.found.split(", ")[0].split(". ")[0].split("=", 1)
    assert environ[shown].startswith(value.rstrip("."))
    assert "-H" in caught.value.remedy
    assert "--engine local" in caught.value.remedy
    assert hosts(allocated(environ, "local", 3)) == {"localhost": 3}


ONE_HOST = {
    "AWS Batch": {"AWS_BATCH_JOB_ID": "j", "AWS_BATCH_CE_NAME": "c"},
    "AWS Batch, one node": {"AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_NUM_NODES": "1"},
    "SageMaker": {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
    "Grid Engine": {"JOB_ID": "7", "SGE_TASK_ID": "undefined", "SGE_O_HOST": "login", "NHOSTS": "1"},
    "Azure Batch": {"AZ_BATCH_JOB_ID": "j", "AZ_BATCH_TASK_ID": "t"},
    "HTCondor": {"_CONDOR_JOB_AD": "/var/lib/condor/.job.ad"},
    "PyTorchJob": TORCH | {"PET_NNODES": "1", "WORLD_SIZE": "1", "RANK": "0"},
    "TFJob": {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'},
    "SkyPilot": {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0"},
    "Flux": {"FLUX_JOB_ID": "f2", "FLUX_JOB_NNODES": "1"},
}


@pytest.mark.parametrize("environ", ONE_HOST.values(), ids=ONE_HOST)
def test_job_of_one_host_is_this_machine_and_says_so(environ):
    found = allocated(environ)
    assert hosts(found) == {"localhost": 2}
    assert found.source.startswith("this machine, the only host of ")


# What a shell carries outside any job: settings of clients, modules and containers.
EVERYDAY = """
SGE_ROOT=/opt/sge SGE_CELL=default
SLURM_CONF=/etc/slurm/slurm.conf SLURM_TIME_FORMAT=relative SLURM_STEP_NUM_TASKS=1
LSF_ENVDIR=/opt/lsf/conf LSF_SERVERDIR=/opt/lsf/etc
PBS_EXEC=/opt/pbs PBS_SERVER=pbs PBS_DEFAULT=pbs
MOABHOMEDIR=/opt/moab
TACC_SYSTEM=frontera TACC_NODE_TYPE=clx LAUNCHER_DIR=/opt/apps/launcher
KUBERNETES_SERVICE_HOST=10.96.0.1
AWS_REGION=eu-west-1
AZUREML_RUN_ID=r
OMPI_MCA_btl=tcp,self OMPI_COMM_WORLD_SIZE=1 PMI_SIZE=1 HOSTFILE=/home/alice/hosts
WORLD_SIZE=1 RANK=0 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
JOB_ID=build-7 CI_JOB_ID=7
TF_CONFIG={}
"""


def test_everyday_variables_are_no_job():
    environ = dict(setting.split("=") for setting in EVERYDAY.split())
    assert [detect(environ) for detect in ENGINES] == [None] * len(ENGINES)
    assert allocated(environ).source.startswith("this machine, because no hosts are named")


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (
            {"LSB_JOBID": "8", "LSB_MCPU_HOSTS": "a 4 b"},
            "LSB_MCPU_HOSTS does not name the hosts of LSF job 8",
        ),
        ({"LSB_HOSTS": "a\x07 b"}, "LSB_HOSTS does not name the hosts of a job of LSF"),
        ({"PE_HOSTFILE": "/nowhere/pe"}, "PE_HOSTFILE does not name the hosts of a job of Grid Engine"),
        ({"CCP_NODES": "2 a 4 b"}, "CCP_NODES does not name the hosts"),
    ],
)
def test_job_whose_hosts_cannot_be_read_is_refused(environ, says):
    with pytest.raises(UsageError) as caught:
        allocated(environ)
    assert says in caught.value.what
    assert "--engine local" in caught.value.remedy


@pytest.mark.parametrize("listed", ["batch5 1 h1 22 h2 22", "login1 4 h1 22 h2 22", "h0 1 h1 22 h2 22"])
def test_launch_node_of_lsf_is_asked_for(listed):
    with pytest.raises(UsageError, match="may be its launch node") as caught:
        allocated({"LSB_JOBID": "8", "LSB_MCPU_HOSTS": listed})
    assert "-H 'h1 slots=22,h2 slots=22'" in caught.value.remedy
    assert hosts(allocated({"LSB_JOBID": "8", "LSB_MCPU_HOSTS": "h0 1 h1 1"})) == {"h0": 1, "h1": 1}


STARTED = [
    ("mpirun", {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}),
    ("mpiexec of MPICH or Intel MPI", {"PMI_SIZE": "2", "PMI_RANK": "0"}),
    ("mpiexec of MPICH or Intel MPI", {"MPI_LOCALNRANKS": "2"}),
    ("mpirun of MVAPICH", {"MV2_COMM_WORLD_SIZE": "2"}),
    ("srun", {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}),
    ("srun", {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}),
    ("horovodrun", {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}),
    ("torchrun", {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}),
    ("torchrun", {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}),
    ("flux run", {"FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "0"}),
    ("jsrun", {"JSM_NAMESPACE_SIZE": "2"}),
    ("poe", {"MP_PROCS": "2", "MP_CHILD": "0"}),
]


@pytest.mark.parametrize(("name", "environ"), STARTED)
def test_program_started_twice_is_refused_by_its_launcher(name, environ):
    with pytest.raises(UsageError, match="each copy would start all ranks") as caught:
        require_started_once(environ)
    assert caught.value.what.startswith(name)
    assert "starts ringside 2 times" in caught.value.what
    assert "it starts all ranks itself" in caught.value.remedy
    require_started_once({variable: value.replace("2", "1") for variable, value in environ.items()})


@pytest.mark.parametrize(
    "environ", [{"PMIX_RANK": "0"}, {"SLURM_PROCID": "1"}, {"ALPS_APP_PE": "1"}, {"PALS_RANKID": "3"}]
)
def test_program_started_by_a_launcher_without_a_count_is_refused(environ):
    with pytest.raises(UsageError, match="starts ringside many times"):
        require_started_once(environ)


def test_program_in_the_script_of_a_job_is_started_once():
    """Slurm gives a batch script the number of the first task, too."""
    require_started_once({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"})
    require_started_once({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "1"})


@pytest.mark.parametrize(
    "command", [["run"], ["submit", "--", "run"], ["run", "--engine=rehearsal"], ["doctor"]]
)
def test_command_started_by_mpirun_twice_exits_with_wrong_usage(command):
    program, environ = [sys.executable, "-m", "compare"], os.environ | {"OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run([*program, *command], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "mpirun starts ringside 2 times" in done.stderr
