"""Settle what a user left open: the arms, the device, the threads.

What the user named is taken or refused, never replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from backends import BACKENDS
from compare import data
from compare.analysis.aa import twins
from compare.analysis.gate import doubled
from compare.data import DatasetChoice, DatasetSource
from compare.doctor import availability
from compare.doctor.availability import Survey
from compare.errors import UnavailableError, UsageError
from compare.launch.cluster import Cluster
from compare.launch.engines import Allocation
from compare.schema.arms import CONTROL, Arm, parse_arm
from compare.schema.config import MOST_ROUNDS, OPTIMIZERS, LaunchFields, Length, RunConfig, RunFields
from compare.schema.hostfile import parse_hosts, read_hostfile, select
from compare.schema.hosts import Host, is_local, local_host, place
from compare.schema.interpreter import Interpreter
from compare.text import counted

SETTLE_SECONDS = 300.0
"""Time for rounds if the user gives no length."""
_OTHER_INTERPRETER = "The other interpreter was asked on this machine alone"
OWN_STEPS = 200
"""Training steps of an own workload if the user gives none."""
DEFAULT_RANKS = 2
"""Without a hostfile that says how many slots there are."""


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """Where ranks shall run, before the machine is known."""

    allocation: Allocation
    """The hosts, each with as many slots as it has ranks."""
    interface: str | None
    exported: Mapping[str, str]
    """Environment of the ranks that ``-x`` names."""
    output: Path | None
    threads_per_rank: int | None
    """None to share the cores."""
    config: LaunchFields
    """Every other field of the config that has a flag."""
    command: Sequence[str] = ()
    wait_seconds: float = 0.0  # for hosts that are starting


@dataclass(frozen=True, kw_only=True)
class UserRequest(LaunchRequest):
    """What the user asked for, before the machine is known."""

    config: RunFields
    arms: tuple[Arm, ...]
    """Empty for all that can run."""
    baseline: str | None = None
    control: bool = False
    against: Interpreter | None = None
    """The other interpreter of a gate."""
    dataset: DatasetChoice
    data_dir: Path | None
    own: DatasetSource | None = None
    """The own workload, in place of a data set."""
    optimizer: str
    learning_rate: float | None
    """None for the optimizer's own."""


def settle(request: UserRequest, cluster: Cluster) -> tuple[RunConfig, dict[str, str]]:
    """Settle a request by what the hosts have.

    The GPUs of all hosts count. Libraries are looked for on this machine alone.

    Returns:
        The config of the run, and the backends that were left out with the reason.

    Raises:
        HostError: hosts cannot call back a launcher that starts here.
        UnavailableError: what was named is not there.
        UsageError: a value is wrong, or the baseline is none of the arms.
    """
    draft = _draft(request, cluster)
    survey = availability.survey(arm.backend for arm in draft.arms)
    device = choose_device(draft.device, cluster.hosts, count_gpus(cluster, survey))
    one_host = len(cluster.hosts) == 1
    arms, left_out = choose_arms(draft.arms, device, survey, one_host=one_host)
    if request.against:
        arms = doubled(arms, request.against)
    if not cluster.is_this_machine:
        require_other_hosts(arms)
    cluster.require_launchers({arm.runtime.launcher for arm in arms})
    if draft.compile:
        cluster.require_compilers()
    baseline = choose_baseline(request.baseline, arms)
    if request.against:
        baseline = arms[1].label
    elif draft.comparisons is None:
        arms = with_control(arms, control=request.control)
    else:
        arms = _twins(arms[0])
        baseline = arms[0].label
    config = msgspec.structs.replace(draft, arms=arms, baseline=baseline, device=device)
    return config, left_out


def _draft(request: UserRequest, cluster: Cluster) -> RunConfig:
    """Make the config that follows from the request and the hosts."""
    learning_rate = request.learning_rate
    if learning_rate is None:
        # The config itself refuses an optimizer that does not exist.
        learning_rate = OPTIMIZERS.get(request.optimizer, next(iter(OPTIMIZERS.values())))
    return RunConfig(
        arms=request.arms,
        ranks=sum(host.slots for host in cluster.hosts),
        optimizer=request.optimizer,
        learning_rate=learning_rate,
        threads_per_rank=choose_threads(request.threads_per_rank, cluster),
        **request.config,
    )


def choose_threads(asked: int | None, cluster: Cluster) -> int:
    """Choose the named number of threads per rank, or share the CPUs."""
    if asked is not None:
        return asked
    if cluster.network.rehearsed:  # all hosts have the same CPUs
        return max(1, len(cluster.cpus()[0]) // sum(host.slots for host in cluster.hosts))
    return default_threads(cluster.hosts, cluster.cores())


def count_gpus(cluster: Cluster, survey: Survey) -> list[int]:
    """Count the GPUs of every host.

    torch counts those of this machine, where it can be asked. Elsewhere the driver counts them.
    """
    return [
        survey.gpus if is_local(host) else count
        for host, count in zip(cluster.hosts, cluster.gpus(), strict=True)
    ]


def choose_length(repeats: int | None, budget: float | None) -> Length:
    """Choose the number of rounds, or the time for them.

    Without both flags a run takes the time that it needs for its first verdicts. It has some minutes to
    settle them.
    """
    return {
        "rounds": MOST_ROUNDS if repeats is None else repeats,
        "budget_seconds": budget,
        "settle_seconds": SETTLE_SECONDS if repeats is None and budget is None else None,
    }


def default_threads(hosts: Sequence[Host], cores: Sequence[int]) -> int:
    """Share the CPUs of every host among its ranks.

    All ranks take the same number of threads: the smallest share.
    """
    return max(1, min(its // host.slots for host, its in zip(hosts, cores, strict=True)))


def choose_device(asked: str, hosts: Sequence[Host], gpus: Sequence[int]) -> str:
    """Choose the named device, or CUDA where a host has GPUs.

    ``hosts`` have the number of their ranks as slots, and ``gpus`` belong to each of them.

    Raises:
        UnavailableError: a host has fewer GPUs than ranks.
    """
    if asked not in {"auto", "cuda"} or (asked == "auto" and not any(gpus)):
        return asked if asked != "auto" else "cpu"
    for host, there in zip(hosts, gpus, strict=True):
        if there < host.slots:
            fewer = f"-np {there}" if len(hosts) == 1 else f"{there} of its slots"
            raise UnavailableError(
                f"{counted(host.slots, 'rank')} on {host.name} need {counted(host.slots, 'GPU')}.",
                found=f"It has {there}.",
                remedy=f"Use {fewer} or --device cpu." if there else "Use --device cpu.",
            )
    return "cuda"


def choose_arms(
    named: tuple[Arm, ...], device: str, survey: Survey, *, one_host: bool
) -> tuple[tuple[Arm, ...], dict[str, str]]:
    """Choose the arms that the user named, or all that can run.

    On ``one_host`` all ranks could share its memory.

    Returns:
        The arms, and the backends that were left out with the reason.

    Raises:
        UnavailableError: an arm that was named cannot run here.
    """
    if named:
        for arm in named:
            _require_arm(arm, device, survey)
        return named, {}
    arms, left_out = [], {}
    for name, found in survey.backends.items():
        backend = BACKENDS[name]
        if name == CONTROL or backend.only_named:
            continue
        if found.problem:
            left_out[name] = f"{found.problem}; run: {found.remedy}"
        elif device == "cuda" and not backend.cuda:
            left_out[name] = "it averages in host memory; run it with --device cpu"
        else:
            arms.append(Arm(name))
            if backend.on_one_host and one_host and device == "cpu":
                second = Arm(name, dict(backend.on_one_host))
                if survey.shared_memory_problem:
                    left_out[second.label] = survey.shared_memory_problem
                else:
                    arms.append(second)
    if not arms:
        raise UnavailableError(
            "No backend can run here.",
            found="; ".join(left_out.values()),
            remedy="Install one (`compare backends` says how), or use --device cpu.",
        )
    return tuple(arms), left_out


def _require_arm(arm: Arm, device: str, survey: Survey) -> None:
    survey.require(arm.backend, arm.options)
    if device == "cuda" and not BACKENDS[arm.backend].cuda:
        raise UnavailableError(
            f"{arm.label} cannot run on GPUs.",
            found="It averages in host memory.",
            remedy="Use --device cpu, or leave it out.",
        )
    if device != "cuda" and (reason := BACKENDS[arm.backend].not_on_cpus):
        raise UnavailableError(
            f"{arm.label} cannot run on the CPU.",
            found=f"{reason[0].upper()}{reason[1:]}.",
            remedy="Use --device cuda, or leave it out.",
        )
    if device != "cuda" and arm.cuda_only:
        raise UnavailableError(
            f"{arm.label} cannot run on the CPU.",
            found=f"torch supports {' and '.join(arm.cuda_only)} on CUDA alone.",
            remedy="Use --device cuda, or another choice.",
        )


def require_other_hosts(arms: Sequence[Arm]) -> None:
    """Refuse arms that run on this machine only.

    Raises:
        UnavailableError: names the first of them, with the reason.
    """
    for arm in arms:
        if reason := arm.runtime.only_here_because or (_OTHER_INTERPRETER if arm.against else ""):
            raise UnavailableError(
                f"{arm.label} runs on this machine only.",
                found=f"{reason}.",
                remedy="Run it without other hosts, or leave it out.",
            )


def _twins(arm: Arm) -> tuple[Arm, ...]:
    if not arm.traits.synchronises:
        raise UsageError(
            f"An A/A test needs an arm that synchronises, which {arm.label} does not.",
            remedy="Name another --backend.",
        )
    return twins(arm)


def with_control(arms: tuple[Arm, ...], *, control: bool) -> tuple[Arm, ...]:
    """Put the control first, unless it is not wanted."""
    others = tuple(arm for arm in arms if arm.backend != CONTROL)
    return (Arm(CONTROL), *others) if control or len(others) < len(arms) else others


def choose_baseline(asked: str | None, arms: tuple[Arm, ...]) -> str:
    """Choose the named baseline, or the first arm that is no control.

    Raises:
        UsageError: what was asked for is no arm.
    """
    if asked is not None:
        wanted = parse_arm(asked)
        return next((arm.label for arm in arms if arm == wanted), wanted.label)
    return next((arm.label for arm in arms if arm.backend != CONTROL), CONTROL)


def choose_dataset(asked: str) -> DatasetChoice:
    """Read a data set's name.

    Raises:
        UsageError: there is none of that name.
    """
    known: tuple[DatasetChoice, ...] = ("auto", "mnist", "digits")
    for name in known:
        if name == asked:
            return name
    raise UsageError(f"--dataset cannot be {asked!r}.", remedy=f"Use {' or '.join(known)}.")


class OwnChoice(NamedTuple):
    """A workload of the user's own, and what follows from it."""

    source: DatasetSource
    config: RunFields


def choose_own(written: str | None, replaced: Mapping[str, object], *, length: RunFields) -> OwnChoice | None:
    """Read ``--workload``; None where it is left out.

    ``replaced`` has the values of the flags whose place it takes, and ``length`` the ``epochs`` and ``steps``
    of the command.

    Raises:
        UsageError: it names no file, or another flag contradicts it.
    """
    if written is None:
        return None
    source = data.own_source(written)
    for flag, value in replaced.items():
        if value is not None:
            raise UsageError(
                f"{flag} and --workload contradict each other.",
                found=f"{source.workload} makes model, data and optimizer.",
                remedy=f"Leave out {flag}, and set it in your file.",
            )
    if length.get("epochs", 1) != 1:
        raise UsageError(
            "--epochs and --workload contradict each other.",
            found="The ranks alone know how many samples there are.",
            remedy="Give the length in --steps.",
        )
    return OwnChoice(source, {"model": source.workload, "steps": length.get("steps") or OWN_STEPS})


def choose_all_hosts(hostfile: Path | None, named: str | None) -> tuple[Host, ...]:
    """Read the hosts of a hostfile or ``-H``, or take this machine.

    Raises:
        UsageError: the hosts are wrong, or both were given.
    """
    if hostfile and named is not None:
        raise UsageError("--hostfile and -H both name hosts.", remedy="Give one of them.")
    if hostfile:
        return read_hostfile(hostfile)
    return (local_host(1),) if named is None else parse_hosts(named)


def choose_hosts(
    hostfile: Path | None,
    ranks: int | None,
    *,
    named: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    given: Sequence[Host] = (),
) -> tuple[Host, ...]:
    """Read the hosts, each with as many slots as it gets ranks.

    Without ``ranks`` every slot is filled. ``given`` hosts need neither file nor name.

    Raises:
        UsageError: the hosts are wrong, have fewer slots than ``ranks``, or are one machine named twice.
    """
    if hostfile is None and named is None and not given:
        if include or exclude:
            raise UsageError(
                "--include and --exclude need named hosts.", remedy="Name hosts with --hostfile or -H."
            )
        return (local_host(ranks or DEFAULT_RANKS),)
    hosts = select(given or choose_all_hosts(hostfile, named), include, exclude)
    here = [host for host in hosts if is_local(host)]
    if len(here) > 1:
        raise UsageError(
            f"{here[1].source}: this machine is named twice, as {here[0].name} and as {here[1].name}.",
            remedy="Name it once, with all its slots.",
        )
    if len(hosts) == 1 and here:
        # Launchers know this machine by one name only: mpirun takes neither ::1 nor 127.0.0.9.
        hosts = (msgspec.structs.replace(here[0], name="localhost"),)
    return place(hosts, ranks)
