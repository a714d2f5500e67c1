"""List the programs that are tried on a machine with a GPU, the most telling first."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from backends.arms import ARMS
from compare.schema.arms import parse_arm
from compare.schema.results import RankResult, Verification
from compare.schema.store import read_result, read_run
from tests.contract.plan import OF_SHARDS, SMALL_BUCKETS, arms_of

_ONE_RANK = 16
"""The exit status of `ringside verify` with one rank: the gates have figures, but nothing is proven."""
_ARMS_AT_ONCE = 4
"""Number of arms in a part, so that it ends within its time."""
_OTHER_WAYS = {"shared_memory", "mpi"}
"""Choices with which gradients do not go by NCCL, or which Horovod may lack."""
_FIRST = ("ddp", "manual", "zero", "fsdp")
AMONG_FOUR = ("manual:mode=ring", "manual:mode=reduce_scatter", "fsdp:replicate=2", "pipeline")
"""Arms that do among four ranks what two ranks do not show."""
AMONG_HOSTS = ("ddp", "manual")
"""Arms that are proven between rehearsed hosts, because all others send by the same library."""
FOUR_LAYERS = "mlp:784-128-96-64-10"
"""A model whose layers four ranks can divide."""


class Machine(NamedTuple):
    """What the parts depend on."""

    device: str
    gpus: int
    data: list[str]
    why_no_rehearsal: str = ""
    """Why this machine can rehearse no hosts; empty if it can."""


class Part(NamedTuple):
    """One program, and when it cannot run here."""

    name: str
    command: list[str]
    skipped: str = ""
    check: Callable[[Path], str] = lambda _: ""
    """Return what is wrong with the part's folder; empty if nothing is."""
    status: int = 0
    """The exit status of a part without a fault."""
    timed: bool = False
    """Whether it measures times, so that no other part may run beside it."""


def parts(machine: Machine, folder: Path) -> list[Part]:
    """List all parts; those between ranks come first, because one rank has been tried."""
    return [*_between_ranks(machine, folder), *_alone(machine, folder)]


def _between_ranks(machine: Machine, folder: Path) -> Iterator[Part]:
    """Yield the parts that prove what travels between ranks; they share GPUs if there are too few."""
    two = device_of(machine, 2)

    def verify(name: str, arms: Sequence[str], ranks: int, *more: str) -> Part:
        given = [word for arm in arms for word in ("--backend", arm)]
        device = device_of(machine, ranks)
        command = compare("verify", "-np", ranks, "--device", device, *given, *machine.data, *more)
        return Part(name, [*command, "--output", str(folder / name / "run")], check=check_proof)

    def own(name: str, *words: str) -> Part:
        return Part(name, [*words, two, str(folder / name), *machine.data])

    group = "nccl" if machine.device == "cuda" else "gloo"
    checked = ("-m", "tests.gpu.checked", group, machine.device)
    arms = arms_over_nccl(machine.device)
    first, *others = (arms[at : at + _ARMS_AT_ONCE] for at in range(0, len(arms), _ARMS_AT_ONCE))
    yield verify("arms 1 among two", first, 2)
    yield Part("all collectives among two", [*torchrun(2), *checked])
    yield own("a killed rank of two", *script("failing"), "kill")
    yield own("turns among two", *script("turns"))
    yield verify("arms among four", AMONG_FOUR, 4, "--model", FOUR_LAYERS)
    for number, some in enumerate(others, start=2):
        yield verify(f"arms {number} among two", some, 2)
    yield Part("all collectives among four", [*torchrun(4), *checked])
    rehearsed = verify("rehearsed hosts", AMONG_HOSTS, 2, "--engine", "rehearsal:hosts=2")
    yield rehearsed._replace(skipped=machine.why_no_rehearsal)
    yield own("a stopped rank of two", *script("failing"), "stop")


def arms_over_nccl(device: str) -> list[str]:
    """List every arm that sends gradients by NCCL, with each choice and switch, one at a time."""
    backends = [arm for arm in ARMS if arm.cuda and arm.communicates and not arm.own_step]
    here = [arm for arm in backends if all(map(find_spec, arm.default_runtime.libraries))]
    only_on_gpus = (
        f"{arm.name}:{option.name}={choice}"
        for arm in here
        for option in arm.options
        for choice in option.cuda_only
        if device == "cuda"
    )
    numbers = [*OF_SHARDS, *SMALL_BUCKETS]
    labels: dict[str, str] = {}
    for label in (*_FIRST, *chain.from_iterable(map(arms_of, here)), *only_on_gpus, *numbers):
        arm = parse_arm(label)
        if arm.traits in here and _OTHER_WAYS.isdisjoint(arm.options.values()):
            labels.setdefault(f"{arm.backend} {arm.options}", label)
    return [*labels.values()]


def _alone(machine: Machine, folder: Path) -> Iterator[Part]:
    """Yield the parts of one rank, and those that measure times, which need a GPU for each rank."""
    on_gpu, gpus = machine.device == "cuda", machine.gpus
    alone = "" if on_gpu else "It needs a GPU."
    two = "" if gpus > 1 else f"This machine has {counted(gpus)}."
    ranks = max(1, gpus)

    def run(name: str, arms: str, *more: str, skipped: str = "", ranks: int = 1) -> Part:
        options = ["-np", ranks, "--device", machine.device, "--steps", 200, "--backend", arms, *machine.data]
        command = compare("run", *options, "--output", folder / name / "run", *more)
        return Part(name, command, skipped, check_run if on_gpu else lambda _: "", timed=True)

    turns = ("--interleave", "blocks", "--timeout", "5m:stall=15", "--repeats", "2")
    launches = ("--interleave", "launches:reruns=0", "--repeats", "1")
    device = ("-np", ranks, "--device", machine.device)
    collectives = [*compare("collectives", *device), "-e", "16M", "--repeats", "1"]
    output = ["--output", str(folder / "collectives" / "run")]
    verify = compare("verify", "-np", 1, "--device", machine.device, "--backend", "ddp,manual", *machine.data)
    hooks = "ddp:comm_hook=fp16,ddp:comm_hook=bf16"
    no_horovod = "" if find_spec("horovod") else "Horovod is not installed."
    yield Part("machine", script("machine"), alone)
    yield run("several ranks", "ddp,manual,zero,fsdp", *launches, skipped=two, ranks=max(2, gpus))
    yield run("hooks between ranks", hooks, *launches, skipped=alone or two, ranks=max(2, gpus))
    yield Part("collectives", [*collectives, *output], timed=True)
    yield run("one rank", "ddp,manual", *launches)
    yield Part("parity in float64", verify, status=_ONE_RANK)
    yield Part("no hidden wait", [*torchrun(1), "-m", "tests.gpu.profile", machine.device], timed=True)
    yield run("turns", "ddp,manual,zero", *turns, ranks=ranks)
    yield Part("two ranks on one GPU", [*torchrun(2), "-m", "tests.gpu.sharing", machine.device])
    yield run("hooks", hooks, *launches, skipped=alone)
    yield run("shards", "fsdp,zero", *launches)
    yield run("offload and prefetch", "fsdp:offload=cpu,fsdp:prefetch=2", *launches, skipped=alone)
    yield run("horovod", "horovod", *launches, skipped=no_horovod)
    yield run("data parallel", "dataparallel", *launches, skipped=two)


# ---- command lines ----


def device_of(machine: Machine, ranks: int) -> str:
    """Return the device of so many ranks, which share GPUs where there are fewer."""
    return "cuda:shared" if machine.device == "cuda" and machine.gpus < ranks else machine.device


def compare(*arguments: object) -> list[str]:
    """Return a command line of the product."""
    return [sys.executable, "-m", "compare", *map(str, arguments)]


def script(name: str) -> list[str]:
    """Return how a script of this folder is started."""
    return [sys.executable, "-m", f"tests.gpu.{name}"]


def torchrun(ranks: int) -> list[str]:
    """Return how ranks of a script are started."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def counted(gpus: int) -> str:
    """Write a number of GPUs."""
    return f"{gpus or 'no'} GPU{'' if gpus == 1 else 's'}"


# ---- checks ----


def check_proof(folder: Path) -> str:
    """Return what a verification lacks: an arm, or NCCL on a GPU."""
    found = read_result(folder / "run")
    if not isinstance(found, Verification) or len(found.arms) < len(found.run.config.arms):
        return "Not every arm was verified."
    if found.run.config.device == "cpu":
        return ""
    for launch in found.run.launches:
        for rank in launch.ranks:
            if rank.attestation["device"] == "cpu" or not _attests_nccl(rank):
                return f"{launch.arm}: rank {rank.rank} does not attest a GPU and NCCL."
    return ""


def check_run(folder: Path) -> str:
    """Return what the results of a run on a GPU lack."""
    for launch in read_run(folder / "run").launches:
        for rank in launch.ranks:
            if not rank.peak_device_memory_bytes:
                return f"{launch.arm}: no memory of the device was recorded."
            if rank.attestation["device"] == "cpu":
                return f"{launch.arm}: rank {rank.rank} trained on the CPU."
            if launch.arm != "none" and not _attests_nccl(rank):
                return f"{launch.arm}: NCCL is not attested."
            if not any(block.phases for block in rank.blocks):
                return f"{launch.arm}: no phase was timed."
    return ""


def _attests_nccl(rank: RankResult) -> bool:
    return "nccl" in json.dumps(rank.attestation["group"]).lower()
