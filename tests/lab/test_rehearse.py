"""Rehearsals: a real limit, one model, and no trace afterwards."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from compare.analysis.runs import summarise_scale
from compare.launch.engines.rehearsal import allocate
from compare.schema.store import read_result, read_run
from tests.comparing import ROOT, compare
from tests.lab.hosts import network_namespaces, why_no_rate_limit
from tests.waiting import is_alive, wait_until

pytestmark = pytest.mark.lab

RUN = ("run", "--no-control", "--repeats", "1", "--interleave", "auto:reruns=0", "--threads", "1")
GOODPUT = 1448 / 1514
"""Share of a link's rate that TCP's headers leave for data."""


@pytest.fixture(autouse=True)
def requires_rehearsals(requires_lab):
    if reason := why_no_rate_limit():
        pytest.skip(reason)


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def traces(pid=0):
    """Return interfaces and folders that a rehearsal must not leave.

    Other runs may come and go meanwhile. Folders of ours hold the process id, those of Open MPI the host.
    """
    folders = [name for folder in ("/tmp", "/dev/shm", "/run") for name in names(folder)]  # noqa: S108
    ours = [name for name in folders if name.startswith(f"ringside-{pid}-") or "rehearsal-" in name]
    return names("/sys/class/net"), ours


@pytest.mark.timed
@pytest.mark.parametrize("backends", ["ddp", pytest.param("ddp,mpi", marks=pytest.mark.rest)])
def test_rehearsal_link_decides_how_long_collectives_take(tmp_path, mnist_dir, requires_backend, backends):
    for backend in backends.split(","):
        requires_backend(backend)
    before = traces()
    done = compare(
        *(*RUN, "--engine", "rehearsal:hosts=2,rate=100mbit", "--data", mnist_dir),
        *("--backend", backends, "--steps", "30:warmup=5", "--model", "mlp:784-128-10"),
        *("--output", tmp_path / "run", "--export", tmp_path / "run.json"),
    )
    assert done.returncode == 0, done.stderr
    assert "REHEARSED: 2 hosts on one machine, 100 mbit/s" in done.stdout
    run = read_run(tmp_path / "run")
    assert run.network.rehearsed.bits_per_second == 100_000_000
    for launch in run.launches:
        assert [rank.host for rank in launch.ranks] == ["rehearsal-1", "rehearsal-2"]
    arms = json.loads((tmp_path / "run.json").read_text())["summary"]["arms"]
    seconds = {arm["arm"]: arm["detail"]["collective_seconds"]["mean"] for arm in arms}
    # Over two ranks a ring sends each byte once.
    bound = sum(run.launches[0].ranks[0].message_bytes) * 8 / (100e6 * GOODPUT)
    assert seconds["ddp"] == pytest.approx(bound, rel=0.15)
    if "mpi" in seconds:  # Open MPI does not send and receive at the same time
        assert 0.85 * bound < seconds["mpi"] < 2.3 * bound
    assert traces() == before


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.rest)])
def test_rehearsal_that_is_ended_leaves_nothing(tmp_path, mnist_dir, requires_backend, end):
    requires_backend("mpi")
    before = traces()
    arguments = (*RUN, "--engine", "rehearsal:hosts=2,rate=1gbit", "--data", mnist_dir)
    started = subprocess.Popen(
        [sys.executable, "-m", "compare", *arguments, "--backend", "mpi", "--steps", "100000"]
        + ["--model", "mlp:784-64-10", "--output", tmp_path / "run"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell may ignore SIGINT in a background job.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    try:
        wait_until(lambda: len(list((tmp_path / "run").glob("launches/*/rank-*.progress"))) == 2, 60)
        inside = psutil.Process(started.pid).children(recursive=True)
        made = network_namespaces(p.pid for p in inside) - network_namespaces([os.getpid()])
        assert len(made) == 3, "a room and two hosts"
        os.kill(started.pid, end)
        started.wait(timeout=20)
        wait_until(lambda: not [p for p in inside if p.is_running() and is_alive(p.pid)])
        assert not made & network_namespaces(psutil.pids())
        assert traces(started.pid) == before
    finally:
        started.kill()
        started.wait()


@pytest.mark.timed
@pytest.mark.rest
def test_rehearsal_scale_loses_efficiency_to_the_link(tmp_path, mnist_dir, requires_backend):
    requires_backend("ddp")
    done = compare(
        *("scale", "--engine", "rehearsal:hosts=2,rate=100mbit", "-np", "1,2", *RUN[1:]),
        *("--data", mnist_dir, "--backend", "ddp", "--steps", "20:warmup=5", "--model", "mlp:784-128-10"),
        *("--output", tmp_path / "series"),
    )
    assert done.returncode == 0, done.stderr
    assert "REHEARSED: 2 hosts on one machine, 100 mbit/s" in done.stdout
    scale = read_result(tmp_path / "series")
    (launch,) = scale.runs[2].launches
    assert [rank.host for rank in launch.ranks] == ["rehearsal-1", "rehearsal-2"]
    of_one, of_two = summarise_scale(scale).points
    assert (of_one.efficiency.mean, of_two.beyond_cores) == (1, False)
    # 400 kB take over 30 ms on the link, and a step computes less than 10 ms.
    assert of_two.efficiency.mean < 0.5


@pytest.mark.parametrize(("with_gpus", "seen"), [(False, ""), (True, "0,1")])
def test_hosts_see_gpus_only_if_ranks_compute_on_them(monkeypatch, with_gpus, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with allocate({"hosts": 1}, with_gpus=with_gpus).opened() as opened:
        command = ["sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"']
        argv = opened.carrier.argv(opened.hosts[0], command)
        printed = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert printed == f"{seen}\n"


def test_rehearsal_doctor_finds_no_problem_and_misses_no_temporary_folder(tmp_path, every_backend):
    """Each host has a private /tmp, without the folder that TMPDIR names."""
    done = compare("doctor", "--quick", "--engine", "rehearsal", environment={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stdout
    assert "2 hosts examined" in done.stdout
    assert "rehearsal-2" in done.stdout
    assert str(tmp_path) not in done.stdout
