"""Turn flags into requests, which say what to run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypedDict, Unpack

from compare.cli.choices import Dataset, Optimizer
from compare.cli.hosts import read_allocation
from compare.cli.settings import command_line
from compare.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from compare.cli.options import LaunchFlags, Shared
    from compare.experiment.settle import UserRequest
    from compare.launch.engines import Allocation
    from compare.schema.arms import Arm
    from compare.schema.config import RunFields


def read_request(
    shared: Shared, *, baseline: str | None = None, control: bool = False, **config: Unpack[RunFields]
) -> UserRequest:
    """Return the request that the flags describe.

    ``config`` holds the settings for which the command has flags of its own.

    Raises:
        UsageError: a flag has a wrong value.
        OutputError: a file to export to cannot be written.
    """
    from compare.experiment.settle import UserRequest, choose_dataset, choose_own

    arms = read_arms(shared.backend)
    dataset = choose_dataset((shared.dataset or Dataset.AUTO).value)
    own = choose_own(shared.workload, _replaced_by_a_workload(shared), length=config)
    settings: RunFields = {
        "device": shared.device.value,
        "launch_timeout_seconds": shared.timeout,
        "stall_seconds": shared.stall,
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
        config=settings | config | (own.config if own else {}),
        **read_launch(shared),
    )


class Launching(TypedDict):
    """The fields of a ``LaunchRequest`` that every command reads from the same flags."""

    allocation: Allocation
    interface: str | None
    exported: Mapping[str, str]
    output: Path | None
    threads_per_rank: int | None
    command: Sequence[str]
    wait_seconds: float


def read_launch(flags: LaunchFlags) -> Launching:
    """Return the fields of a request that every command which launches ranks reads from its flags.

    Raises:
        UsageError: a flag has a wrong value.
        OutputError: a file to export to cannot be written.
    """
    from compare.schema.config import LARGEST_NUMBER, require
    from compare.schema.environment import read_exports
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
    }


def _replaced_by_a_workload(shared: Shared) -> dict[str, object]:
    """Return the flags that do not apply to a user's own workload, by name; None is a flag not given."""
    return {
        "--model": shared.model,
        "--dataset": shared.dataset,
        "--data-dir": shared.data_dir,
        "--optimizer": shared.optimizer,
        "--lr": shared.lr,
    }


def read_arms(backend: list[str] | None) -> tuple[Arm, ...]:
    """Return the arms that ``--backend`` names; empty if the flag is left out.

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
