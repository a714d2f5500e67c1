"""Turn flags into requests, which state what to run and on which hosts."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import TYPE_CHECKING, Unpack

from compare.cli.options import HostFlags, LaunchFlags, TimedFlags, TrainingFlags
from compare.cli.settings import command_line
from compare.errors import UsageError

if TYPE_CHECKING:
    from compare.experiment.settle import LaunchRequest, UserRequest
    from compare.launch.engines import Allocation
    from compare.schema.config import LaunchFields, RunFields

REHEARSED: ContextVar[Allocation | None] = ContextVar("REHEARSED", default=None)
"""The hosts that ``ringside rehearse`` made for the command inside it."""
_REPLACED_BY_WORKLOAD = ("model", "dataset", "data_dir", "optimizer", "lr")
"""Flags that ``--workload`` replaces, so that both may not be given."""


def read_request(
    shared: TrainingFlags,
    *,
    baseline: str | None = None,
    control: bool = False,
    against: str | None = None,
    with_aa_test: bool = False,
    **config: Unpack[RunFields],
) -> UserRequest:
    """Return the request of a command that trains arms.

    ``against`` is the other interpreter of a gate. ``with_aa_test`` allows one arm named twice.
    ``config`` holds the settings for which the command has
    flags of its own, or which it does not let users choose.

    Raises:
        UsageError: a flag has a wrong value.
        OutputError: a file to export to cannot be written.
    """
    from compare.experiment.settle import OWN_STEPS, UserRequest, read_own_workload
    from compare.launch.interpreter import find_interpreter
    from compare.schema.arms import parse_arms

    arms = parse_arms(shared.backend or [], with_aa_test=with_aa_test)
    if shared.backend and not arms:
        raise UsageError(
            "--backend names no arm.",
            found=f"It is {','.join(shared.backend)!r}.",
            remedy="Name at least one arm, for example --backend ddp.",
        )
    settings: RunFields = {**_shared_settings(shared), **config}
    own = None
    if shared.workload is not None:
        replaced = {f"--{name.replace('_', '-')}": getattr(shared, name) for name in _REPLACED_BY_WORKLOAD}
        own = read_own_workload(shared.workload, replaced, epochs=config.get("epochs", 1))
        settings |= {"model": own.workload, "steps": config.get("steps") or OWN_STEPS}
    return UserRequest(
        **vars(read_launch_request(shared, settings)),
        arms=arms,
        baseline=baseline,
        control=control,
        against=None if against is None else find_interpreter(against),
        dataset=shared.dataset or "auto",
        data_dir=shared.data_dir,
        own=own,
    )


def _shared_settings(shared: TrainingFlags) -> RunFields:
    """Return the settings that come from flags which several commands share."""
    from compare.schema.config import OPTIMIZERS

    settings: RunFields = {
        "model": shared.model or "mlp",
        "optimizer": shared.optimizer or "sgd",
        "learning_rate": OPTIMIZERS[shared.optimizer or "sgd"] if shared.lr is None else shared.lr,
        "batch_size_per_rank": shared.batch_size,
        "accumulate": shared.accumulate,
        "seed": shared.seed,
        "precision": shared.precision,
        "compile": shared.compile,
    }
    if isinstance(shared, TimedFlags):
        settings |= {
            "warmup_steps": shared.warmup,
            "interleave": shared.interleave,
            "max_reruns": shared.max_reruns,
        }
    return settings


def read_launch_request(flags: LaunchFlags, config: LaunchFields) -> LaunchRequest:
    """Return the request for launching ranks that ``flags`` describe; other requests extend it.

    ``config`` holds the settings that do not come from ``LaunchFlags``.

    Raises:
        UsageError: a flag has a wrong value.
        OutputError: a file to export to cannot be written.
    """
    from compare.experiment.settle import LaunchRequest
    from compare.schema.config import LARGEST_NUMBER, require
    from compare.schema.environment import read_env_flags
    from compare.schema.store import require_writable
    from compare.system.files import STANDARD_OUTPUT

    if flags.quiet and flags.verbose:
        raise UsageError("--quiet and --verbose exclude each other.", remedy="Leave out one of them.")
    wait, right = flags.wait_for_hosts, f"a number of seconds from 0 to {LARGEST_NUMBER}"
    require(0 <= wait <= LARGEST_NUMBER, "--wait-for-hosts", wait, right)
    allocation = read_allocation(flags)
    paths = list(flags.exports.values())
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        where = "standard output" if twice == STANDARD_OUTPUT else str(twice)
        raise UsageError(
            f"Two formats cannot both go to {where}.", remedy="Name a different file for each of them."
        )
    for path in paths:
        require_writable(path, to_be_made=flags.output)
    return LaunchRequest(
        allocation=allocation,
        interface=flags.interface,
        exported=read_env_flags(flags.env or [], os.environ),
        output=flags.output,
        threads_per_rank=flags.threads,
        command=command_line(),
        wait_seconds=wait,
        config={
            "device": flags.device,
            "launch_timeout_seconds": flags.timeout,
            "stall_seconds": flags.stall,
            **config,
        },
    )


# ---- hosts ----


def read_allocation(flags: LaunchFlags) -> Allocation:
    """Return the hosts on which the ranks will run, each with as many slots as it gets ranks.

    Raises:
        UsageError: a flag has a wrong value, or two contradict each other.
    """
    from compare.experiment.allocation import choose_allocation
    from compare.schema.hosts import is_local

    allocation = choose_allocation(
        _find_allocation(flags),
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
    """Return the hosts that the flags choose, each with all of its slots.

    Raises:
        UsageError: a flag has a wrong value, or two contradict each other.
    """
    from compare.schema.hostfile import select

    allocation = _find_allocation(flags)
    return allocation._replace(hosts=select(allocation.hosts, flags.include or (), flags.exclude or ()))


def _find_allocation(flags: HostFlags) -> Allocation:
    """Return all hosts that flags, a job or a rehearsal give, before any are included or excluded."""
    from compare.experiment.allocation import find_allocation
    from compare.launch.engines.ssh import Ssh

    if rehearsed := REHEARSED.get():
        choosing = ("hostfile", "hosts", "engine", "ssh_user", "ssh_port", "ssh_identity")
        if given := [name for name in choosing if getattr(flags, name) != getattr(HostFlags(), name)]:
            raise UsageError(
                "A rehearsal makes its own hosts.",
                found=f"--{given[0].replace('_', '-')} is meant for other hosts.",
                remedy="Leave it out, and set the number of hosts with `ringside rehearse --hosts`.",
            )
        return rehearsed
    identity = str(flags.ssh_identity.absolute()) if flags.ssh_identity else ""
    ssh = Ssh(user=flags.ssh_user, port=flags.ssh_port, identity=identity)
    return find_allocation(flags.engine, flags.hostfile, flags.hosts, ssh=ssh)
