"""torchrun: one elastic agent, with a static rendezvous."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from backends.base import Placement
from compare.launch.request import Command, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

EXECUTABLE = "torchrun"


def commands(request: Request) -> list[Command]:
    """Start one agent on the one host of the request."""
    (host,) = request.hosts
    argv = (
        str(request.executable),
        "--nnodes=1",
        f"--nproc_per_node={host.slots}",
        "--node_rank=0",
        "--master_addr=127.0.0.1",
        f"--master_port={request.port}",
        # A rank that fails has failed: restarting it would hide that and change what is measured.
        "--max_restarts=0",
        "--module",
        request.module,
        *request.arguments,
    )
    return [Command(argv, request.environment)]


def placement(environ: Mapping[str, str]) -> Placement:
    """Read the agent's variables."""
    return Placement(
        rank=int(environ["RANK"]),
        local_rank=int(environ["LOCAL_RANK"]),
        world_size=int(environ["WORLD_SIZE"]),
        local_world_size=int(environ["LOCAL_WORLD_SIZE"]),
        host=socket.gethostname(),
    )
