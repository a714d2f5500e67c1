"""Turn flags into requests, which say what to run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from compare.cli.hosts import read_allocation
from compare.cli.settings import command_line
from compare.errors import UsageError

if TYPE_CHECKING:
    from compare.cli.options import LaunchFlags, Shared
    from compare.experiment.settle import LaunchRequest, UserRequest
    from compare.schema.config import LaunchFields, RunFields

_NAME_AN_ARM = "Name at least one arm, for example --backend ddp."


def read_request(
    shared: Shared,
    *,
    baseline: str | None = None,
    control: bool = False,
    against: str | None = None,
    **config: Unpack[RunFields],
) -> UserRequest:
    """Return the request that the flags describe.

    ``against`` is the other interpreter of a gate. ``config`` holds the settings for which the command has
    flags of its own.

    Raises:
        UsageError: a flag has a wrong value.
        OutputError: a file to export to cannot be written.
    """
    from compare.experiment.settle import OWN_STEPS, UserRequest, read_own_workload
    from compare.launch.interpreter import find_interpreter
    from compare.schema.arms import parse_arms
    from compare.schema.config import OPTIMIZERS

    arms = parse_arms(shared.backend or [])
    if shared.backend and not arms:
        raise UsageError(
            "--backend names no arm.", found=f"It is {','.join(shared.backend)!r}.", remedy=_NAME_AN_ARM
        )
    settings: RunFields = {
        "model": shared.model or "mlp",
        "optimizer": shared.optimizer or "sgd",
        "learning_rate": OPTIMIZERS[shared.optimizer or "sgd"] if shared.lr is None else shared.lr,
        "batch_size_per_rank": shared.batch_size,
        "accumulate": shared.accumulate,
        "seed": shared.seed,
        "precision": shared.precision,
        "compile": shared.compile,
        **config,
    }
    own = None
    if shared.workload is not None:
        replaced = {
            "--model": shared.model,
            "--dataset": shared.dataset,
            "--data-dir": shared.data_dir,
            "--optimizer": shared.optimizer,
            "--lr": shared.lr,
        }
        own = read_own_workload(shared.workload, replaced, epochs=config.get("epochs", 1))
        settings |= {"model": own.workload, "steps": config.get("steps") or OWN_STEPS}
    return UserRequest(
        **vars(read_launch(shared, settings)),
        arms=arms,
        baseline=baseline,
        control=control,
        against=None if against is None else find_interpreter(against),
        dataset=shared.dataset or "auto",
        data_dir=shared.data_dir,
        own=own,
    )


def read_launch(flags: LaunchFlags, config: LaunchFields) -> LaunchRequest:
    """Return what every request has that launches ranks.

    ``config`` holds the settings beyond those of ``LaunchFlags``.

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
