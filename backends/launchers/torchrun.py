"""Write torchrun's commands: one agent per host, with a static rendezvous."""

from __future__ import annotations

from backends.launchers.request import Command, Request

EXECUTABLE = "torchrun"
REMEDY = "pip install --force-reinstall torch"
VARIABLES = ["RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE"]


def commands(request: Request) -> list[Command]:
    """Return one torchrun command for every host.

    torchrun starts ranks only on its own host. The torchruns of all hosts connect to the first host's address
    and port.
    """
    commands = []
    for number, host in enumerate(request.hosts):
        argv = (
            str(request.executable),
            *(("-m", "torch.distributed.run") if request.executable == request.python else ()),
            f"--nnodes={len(request.hosts)}",
            f"--nproc_per_node={host.slots}",
            f"--node_rank={number}",
            f"--master_addr={request.address}",
            f"--master_port={request.port}",
            # A restart would hide a failed rank and change the measurement.
            "--max_restarts=0",
            *(("--module", request.module) if request.module else ()),
            *request.arguments,
        )
        commands.append(Command(argv, request.environment, host if request.network else None))
    return commands
