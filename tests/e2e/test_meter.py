"""The meter, around a training script that knows nothing of it."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from compare.analysis.figures import t_interval
from compare.analysis.metered import measure, pairs_of
from compare.schema.metered import PHASES, read_metered
from tests.comparing import torchrun

SCRIPT = Path(__file__).parent / "metered" / "train.py"
METER = ("-m", "ringside.meter")
FEW = ("--pairs", 3, "--block", 8, "--warmup", 10)


def train(folder, *arguments, before=(), ranks=2):
    """Run the script by its ranks alone, without a launcher; return what each rank left."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, (*before, SCRIPT, *arguments))],
            cwd=folder,
            env=os.environ
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
            | {"WORLD_SIZE": str(ranks), "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    texts = [process.communicate(timeout=240) for process in processes]
    return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]


def hashes(results):
    """The words after the rank in each rank's last line."""
    assert [code for code, _, _ in results] == [0] * len(results), results
    return [out.splitlines()[-1].split()[2:] for _, out, _ in results]


def test_torchrun_measures_a_script_and_its_ranks_stay_equal(tmp_path):
    """Modules of the script may also have the names of our packages."""
    (tmp_path / "compare.py").write_text("OWNER = 'the script'")
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "__init__.py").write_text("from compare import OWNER")
    script = tmp_path / "train.py"
    check = "import backends\nassert backends.OWNER == 'the script'\n"
    script.write_text(f"{check}{SCRIPT.read_text()}import compare\n")
    done = torchrun(tmp_path, *METER, *FEW, script, "--accumulate", 2, "--infinite", "--epochs", 5)
    assert done.returncode == 0, done.stderr
    first, second = sorted(line.split()[2:] for line in done.stdout.splitlines())
    assert first == second
    assert first[2] == "150"
    (file,) = tmp_path.glob("runs/*-train-np2-meter/meter.json")
    assert f"ringside report runs/{file.parent.name}" in done.stderr
    record = read_metered(file)
    assert record.measured, record.ended
    assert len(record.complete_pairs) == 3
    assert [rank.rank for rank in record.ranks] == [0, 1]
    assert record.undone_steps == 3 * 9
    for block in (block for pair in record.complete_pairs for block in pair):
        assert 0 < sum(block.cpu_seconds) <= max(block.busy_seconds) + 0.05
    # Each pair lies within one epoch of 30 steps, because the script evaluates between epochs.
    assert all(min(a.step, b.step) % 30 + 18 <= 30 for a, b in record.complete_pairs)
    (wrapper,) = record.synchronised
    assert (wrapper.name, wrapper.gradient_bytes) == ("DistributedDataParallel", sum(wrapper.messages))
    assert {name for rank in record.of("phases")[0].phases for name in rank} == set(PHASES)
    assert record.of("isolated")


def test_without_blocks_the_script_trains_what_it_trains_alone(tmp_path):
    alone = hashes(train(tmp_path, "--epochs", 2))
    metered = hashes(train(tmp_path, "--epochs", 2, before=(*METER, "--no-measure", "--output", "out")))
    assert metered == alone
    assert alone[0] == alone[1]
    assert read_metered(tmp_path / "out" / "meter.json").blocks == []


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("error", 1),
        ("kill", -9),
        *(
            pytest.param(*end, marks=pytest.mark.faults)
            for end in (("exit", 3), ("_exit", 0), ("interrupt", -2))
        ),
    ],
)
def test_a_script_ends_as_it_would_alone_and_leaves_its_record(tmp_path, end, code):
    options = ("--batches", 60, "--end", end)
    output = ("--output", "out")
    ((found, out, err),) = train(tmp_path, *options, before=(*METER, *FEW, *output), ranks=1)
    record = read_metered(tmp_path / "out" / "meter.json")
    assert found == code
    assert record.blocks
    if end in {"error", "interrupt"}:
        ((_, out_alone, err_alone),) = train(tmp_path, *options, ranks=1)
        assert (out, err) == (out_alone, err_alone)
    killed = end in {"_exit", "kill"}
    assert (record.ended == "") is killed or record.measured


def test_a_script_that_is_too_short_learns_how_long_it_must_be(tmp_path):
    (done, *_) = train(tmp_path, "--epochs", 1, "--batches", 20, before=METER, ranks=1)
    assert done[0] == 0
    assert "The script ended after 20 steps. All pairs need at least 1072 steps." in done[2]


def measured(folder, *options, more=()):
    """Meter the script with 12 pairs of blocks; return the record and its figures."""
    folder.mkdir(exist_ok=True)
    before = (*METER, "--pairs", 12, "--block", 8, "--output", "out", *more)
    hashes(train(folder, "--epochs", 2, "--batches", 180, *options, before=before))
    record = read_metered(folder / "out" / "meter.json")
    assert record.measured, record.ended
    return record, measure(record)


@pytest.mark.timed
def test_a_delay_in_synchronising_is_found_and_one_in_computing_is_not(tmp_path):
    delay = 0.02
    figures = {
        name: measured(tmp_path / name, f"--{name}", delay)[1] for name in ("synchronising", "computing")
    }
    assert figures["synchronising"].shows_cost
    assert figures["computing"].local_seconds.mean > delay
    # Both steps have the delay, and load of other programs slows both, so the two costs are compared.
    costs = {name: one.exposed_seconds.mean for name, one in figures.items()}
    assert costs["synchronising"] - costs["computing"] == pytest.approx(delay, rel=0.5)


@pytest.mark.timed
def test_equal_blocks_show_no_difference(tmp_path):
    record, figures = measured(tmp_path, more=("--aa",))
    assert figures.exposed_seconds is None
    ratios = [math.log(pair.step_seconds / pair.other_seconds) for pair in pairs_of(record)]
    low, high = t_interval(ratios, 0.001)
    assert low < 0 < high
