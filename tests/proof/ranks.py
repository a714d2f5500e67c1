"""Fork the ranks of one case after another: ``python -m tests.proof.ranks``.

Importing torch takes seconds, so this process does it once. It reads a line for each launch, forks its ranks,
and prints their exit statuses. A rank does all that a launched rank does, and ends as it does. So nothing of
a case is left in the next one. This process computes nothing, because threads do not survive a fork.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MOST_SECONDS = 20.0
"""Maximum time of a case."""


def main() -> None:
    """Serve launches until the input ends."""
    _load()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(_launch(**json.loads(line))), flush=True)


def _load() -> None:
    """Load all that a rank would load."""
    import torch
    from torch import nn

    import backends
    from compare.worker import outcome, own, rank
    from tests.proof import mutations

    del outcome, own, rank, mutations
    for name in ("ddp", "manual", "zero", "fsdp", "own_torch", "localsgd", "none"):
        backends.load(name, {option.name: option.default for option in backends.BACKENDS[name].options})
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    # A proof collects garbage. Without this it would search all of torch each time, for half a second.
    gc.freeze()


def _launch(directory: str, world: int, port: int, mutation: str) -> list[int]:
    """Fork the ranks of a launch, and return their statuses."""
    pids = [_fork(Path(directory), rank, world, port, mutation) for rank in range(world)]
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + MOST_SECONDS
    while len(statuses) < world:
        for pid in set(pids) - set(statuses):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            for pid in set(pids) - set(statuses):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            deadline += MOST_SECONDS
        time.sleep(0.002)
    return [statuses[pid] for pid in pids]


def _fork(directory: Path, rank: int, world: int, port: int, mutation: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        from backends.base import Placement
        from compare.schema.launch_files import LaunchFiles
        from compare.worker.outcome import do_job
        from tests.proof import mutations

        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        if mutation:
            mutations.plant(mutation)
        do_job(LaunchFiles(directory), Placement(rank, rank, world, world, "localhost"))
    finally:
        os._exit(70)  # a rank never returns into the loop of its parent


if __name__ == "__main__":
    main()
