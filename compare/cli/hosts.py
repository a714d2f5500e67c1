"""Read where the ranks run from the flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.cli.choices import EngineName
from compare.cli.rehearsed import read_rehearsed
from compare.errors import UsageError

if TYPE_CHECKING:
    from compare.cli.options import LaunchFlags
    from compare.launch.engines import Allocation


def read_allocation(flags: LaunchFlags) -> Allocation:
    """Read the hosts of the ranks, each with its slots.

    Raises:
        UsageError: a flag has a wrong value, or two contradict each other.
    """
    allocation = _choose(flags)
    _require_one_machine(flags, allocation)
    return allocation


def _choose(flags: LaunchFlags) -> Allocation:
    """Choose the hosts; a rehearsal has made its own."""
    from compare.experiment.allocation import choose_allocation
    from compare.launch.engines.ssh import Ssh
    from compare.schema.hostfile import select
    from compare.schema.hosts import place

    own = {
        "--hostfile": flags.hostfile,
        "-H": flags.hosts,
        "--engine": flags.engine is not EngineName.AUTO,
        "--ssh-user": flags.ssh_user,
        "--ssh-port": flags.ssh_port,
        "--ssh-identity": flags.ssh_identity,
    }
    if rehearsed := read_rehearsed(own):
        chosen = select(rehearsed.hosts, flags.include or (), flags.exclude or ())
        hosts = place(chosen, flags.num_proc)
        return rehearsed._replace(hosts=hosts, source=f"{len(hosts)} of {rehearsed.source}")
    identity = str(flags.ssh_identity.absolute()) if flags.ssh_identity else ""
    return choose_allocation(
        flags.engine.value,
        flags.hostfile,
        flags.num_proc or flags.nproc_per_node,
        ssh=Ssh(user=flags.ssh_user, port=flags.ssh_port, identity=identity),
        named=flags.hosts,
        include=flags.include or (),
        exclude=flags.exclude or (),
    )


def _require_one_machine(flags: LaunchFlags, allocation: Allocation) -> None:
    from compare.schema.hosts import is_local

    if flags.nproc_per_node and (flags.num_proc or not all(map(is_local, allocation.hosts))):
        raise UsageError(
            "--nproc-per-node is another name of -np, on one machine alone.",
            found=f"-np {flags.num_proc} is there, too."
            if flags.num_proc
            else "The ranks are on other hosts.",
            remedy="Use -np with the number of all ranks. The slots of a hostfile say where they go.",
        )
