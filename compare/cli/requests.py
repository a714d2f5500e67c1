"""Turn flags into requests, which state what to run and on which hosts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast, get_args

from compare.cli.flag_options import read_options
from compare.cli.options import HostFlags, LaunchFlags, RankFlags, TimedFlags, TrainingFlags
from compare.cli.settings import DATASETS, command_line
from compare.errors import UsageError
from compare.schema.config import Interleave
from compare.text import seconds_of

if TYPE_CHECKING:
    from compare.data import DatasetChoice
    from compare.experiment.settle import LaunchRequest, UserRequest
    from compare.launch.engines import Allocation
    from compare.schema.config import LaunchFields, RunFields

_REPLACED_BY_WORKLOAD = ("model", "data", "optimizer")
"""Flags that ``--workload`` replaces, so that both may not be given."""


def read_request(
    shared: TrainingFlags,
    *,
    baseline: str | None = None,
    control: bool = False,
    against: str | None = None,
    with_aa_test: bool = False,
    may_share_gpus: bool = False,
    **config: Unpack[RunFields],
) -> UserRequest:
    """Return the request of a command that trains arms.

    ``against`` is the other interpreter of a gate. ``with_aa_test`` allows one arm named twice, and
    ``may_share_gpus`` allows the device cuda:shared. ``config`` holds the settings for which the command has
    flags of its own, or which it does not let users choose.

    Raises:
        UsageError: a flag has a wrong value.
        UnavailableError: an arm, or the other interpreter, cannot run on the hosts.
        OutputError: a file to export to cannot be written.
    """
    from compare.experiment.settle import OWN_STEPS, UserRequest, read_own_workload, require_hosts_for
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
    dataset, folder = _read_data(shared.data)
    own = None
    if shared.workload is not None:
        replaced = {f"--{name}": getattr(shared, name) for name in _REPLACED_BY_WORKLOAD}
        own = read_own_workload(shared.workload, replaced, epochs=settings.get("epochs", 1))
        settings |= {"model": own.workload, "steps": settings.get("steps") or OWN_STEPS}
    request = UserRequest(
        **vars(read_launch_request(shared, settings, may_share_gpus=may_share_gpus)),
        arms=arms,
        baseline=baseline,
        control=control,
        against=None if against is None else find_interpreter(against),
        dataset=dataset,
        data_dir=folder,
        own=own,
    )
    require_hosts_for(request)
    return request


def _shared_settings(shared: TrainingFlags) -> RunFields:
    """Return the settings that come from flags which several commands share."""
    from compare.schema.config import OPTIMIZERS, require

    optimizer, options = read_options("--optimizer", shared.optimizer or "sgd", {"lr": float})
    require(optimizer in OPTIMIZERS, "--optimizer", optimizer, " or ".join(OPTIMIZERS))
    settings: RunFields = {
        "model": shared.model or "mlp",
        "optimizer": optimizer,
        "learning_rate": options.get("lr", OPTIMIZERS[optimizer]),
        "batch_size_per_rank": shared.batch_size,
        "accumulate": shared.accumulate,
        "seed": shared.seed,
        "precision": shared.precision,
        "compile": shared.compile,
    }
    if isinstance(shared, TimedFlags):
        settings |= _read_steps(shared.steps)
        order, reruns = read_options("--interleave", shared.interleave, {"reruns": int})
        orders = get_args(Interleave)
        require(order in orders, "--interleave", order, " or ".join(orders))
        settings |= {"interleave": cast("Interleave", order)}
        settings |= {"max_reruns": reruns["reruns"]} if reruns else {}
    return settings


def _read_steps(written: str | None) -> RunFields:
    """Return the length of a launch from ``--steps``, as 150, 2epochs or 60:warmup=10.

    Raises:
        UsageError: it has another form.
    """
    if written is None:
        return {}
    length, options = read_options("--steps", written, {"warmup": int})
    match = re.fullmatch(r"(-?\d+) ?(epochs?)?", length)
    if not match:
        raise UsageError(
            f"--steps cannot be {length!r}.",
            remedy="Give a number of steps, as 150, or of epochs, as 2epochs.",
        )
    number = int(match[1])
    settings: RunFields = {"epochs": number, "steps": None} if match[2] else {"steps": number}
    return settings | ({"warmup_steps": options["warmup"]} if options else {})


def _read_data(written: str | None) -> tuple[DatasetChoice, Path | None]:
    """Return the data set and the folder that ``--data`` names; a folder alone leaves the data set open.

    Raises:
        UsageError: it names neither a data set nor a folder that exists, or has a wrong option.
    """
    from compare.schema.config import require

    if written is None:
        return "auto", None
    if written.partition(":")[0] not in DATASETS:
        # A misspelt name must not become a folder into which MNIST is downloaded.
        right = "mnist, digits or a folder that exists. For a new one, write mnist:folder=DIR"
        require(os.path.isdir(written), "--data", repr(written), right)  # noqa: PTH112 -- Path may raise
        return "auto", Path(written)
    name, options = read_options("--data", written, {"folder": Path})
    return cast("DatasetChoice", name), options.get("folder")


def read_launch_request(
    flags: LaunchFlags, config: LaunchFields, *, may_share_gpus: bool = False
) -> LaunchRequest:
    """Return the request for launching ranks that ``flags`` describe; other requests extend it.

    ``config`` holds the settings that do not come from ``LaunchFlags``. A command that shows no times sets
    ``may_share_gpus``, which allows the device cuda:shared, and cuda in a rehearsal.

    Raises:
        UsageError: a flag has a wrong value.
        OutputError: a file to export to cannot be written.
    """
    from compare.experiment.settle import LaunchRequest
    from compare.schema.environment import read_env_flags
    from compare.schema.store import require_writable

    if flags.quiet and flags.verbose:
        raise UsageError("--quiet and --verbose exclude each other.", remedy="Leave out one of them.")
    allocation = read_allocation(flags, with_gpus=flags.device.startswith("cuda"))
    if not may_share_gpus:
        _require_gpus_of_ones_own(flags.device, allocation)
    for _, path in flags.exports:
        require_writable(path, to_be_made=flags.output)
    return LaunchRequest(
        allocation=allocation,
        exported=read_env_flags(flags.env or [], os.environ),
        output=flags.output,
        threads_per_rank=flags.threads,
        command=command_line(),
        config={
            "device": flags.device,
            **_read_timeout(flags.timeout),
            **config,
        },
    )


def _require_gpus_of_ones_own(device: str, allocation: Allocation) -> None:
    """Require that ranks will share no GPU, as all hosts of a rehearsal do; else raise a ``UsageError``."""
    from compare.schema.config import SHARED_GPUS

    rehearsed = allocation.rehearsed is not None
    if device != SHARED_GPUS and not (rehearsed and device == "cuda"):
        return
    where, engine, other = (
        (" in a rehearsal", " --engine rehearsal", "cpu") if rehearsed else ("", "", "cuda")
    )
    raise UsageError(
        f"--device {device} cannot be timed{where}.",
        found="Ranks that share a GPU wait for each other, so their times mean nothing.",
        remedy=f"Prove the arms with `ringside verify{engine} --device {device}`, or use --device {other}.",
    )


def _read_timeout(written: str) -> LaunchFields:
    """Return the time limits of a launch from ``--timeout``, as 5m or 5m:stall=60.

    Raises:
        UsageError: a time has another form.
    """
    whole, options = read_options("--timeout", written, {"stall": seconds_of})
    try:
        fields: LaunchFields = {"launch_timeout_seconds": seconds_of(whole)}
    except ValueError as error:
        raise UsageError(f"--timeout cannot be {whole!r}.", remedy=str(error)) from None
    return fields | ({"stall_seconds": options["stall"]} if options else {})


# ---- hosts ----


def read_allocation(flags: RankFlags, *, with_gpus: bool = False) -> Allocation:
    """Return the hosts on which the ranks will run, each with as many slots as it gets ranks.

    ``with_gpus`` is as in ``find_hosts``.

    Raises:
        UsageError: a flag has a wrong value, or two contradict each other.
    """
    from compare.experiment.allocation import choose_allocation

    return choose_allocation(find_hosts(flags, with_gpus=with_gpus), flags.num_proc)


def find_hosts(flags: HostFlags, *, with_gpus: bool = False) -> Allocation:
    """Return the hosts that the flags or a job give, each with all of its slots.

    Rehearsed hosts see this machine's GPUs only if ``with_gpus`` is set.

    Raises:
        UsageError: a flag has a wrong value, or two contradict each other.
    """
    from compare.experiment.allocation import find_allocation
    from compare.launch.engines.detect import OPTIONS
    from compare.schema.config import require

    name = flags.engine.partition(":")[0].strip()
    require(name in OPTIONS, "--engine", name, " or ".join(OPTIONS))
    engine, options = read_options("--engine", flags.engine, OPTIONS[name])
    return find_allocation(engine, options, flags.hostfile, flags.hosts, with_gpus=with_gpus)
