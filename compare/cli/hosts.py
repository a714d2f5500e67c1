"""Read from the flags on which hosts the ranks run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.cli.choices import EngineName
from compare.cli.rehearsed import read_rehearsed
from compare.errors import UsageError

if TYPE_CHECKING:
    from compare.cli.options import HostFlags, LaunchFlags
    from compare.launch.engines import Allocation
    from compare.launch.engines.ssh import Ssh


def read_allocation(flags: LaunchFlags) -> Allocation:
    """Return the hosts of the ranks, each with as many slots as it gets ranks.

    Raises:
        UsageError: a flag has a wrong value, or two contradict each other.
    """
    allocation = _choose(flags)
    _require_one_machine(flags, allocation)
    return allocation


def find_hosts(flags: HostFlags) -> Allocation:
    """Return the hosts that the flags choose, with all their slots.

    Raises:
        UsageError: a flag has a wrong value, or two contradict each other.
    """
    from compare.experiment.allocation import find_allocation
    from compare.schema.hostfile import select

    found = read_rehearsed(_of_own(flags)) or find_allocation(
        flags.engine.value, flags.hostfile, flags.hosts, ssh=_read_ssh(flags)
    )
    return found._replace(hosts=select(found.hosts, flags.include or (), flags.exclude or ()))


def _choose(flags: LaunchFlags) -> Allocation:
    """Return the hosts of the ranks; in a rehearsal, some of those that it made."""
    from compare.experiment.allocation import choose_allocation
    from compare.schema.hostfile import select
    from compare.schema.hosts import place

    if rehearsed := read_rehearsed(_of_own(flags)):
        chosen = select(rehearsed.hosts, flags.include or (), flags.exclude or ())
        hosts = place(chosen, flags.num_proc)
        return rehearsed._replace(hosts=hosts, source=f"{len(hosts)} of {rehearsed.source}")
    return choose_allocation(
        flags.engine.value,
        flags.hostfile,
        flags.num_proc or flags.nproc_per_node,
        ssh=_read_ssh(flags),
        named=flags.hosts,
        include=flags.include or (),
        exclude=flags.exclude or (),
    )


def _of_own(flags: HostFlags) -> dict[str, object]:
    """Return the flags that choose hosts or how to reach them, by name; a false value means not given."""
    return {
        "--hostfile": flags.hostfile,
        "-H": flags.hosts,
        "--engine": flags.engine is not EngineName.AUTO,
        "--ssh-user": flags.ssh_user,
        "--ssh-port": flags.ssh_port,
        "--ssh-identity": flags.ssh_identity,
    }


def _read_ssh(flags: HostFlags) -> Ssh:
    from compare.launch.engines.ssh import Ssh

    identity = str(flags.ssh_identity.absolute()) if flags.ssh_identity else ""
    return Ssh(user=flags.ssh_user, port=flags.ssh_port, identity=identity)


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
