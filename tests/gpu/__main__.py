"""Try what only a machine with a GPU can show.

``python -m tests.gpu FOLDER`` needs no network and installs nothing. Each part is a program of its own: a
part that fails or hangs ends alone. FOLDER keeps what each part printed and measured. ``summary.md`` in it
has the outcomes, and is written anew after every part.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

from tests.comparing import ROOT, find_mnist

LIMIT_SECONDS = 480
"""Time for all parts; what has not begun by then is skipped."""
PART_SECONDS = 150
Outcome = Literal["passed", "FAILED", "skipped"]


class Machine(NamedTuple):
    """What the parts depend on."""

    device: str
    gpus: int
    horovod: bool
    data: list[str]


_ONE_RANK = 16
"""The exit status of `ringside verify` with one rank: the gates have figures, but nothing is proven."""


class Part(NamedTuple):
    """One program, and when it cannot run here."""

    name: str
    command: list[str]
    skipped: str = ""
    check: Callable[[Path], str] = lambda _: ""
    """Return what is wrong with the part's folder; empty if nothing is."""
    status: int = 0
    """The exit status of a part without a fault."""


class Done(NamedTuple):
    """The outcome of a part."""

    name: str
    outcome: Outcome
    why: str
    seconds: float
    command: str


def parts(machine: Machine, folder: Path) -> list[Part]:
    """List the parts, the most telling first."""
    many, on_gpu = f"This machine has {counted(machine.gpus)}.", machine.device == "cuda"
    alone = "" if on_gpu else "It needs a GPU."
    two = "" if machine.gpus > 1 else many

    def run(name: str, arms: str, *more: str, skipped: str = "", ranks: int = 1) -> Part:
        options = ["-np", ranks, "--device", machine.device, "--steps", 200, "--backend", arms, *machine.data]
        command = compare("run", *options, "--output", folder / name / "run", *more)
        return Part(name, command, skipped, _check_run if on_gpu else lambda _: "")

    turns = ("--interleave", "blocks", "--timeout", "5m:stall=15", "--repeats", 2)
    launches = ("--interleave", "launches:reruns=0", "--repeats", 1)
    sharing = [*torchrun(2), "-m", "tests.gpu.sharing", machine.device]
    ranks = max(1, machine.gpus)
    device = ("-np", ranks, "--device", machine.device)
    verify = compare("verify", *device, "--backend", "ddp,manual", *machine.data)
    collectives = compare("collectives", *device)
    small = ["-e", "16M", "--repeats", "1", "--output", str(folder / "collectives" / "run")]
    no_horovod = "" if machine.horovod else "Horovod is not installed."
    return [
        Part("machine", [sys.executable, "-m", "tests.gpu.machine"], alone),
        run("one rank", "ddp,manual", *launches),
        Part("parity in float64", verify, status=_ONE_RANK if ranks == 1 else 0),
        Part("no hidden wait", [*torchrun(1), "-m", "tests.gpu.profile", machine.device]),
        run("turns", "ddp,manual,zero", *turns),
        Part("two ranks on one GPU", sharing),
        run("several ranks", "ddp,manual", *launches, skipped=two, ranks=max(2, machine.gpus)),
        run("hooks", "ddp:comm_hook=fp16,ddp:comm_hook=bf16", *launches, skipped=alone),
        run("shards", "fsdp,zero", *launches),
        run("offload and prefetch", "fsdp:offload=cpu,fsdp:prefetch=2", *launches, skipped=alone),
        Part("collectives", [*collectives, *small]),
        run("horovod", "horovod", *launches, skipped=no_horovod),
        run("data parallel", "dataparallel", *launches, skipped=two),
    ]


def compare(*arguments: object) -> list[str]:
    """Return a command line of the product."""
    return [sys.executable, "-m", "compare", *map(str, arguments)]


def torchrun(ranks: int) -> list[str]:
    """Return how ranks of a script are started."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def counted(gpus: int) -> str:
    """Write a number of GPUs."""
    return f"{gpus or 'no'} GPU{'' if gpus == 1 else 's'}"


def _check_run(folder: Path) -> str:
    """Return what the results of a run on a GPU lack."""
    from compare.schema.store import read_run

    for launch in read_run(folder / "run").launches:
        for rank in launch.ranks:
            if not rank.peak_device_memory_bytes:
                return f"{launch.arm}: no memory of the device was recorded."
            if rank.attestation["device"] == "cpu":
                return f"{launch.arm}: rank {rank.rank} trained on the CPU."
            if launch.arm != "none" and "nccl" not in json.dumps(rank.attestation["group"]).lower():
                return f"{launch.arm}: NCCL is not attested."
            if not any(block.phases for block in rank.blocks):
                return f"{launch.arm}: no phase was timed."
    return ""


def execute(part: Part, folder: Path, ends_at: float) -> Done:
    """Carry out one part, and keep all that it prints."""
    began, left = time.monotonic(), ends_at - time.monotonic()
    written = " ".join(part.command)
    if part.skipped or left <= 0:
        return Done(part.name, "skipped", part.skipped or "No time was left.", 0, written)
    own = folder / part.name
    own.mkdir()
    with (own / "output.txt").open("w") as output:
        try:
            status = _run(part.command, output, min(PART_SECONDS, left))
            why = f"It exited with status {status}." if status != part.status else part.check(own)
        except subprocess.TimeoutExpired as error:
            why = f"It took longer than {error.timeout:.0f} s."
        except Exception as error:  # noqa: BLE001 -- a check that breaks is an outcome, too
            why = f"{type(error).__name__}: {error}"
    return Done(part.name, "FAILED" if why else "passed", why, time.monotonic() - began, written)


def _run(command: list[str], output: TextIO, seconds: float) -> int:
    """Run a program, and return its status.

    Raises:
        subprocess.TimeoutExpired: it took too long; its ranks were ended with it.
    """
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(seconds)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def summarise(found: list[Done], machine: Machine) -> str:
    """Write the outcomes as a table in Markdown."""
    rows = [
        f"| {one.name} | {one.outcome} | {one.seconds:.0f} s | {one.why} | `{one.command}` |" for one in found
    ]
    head = f"# On {machine.device}, {counted(machine.gpus)}, {time.strftime('%Y-%m-%d')}"
    return "\n".join(
        [head, "", "| part | outcome | time | why | command |", "|---|---|---:|---|---|", *rows, ""]
    )


def look(device: str) -> Machine:
    """Find out what this machine has.

    Raises:
        SystemExit: it has no GPU, and no other device was asked for.
    """
    import torch

    gpus = torch.cuda.device_count()
    if device == "cuda" and not gpus:
        sys.exit("torch finds no GPU here. --device cpu rehearses the parts that need none.")
    found = find_mnist()
    data = ["--data", str(found)] if found else ["--data", "digits"]
    return Machine(device, gpus, importlib.util.find_spec("horovod") is not None, data)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Try Ringside on a GPU.")
    parser.add_argument("folder", type=Path, help="where results go; it must not exist")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu rehearses the parts")
    given = parser.parse_args()
    machine, folder = look(given.device), given.folder.resolve()
    folder.mkdir(parents=True)
    ends_at, found = time.monotonic() + LIMIT_SECONDS, []
    for part in parts(machine, folder):
        found.append(execute(part, folder, ends_at))
        (folder / "summary.md").write_text(summarise(found, machine))
        print(f"{found[-1].name}: {found[-1].outcome}. {found[-1].why}", flush=True)
    sys.exit(any(one.outcome == "FAILED" for one in found))


if __name__ == "__main__":
    main()
