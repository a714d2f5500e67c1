"""Make records of metered scripts by hand."""

import math

from compare.schema.metered import Metered, MeteredBlock, MeteredRank, MeterSettings, Synchronised

LOCAL = (6.3e-3, 6.5e-3)
"""Seconds of a step on each rank, without synchronising."""
PHASES = {"forward": 2e-3, "backward": 3e-3, "waiting": 4e-3, "optimizer": 1e-3, "outside": 0.5e-3}


def a_block(kind, pair, rank_seconds, steps=25, **fields):
    """Return a block whose steps take so many seconds on each rank."""
    return MeteredBlock(
        kind=kind,
        pair=pair,
        step=30 + pair * 52,
        steps=steps,
        seconds=[steps * seconds for seconds in rank_seconds],
        **fields,
    )


def blocks_of_pairs(pairs, exposed, local=LOCAL, other="local"):
    """Return the blocks of some pairs; both blocks of a pair are slower or faster together."""
    blocks = []
    for pair in range(pairs):
        load, noise = 1 + 0.2 * math.sin(pair), 1 + 0.02 * math.cos(7 * pair)
        waits = max(local) + exposed
        blocks.append(a_block("synchronised", pair, [waits * load * noise] * len(local)))
        blocks.append(a_block(other, pair, [seconds * load for seconds in local]))
    return blocks


def a_metered(pairs=20, exposed=4e-3, local=LOCAL, **fields):
    """Return the record of a script on two ranks, whose steps synchronise for ``exposed`` seconds longer."""
    blocks = blocks_of_pairs(pairs, exposed, local)
    blocks += [a_block("isolated", n, [5e-3] * len(local), steps=10) for n in range(4)]
    blocks += [a_block("phases", 0, [0.0] * len(local), phases=[PHASES] * len(local))]
    settings = MeterSettings()
    given = {
        "ringside_version": "0.1.0",
        "started_at": "2026-11-29T01:00:00+00:00",
        "command": ["train.py", "--epochs", "3"],
        "settings": settings,
        "torch_version": "2.13.0",
        "backend": "gloo",
        "ranks": [
            MeteredRank(rank=n, host="localhost", pid=100 + n, device="cpu", threads=1, kept_bytes=14_000_000)
            for n in range(len(local))
        ],
        "synchronised": [
            Synchronised(
                way="ddp",
                name="DistributedDataParallel",
                model="Net",
                tensors=8,
                gradient_bytes=4_700_000,
                messages=[4_700_000],
                settings={"bucket_cap_mb": "25"},
            )
        ],
        "optimizers": ["SGD"],
        "steps": 2000,
        "undone_steps": 26 * pairs,
        "blocks": blocks,
        "measured": pairs >= settings.pairs,
        "ended": "The last pair was measured.",
    }
    return Metered(**given | fields)
