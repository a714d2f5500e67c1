"""Settle what a user left open: the arms, the device and the threads of each rank.

What the user named is accepted or refused, but never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backends import BACKENDS
from compare import data
from compare.analysis.budget import FIRST_LOOK
from compare.analysis.change import with_twins
from compare.analysis.ranking import twins
from compare.data import DatasetChoice, DatasetSource
from compare.doctor import availability
from compare.doctor.availability import Survey
from compare.errors import UnavailableError, UsageError
from compare.launch.cluster import HostFacts
from compare.launch.engines import Allocation
from compare.schema.arms import CONTROL, Arm, Interpreter, is_aa_test, parse_arm
from compare.schema.config import (
    MOST_ROUNDS,
    SHARED_GPUS,
    LaunchFields,
    Length,
    RunConfig,
    RunFields,
    require,
)
from compare.schema.hosts import Host, is_local
from compare.text import counted

SETTLE_SECONDS = 300.0
"""Time in which rounds beyond the fifth begin, if the user gives neither their number nor a budget."""
_AA_COMPARISONS = 10
"""Number of comparisons of an A/A test without ``--repeats``."""
_AA_RERUNS = 10
"""Maximum number of noisy rounds that an A/A test repeats, because it has more rounds than a run."""
_OTHER_INTERPRETER = "The other interpreter is known only on this machine"
OWN_STEPS = 200
"""Number of training steps of a user's own workload if the user gives no ``--steps``."""


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """A user's request to any command that launches ranks, before a host is reached."""

    allocation: Allocation
    """The hosts, each with as many slots as it has ranks."""
    exported: Mapping[str, str]
    """Environment variables of the ranks, as ``-x`` gives their names and values."""
    output: Path | None
    """The folder for the results; None for a new one."""
    threads_per_rank: int | None
    """The number that the user gave; None to share the cores of each host among its ranks."""
    config: LaunchFields
    """All other fields of the config that have a flag."""
    command: Sequence[str] = ()
    """The command line as the user typed it."""


@dataclass(frozen=True, kw_only=True)
class UserRequest(LaunchRequest):
    """A user's request to a command that trains, before a host is reached."""

    config: RunFields
    arms: tuple[Arm, ...]
    """The arms that the user named; empty for all default arms that can run."""
    baseline: str | None = None
    """The arm with which others are compared, as the user wrote it; None for the first."""
    control: bool = False
    """Whether the user asked for the arm without communication."""
    against: Interpreter | None = None
    """The other interpreter of ``ringside gate``; None for other commands."""
    dataset: DatasetChoice
    data_dir: Path | None
    """The folder of the data sets; None for the default one."""
    own: DatasetSource | None = None
    """The user's own workload, in place of a data set; None without one."""


def settle(
    request: UserRequest, cluster: HostFacts, say: Callable[[str], None]
) -> tuple[RunConfig, dict[str, str]]:
    """Settle what a request leaves open, such as arms and device, by what the hosts have.

    GPUs are counted on all hosts, but libraries are tried on this machine only. ``say`` prints a line
    before that, because it takes seconds.

    Returns:
        The config of the run, and for each backend or arm that was left out the reason, by its name.

    Raises:
        HostError: hosts cannot connect back to a launcher that starts on this machine.
        UnavailableError: an arm or a device that the user named is not available, or no arm is.
        UsageError: a value is wrong, or the baseline is not one of the arms.
    """
    draft = RunConfig(
        arms=request.arms,
        ranks=sum(host.slots for host in cluster.hosts),
        threads_per_rank=choose_threads(request.threads_per_rank, cluster),
        **request.config,
    )
    require_divisible(request.arms, draft.ranks)
    say("Checking which arms can run here …")
    survey = availability.survey(arm.backend for arm in draft.arms)
    device, shares_gpus = settle_device(draft.device, cluster, survey)
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
    elif is_aa_test(arms):
        draft = divide_aa_test(draft)
        arms = twins(arms[0])
        baseline = arms[0].label
    else:
        arms = with_control(arms, control=request.control)
    config = msgspec.structs.replace(
        draft, arms=arms, baseline=baseline, device=device, shares_gpus=shares_gpus
    )
    return config, left_out


def choose_threads(asked: int | None, cluster: HostFacts) -> int:
    """Return the number of threads of each rank: ``asked``, or else the smallest share of CPUs of a rank."""
    if asked is not None:
        return asked
    if cluster.network.rehearsed:  # all hosts have the same CPUs
        share = len(cluster.machines[0].cpus) // sum(host.slots for host in cluster.hosts)
    else:
        share = min(cores // host.slots for host, cores in zip(cluster.hosts, cluster.cores(), strict=True))
    return max(1, share)


def count_gpus(cluster: HostFacts, survey: Survey) -> list[int]:
    """Return the number of GPUs of every host, in the order of the hosts.

    torch has counted those of this machine, and the agent of any other host those that its driver shows.
    """
    return [
        survey.gpus if is_local(host) else machine.gpus
        for host, machine in zip(cluster.hosts, cluster.machines, strict=True)
    ]


def choose_length(repeats: int | None, budget: float | None) -> Length:
    """Return the config's fields that limit the length of a run, from ``--repeats`` and ``--budget``.

    With neither flag, a run takes as many rounds as the first verdicts need. Until every verdict is settled,
    more rounds begin within ``SETTLE_SECONDS``.
    """
    return {
        "rounds": MOST_ROUNDS if repeats is None else repeats,
        "budget_seconds": budget,
        "settle_seconds": SETTLE_SECONDS if repeats is None and budget is None else None,
    }


def divide_aa_test(draft: RunConfig) -> RunConfig:
    """Return the config of an A/A test, whose rounds are divided into comparisons of five.

    Raises:
        UsageError: the arm does not synchronise, or the length of the run cannot be divided.
    """
    if not draft.arms[0].traits.synchronises:
        raise UsageError(
            f"An A/A test needs an arm that synchronises, and the arm {draft.arms[0].label} does not.",
            remedy="Choose another arm with --backend.",
        )
    require(draft.budget_seconds is None, "--budget of an A/A test", draft.budget_seconds, "--repeats, as 20")
    rounds = _AA_COMPARISONS * FIRST_LOOK if draft.settle_seconds else draft.rounds
    right = f"a multiple of {FIRST_LOOK}, because a comparison has {FIRST_LOOK} rounds"
    require(rounds % FIRST_LOOK == 0, "--repeats of an A/A test", rounds, right)
    return msgspec.structs.replace(
        draft,
        rounds=rounds,
        comparisons=rounds // FIRST_LOOK,
        settle_seconds=None,
        max_reruns=draft.max_reruns and _AA_RERUNS,
    )


def settle_device(asked: str, cluster: HostFacts, survey: Survey) -> tuple[str, bool]:
    """Return the device, as ``choose_device`` does, and whether any ranks share a GPU.

    All hosts of a rehearsal have the same GPUs, so ``cuda`` is ``SHARED_GPUS`` there.

    Raises:
        UnavailableError: the device is CUDA, and a host has fewer GPUs than ranks, or none to share.
    """
    gpus = count_gpus(cluster, survey)
    if cluster.network.rehearsed and asked == "cuda":
        asked = SHARED_GPUS
    device = choose_device(asked, cluster.hosts, gpus)
    too_few = any(count < host.slots for host, count in zip(cluster.hosts, gpus, strict=True))
    return device, device == "cuda" and (too_few or cluster.hosts_per_machine > 1)


def choose_device(asked: str, hosts: Sequence[Host], gpus: Sequence[int]) -> str:
    """Return ``cuda`` or ``cpu``, as ``asked``; ``auto`` is ``cuda`` if any host has GPUs.

    Each host has as many slots as ranks, and ``gpus`` has the number of GPUs of each host. ``SHARED_GPUS`` is
    ``cuda`` where ranks may share the GPUs of their host.

    Raises:
        UnavailableError: the device is CUDA, and a host has fewer GPUs than ranks, or none to share.
    """
    if asked not in {"auto", "cuda", SHARED_GPUS} or (asked == "auto" and not any(gpus)):
        return asked if asked != "auto" else "cpu"
    for host, count in zip(hosts, gpus, strict=True):
        if asked == SHARED_GPUS and not count:
            raise UnavailableError(f"{host.name} has no GPU to share.", remedy="Use --device cpu.")
        if count < host.slots and asked != SHARED_GPUS:
            fewer = f"-np {count}" if len(hosts) == 1 else f"{count} of its slots"
            raise UnavailableError(
                f"{host.name} has too few GPUs for {counted(host.slots, 'rank')}.",
                found=f"It has {counted(count, 'GPU')}, and every rank needs one of its own.",
                remedy=f"Use {fewer} or --device cpu." if count else "Use --device cpu.",
            )
    return "cuda"


def choose_arms(
    named: tuple[Arm, ...], device: str, survey: Survey, *, one_host: bool
) -> tuple[tuple[Arm, ...], dict[str, str]]:
    """Choose the arms of a run: those that the user ``named``, or else all default arms that can run.

    Arms whose ranks share memory on CPUs are among the latter only if all ranks are on ``one_host``.

    Returns:
        The arms, and for each backend or arm that was left out the reason, by its name.

    Raises:
        UnavailableError: an arm that was named cannot run on this machine, or no backend can.
    """
    if named:
        for arm in named:
            _require_arm(arm, device, survey)
        return named, {}
    arms, left_out = [], {}
    for name, status in survey.backends.items():
        backend = BACKENDS[name]
        if name == CONTROL or backend.only_named:
            continue
        if status.problem:
            left_out[name] = f"{status.problem}; run: {status.remedy}"
        elif device == "cuda" and not backend.cuda:
            left_out[name] = "it averages in host memory; run it with --device cpu"
        else:
            arms.append(Arm(name))
            if backend.on_one_host and one_host and device == "cpu":
                sharing_memory = Arm(name, dict(backend.on_one_host))
                if survey.shared_memory_problem:
                    left_out[sharing_memory.label] = survey.shared_memory_problem
                else:
                    arms.append(sharing_memory)
    if not arms:
        raise UnavailableError(
            "No backend can run here.",
            found="\n".join(f"{name}: {reason}" for name, reason in left_out.items()),
            remedy="Install one (`ringside backends` says how), or use --device cpu.",
        )
    return tuple(arms), left_out


def _require_arm(arm: Arm, device: str, survey: Survey) -> None:
    """Raise an ``UnavailableError`` if an arm cannot run on the device, or a library is missing."""
    survey.require(arm.backend, arm.options)
    backend = BACKENDS[arm.backend]
    if device == "cuda":
        where, other_device = "GPUs", "cpu"
        found = "" if backend.cuda else "It averages in host memory."
    else:
        where, other_device = "the CPU", "cuda"
        reason = backend.not_on_cpus
        found = f"{reason[:1].upper()}{reason[1:]}." if reason else ""
        if arm.cuda_only:
            found = f"torch supports {' and '.join(arm.cuda_only)} only on CUDA."
    if found:
        raise UnavailableError(
            f"{arm.label} cannot run on {where}.",
            found=found,
            remedy=f"Use --device {other_device}, or leave the arm out.",
        )


def require_divisible(arms: Sequence[Arm], ranks: int) -> None:
    """Require that every arm can divide so many ranks, as replicas of shards must.

    Raises:
        UsageError: an arm cannot.
    """
    for arm in arms:
        if settings := arm.cannot_divide(ranks):
            raise UsageError(
                f"{arm.label} cannot divide {counted(ranks, 'rank')}.",
                found=f"With {' and '.join(settings)}, the number of ranks must be divisible by that.",
                remedy="Use another number of ranks (-np), or another value.",
            )


def require_other_hosts(arms: Sequence[Arm]) -> None:
    """Require that every arm can run on hosts other than this machine.

    Raises:
        UnavailableError: an arm runs on this machine only. The error names the first one, with the reason.
    """
    for arm in arms:
        if reason := arm.runtime.only_here_because or (_OTHER_INTERPRETER if arm.against else ""):
            raise UnavailableError(
                f"{arm.label} cannot run on other hosts than this machine.",
                found=f"{reason}.",
                remedy="Run it on this machine, without --engine and without hosts, or leave it out.",
            )


def require_hosts_for(request: UserRequest) -> None:
    """Require that the named arms can run on a request's hosts, which are neither made nor reached yet.

    Raises:
        UnavailableError: as in ``require_other_hosts``.
    """
    if not all(map(is_local, request.allocation.hosts)):
        require_other_hosts(with_twins(request.arms, request.against) if request.against else request.arms)


def with_control(arms: tuple[Arm, ...], *, control: bool) -> tuple[Arm, ...]:
    """Return the arms, with the control as the first if ``control`` asks for it or it is one of them."""
    compared = tuple(arm for arm in arms if arm.backend != CONTROL)
    return (Arm(CONTROL), *compared) if control or len(compared) < len(arms) else compared


def choose_baseline(asked: str | None, arms: tuple[Arm, ...]) -> str:
    """Return the baseline's label: that of the arm ``asked`` for, or else of the first except the control.

    Raises:
        UsageError: ``asked`` has an unknown backend, option or value. An arm that is not one of ``arms``
            raises no error here, because ``RunConfig`` refuses it.
    """
    if asked is not None:
        asked_arm = parse_arm(asked)
        return next((arm.label for arm in arms if arm == asked_arm), asked_arm.label)
    return next((arm.label for arm in arms if arm.backend != CONTROL), CONTROL)


def read_own_workload(flag: str, conflicting: Mapping[str, object], *, epochs: int) -> DatasetSource:
    """Return the user's own workload that ``--workload`` names, after refusing flags that contradict it.

    ``flag`` is the text of ``--workload``. ``conflicting`` has the flags that the workload makes needless,
    each with its value or None. ``epochs`` is the number of epochs in ``--steps``.

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
            "Epochs in --steps and --workload contradict each other.",
            found="The length of an epoch is not known, because only the ranks load your data.",
            remedy="Give a number of steps, as --steps 200.",
        )
    return source
