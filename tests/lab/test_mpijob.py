"""Rehearse the pods of an MPIJob in a lab.

Names, hostfile, variables and ssh are the operator's. Commands and options are those of the manifest that
``ringside submit`` prints. The hostfile is not at /etc/mpi, which is the real machine's.
"""

import json
import subprocess
import sys
import time

import pytest
import yaml

from compare.analysis import analyse
from compare.jobs import Resources
from compare.jobs.kubernetes import write_manifest
from compare.schema.store import read_run
from tests.lab.comparing import RUN, left
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

COMPARE = [sys.executable, "-m", "compare"]
HOSTFILE = "/run/lab/hostfile"
LAUNCHER = "pi-launcher.pi.default.svc"
WORKERS = ["pi-worker-0.pi.default.svc", "pi-worker-1.pi.default.svc"]
# As the operator sets them in the launcher's pod.
OPERATOR = {
    "K_MPI_JOB_ROLE": "launcher",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": HOSTFILE,
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "OMPI_MCA_orte_set_default_slots": "1",
    "NVIDIA_VISIBLE_DEVICES": "",
    "NVIDIA_DRIVER_CAPABILITIES": "",
}
# Of the image in docs/kubernetes.md; the key is where the lab has it.
SSH_CONFIG = """\
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
IdentityFile /run/lab/keys/login
"""


class Pods:
    """The launcher's pod on the login, and workers' pods that start later."""

    def __init__(self, lab, words):
        self.lab = lab
        job = yaml.safe_load(write_manifest(Resources(2, 1, 30, image="image"), words))
        pods = job["spec"]["mpiReplicaSpecs"]
        self._launcher, self._worker = (
            pods[role]["template"]["spec"]["containers"][0]["command"] for role in ("Launcher", "Worker")
        )
        (lab.folder / "etc-ssh" / "ssh_config").write_text(SSH_CONFIG)
        assert lab.login.run(["hostname", "pi-launcher"]).returncode == 0
        self.name(lab.login, f"{LAUNCHER} pi-launcher")

    def write_hostfile(self, *names):
        (self.lab.folder / "hostfile").write_text("".join(f"{name} slots=1\n" for name in names))

    def name(self, machine, name):
        """Let a name resolve, on every host."""
        with (self.lab.folder / "hosts").open("a") as file:
            file.write(f"{machine.address} {name}\n")

    def start_sshd(self, machine):
        machine.start([*self._worker, "-h", f"/run/lab/keys/{machine.name}"], stderr=subprocess.DEVNULL)

    def start_worker(self, number):
        """Start it. As in a pod, it alone knows its short name."""
        machine, short = self.lab.hosts[number], f"pi-worker-{number}"
        names = [f"{host.address} {name}" for host, name in zip(self.lab.hosts, WORKERS, strict=True)]
        own = "\n".join([(self.lab.folder / "hosts").read_text(), *names, f"{machine.address} {short}", ""])
        prepare = "hostname $1 && cat >/run/hosts && mount --bind /run/hosts /etc/hosts"
        done = machine.run(["sh", "-ec", prepare, "sh", short], stdin=own)
        assert done.returncode == 0, done.stderr
        self.start_sshd(machine)
        self.name(machine, WORKERS[number])

    def launch(self, *, stdout, stderr):
        """Start the launcher's command as the first process of its container."""
        program, *words = self._launcher
        assert program == "ringside"
        container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return self.lab.login.start(
            [*container, *COMPARE, *words],
            environment=OPERATOR | {"COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )


def words_of_a_run(mnist_dir, backends, *more):
    return [
        *("run", "--backend", backends, "--data", f"mnist:folder={mnist_dir!s}", "--output", RUN),
        *("--no-control", "--repeats", "1", "--steps", "30:warmup=5"),
        *("--interleave", "launches:reruns=0", "--export", "-", *more),
    ]


@pytest.fixture
def make_pods(make_lab):
    return lambda words: Pods(make_lab(2, sshd=False), words)


def require_one_model(run, hosts):
    assert run.complete
    for launch in run.launches:
        assert [rank.host for rank in launch.ranks] == hosts
        assert len({rank.final_hash for rank in launch.ranks}) == 1
    found = [str(condition) for condition in analyse(run).unexplained_differences]
    assert [text for text in found if "OMPI" in text or "NVIDIA" in text] == []


def test_launcher_waits_for_workers_and_its_log_holds_the_result(make_pods, mnist_dir, every_backend):
    pods = make_pods(words_of_a_run(mnist_dir, "horovod"))
    pods.write_hostfile(*WORKERS)
    path = pods.lab.folder / "log"
    with path.open("a") as log:
        process = pods.launch(stdout=log, stderr=log)

    def wait_for(text):
        wait_until(lambda: text in path.read_text() or process.poll() is not None, 30)
        assert text in path.read_text(), path.read_text()[-2000:]

    wait_for("Waiting for 2 of 2 hosts, at most ")
    assert f"Host {WORKERS[0]} ({HOSTFILE}:1) has a name that does not resolve." in path.read_text()
    pods.name(pods.lab.hosts[0], WORKERS[0])
    wait_for(f"Host {WORKERS[0]} ({HOSTFILE}:1) has no sshd that listens at this port.")
    pods.start_worker(0)
    wait_for("Waiting for 1 of 2 hosts")
    pods.start_worker(1)
    assert process.wait(timeout=150) == 0, path.read_text()[-2000:]
    assert "All 2 hosts answer" in path.read_text()
    run = read_run(pods.lab.folder / "run")
    require_one_model(run, ["pi-worker-0", "pi-worker-1"])
    # As docs/kubernetes.md takes it out of `kubectl logs`, which has both streams.
    taken = subprocess.run(["sed", "-n", "/^{$/,/^}$/p", path], capture_output=True, text=True, check=True)
    assert json.loads(taken.stdout)["run"]["started_at"] == run.started_at
    (pods.lab.folder / "run.json").write_text(taken.stdout)
    assert read_run(pods.lab.folder / "run.json") == run
    assert left(pods.lab) == []


def test_worker_that_never_comes_is_named(make_pods, mnist_dir):
    pods = make_pods(words_of_a_run(mnist_dir, "ddp", "--engine", "ssh:wait=5"))
    pods.write_hostfile(*WORKERS)
    pods.start_worker(0)
    began = time.monotonic()
    printed, errors = pods.launch(stdout=subprocess.PIPE, stderr=subprocess.PIPE).communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert "error: 1 of 2 hosts did not answer within 5 s." in errors
    assert f"Host {WORKERS[1]} ({HOSTFILE}:2) has a name that does not resolve." in errors
    assert f"-H '^{WORKERS[1]}'" in errors
    assert printed == ""
    assert not (pods.lab.folder / "run").exists()


def test_launcher_that_is_a_worker_trains_without_sshd(make_pods, mnist_dir, every_backend):
    pods = make_pods(words_of_a_run(mnist_dir, "mpi,ddp"))
    pods.write_hostfile(LAUNCHER, WORKERS[0])
    pods.start_worker(0)
    printed, errors = pods.launch(stdout=subprocess.PIPE, stderr=subprocess.PIPE).communicate(timeout=150)
    assert "Hosts: 2 of the MPIJob" in errors
    run = read_run(pods.lab.folder / "run")
    require_one_model(run, ["pi-launcher", "pi-worker-0"])
    assert json.loads(printed)["run"]["started_at"] == run.started_at, "nothing else is on standard output"
    assert "against mpi" in errors
    assert left(pods.lab) == []


def test_hostfiles_of_pbs_and_lsf_are_taken_by_run_and_doctor(make_lab, mnist_dir):
    lab = make_lab(2)
    (lab.folder / "pbs").write_text("n1\nn1\nn2\n")
    (lab.folder / "lsf").write_text("n1\nn2\n")
    of_pbs = {"PBS_NODEFILE": "/run/lab/pbs", "PBS_JOBID": "9"}
    of_lsf = {"LSB_DJOB_HOSTFILE": "/run/lab/lsf", "LSB_JOBID": "8"}
    done = lab.login.run([*COMPARE, "doctor", "--quick"], environment=of_lsf)
    assert done.returncode == 0, done.stdout
    assert "Examining 2 hosts of LSF job 8" in done.stderr
    words = words_of_a_run(mnist_dir, "ddp")
    done = lab.login.run([*COMPARE, *words], environment=of_pbs, timeout_seconds=120)
    assert done.returncode == 0, done.stderr
    assert "Hosts: 2 of PBS job 9" in done.stderr
    require_one_model(read_run(lab.folder / "run"), ["n1", "n1", "n2"])
