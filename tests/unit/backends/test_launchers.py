"""Test launchers: their commands, the ranks' variables, and the inherited environment."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import Placement
from backends.launchers import LAUNCHERS, read_placement
from backends.launchers.request import Command, Request
from compare.errors import UnavailableError
from compare.launch import arm as launching
from compare.launch.arm import LaunchFolders
from compare.schema import environment as launch_environment
from compare.schema.arms import parse_arm, parse_arms
from compare.schema.hosts import Host
from compare.schema.job import Job, Planned
from compare.schema.launch_files import LaunchFiles
from tests.unit.factories import MNIST, a_cluster, a_config

TWO = (Host("localhost", 2),)
ENVIRONMENT = {"OMP_NUM_THREADS": "3", "GLOO_SOCKET_IFNAME": "lo"}
JOB = "/runs/a b/launches/01-ddp/job.json"  # without a shell, the blank needs no quotes


def request_for(launcher, arm, hosts, **changes):
    return Request(
        **{
            "executable": Path("/opt/env/bin") / launcher,
            "python": Path("/opt/env/bin/python"),
            "hosts": tuple(hosts),
            "module": "compare.worker",
            "arguments": (JOB,),
            "port": 40123,
            "environment": ENVIRONMENT,
            "interface": "lo",
            "options": parse_arm(arm).options,
        }
        | changes
    )


# ---- the command lines, to the letter ----


HOROVODRUN = "/opt/env/bin/horovodrun --{} --disable-cache -np 2 -H localhost:2 --network-interfaces lo"
ON_ONE_HOST = {
    "ddp": "/opt/env/bin/torchrun --nnodes=1 --nproc_per_node=2 --node_rank=0 --master_addr=127.0.0.1"
    " --master_port=40123 --max_restarts=0 --module compare.worker",
    "horovod": f"{HOROVODRUN.format('gloo')} /opt/env/bin/python -m compare.worker",
    "horovod:controller=mpi": f"{HOROVODRUN.format('mpi')} '--mpi-args=--allow-run-as-root"
    " --mca mpi_yield_when_idle 1 --mca oob_tcp_if_include lo' /opt/env/bin/python -m compare.worker",
    "mpi": "/opt/env/bin/mpirun --allow-run-as-root -np 2 -host localhost:2 --bind-to none"
    " --mca mpi_yield_when_idle 1 --mca oob_tcp_if_include lo --mca btl_tcp_if_include lo"
    " -x UCX_TLS -x OMPI_MCA_coll /opt/env/bin/python -m mpi4py -m compare.worker",
}


@pytest.mark.parametrize("arm", ON_ONE_HOST)
def test_launcher_command_on_one_host(arm):
    """Only mpirun needs the names of an arm's variables; the others pass them all."""
    launcher = parse_arm(arm).runtime.launcher
    command = Command((*shlex.split(ON_ONE_HOST[arm]), JOB), ENVIRONMENT)
    request = request_for(launcher, arm, TWO, exported=("UCX_TLS", "OMPI_MCA_coll"))
    assert LAUNCHERS[launcher].commands(request) == [command]


def test_hydra_command_starts_ranks_that_load_mpich(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    (command,) = LAUNCHERS["mpiexec.hydra"].commands(request_for("mpiexec.hydra", "mpi:library=mpich", TWO))
    parent = command.argv.index("sh")
    assert shlex.join(command.argv[:parent]) == (
        "/opt/env/bin/mpiexec.hydra -n 2 -launcher fork -rmk user -iface lo -bind-to none"
        " -disable-auto-cleanup"
    )
    assert command.argv[parent + 3 :] == (
        *("sh", "/opt/env/bin/python", "-m", "mpi4py", "-m", "compare.worker", JOB),
    )
    library = f"/cache/ringside/mpich-{LAUNCHERS['mpiexec.hydra'].VERSION}/lib/libmpi.so.12"
    assert command.environment == ENVIRONMENT | {"MPI4PY_LIBMPI": library, "UCX_NET_DEVICES": "lo"}


UNEVEN = (Host("n1", 2), Host("n2", 1, "alice"))
SPREAD = {
    "interface": "eth0",
    "network": "10.0.0.0/24",
    "address": "10.0.0.11",
    "mpi_prefix": Path("/opt/env"),
    "mark": "ringside-0123-1",
}
DAEMONS = {
    "orte_launch_agent": "env RINGSIDE_LAUNCH=ringside-0123-1 orted",
    "plm_rsh_no_tree_spawn": "1",
    "oob_tcp_keepalive_time": "3",
    "oob_tcp_keepalive_intvl": "2",
    "oob_tcp_keepalive_probes": "3",
    "orte_keep_fqdn_hostnames": "1",
}


def test_torchrun_on_many_hosts_has_one_agent_on_each():
    commands = LAUNCHERS["torchrun"].commands(request_for("torchrun", "ddp", UNEVEN, **SPREAD))
    assert [command.host for command in commands] == list(UNEVEN)
    for number, (slots, command) in enumerate(zip((2, 1), commands, strict=True)):
        assert " ".join(command.argv[1:6]) == (
            f"--nnodes=2 --nproc_per_node={slots} --node_rank={number}"
            " --master_addr=10.0.0.11 --master_port=40123"
        )


def test_mpirun_command_on_many_hosts():
    (command,) = LAUNCHERS["mpirun"].commands(request_for("mpirun", "mpi", UNEVEN, **SPREAD))
    program = command.argv.index("/opt/env/bin/python")
    assert command.host is None
    assert command.argv[:program] == (
        *("/opt/env/bin/mpirun", "--allow-run-as-root", "-np", "3", "-host", "n1:2,n2:1"),
        *("--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
        *("--mca", "oob_tcp_if_include", "10.0.0.0/24", "--mca", "btl_tcp_if_include", "10.0.0.0/24"),
        *("--prefix", "/opt/env", "--map-by", "slot"),
        *(word for name, value in DAEMONS.items() for word in ("--mca", name, value)),
        *("-x", "RINGSIDE_LAUNCH", "-x", "OMP_NUM_THREADS", "-x", "GLOO_SOCKET_IFNAME"),
    )


@pytest.mark.parametrize("controller", ["gloo", "mpi"])
def test_horovodrun_command_on_many_hosts(controller):
    arm = f"horovod:controller={controller}"
    (command,) = LAUNCHERS["horovodrun"].commands(request_for("horovodrun", arm, UNEVEN, **SPREAD))
    assert command.host is None
    assert command.argv[command.argv.index("-np") + 1] == "3"
    assert command.argv[command.argv.index("-H") + 1] == "n1:2,n2:1"
    assert command.argv[command.argv.index("--network-interfaces") + 1] == "eth0"
    parameters = [word for word in command.argv if word.startswith("--mpi-args=")]
    assert len(parameters) == (controller == "mpi")
    for words in map(shlex.split, parameters):
        assert words[words.index("oob_tcp_if_include") + 1] == "10.0.0.0/24"
        for name, value in DAEMONS.items():
            assert words[words.index(name) + 1] == value


# ---- the variables of a rank ----

NAMES = {
    "torchrun": "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE",
    "horovodrun": "HOROVOD_RANK HOROVOD_LOCAL_RANK HOROVOD_SIZE HOROVOD_LOCAL_SIZE",
    "mpirun": "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK"
    " OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE",
    "mpiexec.hydra": "PMI_RANK MPI_LOCALRANKID PMI_SIZE MPI_LOCALNRANKS",
}
GIVEN = {launcher: dict(zip(names.split(), "3142", strict=True)) for launcher, names in NAMES.items()}
PLACED = Placement(rank=3, local_rank=1, world_size=4, local_world_size=2, host=socket.gethostname())


@pytest.mark.parametrize(("name", "given_"), [*GIVEN.items(), ("horovodrun", GIVEN["mpirun"])])
def test_placement_is_read_from_the_launchers_variables(name, given_):
    """Horovod's controller MPI has the variables of Open MPI."""
    assert read_placement(name, given_ | {"PATH": "/bin"}) == PLACED


@pytest.mark.parametrize("name", GIVEN)
def test_placement_without_every_variable_of_the_launcher_is_an_error(name):
    for missing in GIVEN[name]:
        with pytest.raises(KeyError):
            read_placement(name, {key: value for key, value in GIVEN[name].items() if key != missing})


# ---- the inherited environment ----


KEPT = """
PATH HOME LD_LIBRARY_PATH VIRTUAL_ENV LC_ALL CUDA_VISIBLE_DEVICES NCCL_DEBUG NCCL_IB_DISABLE OMP_SCHEDULE
HOROVOD_FUSION_THRESHOLD OMPI_MCA_btl UCX_TLS NCCL_IB_PKEY NCCL_NET_PLUGIN FI_PROVIDER OMP_WAIT_POLICY
UCX_PATH CUDA_CACHE_PATH MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM NCCL_PXN_DISABLE TORCH_NCCL_BLOCKING_WAIT
"""
VALUES_OF_SECRETS = (
    "http://me:hunter2@proxy:3128",
    "ghp_0123456789abcdefghij",
    "hf_0123456789abcdefghij",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x",
    "Bearer abc",
)
SECRETS = """
AWS_SECRET_ACCESS_KEY FOO_TOKEN HF_TOKEN GITHUB_TOKEN DATABASE_URL SSH_AUTH_SOCK
NVIDIA_API_KEY SLURM_JWT SLURM_JOB_ID TORCH_HUB_TOKEN HOROVOD_SECRET_KEY UCX_PASSWORD
TORCH_HUB_KEY NCCL_PASSPHRASE UCX_AUTH TORCH_COOKIE HOROVOD_PRIVATE_FILE OMPI_MCA_some_key
TORCH_BEARER NCCL_PWD UCX_SESSION UCX_SESSION_ID HOROVOD_DBPWD FI_PW TORCH_CREDS OMP_PAT CUDA_OTP
PYTORCH_DSN MKL_SALT NVIDIA_PASSCODE OMPI_MCA_webhook NCCL_SIGNATURE TORCH_cred
"""
"""Names of the other lines start like settings, or are a scheduler's."""
OF_ANOTHER_LAUNCH = "RANK WORLD_SIZE MASTER_ADDR OMPI_COMM_WORLD_RANK"
"""They would misplace a rank."""
OF_THE_ARM = "HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK"


@pytest.mark.parametrize("name", KEPT.split())
def test_inherited_environment_keeps_what_a_launch_needs(name):
    assert launch_environment.inherited_variables({name: "value"}) == {name: "value"}


@pytest.mark.parametrize("name", f"{SECRETS} {OF_ANOTHER_LAUNCH} {OF_THE_ARM}".split())
def test_inherited_environment_drops_secrets_and_contradictions(name):
    assert launch_environment.inherited_variables({name: "value", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize("value", VALUES_OF_SECRETS)
def test_inherited_environment_drops_a_secret_under_an_innocent_name(value):
    environ = {"TORCH_HOME_PAGE": value, "UCX_TLS": "tcp", "TORCH_HUB": "https://host:8080/path"}
    kept = {"UCX_TLS": "tcp", "TORCH_HUB": "https://host:8080/path"}
    assert launch_environment.inherited_variables(environ) == kept
    assert launch_environment.library_settings(environ) == kept


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_inherited_environment_changes_and_adds_nothing(environ):
    assert launch_environment.inherited_variables(environ).items() <= environ.items()


# ---- the settings of every rank ----


@pytest.fixture
def launchers(monkeypatch):
    """Pretend that every launcher is installed."""
    monkeypatch.setattr(launching, "find_launcher", lambda name, _python: Path("/opt/env/bin") / name)


ARMS = "none,ddp,manual,manual:mode=overlap,horovod,horovod:controller=mpi,mpi,mpi:library=mpich"
OF_MPICH = {"MPI4PY_LIBMPI", "UCX_NET_DEVICES"}
"""Variables that choose the library of one arm."""


def commands_of(config, arm):
    """Return the commands of an arm, without the variables of this launch alone."""
    folders = LaunchFolders(a_cluster(config.ranks), LaunchFiles(Path("/runs/x")))
    job = partial(Job, dataset=MNIST)
    commands = launching.plan_launch(config, Planned(1, 1, arm), folders, 40123, job).commands
    own = folders.settings()
    return [
        Command(c.argv, {k: v for k, v in c.environment.items() if k not in own}, c.host) for c in commands
    ]


def test_commands_of_every_arm_have_the_same_ranks_program_and_settings(launchers):
    config, environments = a_config(ARMS, ranks=3, threads_per_rank=2), []
    for arm in config.arms:
        (command,) = commands_of(config, arm)
        assert Path(command.argv[0]).name == arm.runtime.launcher
        assert command.argv[-2:] == (arm.runtime.launcher, "/runs/x/job.json")
        assert {"--nproc_per_node=3", "localhost:3"} & set(command.argv) or " -n 3 " in " ".join(command.argv)
        environments.append({k: v for k, v in command.environment.items() if k not in OF_MPICH})
    assert environments == environments[:1] * len(config.arms)
    set_ = environments[0]
    assert (set_["OMP_NUM_THREADS"], set_["MKL_NUM_THREADS"]) == ("2", "2")
    assert (set_["GLOO_SOCKET_IFNAME"], set_["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    first = set_["PYTHONPATH"].split(os.pathsep)[0]
    assert (Path(first) / "compare" / "worker" / "__main__.py").is_file()
    assert set_["PYTHONSAFEPATH"] == "1"
    assert set_["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


@pytest.mark.parametrize("backend", ["ddp", "manual", "horovod", "horovod:controller=mpi", "mpi"])
def test_commands_take_an_arms_variables_and_show_no_value(launchers, backend):
    config = a_config(f"none,{backend},{backend}:env.UCX_TLS=tcp\\,self")
    control, plain, own = (dict(commands_of(config, arm)[0].environment) for arm in config.arms)
    assert own == plain | {"UCX_TLS": "tcp,self"}
    assert control == plain
    assert "tcp,self" not in " ".join(commands_of(config, config.arms[2])[0].argv)


def test_launch_files_of_a_long_label_have_a_valid_folder_name():
    arm = parse_arm("ddp:env.A=" + "é" * 400)
    files = launching.launch_files(Path("/runs/x"), Planned(7, 1, arm), again=True)
    assert files.directory.name.startswith("07-ddp_env.A=")
    assert files.directory.name.endswith("-again")
    assert len(os.fsencode(files.directory.name)) < 255


def test_commands_of_one_process_start_it_with_all_threads(launchers):
    config = a_config("single,ddp", ranks=3, threads_per_rank=2)
    single, ddp = (commands_of(config, arm)[0] for arm in config.arms)
    assert {"--nnodes=1", "--nproc_per_node=1"} <= set(single.argv)
    assert "--nproc_per_node=3" in ddp.argv
    assert (single.environment["OMP_NUM_THREADS"], ddp.environment["OMP_NUM_THREADS"]) == ("6", "2")


@pytest.mark.parametrize("arm", parse_arms([ARMS]), ids=lambda arm: arm.label)
def test_commands_without_the_launcher_name_it(arm, monkeypatch):
    monkeypatch.setattr(launching, "find_launcher", lambda *_: None)
    with pytest.raises(UnavailableError) as caught:
        commands_of(a_config(arm.label), arm)
    assert arm.runtime.launcher in caught.value.what
    assert arm.label in caught.value.what
    assert caught.value.remedy
