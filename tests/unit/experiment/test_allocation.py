"""The order of the sources of hosts, and the engines."""

import contextlib
import math
from types import SimpleNamespace

import pytest

from compare.errors import AllocationError, BudgetError, HostError, UsageError
from compare.experiment import collectives, run, verify
from compare.experiment.allocation import (
    choose_allocation,
    find_allocation,
    naming_scheduler,
    require_time,
)
from compare.launch.engines import Carrier, slurm
from compare.launch.engines.slurm import Slurm
from compare.launch.engines.ssh import Ssh
from compare.schema.hosts import Host
from tests.unit.collectives import a_sweep_config
from tests.unit.factories import a_run

HOSTS = (Host("n1", 2, source="Slurm job 17"), Host("n2", 1, source="Slurm job 17"))
JOB = (
    "JobState=RUNNING NodeList=n[1-2] NumTasks=3 CPUs/Task=1 "
    "Nodes=n1 CPU_IDs=0-1 Mem=0 GRES= Nodes=n2 CPU_IDs=0 Mem=0 GRES="
)
OF_SLURM = {"SLURM_JOB_ID": "17"}


@pytest.fixture(autouse=True)
def job(monkeypatch):
    monkeypatch.setattr(slurm, "show_job", lambda *_, **__: JOB)


def choose(environ, engine="auto", named=None, hostfile=None, ranks=None, **options):
    return choose_allocation(find_allocation(engine, options, hostfile, named, environ=environ), ranks)


def names(chosen):
    return [host.name for host in chosen.hosts]


def test_hosts_come_from_the_first_source_that_there_is(tmp_path):
    mpijob, pbs, lsf = (tmp_path / name for name in ("mpijob", "pbs", "lsf"))
    mpijob.write_text("pod1 slots=1\npod2 slots=1\n")
    pbs.write_text("p1\np1\np2\n")
    lsf.write_text("l1 2\n")
    environ = OF_SLURM | {
        "OMPI_MCA_orte_default_hostfile": str(mpijob),
        "K_MPI_JOB_ROLE": "launcher",
        "PBS_NODEFILE": str(pbs),
        "PBS_JOBID": "9",
        "LSB_DJOB_HOSTFILE": str(lsf),
    }
    found = []
    for gone in ([], ["SLURM_JOB_ID"], ["K_MPI_JOB_ROLE"], ["PBS_NODEFILE"], [*environ]):
        environ = {name: value for name, value in environ.items() if name not in gone}
        chosen = choose(environ)
        found.append((chosen.source, names(chosen), type(chosen.carrier)))
    assert found == [
        ("2 of Slurm job 17", ["n1", "n2"], Slurm),
        ("2 of the MPIJob, from OMPI_MCA_orte_default_hostfile", ["pod1", "pod2"], Ssh),
        ("2 of PBS job 9, from PBS_NODEFILE", ["p1", "p2"], Ssh),
        ("1 of a job of LSF, from LSB_DJOB_HOSTFILE", ["l1"], Ssh),
        ("this machine, because no hosts are named and no scheduler's job was found", ["localhost"], Carrier),
    ]
    assert choose(OF_SLURM, named="mine:2").source == "1 of -H"


def test_engine_may_be_named():
    assert choose(OF_SLURM, "ssh").carrier == Ssh()
    assert choose(OF_SLURM, "ssh").hosts == HOSTS
    alone = choose(OF_SLURM, "local")
    assert names(alone) == ["localhost"]
    assert alone.source == "this machine alone (--engine local)"
    assert names(choose(OF_SLURM, "slurm", named="n2:4")) == ["n2"]
    assert [host.slots for host in choose(OF_SLURM, ranks=1).hosts] == [1]


@pytest.mark.parametrize(
    ("named", "hosts", "carrier"),
    [
        ("n2", [("n2", 1)], Slurm),
        ("^n2", [("n1", 2)], Slurm),
        ("n[1-2]:1", [("n1", 1), ("n2", 1)], Slurm),
        ("mine:2", [("mine", 2)], Ssh),
    ],
)
def test_named_hosts_of_a_job_are_chosen_and_others_are_reached_by_ssh(named, hosts, carrier):
    for engine in ("auto", "ssh"):
        chosen = choose(OF_SLURM, engine, named=named)
        assert [(host.name, host.slots) for host in chosen.hosts] == hosts
        assert isinstance(chosen.carrier, Ssh if engine == "ssh" else carrier)


def test_named_hosts_need_no_job_whose_hosts_are_known():
    assert names(choose({"PBS_JOBID": "9"}, named="p1,p2")) == ["p1", "p2"]
    with pytest.raises(UsageError, match="does not know its hosts"):
        choose({"PBS_JOBID": "9"}, named="^p1")


def test_options_of_the_engine_reach_the_allocation():
    found = choose({}, "ssh", "n1", port=2222, user="ann", identity="/key", interface="ib0", wait=9.0)
    assert found.carrier == Ssh(port=2222, user="ann", identity="/key")
    assert (found.interface, found.wait_seconds) == ("ib0", 9.0)
    assert choose(OF_SLURM, interface="ib0").interface == "ib0"
    assert choose({}, interface="eth0").interface == "eth0"


@pytest.mark.parametrize(
    ("environ", "options", "says"),
    [
        (OF_SLURM, {"port": 22}, "--engine auto: port has no effect here"),
        ({}, {"wait": 9.0}, "--engine auto: wait has no effect here"),
        ({}, {"engine": "rehearsal", "named": "n1"}, "makes its own hosts"),
        ({}, {"engine": "slurm"}, "works only within a Slurm job"),
        ({}, {"engine": "ssh"}, "needs hosts"),
        ({"AWS_BATCH_JOB_ID": "j"}, {"engine": "ssh"}, "needs hosts"),
        ({}, {"engine": "local", "named": "n1"}, "contradict each other"),
        (OF_SLURM, {"engine": "slurm", "named": "n9"}, "'n9' is none of the hosts: n1:2,n2:1"),
        (OF_SLURM, {"named": "n1,n9"}, "'n9' is none of the hosts: n1:2,n2:1"),
        ({"PBS_JOBID": "9"}, {}, "Ringside runs in PBS job 9, but does not know its hosts"),
        ({"PBS_JOBID": "9"}, {"engine": "ssh"}, "Ringside runs in PBS job 9"),
        (OF_SLURM | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}, {}, "srun starts ringside 2 times"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, {"named": "n1:2"}, "mpirun starts ringside 2 times"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, {"engine": "local"}, "mpirun starts ringside 2 times"),
    ],
)
def test_engine_that_cannot_reach_the_hosts_is_refused(environ, options, says):
    with pytest.raises(UsageError, match=says):
        choose(environ, **options)


@pytest.fixture
def hostfile(tmp_path):
    def write(text):
        path = tmp_path / "hosts"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "ranks", "flags", "what"),
    [
        ("localhost slots=2\n", 3, {}, "3 ranks do not fit"),
        ("localhost slots=2\n127.0.0.1 slots=2\n", 2, {}, "hosts:2: this machine is named twice"),
        ("n1\n", None, {"named": "n2"}, "'n2' is none of the hosts: n1:1"),
        ("n1\n", None, {"named": "^n1"}, "no host is left"),
        (None, None, {"named": "^n1"}, "none are named"),
    ],
)
def test_hosts_that_cannot_be_chosen_are_refused(hostfile, text, ranks, flags, what):
    path = None if text is None else hostfile(text)
    with pytest.raises(UsageError) as caught:
        choose({}, hostfile=path, ranks=ranks, **flags)
    assert what in caught.value.what
    assert caught.value.remedy


THREE = "n1 slots=2\nn2 slots=2\nn3 slots=2\n"


@pytest.mark.parametrize(
    ("text", "ranks", "flags", "hosts"),
    [
        (None, 3, {}, [("localhost", 3)]),
        (None, None, {}, [("localhost", 2)]),
        ("localhost slots=4\n", 3, {}, [("localhost", 3)]),
        (THREE, 3, {}, [("n1", 2), ("n2", 1)]),
        (None, None, {"named": "n[1-2]:2,n3"}, [("n1", 2), ("n2", 2), ("n3", 1)]),
        (THREE, None, {"named": "^n2"}, [("n1", 2), ("n3", 2)]),
        (THREE, None, {"named": "n[2-3]"}, [("n2", 2), ("n3", 2)]),
        (THREE, None, {"named": "n3,n1:1"}, [("n1", 1), ("n3", 2)]),
        (THREE, 3, {"named": "^n1"}, [("n2", 2), ("n3", 1)]),
    ],
)
def test_slots_of_a_file_or_of_flags_are_given_to_ranks(hostfile, text, ranks, flags, hosts):
    found = choose({}, hostfile=hostfile(text) if text else None, ranks=ranks, **flags).hosts
    assert [(host.name, host.slots) for host in found] == hosts


class AnEndedJob:
    name = "Slurm job 17"
    ends_at = 100.0

    def why_it_ended(self):
        return AllocationError("Slurm job 17 was cancelled.")


@pytest.mark.parametrize("error", [HostError("lost"), KeyboardInterrupt()])
def test_scheduler_that_ended_the_job_is_named(error):
    error.add_note("kept")
    with pytest.raises(AllocationError, match="was cancelled") as caught, naming_scheduler(AnEndedJob()):
        raise error
    assert caught.value.__notes__ == ["kept"]
    with pytest.raises(type(error)), naming_scheduler(None):
        raise error


def test_job_too_short_for_a_round_is_refused_before_it(monkeypatch):
    monkeypatch.setattr("compare.experiment.allocation.unix_time", lambda: 80.0)
    require_time(AnEndedJob(), "arm", least_seconds=10.0)
    require_time(None, "arm", least_seconds=math.inf)
    with pytest.raises(BudgetError, match="Slurm job 17 ends before every arm can run once"):
        require_time(AnEndedJob(), "arm", least_seconds=30.0)


@pytest.mark.parametrize(
    ("module", "command", "settle"),
    [
        (run, "compare_arms", "settle"),
        (verify, "verify_arms", "settle"),
        (collectives, "compare_collectives", "settle_sweep"),
    ],
)
def test_command_refused_for_its_time_keeps_nothing(tmp_path, monkeypatch, module, command, settle):
    config = a_sweep_config("gloo", "mpi") if settle == "settle_sweep" else a_run().config
    monkeypatch.setattr(
        module, "open_hosts", lambda *_: contextlib.nullcontext(SimpleNamespace(job=AnEndedJob()))
    )
    monkeypatch.setattr(module, settle, lambda *_: (config, {}))
    folder = tmp_path / "run"
    with pytest.raises(BudgetError, match="ends before every") as caught:
        getattr(module, command)(SimpleNamespace(output=folder), None, None)
    assert not getattr(caught.value, "__notes__", [])
    assert not folder.exists()
