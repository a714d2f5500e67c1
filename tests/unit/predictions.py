"""Build runs that predictions can be made from."""

from __future__ import annotations

from compare.schema.hosts import Host
from compare.schema.results import GradientTimes, Sweep
from tests.unit.factories import a_block, a_launch, a_phased_block, a_rank, a_run

MIB = 1 << 20
SWEPT = ((1024, 10**6), (MIB, 4 * 10**7))
COMPUTING = {"forward": [10.0] * 9, "backward": [10.0] * 9, "sync": [0.0] * 9, "step": [0.0] * 9}


def a_measured_run(*, ranks=2, rounds=3, arm="manual", **changes):
    """A run that computes for 20 ms and calls for 40 ms."""

    def a_measured_rank(rank):
        fields = {
            "blocks": [
                a_block(60.0),
                a_block(20.0, mode="reference"),
                a_phased_block("reference", **COMPUTING),
            ],
            "message_bytes": [MIB],
            "sweep": [Sweep(message_bytes=size, ns=[ns] * 3) for size, ns in SWEPT],
            "gradients": [GradientTimes(gradient_bytes=MIB, ready_ns=[10**7] * 3)],
            "attestation": {
                "group": {"transport": "TCP over eth0", "library": "torch.distributed gloo"},
                "replica": {"mode": "flat"},
                "threads": 1,
            },
        }
        return a_rank(rank, **fields | changes)

    launches = [
        a_launch(arm, round_, ranks=[a_measured_rank(rank) for rank in range(ranks)])
        for round_ in range(1, rounds + 1)
    ]
    hosts = [Host(f"n{number}", 1) for number in range(ranks)]
    return a_run(
        {arm: [1.0]}, launches=launches, hosts=hosts, cores_by_host=[2] * ranks, config={"ranks": ranks}
    )
