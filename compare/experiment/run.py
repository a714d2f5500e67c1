"""Carry out a run: prove and save each launch before the next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from compare import __version__, data
from compare.analysis.budget import rounds_done
from compare.data import DatasetSource
from compare.doctor import check_beforehand
from compare.doctor.facts import Finding
from compare.errors import BudgetError, OutputError, RingsideError
from compare.experiment.allocation import endings_named, require_time, too_little_time
from compare.experiment.rounds import Cohorts, Launches, choose_interleaving
from compare.experiment.schedule import discard_unfinished
from compare.experiment.settle import LaunchRequest, UserRequest, settle
from compare.experiment.turn_plan import least_round_seconds
from compare.launch.arm import Observer
from compare.launch.circumstances import Defect
from compare.launch.cluster import Cluster, open_cluster
from compare.launch.engines.arrival import wait_for_hosts
from compare.launch.signals import uninterrupted
from compare.schema.config import MOST_ROUNDS, LaunchConfig, RunConfig
from compare.schema.hosts import THIS_MACHINE
from compare.schema.job import Planned
from compare.schema.results import Failure, Run
from compare.schema.store import RESULTS_FILE, create_output, read_run, write_request
from compare.system.clock import unix_time
from compare.system.files import write_json

ObserverType = TypeVar("ObserverType")
ConfigType = TypeVar("ConfigType", bound=LaunchConfig)
T = TypeVar("T")
Watch: TypeAlias = Callable[[ConfigType], AbstractContextManager[ObserverType]]
"""Makes the observer of a run of some config."""


def compare_arms(
    request: UserRequest,
    say: Callable[[str], None],
    watch: Watch[RunConfig, Observer],
    on_early_end: Callable[[Run], None] = lambda _: None,
) -> tuple[Run, Path]:
    """Run the same training through every arm that a user asked for.

    ``on_early_end`` receives what is kept of a run that is stopped or fails.

    Raises:
        RingsideError: something failed; notes of the error say what is kept.
        KeyboardInterrupt: likewise.
    """
    with open_hosts(request, say) as cluster:
        config, left_out = settle(request, cluster)
        least = least_round_seconds(config, choose_interleaving(config).mode)
        require_time(cluster.job, "arm", least, unix_time())
        run, directory = begin(request, config, left_out, cluster, say)
        early = kept(directory, lambda: read_run(directory), on_early_end)
        with early, watch(run.config) as observer:
            return carry_out(run, directory, cluster, observer), directory


@contextmanager
def kept(
    directory: Path,
    read: Callable[[], T],
    on_early_end: Callable[[T], None],
    *,
    where: str = "is kept: compare report",
) -> Iterator[None]:
    """Hand on what is kept where the block is stopped or fails.

    ``read`` reads it from the folder. The notes of the error say where it is, and what could not be written.
    """
    try:
        yield
    except (RingsideError, KeyboardInterrupt) as error:
        if directory.exists():
            error.add_note(f"The finished part {where} {shlex.quote(str(directory))}")
            with uninterrupted():
                try:
                    on_early_end(read())
                except OutputError as unwritten:  # the first error is the one to report
                    error.add_note(unwritten.what)
        raise


@contextmanager
def open_hosts(request: LaunchRequest, say: Callable[[str], None]) -> Iterator[Cluster]:
    """Open the hosts of a request, and print their topology.

    Raises:
        HostError: a host cannot be reached, or has another version.
        UsageError: the network interface is not there, or none can be chosen.
    """
    hosts, carrier, source, job, _ = request.allocation
    if source:
        say(f"Hosts: {source}")
    if request.wait_seconds:
        wait_for_hosts(hosts, carrier=carrier, seconds=request.wait_seconds, say=say)
    findings = check_beforehand(hosts, carrier=carrier)
    with ExitStack() as opened:
        try:
            with endings_named(job):
                cluster = opened.enter_context(
                    open_cluster(request.allocation, interface=request.interface, exported=request.exported)
                )
        except RingsideError:
            _say_findings(findings(failed=True), say)
            raise
        _say_findings(findings(failed=False), say)
        cluster.defects = lambda: [
            Defect(each.topic, each.host, f"{each.what} {each.found}", each.fix)
            for each in findings(failed=True)
        ]
        # A single machine needs no lines, unless the user named it.
        named = any(host.source != THIS_MACHINE for host in hosts)
        for line in cluster.topology() if named else ():
            say(line)
        yield cluster


def _say_findings(findings: Iterable[Finding], say: Callable[[str], None]) -> None:
    """Print what the check of the hosts found."""
    for finding in findings:
        say(f"{finding.level}: {finding.host}: {finding.what} {finding.found} {finding.fix}")


def begin(
    request: UserRequest,
    config: RunConfig,
    left_out: dict[str, str],
    cluster: Cluster,
    say: Callable[[str], None],
    *,
    purpose: str = "",
) -> tuple[Run, Path]:
    """Find the data, make the run's folder, and stage the data.

    ``purpose`` ends the name of a folder that the user did not name.

    Raises:
        DataError: the data is damaged, or cannot be had.
        OutputError: the folder cannot be written, or is not empty.
    """
    purpose = purpose or ("-aa" if config.comparisons else "-gate" if config.slower_limit else "")
    source = find_data(request, say)
    directory = create_output(request.output, config.model, config.ranks, purpose=purpose)
    cluster.stage(source, say)
    return new_run(config, source, cluster, left_out, request.command), directory


def find_data(request: UserRequest, say: Callable[[str], None]) -> DatasetSource:
    """Find the data of a request, or its own workload.

    Raises:
        DataError: the data is damaged, or cannot be had.
    """
    root = request.data_dir or data.default_root()
    return request.own or data.resolve(request.dataset, root, progress=say)


def carry_out(
    run: Run, directory: Path, cluster: Cluster, observer: Observer, *, rounds: int = MOST_ROUNDS
) -> Run:
    """Launch what the config asks for, and save after every launch.

    It stops after so many ``rounds`` of the run, from its first one on.

    Returns:
        The run so far, without a round that the budget cut short. It is complete if no round is left.

    Raises:
        BudgetError: the budget ended before every arm had run once.
        RingsideError: a launch failed; what was finished is saved, and marked incomplete.
        KeyboardInterrupt: likewise.
    """
    write_request(run, directory)
    write_json(directory / RESULTS_FILE, run)
    conductor = Cohorts if run.interleaved.mode == "blocks" else Launches
    going = conductor(run, directory, cluster, observer)
    observer.rounds_done(run)
    while (planned := going.next()) and rounds_done(going.run) < rounds:
        try:
            with endings_named(cluster.job):
                going = going.carry_out(planned)
        except BudgetError:
            run = discard_unfinished(going.run)
            if run.launches:
                going.run, planned = run, []
                break
            error = too_little_time(going.limit(), "arm", len(going.run.launches), len(run.config.arms))
            _save_failure(going.run, planned[0], error, directory)
            raise error from None
        except (RingsideError, KeyboardInterrupt) as error:
            _save_failure(going.run, going.failed or planned[0], error, directory)
            raise
    run = msgspec.structs.replace(going.run, complete=not planned)
    write_json(directory / RESULTS_FILE, run)
    return run


def _save_failure(run: Run, planned: Planned, error: BaseException, directory: Path) -> None:
    failure = Failure(
        arm=planned.arm.label,
        round=planned.round,
        kind=type(error).__name__,
        message=str(error) or "interrupted",
    )
    # Where nothing can be written, the first error is the one to report.
    with suppress(OutputError):
        write_json(directory / RESULTS_FILE, msgspec.structs.replace(run, failure=failure))


def new_run(
    config: RunConfig,
    dataset: DatasetSource,
    cluster: Cluster,
    left_out: dict[str, str],
    command: Sequence[str],
) -> Run:
    """Begin the record of a run."""
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
