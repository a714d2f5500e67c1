"""Launch the product's own command, and scripts under the same launchers."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from backends import BACKENDS
from backends.launchers import LAUNCHERS, find_launcher
from backends.launchers.request import Request
from compare.analysis.figures import LaunchFigures
from compare.schema.arms import parse_arm
from compare.schema.environment import inherited_variables, launch_settings
from compare.schema.hosts import local_host
from compare.schema.store import read_run
from tests.bench.machine import Load, LoadMeter, family_seconds
from tests.waiting import free_port

THREADS = 1
"""Threads per rank: two ranks fill two cores."""
SHARED_MEMORY = "manual:mode=shared_memory"
_TIMEOUT_SECONDS = 600
_SETTINGS = launch_settings(threads=THREADS, interface="lo", executables=Path(sys.executable).parent)


@dataclass(frozen=True)
class Outcome:
    """The figures of one launch.

    - ``step_seconds``: median over blocks of the mean over ranks
    - ``first_step_seconds``: from the start of the launcher to the slowest rank's first step
    - ``with_proof_seconds``: the same with the product's proof of parity, which no script has
    - ``peak_bytes``: the largest peak memory of a rank
    """

    figures: dict[str, float]
    load: Load


class BenchError(RuntimeError):
    """A command that failed; the message holds it and its output."""


def compare_run(*arguments, data_dir, folder, rounds=1):
    """Execute ``ringside run`` and read its results."""
    output = Path(tempfile.mkdtemp(dir=folder)) / "run"
    command = [Path(sys.executable).parent / "compare", "run", "--device", "cpu"]
    command += ["--interleave", "auto:reruns=0", "--data", f"mnist:folder={data_dir}"]
    command += ["--threads", THREADS, "--repeats", rounds, "--output", output]
    execute([*map(str, command), *arguments], timeout_seconds=_TIMEOUT_SECONDS * rounds)
    return read_run(output)


def launch_product(arm, *, ranks, steps, data_dir, folder):
    """Launch one arm once with the product's own command."""
    meter = LoadMeter(family_seconds)
    run = compare_run(
        *("--backend", arm, "--no-control"),
        *("-np", str(ranks), "--steps", str(steps)),
        data_dir=data_dir,
        folder=folder,
    )
    (launch,) = run.launches
    figures = {
        "step_seconds": LaunchFigures(launch).step_seconds,
        "first_step_seconds": max(rank.moments.first_step_done for rank in launch.ranks),
        "with_proof_seconds": max(
            rank.moments.first_step_done + sum(taken.seconds for taken in rank.parity)
            for rank in launch.ranks
        ),
        "peak_bytes": max(rank.peak_memory_bytes for rank in launch.ranks),
    }
    return Outcome(figures, meter.read())


def launch_script(arm, script, *mode, ranks, steps, data_dir, folder):
    """Launch a hand-written script with an arm's launcher, flags and environment."""
    out = Path(tempfile.mkdtemp(dir=folder))
    arguments = (*mode, data_dir / "MNIST" / "raw", out, repr(time.time()), steps)
    meter = LoadMeter(family_seconds)
    start_ranks(script, arguments, arm=arm, ranks=ranks)
    found = read_ranks(out, ranks)
    blocks = zip(*(rank["step_seconds"] for rank in found), strict=True)
    figures = {
        "step_seconds": statistics.median(statistics.fmean(block) for block in blocks),
        "first_step_seconds": max(rank["first_step_seconds"] for rank in found),
        "with_proof_seconds": max(rank["first_step_seconds"] for rank in found),
        "peak_bytes": max(rank["peak_bytes"] for rank in found),
    }
    return Outcome(figures, meter.read())


def start_ranks(script, arguments, *, arm="ddp", ranks=2):
    """Run a module of ``tests.bench.scripts`` on every rank with an arm's launcher."""
    arm = parse_arm(arm)
    name = BACKENDS[arm.backend].default_runtime.launcher
    request = Request(
        executable=find_launcher(name),
        python=Path(sys.executable),
        hosts=(local_host(ranks),),
        module=f"tests.bench.scripts.{script}",
        arguments=tuple(map(str, arguments)),
        port=free_port(),
        environment=_SETTINGS,
        interface="lo",
        options=arm.options,
    )
    with tempfile.TemporaryDirectory() as scratch:  # torchrun leaves a folder here
        for command in LAUNCHERS[name].commands(request):
            inherited = inherited_variables(os.environ)
            execute(command.argv, inherited | dict(command.environment) | {"TMPDIR": scratch})


def read_ranks(folder, ranks):
    """Read the figures that every rank wrote."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def execute(argv, environment=None, timeout_seconds=_TIMEOUT_SECONDS):
    """Run a command; on timeout or Ctrl-C, end all its processes."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = _wait(process, timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise BenchError(str(error)) from None
        finally:
            if process.returncode is None:
                _end(process)
        if status:
            output.seek(0)
            printed = output.read().decode(errors="replace")[-3000:]
            raise BenchError(f"{' '.join(map(str, argv))}\nended with status {status}:\n{printed}")


def _wait(process, seconds):
    """Wait for a process without the 50 ms polling of ``Popen.wait``."""
    end = os.pidfd_open(process.pid)
    try:
        ended, _, _ = select.select([end], [], [], seconds)
    finally:
        os.close(end)
    if not ended:
        raise subprocess.TimeoutExpired(process.args, seconds)
    return process.wait()


def _end(process):
    """End a command and its children: ranks outlive a killed launcher."""
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for member in family:
            if member.is_running():
                end(member)
        _, family = psutil.wait_procs(family, timeout=3)
