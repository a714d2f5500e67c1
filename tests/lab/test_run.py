"""Test ``ringside run`` on real hosts, started from another host."""

import json
import shutil
import sys

import pytest

from compare.schema.collectives import COLLECTIVES_FILE, CollectivesRun
from compare.schema.store import read_run
from compare.system.files import read_json
from tests.comparing import ROOT
from tests.lab.comparing import ARMS, RUN, compare, left
from tests.lab.hosts import Lab, why_no_rate_limit

pytestmark = pytest.mark.lab


SECRET = {"MY_TOKEN": "hunter2", "PYTHONHASHSEED": "0"}
CASES = [
    ((2, 1), "blocks"),
    pytest.param((1, 1, 1), "launches", marks=pytest.mark.rest),
    pytest.param((1, 1, 1, 1), "launches", marks=pytest.mark.rest),
    pytest.param((1, 1), "blocks", marks=pytest.mark.rest),
    pytest.param((2, 2), "launches", marks=pytest.mark.rest),
]


@pytest.mark.timed
@pytest.mark.parametrize(("slots", "mode"), CASES, ids=str)
def test_run_on_hosts_trains_one_model_under_every_launcher(make_lab, mnist_dir, every_backend, slots, mode):
    """A secret of the shell reaches its ranks, and no file."""
    lab = make_lab(len(slots))
    hosts = ",".join(f"n{n}:{count}" for n, count in enumerate(slots, 1))
    more = ("--backend", ARMS, "--interleave", mode, "-x", "MY_TOKEN", "-x", "OMP_DISPLAY_ENV=hunter2")
    done = compare(lab, hosts, mnist_dir, *more, environment=SECRET)
    assert done.returncode == 0, done.stderr
    run = read_run(lab.folder / "run")
    assert run.complete
    assert [launch.launcher for launch in run.launches].count("horovodrun") == 2
    expected = [f"n{n}" for n, count in enumerate(slots, 1) for _ in range(count)]
    turns = {1, 2, 3, 4} if mode == "blocks" else {0}
    for launch in run.launches:
        assert {block.turn for rank in launch.ranks for block in rank.blocks} == turns
        assert [rank.host for rank in launch.ranks] == expected
        assert len({rank.final_hash for rank in launch.ranks}) == 1
    for number, name in enumerate(expected):
        (log,) = (lab.folder / "run").glob(f"launches/*-ddp/rank-{number}.log")
        assert log.with_name(f"launcher-{name}.log").is_file(), "every host sends its files back"
    assert (run.network.interface, run.network.network) == ("eth0", "10.77.0.0/24")
    assert "all over eth0 (10.77.0.0/24); the ranks meet at 10.77.0.11" in done.stderr
    assert left(lab) == []
    require_secret(done, run, lab.folder / "run")


def require_secret(done, run, folder):
    """Require that the ranks alone have the secret of their run."""
    held = [path for path in folder.rglob("*") if path.is_file()]
    assert len(held) > 20
    assert [path for path in held if b"hunter2" in path.read_bytes()] == []
    assert "hunter2" not in done.stdout + done.stderr
    for launch in run.launches:
        for rank in launch.ranks:
            assert rank.attestation["environment"]["OMP_DISPLAY_ENV"] == "***"


@pytest.fixture(scope="module")
def run_twice(requires_lab, mnist_dir):
    """Run one process over two hosts that lack the data set, and then a rank on each of them."""
    with Lab(2) as lab:
        # The output of a host's start-up files arrives on the pipe of the first message.
        (lab.folder / "etc-ssh" / "sshrc").write_text("echo Welcome to $HOSTNAME\n")
        # In the private /tmp of the login, and with a cache on every host that no other sees.
        assert "XDG_CACHE_HOME=/tmp/cache" in (lab.folder / "etc-ssh" / "sshd_config").read_text()
        lab.login.run(["cp", "-r", mnist_dir, "/tmp/mine"])  # noqa: S108
        printed, runs = [], []
        for hosts, arm in (("n1:2,n2:1", "single"), ("n1,n2", "ddp")):
            done = compare(lab, hosts, "/tmp/mine", "--backend", arm, "--threads", "1")  # noqa: S108
            assert done.returncode == 0, done.stderr
            printed.append(done.stderr)
            runs.append(read_run(lab.folder / "run"))
            shutil.rmtree(lab.folder / "run")
        yield lab, printed, runs


def test_run_on_hosts_starts_one_process_on_the_first_host(run_twice):
    lab, _, (run, _) = run_twice
    (launch,) = run.launches
    (single,) = launch.ranks
    assert single.host == "n1"
    assert single.attestation["threads"] == 2
    assert single.attestation["batch"]["samples"] == run.config.global_batch_size
    assert left(lab) == []


def test_run_on_hosts_copies_the_data_set_once(run_twice):
    lab, printed, (_, run) = run_twice
    assert [errors.count("Copying mnist") for errors in printed] == [1, 0]
    assert [rank.host for rank in run.launches[0].ranks] == ["n1", "n2"]
    for host in lab.hosts:
        files = host.run(["find", "/tmp/cache/ringside", "-name", "*ubyte*", "-printf", "%m %f\n"]).stdout  # noqa: S108
        assert {line.split()[0] for line in files.splitlines()} == {"600"}, files
    assert left(lab) == []


def test_run_on_hosts_copies_the_workloads_folder_once(make_lab, mnist_dir):
    lab = make_lab(2)
    lab.login.run(["cp", "-r", str(ROOT / "examples"), "/tmp/mine"])  # noqa: S108 -- the private one of the login
    own = ("--workload", "/tmp/mine/horovod_to_ddp.py:ddp", "--backend", "own_torch")  # noqa: S108
    for times in (1, 0):
        done = compare(lab, "n1,n2", mnist_dir, *own, steps=10)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("Copying the workload's folder") == times
        run = read_run(lab.folder / "run")
        assert run.dataset.workload == "horovod_to_ddp.py:ddp"
        assert len({rank.final_hash for rank in run.launches[0].ranks}) == 1
        shutil.rmtree(lab.folder / "run")
    assert left(lab) == []


def test_dry_run_on_hosts_prints_commands_and_starts_nothing(make_lab, mnist_dir, every_backend):
    lab = make_lab(2)
    more = ("--backend", ARMS, "--dry-run", "-x", "MY_TOKEN=hunter2", "--engine", "ssh:user=root")
    done = compare(lab, "n1:2,n2:1", mnist_dir, *more)
    assert done.returncode == 0, done.stderr
    for shown in (
        "\n  ddp on n1\n",
        "n2 has --nproc_per_node=1 --node_rank=1",
        "n1:2,n2:1",
        "No host was asked",
    ):
        assert shown in done.stdout
    assert "hunter2" not in done.stdout + done.stderr
    assert not (lab.folder / "run").exists()


@pytest.mark.timed
@pytest.mark.rest
def test_all_reduce_at_1_gbit_takes_the_time_of_a_ring(make_lab, mnist_dir, requires_backend):
    requires_backend("ddp")
    if reason := why_no_rate_limit():
        pytest.skip(reason)
    lab = make_lab(2)
    for host in lab.hosts:
        host.limit_rate("1gbit")
    more = ("--backend", "ddp", "--model", "mlp:784-4096-10", "--export", f"{RUN}.json")
    done = compare(lab, "n1,n2", mnist_dir, *more)
    assert done.returncode == 0, done.stderr
    exported = json.loads((lab.folder / "run.json").read_text())
    (launch,) = exported["run"]["launches"]
    message_bytes = sum(launch["ranks"][0]["message_bytes"])
    ring_bound_seconds = 2 * (2 - 1) / 2 * message_bytes * 8 / 1e9
    seconds = exported["summary"]["arms"][0]["detail"]["collective_seconds"]["mean"]
    assert message_bytes > 12e6
    assert 0.95 < seconds / ring_bound_seconds < 3


def test_collectives_on_hosts_are_right_in_every_group(make_lab, every_backend):
    lab = make_lab(2)
    done = lab.login.run(
        [sys.executable, "-m", "compare", "collectives", "-H", "n1,n2", "--output", RUN]
        + ["-b", "1K", "-e", "1M", "-f", "32", "-n", "2", "--repeats", "1"],
        timeout_seconds=280,
        environment={"COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = read_json(lab.folder / "run" / COLLECTIVES_FILE, CollectivesRun)
    assert [launch.group for launch in run.launches] == ["gloo", "horovod", "horovod_mpi", "mpi"]
    assert run.left_out["shared_memory"].startswith("Its ranks must be on one host.")
    for launch in run.launches:
        assert [rank.host for rank in launch.ranks] == ["n1", "n2"]
        assert {rank.attestation["group"]["transport"] for rank in launch.ranks} == {"TCP over eth0"}
        assert [timing.wrong for rank in launch.ranks for timing in rank.timings] == [0] * 6
    assert "2 hosts over eth0" in done.stdout
    assert left(lab) == []
