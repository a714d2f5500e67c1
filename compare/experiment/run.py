"""Carry out a run, whose launches are checked and saved as it goes on, or only plan it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from compare import __version__, data
from compare.analysis.budget import least_round_seconds, rounds_done
from compare.data import DatasetSource
from compare.doctor import check_beforehand
from compare.doctor.facts import grouped
from compare.errors import BudgetError, LaunchError, OutputError, RingsideError
from compare.experiment.allocation import end_of_job, naming_scheduler, require_time, too_little_time
from compare.experiment.rounds import Rounds, choose_interleaving
from compare.experiment.schedule import discard_unfinished, launch_order, next_launches
from compare.experiment.settle import LaunchRequest, UserRequest, settle
from compare.launch.agent.machine import free_port
from compare.launch.arm import LaunchFolders, Observer, launch_files, plan_launch
from compare.launch.circumstances import Defect
from compare.launch.cluster import INTERFACE, Cluster, HostFacts, assume_facts, open_cluster
from compare.launch.engines.commands import wait_for_hosts
from compare.launch.signals import uninterrupted
from compare.schema.config import MOST_ROUNDS, LaunchConfig, RunConfig
from compare.schema.hosts import THIS_MACHINE
from compare.schema.job import Job, Planned
from compare.schema.plan import Plan
from compare.schema.results import Failure, Run
from compare.schema.store import (
    RESULTS_FILE,
    create_output,
    default_output,
    launches_of,
    read_result,
    write_request,
)
from compare.system.files import write_json
from compare.text import counted, listed

ConfigType = TypeVar("ConfigType", bound=LaunchConfig)
T = TypeVar("T")
Watch: TypeAlias = Callable[[ConfigType], AbstractContextManager[Observer]]
"""A function that takes the config of a run and returns a context manager, which yields its observer."""
_PORT = 29500
"""The default port of torchrun, which stands in a dry run for a free port of another host."""


def compare_arms(
    request: UserRequest,
    say: Callable[[str], None],
    watch: Watch[RunConfig],
    on_early_end: Callable[[Run], None] = lambda _: None,
) -> tuple[Run, Path]:
    """Run the same training through every arm that a user asked for; return the run and its folder.

    ``say`` prints a line, and ``watch`` makes the observer of the run. ``on_early_end`` receives the saved
    part of a run that is stopped or fails.

    Raises:
        RingsideError: something failed. A note of the error names the folder of the finished part, if any.
        KeyboardInterrupt: the user stopped the run. It has the same note.
    """
    with open_hosts(request, say) as cluster:
        config, left_out = settle(request, cluster, say)
        least = least_round_seconds(config, choose_interleaving(config).mode)
        require_time(cluster.job, "arm", least)
        run, directory = begin_run(request, config, left_out, cluster, say)
        with reporting_early_end(directory, on_early_end), watch(run.config) as observer:
            return carry_out(run, directory, cluster, observer), directory


@contextmanager
def reporting_early_end(directory: Path, on_early_end: Callable[[Any], None]) -> Iterator[None]:
    """If the block is stopped or fails, pass what was saved to ``on_early_end``, and raise the error again.

    A note of the error names the folder with the saved part, or with the logs if no launch has finished. If
    ``on_early_end`` cannot write its output, another note says so.
    """
    try:
        yield
    except (RingsideError, KeyboardInterrupt) as error:
        if directory.exists():
            place = shlex.quote(str(directory))
            with uninterrupted():
                try:
                    result = read_result(directory)
                    nothing = f"No launch has finished. The logs of the run: {place}"
                    kept = f"The finished part is kept: ringside report {place}"
                    error.add_note(kept if launches_of(result) else nothing)
                    on_early_end(result)
                except OutputError as unwritten:  # the first error is the one to report
                    error.add_note(unwritten.what)
        raise


@contextmanager
def open_hosts(request: LaunchRequest, say: Callable[[str], None]) -> Iterator[Cluster]:
    """Check the hosts of a request, and yield a cluster whose agents are ended after the block.

    ``say`` prints where the hosts come from, what the check found, and how they are connected.

    Raises:
        HostError: a host cannot be reached, or has another version.
        UnavailableError: the program that reaches the hosts is missing on this machine.
        UsageError: the network interface is missing or cannot be chosen, or two hosts are one machine.
    """
    allocation = request.allocation
    hosts, carrier = allocation.hosts, allocation.carrier
    if allocation.source:
        say(f"Hosts: {allocation.source}")
    if allocation.wait_seconds:
        wait_for_hosts(hosts, carrier=carrier, seconds=allocation.wait_seconds, say=say)
    findings = check_beforehand(hosts, carrier=carrier)

    def say_findings(*, failed: bool) -> None:
        for finding, of_hosts in grouped(findings(failed=failed)):
            say(f"{finding.level}: {listed(of_hosts)}: {finding.what} {finding.found} {finding.fix}")

    with ExitStack() as opened:
        try:
            with naming_scheduler(allocation.job):
                cluster = opened.enter_context(
                    open_cluster(
                        allocation, interface=allocation.interface, exported=request.exported, say=say
                    )
                )
        except RingsideError:
            say_findings(failed=True)
            raise
        say_findings(failed=False)
        cluster.defects = lambda: [
            Defect(each.topic, each.host, f"{each.what} {each.found}", each.fix)
            for each in findings(failed=True)
        ]
        # A single machine needs no lines, unless the user named it.
        user_named_hosts = any(host.source != THIS_MACHINE for host in hosts)
        for line in cluster.topology() if user_named_hosts else ():
            say(line)
        yield cluster


def begin_run(
    request: UserRequest,
    config: RunConfig,
    left_out: dict[str, str],
    cluster: Cluster,
    say: Callable[[str], None],
    *,
    purpose: str = "",
) -> tuple[Run, Path]:
    """Find the data, make the run's folder, stage the data, and return the new run with its folder.

    Unless the user named a folder, its name ends with ``purpose``. By default that is ``-aa`` for an A/A
    test, ``-gate`` for a gate, and otherwise empty.

    Raises:
        DataError: the data is damaged or not available.
        HostError: the data cannot be copied to a host.
        OutputError: the folder cannot be written, or is not empty.
    """
    purpose = purpose or ("-aa" if config.comparisons else "-gate" if config.slower_limit else "")
    source = find_data(request, say)
    directory = create_output(request.output, config.model, config.ranks, purpose=purpose)
    cluster.stage(source, say)
    return new_run(config, source, cluster, left_out, request.command), directory


def find_data(request: UserRequest, say: Callable[[str], None]) -> DatasetSource:
    """Return the user's own workload, or the data set, which is downloaded or made if it is missing.

    Raises:
        DataError: the data is damaged or not available.
    """
    root = request.data_dir or data.default_root()
    return request.own or data.resolve(request.dataset, root, progress=say)


def carry_out(
    run: Run, directory: Path, cluster: Cluster, observer: Observer, *, rounds: int = MOST_ROUNDS
) -> Run:
    """Carry out launches until the run is done or has ``rounds`` whole rounds, and save it.

    The rounds that ``run`` has already count, too.

    Returns:
        The run so far, without a round that the budget cut short. It is complete if no round or time is left.

    Raises:
        BudgetError: the budget ended before every arm had run once.
        RingsideError: a launch failed. The finished part is saved, and marked as incomplete.
        KeyboardInterrupt: the user stopped the run. The finished part is saved in the same way.
    """
    write_request(run, directory)
    write_json(directory / RESULTS_FILE, run)
    going = Rounds(run, directory, cluster, observer)
    observer.rounds_done(run)
    while (planned := next_launches(going.run)) and rounds_done(going.run) < rounds:
        try:
            with naming_scheduler(cluster.job):
                going.carry_out(planned)
        except BudgetError:
            run = discard_unfinished(going.run)
            if run.launches:
                going.run, planned = run, []
                break
            error = too_little_time(going.limit(), "arm", len(going.run.launches), len(run.config.arms))
            _save_failure(going.run, _failure(planned[0], error), directory)
            raise error from None
        except (RingsideError, KeyboardInterrupt) as error:
            _save_failure(going.run, _failure(going.current or planned[0], error), directory)
            raise
    run = msgspec.structs.replace(going.run, complete=not planned)
    write_json(directory / RESULTS_FILE, run)
    return run


def attempt(
    launch: Callable[..., T], planned: Planned, cluster: Cluster, noun: str, count: int
) -> T | Failure:
    """Call ``launch`` to carry out a planned launch; return its result, or the failure if it fails.

    ``launch`` receives the end of the scheduler's job as ``budget_ends_at``. ``count`` is the number of arms
    or groups to launch, and ``noun`` says which of the two they are.

    Raises:
        BudgetError: the time of the scheduler's job ended before the launch did.
        RingsideError: something failed that would fail every other launch, too.
    """
    try:
        with naming_scheduler(cluster.job):
            return launch(budget_ends_at=end_of_job(cluster.job))
    except BudgetError:
        assert cluster.job  # noqa: S101 -- nothing else sets a limit
        limit = f"The time of {cluster.job.name}"
        raise too_little_time(limit, noun, planned.number - 1, count) from None
    except LaunchError as error:
        return _failure(planned, error)


def _failure(planned: Planned, error: BaseException) -> Failure:
    kind, message = type(error).__name__, str(error) or "interrupted"
    return Failure(arm=planned.label, round=planned.round, kind=kind, message=message)


def _save_failure(run: Run, failure: Failure, directory: Path) -> None:
    # Where nothing can be written, the first error is the one to report.
    with suppress(OutputError):
        write_json(directory / RESULTS_FILE, msgspec.structs.replace(run, failure=failure))


def new_run(
    config: RunConfig,
    dataset: DatasetSource,
    cluster: HostFacts,
    left_out: dict[str, str],
    command: Sequence[str],
) -> Run:
    """Return the record of a run that has no launches yet."""
    return Run(
        ringside_version=__version__,
        started_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=list(command),
        config=config,
        dataset=dataset,
        hosts=list(cluster.hosts),
        network=cluster.network,
        cores=min(cluster.cores()),
        cores_by_host=cluster.cores(),
        left_out=left_out,
        interleaved=choose_interleaving(config),
    )


# ---- a run that is only planned ----


def plan(
    request: UserRequest,
    say: Callable[[str], None],
    folder: Callable[[RunConfig], Path] = default_output,
) -> Plan:
    """Return the plan of a run's first round, without asking other hosts or launching an arm.

    ``say`` prints a line before the arms are checked, which takes seconds. ``folder`` returns the run's
    folder where the user named none.

    Raises:
        RingsideError: the request cannot be settled.
    """
    hosts = assume_facts(
        request.allocation,
        interface=request.allocation.interface,
        exported=request.exported,
        with_gpus=request.config["device"] == "cuda",
    )
    config, left_out = settle(request, hosts, say)
    directory = Path(os.path.realpath(request.output or folder(config)))
    source = request.own or data.expect(request.dataset, request.data_dir or data.default_root())
    make_job = partial(Job, dataset=source)
    launches = []
    for number, arm in enumerate(launch_order(config, 1), start=1):
        planned = Planned(number, 1, arm)
        folders = LaunchFolders(hosts, launch_files(directory, planned))
        port = free_port() if hosts.is_only_this_machine else _PORT
        launches.append(plan_launch(config, planned, folders, port, make_job))
    return Plan(
        run=new_run(config, source, hosts, left_out, request.command),
        hosts_source=request.allocation.source,
        launches=launches,
        assumptions=_assumptions(request, hosts),
    )


def _assumptions(request: UserRequest, hosts: HostFacts) -> list[str]:
    """Return sentences on what a dry run assumes of hosts that it does not ask."""
    if hosts.is_only_this_machine:
        return []
    cpus = counted(len(hosts.machines[0].cpus), "CPU")
    gpus = "a GPU for each rank" if request.config["device"] == "cuda" else "no GPU"
    assumed = [f"No host was asked. Each is assumed to be like this machine, with {cpus} and {gpus}."]
    if request.allocation.interface is None:
        assumed.append(f"{INTERFACE} stands for the network interface that all hosts share.")
    return assumed
