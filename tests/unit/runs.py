"""Build runs of every kind that a report may meet."""

from __future__ import annotations

import math

import msgspec

from compare.analysis.memory import divide_memory
from compare.schema.arms import parse_arm
from compare.schema.memory import ModelParameter
from compare.schema.results import Interleaved, Run, Sweep
from tests.unit.factories import a_block, a_launch, a_rank, a_run, noisy

SWEEP = [Sweep(message_bytes=1 << power, ns=[1_000 + (1 << power) // 4] * 5) for power in (10, 15, 20)]
STEPS = {"none": 4.0, "ddp": 6.0, "manual": 5.9, "mpi": 5.0, "localsgd": 4.4}


def measured(steps=STEPS, *, rounds=5, ranks=2, turns=1, reference=4.1, **changes):
    """Return a run with references, sweeps and turns."""
    launches = []
    for round_ in range(1, rounds + 1):
        for number, (arm, step) in enumerate(steps.items()):
            blocks = [
                msgspec.structs.replace(
                    a_block(step * math.exp(0.01 * math.sin(7 * number + 3 * round_ + turn))), turn=turn
                )
                for turn in range(1, turns + 1)
            ]
            if arm != "none":
                blocks += [
                    msgspec.structs.replace(a_block(reference, mode="reference"), turn=turn)
                    for turn in range(1, turns + 1)
                ]
            sweep = [] if arm == "none" else SWEEP
            own = [a_rank(rank, blocks=blocks, sweep=sweep, host=f"n{rank // 8}") for rank in range(ranks)]
            launches.append(a_launch(arm, round_, number=len(launches) + 1, ranks=own))
    changes = {"interleaved": Interleaved(mode="blocks")} | changes
    return a_run({arm: [] for arm in steps}, launches=launches, **changes)


LAYER = ModelParameter(name="0.weight", shape=[1001, 400], bytes=1001 * 400 * 4)
PARAMETERS = [LAYER, ModelParameter(name="0.bias", shape=[1001], bytes=4004)]
ADAM = 2.0
"""Bytes of state for each byte of parameters."""
OF_SHARDS = {"none": 4.0, "ddp": 6.0, "zero": 6.6, "fsdp": 8.0, "horovod": 7.0}


def attesting(run: Run, **changes: int | None) -> Run:
    """Return the run with the model's parameters, and with what every rank holds after a step of Adam."""
    launches = []
    for launch in run.launches:
        held = divide_memory(PARAMETERS, parse_arm(launch.arm).traits.shards, len(launch.ranks), ADAM)
        ranks = [
            msgspec.structs.replace(
                rank,
                parameters=[] if rank.rank else PARAMETERS,
                attestation=rank.attestation
                | {
                    "held": {name: getattr(own, name) for name in own.__struct_fields__}
                    | {"library_bytes": _of_library(launch.arm), "activation_bytes": 300_000}
                    | changes
                },
            )
            for rank, own in zip(launch.ranks, held, strict=True)
        ]
        launches.append(msgspec.structs.replace(launch, ranks=ranks))
    return msgspec.structs.replace(run, launches=launches)


def _of_library(arm: str) -> int | None:
    whole = sum(one.bytes for one in PARAMETERS)
    return {"none": 0, "horovod": None, "fsdp": LAYER.bytes}.get(arm, whole)


RUNS = {
    "quiet": measured(turns=4),
    "noisy": noisy(measured(), 2),
    "one round": measured(rounds=1),
    "one arm": measured({"ddp": 5.0}),
    "no launch": a_run({"none": [], "ddp": []}, complete=False),
    "all noise": a_run(
        {
            "none": [1.0, 2.5, 1.2, 2.0, 0.9],
            "ddp": [2.0, 1.0, 2.4, 0.9, 1.8],
            "mpi": [1.5, 2.2, 0.8, 2.6, 1.0],
        }
    ),
    "oversubscribed": measured(cores=1),
    "shards": attesting(measured(OF_SHARDS)),
}
