"""Read requests from the flags."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from compare.cli.choices import Dataset, Optimizer
from compare.cli.hosts import read_allocation
from compare.cli.settings import command_line
from compare.errors import UsageError

if TYPE_CHECKING:
    from compare.cli.options import LaunchFlags, Shared
    from compare.experiment.settle import UserRequest
    from compare.schema.arms import Arm


def read_request(
    shared: Shared, *, baseline: str | None = None, control: bool = False, **config: Any
) -> UserRequest:
    """Read a request from the flags.

    ``config`` holds fields of ``RunConfig`` for which the command has flags of its own.

    Raises:
        UsageError: a flag has a wrong value.
        OutputError: the file of ``--export-json`` cannot be written.
    """
    from compare.experiment.settle import UserRequest, choose_dataset, choose_own

    arms = read_arms(shared.backend)
    dataset = choose_dataset((shared.dataset or Dataset.AUTO).value)
    own = choose_own(shared.workload, _replaced_by_a_workload(shared), length=config)
    settings = {
        "model": shared.model or "mlp",
        "batch_size_per_rank": shared.batch_size,
        "accumulate": shared.accumulate,
        "seed": shared.seed,
        "precision": shared.precision.value,
        "compile": shared.compile,
    }
    return UserRequest(
        arms=arms,
        baseline=baseline,
        control=control,
        dataset=dataset,
        data_dir=shared.data_dir,
        own=own.source if own else None,
        optimizer=(shared.optimizer or Optimizer.SGD).value,
        learning_rate=shared.lr,
        **read_launch(shared, **settings | config | dict(own.config if own else {})),
    )


def read_launch(flags: LaunchFlags, **config: Any) -> dict[str, Any]:
    """Read the fields of a ``LaunchRequest`` from the flags.

    ``config`` holds further fields of its config.

    Raises:
        UsageError: a flag has a wrong value.
        OutputError: the file of ``--export-json`` cannot be written.
    """
    from compare.schema.config import LARGEST_NUMBER, require
    from compare.schema.environment import read_exports
    from compare.schema.files import STANDARD_OUTPUT
    from compare.schema.store import require_writable

    if flags.quiet and flags.verbose:
        raise UsageError("--quiet and --verbose exclude each other.", remedy="Leave out one of them.")
    wait, right = flags.wait_for_hosts, f"a number of seconds from 0 to {LARGEST_NUMBER}"
    require(0 <= wait <= LARGEST_NUMBER, "--wait-for-hosts", wait, right)
    allocation = read_allocation(flags)
    paths = list(flags.exports.values())
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        where = "standard output" if twice == STANDARD_OUTPUT else str(twice)
        raise UsageError(f"Two formats cannot both go to {where}.", remedy="Name a file for each.")
    for path in paths:
        require_writable(path, to_be_made=flags.output)
    return {
        "allocation": allocation,
        "interface": flags.interface,
        "exported": read_exports(flags.env or [], os.environ),
        "output": flags.output,
        "threads_per_rank": flags.threads,
        "command": command_line(),
        "wait_seconds": wait,
        "config": {
            "device": flags.device.value,
            "launch_timeout_seconds": flags.timeout,
            "stall_seconds": flags.stall,
            **config,
        },
    }


def _replaced_by_a_workload(shared: Shared) -> dict[str, object]:
    """Return the flags that a workload of the user's own makes meaningless."""
    return {
        "--model": shared.model,
        "--dataset": shared.dataset,
        "--data-dir": shared.data_dir,
        "--optimizer": shared.optimizer,
        "--lr": shared.lr,
    }


def read_arms(backend: list[str] | None) -> tuple[Arm, ...]:
    """Read the arms that ``--backend`` names; none where it is left out.

    Raises:
        UsageError: an arm is wrong, or the flag names none.
    """
    from compare.schema.arms import parse_arms

    arms = parse_arms(backend or [])
    if backend and not arms:
        raise UsageError(
            "--backend names no arm.", remedy="Name some, or leave it out to compare all that are available."
        )
    return arms
