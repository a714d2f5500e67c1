"""Measure what grows with the number of ranks, without so many: ``python -m tests.bench.many_ranks``.

It prints the CPU time of rank 0 in the proof of a launch, and the time and memory of a report. Each figure is
that of a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import msgspec

from compare.schema.arms import parse_arm
from compare.schema.results import Run
from compare.schema.store import RESULTS_FILE, read_run
from compare.system.files import write_json
from tests.bench.host_agents import measured_by
from tests.bench.hosts import ARMS, real_launch
from tests.comparing import ROOT

MODEL = "convnet"
ROUNDS = 5


def prove(ranks: int) -> float:
    """Take rank 0's part in the proof of a launch, and return the seconds of CPU.

    There are no other ranks, so the arm takes its gradients from the reference, which is a step ahead.
    """
    import torch

    from backends.base import Replica
    from compare.worker.mnist import MnistTask
    from compare.worker.parity import Proof
    from compare.worker.watchdog import PassTimer
    from tests.unit.factories import a_config

    torch.set_num_threads(1)
    group = SimpleNamespace(rank=0, world_size=ranks, device=torch.device("cpu"), barrier=lambda: None)

    class Right(Replica):
        def __init__(self, model, make_optimizer):
            super().__init__(model, make_optimizer, group, {})

        def sync(self):
            right = proof._reference._right
            for parameter, gradient in zip(self.model.parameters(), right, strict=True):
                parameter.grad.copy_(gradient)

    generator = torch.Generator().manual_seed(5)
    data = (
        torch.randn(64 * ranks, 784, generator=generator),
        torch.randint(10, (64 * ranks,), generator=generator),
    )
    config = a_config("ddp", model=MODEL, ranks=ranks, batch_size_per_rank=64)
    task = MnistTask(config, None, *data).for_proof("float64")
    timer = PassTimer(SimpleNamespace(note=lambda *_, **__: None, stall_seconds=30.0), group)
    task.make_optimizer(task.build_model().parameters())  # the first one of a process imports for seconds
    began = time.process_time()
    proof = Proof(Right, task, "float64", timer, compares=True)
    if wrong := proof.take(brief=True).wrong:
        sys.exit(f"The proof of a right arm found {wrong}.")
    return time.process_time() - began


def write_run(like: Path, folder: Path, ranks: int) -> int:
    """Write the results of so many ranks in every arm and round; return the size in bytes."""
    run = read_run(like)
    pattern = run.launches[-1]
    arms = tuple(parse_arm(name) for name in ARMS)
    config = msgspec.structs.replace(
        run.config, arms=arms, baseline="ddp", ranks=ranks, rounds=ROUNDS, steps=run.config.total_steps
    )
    hosts = [
        msgspec.structs.replace(run.hosts[0], name=f"n{number}", slots=8) for number in range(ranks // 8)
    ]
    launches = [
        msgspec.structs.replace(
            pattern,
            number=number,
            round=round_,
            arm=arm.label,
            ranks=[
                msgspec.structs.replace(
                    measured_by(number + rank, pattern.ranks[rank > 0]), rank=rank, host=f"n{rank // 8}"
                )
                for rank in range(ranks)
            ],
        )
        for number, (round_, arm) in enumerate(product(range(1, ROUNDS + 1), arms), start=1)
    ]
    network = msgspec.structs.replace(run.network, addresses=tuple("10.0.0.1" for _ in hosts))
    changed: dict[str, object] = {"config": config, "hosts": hosts, "network": network, "launches": launches}
    whole: Run = msgspec.structs.replace(run, cores_by_host=[8] * len(hosts), discarded=[], **changed)
    write_json(folder / RESULTS_FILE, whole)
    return (folder / RESULTS_FILE).stat().st_size


def measure(*words: object) -> tuple[float, int, str]:
    """Run a program; return its seconds of CPU, its largest resident set in bytes, and what it printed."""
    command = [sys.executable, "-m", *map(str, words)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{words} ended with status {process.returncode}.")
    return used.ru_utime + used.ru_stime, used.ru_maxrss << 10, printed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.many_ranks", description=__doc__)
    parser.add_argument("--proof", type=int, metavar="RANKS", help="the proof alone, in this process")
    given = parser.parse_args()
    if given.proof:
        print(prove(given.proof))
        return
    for ranks in (2, 8, 64, 512):
        printed = measure("tests.bench.many_ranks", "--proof", ranks)[2]
        print(f"{MODEL}, {ranks} ranks: the proof takes rank 0 {float(printed):.1f} s of CPU", flush=True)
    with tempfile.TemporaryDirectory(prefix="ringside-many-") as folder:
        like = real_launch(Path(folder, "like")).parent.parent
        many = Path(folder, "many")
        many.mkdir()
        size = write_run(like, many, 512)
        seconds, most, _ = measure("compare", "report", many)
        print(
            f"512 ranks × {len(ARMS)} arms × {ROUNDS} rounds: results of {size / 1e6:.0f} MB, "
            f"whose report takes {seconds:.1f} s of CPU and {most >> 20} MiB"
        )


if __name__ == "__main__":
    main()
