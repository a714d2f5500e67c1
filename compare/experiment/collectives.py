"""Carry out ``ringside collectives``: launch every group, round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from backends import BACKENDS, GROUPS
from compare import __version__
from compare.analysis.budget import START_SECONDS
from compare.doctor import availability
from compare.doctor.availability import Survey
from compare.errors import BudgetError, UnavailableError, UsageError
from compare.experiment.allocation import require_time
from compare.experiment.run import Watch, attempt, open_hosts, reporting_early_end
from compare.experiment.schedule import back_and_forth
from compare.experiment.settle import LaunchRequest, choose_threads, settle_device
from compare.launch.arm import Observer
from compare.launch.cluster import Cluster
from compare.launch.launches import launch_sweep
from compare.schema.collectives import (
    COLLECTIVES_FILE,
    ITERATION_SECONDS,
    CollectivesRun,
    SweepConfig,
    SweepFields,
)
from compare.schema.hosts import Host
from compare.schema.job import Planned
from compare.schema.results import Failure
from compare.schema.store import create_output, write_request
from compare.system.files import write_json
from compare.text import binary_size, counted, duration

_UNTIMED_ITERATIONS = 3
"""What a size takes beside its timed iterations: calls are counted out, and a result is checked."""


@dataclass(frozen=True, kw_only=True)
class SweepRequest(LaunchRequest):
    """What the user asked ``ringside collectives`` for, before any host is reached."""

    config: SweepFields

    groups: tuple[str, ...]
    """Names of the groups to time; empty for all that can run."""


def compare_collectives(
    request: SweepRequest,
    say: Callable[[str], None],
    watch: Watch[SweepConfig],
    on_early_end: Callable[[CollectivesRun], None] = lambda _: None,
) -> tuple[CollectivesRun, Path]:
    """Time the collectives of the groups that a user asked for; return the results and their folder.

    See ``compare_arms`` for the other arguments and the errors.
    """
    with open_hosts(request, say) as cluster:
        config, left_out = settle_sweep(request, cluster, say)
        require_time(cluster.job, "group", START_SECONDS * len(config.groups))
        say(outlook(config))
        directory = create_output(request.output, "+".join(config.collectives), config.ranks)
        run = CollectivesRun(
            ringside_version=__version__,
            started_at=datetime.now().astimezone().isoformat(timespec="seconds"),
            command=list(request.command),
            config=config,
            hosts=list(cluster.hosts),
            network=cluster.network,
            cores_by_host=cluster.cores(),
            left_out=left_out,
        )
        write_json(directory / COLLECTIVES_FILE, run)
        with reporting_early_end(directory, on_early_end), watch(config) as observer:
            return sweep_groups(run, directory, cluster, observer), directory


def settle_sweep(
    request: SweepRequest, cluster: Cluster, say: Callable[[str], None]
) -> tuple[SweepConfig, dict[str, str]]:
    """Settle what a request leaves open, such as the device and the groups, by what the hosts have.

    ``say`` prints a line before libraries are tried, because that takes seconds.

    Returns:
        The config, and for each group that was left out the reason, by the group's name.

    Raises:
        HostError: hosts cannot call back a launcher that starts on this machine.
        UnavailableError: a group that was named cannot run on these hosts, or none can.
        UsageError: a value is wrong, or a size does not fit into memory.
    """
    draft = SweepConfig(
        groups=request.groups or tuple(GROUPS),
        ranks=sum(host.slots for host in cluster.hosts),
        threads_per_rank=choose_threads(request.threads_per_rank, cluster),
        **request.config,
    )
    say("Checking which groups can run here …")
    survey = availability.survey(GROUPS[name].backend for name in draft.groups)
    device, _ = settle_device(draft.device, cluster, survey)
    if device == "cpu":
        require_memory(draft, cluster.hosts, cluster.memory_left())
    one_host = len(cluster.hosts) == 1
    answers = {name: refusal_of(name, device, survey, one_host=one_host) for name in draft.groups}
    refusals = {name: error for name, error in answers.items() if error}
    groups = tuple(name for name in draft.groups if name not in refusals)
    if refusals and request.groups:
        raise next(iter(refusals.values()))
    left_out = {name: f"{error.found.rstrip('.')}. {error.remedy}" for name, error in refusals.items()}
    if not groups:
        raise UnavailableError(
            "No group can run here.",
            found="\n".join(f"{name}: {reason}" for name, reason in left_out.items()),
            remedy="Install a library (`ringside backends` says how), or choose another --device.",
        )
    entries = [GROUPS[name] for name in groups]
    cluster.require_launchers({BACKENDS[e.backend].runtime(e.options).launcher for e in entries})
    return msgspec.structs.replace(draft, groups=groups, device=device), left_out


def require_memory(config: SweepConfig, hosts: Sequence[Host], left_bytes: Sequence[int]) -> None:
    """Require that the buffers of every size fit into the memory of each host.

    ``left_bytes`` is the free memory of each host, in the order of ``hosts``.

    Raises:
        UsageError: a size does not fit; the error names one that does.
    """
    exchange, size = max(config.measurements, key=lambda each: each[0].traits.memory * each[1])
    rank_bytes = exchange.traits.memory * size
    for host, left in zip(hosts, left_bytes, strict=True):
        if rank_bytes * host.slots <= left:
            continue
        fitting = left // (exchange.traits.memory * host.slots)
        fits = binary_size(1 << max(fitting.bit_length() - 1, 0))
        raise UsageError(
            f"{exchange} of {binary_size(size)} does not fit into the memory of host {host.name}.",
            found=f"Each rank needs {binary_size(rank_bytes)}, for its buffers and the check of the result: "
            f"{binary_size(rank_bytes * host.slots)} for {counted(host.slots, 'rank')}. "
            f"{binary_size(left)} is free.",
            remedy=f"Sizes up to {fits} fit: -e {fits.rstrip('iB').replace(' ', '')}. Or use fewer ranks.",
        )


def refusal_of(name: str, device: str, survey: Survey, *, one_host: bool) -> UnavailableError | None:
    """Return why the group ``name`` cannot run on this device and these hosts; None if it can.

    ``survey`` says what is installed. ``one_host`` says whether all ranks are on one host, as some groups
    need.
    """
    entry, found, remedy = GROUPS[name], "", "Leave this group out."
    if entry.device not in {"", device}:
        kinds: Mapping[str, str] = {"cuda": "GPU memory", "cpu": "host memory"}
        found = f"It moves tensors only in {kinds[entry.device]}, and the device is {device}."
        remedy = f"Use --device {entry.device}."
    elif entry.one_host and not one_host:
        found, remedy = "Its ranks must be on one host.", "Use one host, or leave this group out."
    elif entry.one_host and (problem := survey.shared_memory_problem):
        found = f"{problem[:1].upper()}{problem[1:]}."
    else:
        try:
            survey.require(entry.backend, dict(entry.options))
        except UnavailableError as error:
            found, remedy = error.found or error.what, f"Run: {error.remedy}"
    what = f"The group {name} cannot run here."
    return UnavailableError(what, found=found, remedy=remedy) if found else None


def outlook(config: SweepConfig) -> str:
    """Return a line with the number of launches and sizes, and with the least time that they take."""
    iterations = config.iterations + _UNTIMED_ITERATIONS
    launch = START_SECONDS + config.total_steps * iterations * ITERATION_SECONDS
    groups, rounds = counted(len(config.groups), "group"), counted(config.rounds, "round")
    return (
        f"{groups} × {rounds} × {counted(config.total_steps, 'size')}: at least "
        f"{duration(config.total_launches * launch)}, and longer where a call takes more than "
        f"{ITERATION_SECONDS * 1e3:g} ms."
    )


def plan_sweeps(config: SweepConfig) -> list[Planned]:
    """Return all launches of ``ringside collectives`` in order: every group once in each round."""
    launches = enumerate(back_and_forth(config.rounds, config.groups), start=1)
    return [Planned(number, round_, config.arm_of(group), group) for number, (round_, group) in launches]


def sweep_groups(
    run: CollectivesRun, directory: Path, cluster: Cluster, observer: Observer
) -> CollectivesRun:
    """Carry out all launches of a run, save it after each, and return it with their results.

    A group whose launch fails is not launched again, and the other groups go on. If the time of a
    scheduler's job ends after the first round, the run is returned as incomplete.

    Raises:
        BudgetError: the job's time ended before every group had run once.
        RingsideError: something failed that would fail every launch; what was finished is saved.
    """
    write_request(run, directory)
    for planned in plan_sweeps(run.config):
        if any(failure.arm == planned.group for failure in run.failures):
            observer.sweep_skipped()
            continue
        launch = partial(launch_sweep, run.config, planned, directory, cluster, observer)
        try:
            outcome = attempt(launch, planned, cluster, "group", len(run.config.groups))
        except BudgetError:
            if planned.round > 1:
                return run
            raise
        if isinstance(outcome, Failure):
            run = msgspec.structs.replace(run, failures=[*run.failures, outcome])
        else:
            run = msgspec.structs.replace(run, launches=[*run.launches, outcome])
        write_json(directory / COLLECTIVES_FILE, run)
        observer.sweep_ended(planned, None if isinstance(outcome, Failure) else outcome)
    run = msgspec.structs.replace(run, complete=True)
    write_json(directory / COLLECTIVES_FILE, run)
    return run
