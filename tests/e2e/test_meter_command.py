"""Test ``ringside meter`` on scripts of two ranks, through torchrun and mpirun."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from compare.launch.agent.machine import free_port
from compare.schema.metered import METER_FILE, read_metered
from tests.comparing import ROOT, compare

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    if step == 40 and "--fail" in sys.argv and dist.get_rank() == 1:
        raise RuntimeError("own mistake")
# In one piece, because the ranks share the pipe.
sys.stdout.write(f"rank {dist.get_rank()} took {sys.argv[1:]}\\n")
"""
SPAWNING = Path(__file__).parent / "metered" / "spawn.py"
FLAGS = ("--pairs", 3, "--block", 5, "--warmup", 10)


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


def test_meter_shows_what_synchronising_costs_in_the_example(tmp_path):
    output, page = tmp_path / "run", tmp_path / "meter.html"
    script = ROOT / "examples" / "train.py"
    done = compare("meter", *FLAGS, "--output", output, "--export", page, script, "--epochs", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epoch 0: loss" in done.stdout
    assert "epoch 1: loss" not in done.stdout, "its own flag is passed on"
    assert re.search(r"train\.py · 2 ranks × \d+ threads? · cpu · DistributedDataParallel", done.stdout)
    assert re.search(r"exposed sync +-?[\d.]+ \(", done.stdout)
    assert "Of 128 steps 18 were measured without synchronising and put back." in done.stdout
    record = json.loads((output / "meter.json").read_text())
    assert [block["kind"] for block in record["blocks"]].count("local") == 3
    assert "what synchronising costs" in page.read_text()
    again = compare("report", output)
    assert again.stdout.strip() in done.stdout


def test_meter_of_a_script_that_raises_shows_its_own_traceback(script, tmp_path):
    done = compare("meter", *FLAGS, "--output", tmp_path / "run", script, 200, "--fail")
    assert done.returncode == 1
    assert "RuntimeError: own mistake" in done.stderr
    assert "error: " in done.stderr
    assert "torchrun ended with 1." in done.stderr
    assert "train.py FAILED" in done.stderr, "torchrun names the script, and nothing of ours"


def test_meter_of_a_short_script_says_how_many_steps_it_needs(script, tmp_path):
    done = compare("meter", *FLAGS, "--output", tmp_path / "run", script, 12, "--epochs")
    assert done.returncode == 17, done.stdout + done.stderr
    for rank in (0, 1):
        assert f"rank {rank} took ['12', '--epochs']" in done.stdout
    assert re.search(r"after 12 steps\. All pairs need at least \d+ steps", done.stderr)


@pytest.mark.parametrize("method", ["spawn", pytest.param("fork", marks=pytest.mark.faults)])
def test_meter_measures_ranks_that_a_script_starts_itself(method, tmp_path):
    words = ("--launcher", "none", "--output", tmp_path / "run", SPAWNING, method, 120, free_port())
    done = compare("meter", *FLAGS, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in (0, 1):
        assert f"rank {rank} took 120 steps" in done.stdout
    assert re.search(r"spawn\.py · 2 ranks ×", done.stdout)
    record = read_metered(tmp_path / "run" / METER_FILE)
    assert (record.ended, record.steps) == ("Everything was measured.", 120)


def test_ranks_that_a_script_starts_itself_are_refused_under_torchrun(tmp_path):
    words = ("-np", 1, "--output", tmp_path / "run", SPAWNING, "spawn", 120, free_port())
    done = compare("meter", *FLAGS, *words)
    assert done.returncode == 17, done.stdout + done.stderr
    assert "The script starts its ranks itself" in done.stderr
    assert "ringside meter --launcher none" in done.stderr


def test_meter_starts_a_script_by_mpirun(tmp_path, requires_backend):
    requires_backend("mpi")
    script = tmp_path / "plain.py"
    script.write_text("import os, sys\nprint('rank', os.environ['OMPI_COMM_WORLD_RANK'])\nsys.exit(3)\n")
    done = compare("meter", "--launcher", "mpirun", "--output", tmp_path / "run", script)
    assert {"rank 0", "rank 1"} <= set(done.stdout.splitlines())
    assert done.returncode == 3
    assert "mpirun ended with 3." in done.stderr
