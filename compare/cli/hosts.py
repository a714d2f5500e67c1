"""Read from the flags on which hosts the ranks run."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from compare.errors import UsageError

if TYPE_CHECKING:
    from compare.cli.options import HostFlags, LaunchFlags
    from compare.launch.engines import Allocation

REHEARSED: ContextVar[Allocation | None] = ContextVar("REHEARSED", default=None)
"""The hosts that ``compare rehearse`` made for the command inside it."""


def read_allocation(flags: LaunchFlags) -> Allocation:
    """Return the hosts of the ranks, each with as many slots as it gets ranks.

    Raises:
        UsageError: a flag has a wrong value, or two contradict each other.
    """
    from compare.experiment.allocation import choose_allocation
    from compare.schema.hosts import is_local

    allocation = choose_allocation(
        _find(flags),
        flags.num_proc or flags.nproc_per_node,
        include=flags.include or (),
        exclude=flags.exclude or (),
    )
    if flags.nproc_per_node and (flags.num_proc or not all(map(is_local, allocation.hosts))):
        raise UsageError(
            "--nproc-per-node is another name for -np, and only for ranks on this machine.",
            found=f"-np {flags.num_proc} is given as well."
            if flags.num_proc
            else "The ranks are on other hosts.",
            remedy="Use -np with the number of all ranks. The slots of the hosts decide where they run.",
        )
    return allocation


def find_hosts(flags: HostFlags) -> Allocation:
    """Return the hosts that the flags choose, with all their slots.

    Raises:
        UsageError: a flag has a wrong value, or two contradict each other.
    """
    from compare.schema.hostfile import select

    found = _find(flags)
    return found._replace(hosts=select(found.hosts, flags.include or (), flags.exclude or ()))


def _find(flags: HostFlags) -> Allocation:
    """Return all hosts from which the flags choose; in a rehearsal, those that it made."""
    from compare.experiment.allocation import find_allocation
    from compare.launch.engines.ssh import Ssh

    if rehearsed := REHEARSED.get():
        _require_no_hosts(flags)
        return rehearsed
    identity = str(flags.ssh_identity.absolute()) if flags.ssh_identity else ""
    ssh = Ssh(user=flags.ssh_user, port=flags.ssh_port, identity=identity)
    return find_allocation(flags.engine, flags.hostfile, flags.hosts, ssh=ssh)


def _require_no_hosts(flags: HostFlags) -> None:
    """Require that no flag chooses hosts, or how to reach them."""
    choosing = {
        "--hostfile": flags.hostfile,
        "-H": flags.hosts,
        "--engine": flags.engine != "auto",
        "--ssh-user": flags.ssh_user,
        "--ssh-port": flags.ssh_port,
        "--ssh-identity": flags.ssh_identity,
    }
    if given := next((flag for flag, value in choosing.items() if value), ""):
        raise UsageError(
            "A rehearsal makes its own hosts.",
            found=f"{given} is meant for other hosts.",
            remedy="Leave it out, and set the number of hosts with `compare rehearse --hosts`.",
        )
