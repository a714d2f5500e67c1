"""Train arms in turns on ranks that may share a GPU, and show no time."""

from __future__ import annotations

import sys
from pathlib import Path

from compare.cli.options import TimedFlags
from compare.cli.output import carry_out
from compare.cli.requests import read_request
from compare.experiment import compare_arms

ARMS = "ddp,manual:mode=overlap,zero"
ROUNDS = 1


def main(device, folder, *data):
    flags = TimedFlags(
        backend=[ARMS],
        num_proc=2,
        device=device,
        steps="100",
        interleave="blocks",
        timeout="5m:stall=30",
        data=data[1] if data else None,
        output=Path(folder) / "run",
        quiet=True,
    )
    request = read_request(flags, may_share_gpus=True, rounds=ROUNDS)
    run, _ = carry_out(compare_arms, request, flags)
    if run.interleaved.mode != "blocks" or len(run.launches) != ROUNDS * len(run.config.arms):
        sys.exit(f"The arms have not taken turns: {run.interleaved}")
    for launch in run.launches:
        turns = {block.turn for rank in launch.ranks for block in rank.blocks}
        finals = {rank.final_hash for rank in launch.ranks}
        print(f"{launch.arm}: {len(turns)} turns, {len(finals)} final models on {len(launch.ranks)} ranks")
        if 0 in turns or len(finals) > 1:
            sys.exit(f"{launch.arm}: a block had no turn, or the ranks ended apart.")


if __name__ == "__main__":
    main(*sys.argv[1:])
