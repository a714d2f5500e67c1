"""Settle what a user left open: the arms, the device, the threads.

What the user named is taken or refused, never replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backends import BACKENDS
from compare import data
from compare.analysis.change import with_twins
from compare.analysis.ranking import twins
from compare.data import DatasetChoice, DatasetSource
from compare.doctor import availability
from compare.doctor.availability import Survey
from compare.errors import UnavailableError, UsageError
from compare.launch.cluster import HostFacts
from compare.launch.engines import Allocation
from compare.schema.arms import CONTROL, Arm, Interpreter, parse_arm
from compare.schema.config import MOST_ROUNDS, LaunchFields, Length, RunConfig, RunFields
from compare.schema.hosts import Host, is_local
from compare.text import counted

SETTLE_SECONDS = 300.0
"""Time in which rounds beyond the fifth begin, if the user gives neither their number nor a budget."""
_OTHER_INTERPRETER = "The other interpreter is known only on this machine"
OWN_STEPS = 200
"""Training steps of an own workload if the user gives none."""


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What the user asked for in any command that launches ranks, before a host is reached."""

    allocation: Allocation
    """The hosts, each with as many slots as it has ranks."""
    interface: str | None
    exported: Mapping[str, str]
    """Names and values of ``-x``, for the environment of the ranks."""
    output: Path | None
    """The folder for the results; None for a new one."""
    threads_per_rank: int | None
    """None to share the cores of each host among its ranks."""
    config: LaunchFields
    """Every other field of the config that has a flag."""
    command: Sequence[str] = ()
    wait_seconds: float = 0.0  # for hosts that are starting


@dataclass(frozen=True, kw_only=True)
class UserRequest(LaunchRequest):
    """What the user asked for in a run, before a host is reached."""

    config: RunFields
    arms: tuple[Arm, ...]
    """Empty for all that can run."""
    baseline: str | None = None
    control: bool = False
    against: Interpreter | None = None
    """The other interpreter of ``compare gate``; None for other commands."""
    dataset: DatasetChoice
    data_dir: Path | None
    own: DatasetSource | None = None
    """The user's own workload, in place of a data set; None without one."""


def settle(request: UserRequest, cluster: HostFacts) -> tuple[RunConfig, dict[str, str]]:
    """Settle what a request leaves open, by what the hosts have.

    GPUs are counted on all hosts, but libraries are loaded on this machine only.

    Returns:
        The config of the run, and the reason for each backend that was left out, by its name.

    Raises:
        HostError: hosts cannot call back a launcher that starts on this machine.
        UnavailableError: an arm or a device that the user named is not available, or no arm is.
        UsageError: a value is wrong, or the baseline is none of the arms.
    """
    draft = RunConfig(
        arms=request.arms,
        ranks=sum(host.slots for host in cluster.hosts),
        threads_per_rank=choose_threads(request.threads_per_rank, cluster),
        **request.config,
    )
    survey = availability.survey(arm.backend for arm in draft.arms)
    device = choose_device(draft.device, cluster.hosts, count_gpus(cluster, survey))
    one_host = len(cluster.hosts) == 1
    arms, left_out = choose_arms(draft.arms, device, survey, one_host=one_host)
    if request.against:
        arms = with_twins(arms, request.against)
    if not cluster.is_only_this_machine:
        require_other_hosts(arms)
    cluster.require_launchers({arm.runtime.launcher for arm in arms})
    if draft.compile:
        cluster.require_compilers()
    baseline = choose_baseline(request.baseline, arms)
    if request.against:
        baseline = arms[1].label
    elif draft.comparisons is None:
        arms = with_control(arms, control=request.control)
    elif arms[0].traits.synchronises:
        arms = twins(arms[0])
        baseline = arms[0].label
    else:
        raise UsageError(
            f"An A/A test needs an arm that synchronises, and {arms[0].label} does not.",
            remedy="Choose another arm with --backend.",
        )
    config = msgspec.structs.replace(draft, arms=arms, baseline=baseline, device=device)
    return config, left_out


def choose_threads(asked: int | None, cluster: HostFacts) -> int:
    """Return the threads of each rank: ``asked``, or the smallest share of a host's CPUs for one rank."""
    if asked is not None:
        return asked
    if cluster.network.rehearsed:  # all hosts have the same CPUs
        share = len(cluster.machines[0].cpus) // sum(host.slots for host in cluster.hosts)
    else:
        share = min(cores // host.slots for host, cores in zip(cluster.hosts, cluster.cores(), strict=True))
    return max(1, share)


def count_gpus(cluster: HostFacts, survey: Survey) -> list[int]:
    """Return the number of GPUs of every host, in the order of the hosts.

    torch counts the GPUs of this machine, and the driver those of any other host.
    """
    return [
        survey.gpus if is_local(host) else machine.gpus
        for host, machine in zip(cluster.hosts, cluster.machines, strict=True)
    ]


def choose_length(repeats: int | None, budget: float | None) -> Length:
    """Return the number of rounds and the time for them, from ``--repeats`` and ``--budget``.

    With neither flag, a run takes as long as its first verdicts need. More rounds begin within
    `SETTLE_SECONDS` until every verdict is settled.
    """
    return {
        "rounds": MOST_ROUNDS if repeats is None else repeats,
        "budget_seconds": budget,
        "settle_seconds": SETTLE_SECONDS if repeats is None and budget is None else None,
    }


def choose_device(asked: str, hosts: Sequence[Host], gpus: Sequence[int]) -> str:
    """Return the device ``asked`` for; ``auto`` is CUDA if any host has GPUs, otherwise the CPU.

    Each host has as many slots as ranks, and ``gpus`` has the number of GPUs of each host.

    Raises:
        UnavailableError: the device is CUDA, and a host has fewer GPUs than ranks.
    """
    if asked not in {"auto", "cuda"} or (asked == "auto" and not any(gpus)):
        return asked if asked != "auto" else "cpu"
    for host, there in zip(hosts, gpus, strict=True):
        if there < host.slots:
            fewer = f"-np {there}" if len(hosts) == 1 else f"{there} of its slots"
            raise UnavailableError(
                f"{host.name} has too few GPUs for {counted(host.slots, 'rank')}.",
                found=f"It has {counted(there, 'GPU')}, and every rank needs one of its own.",
                remedy=f"Use {fewer} or --device cpu." if there else "Use --device cpu.",
            )
    return "cuda"


def choose_arms(
    named: tuple[Arm, ...], device: str, survey: Survey, *, one_host: bool
) -> tuple[tuple[Arm, ...], dict[str, str]]:
    """Return the arms that the user ``named``, or all that can run if none are named.

    With ``one_host``, arms whose ranks share memory on CPUs are among all that can run.

    Returns:
        The arms, and the reason for each backend or arm that was left out, by its name.

    Raises:
        UnavailableError: an arm that was named cannot run on this machine, or no backend can.
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
    backend = BACKENDS[arm.backend]
    if device == "cuda":
        where, other = "GPUs", "cpu"
        found = "" if backend.cuda else "It averages in host memory."
    else:
        where, other = "the CPU", "cuda"
        reason = backend.not_on_cpus
        found = f"{reason[:1].upper()}{reason[1:]}." if reason else ""
        if arm.cuda_only:
            found = f"torch supports {' and '.join(arm.cuda_only)} only on CUDA."
    if found:
        raise UnavailableError(
            f"{arm.label} cannot run on {where}.",
            found=found,
            remedy=f"Use --device {other}, or leave the arm out.",
        )


def require_other_hosts(arms: Sequence[Arm]) -> None:
    """Require that every arm can run on other hosts.

    Raises:
        UnavailableError: an arm runs on this machine only; names the first one, with the reason.
    """
    for arm in arms:
        if reason := arm.runtime.only_here_because or (_OTHER_INTERPRETER if arm.against else ""):
            raise UnavailableError(
                f"{arm.label} runs on this machine only.",
                found=f"{reason}.",
                remedy="Run this arm on one machine, or leave it out.",
            )


def with_control(arms: tuple[Arm, ...], *, control: bool) -> tuple[Arm, ...]:
    """Return the arms, with the control as the first if it is asked for or one of them."""
    others = tuple(arm for arm in arms if arm.backend != CONTROL)
    return (Arm(CONTROL), *others) if control or len(others) < len(arms) else others


def choose_baseline(asked: str | None, arms: tuple[Arm, ...]) -> str:
    """Return the baseline's label: that of the arm ``asked`` for, or of the first arm but the control.

    Raises:
        UsageError: ``asked`` has an unknown backend, option or value. ``RunConfig`` refuses one that is not
            among ``arms``.
    """
    if asked is not None:
        wanted = parse_arm(asked)
        return next((arm.label for arm in arms if arm == wanted), wanted.label)
    return next((arm.label for arm in arms if arm.backend != CONTROL), CONTROL)


def read_own_workload(flag: str, conflicting: Mapping[str, object], *, epochs: int) -> DatasetSource:
    """Return the source that ``--workload`` names, after refusing flags that contradict it.

    ``flag`` is the text of ``--workload``. ``conflicting`` has the flags whose place the workload takes, each
    with its value or None. ``epochs`` are those of the command.

    Raises:
        UsageError: the flag names no file, or another flag contradicts it.
    """
    source = data.own_source(flag)
    for other, value in conflicting.items():
        if value is not None:
            raise UsageError(
                f"{other} and --workload contradict each other.",
                found=f"{source.workload} creates the model, the data and the optimizer itself.",
                remedy=f"Leave out {other}, and set it in your file.",
            )
    if epochs != 1:
        raise UsageError(
            "--epochs and --workload contradict each other.",
            found="The length of an epoch is not known, because only the ranks load your data.",
            remedy="Give the length in --steps.",
        )
    return source
