"""Carry out ``ringside scale``: run the same arms with several numbers of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from compare import __version__
from compare.analysis.budget import least_round_seconds, rounds_done
from compare.data import DatasetSource
from compare.experiment.allocation import naming_scheduler, require_time
from compare.experiment.run import (
    Watch,
    carry_out,
    find_data,
    new_run,
    open_hosts,
    plan,
    reporting_early_end,
)
from compare.experiment.schedule import back_and_forth
from compare.experiment.settle import UserRequest, require_divisible, settle
from compare.launch.cluster import Cluster, open_cluster
from compare.schema.config import RunConfig
from compare.schema.hosts import fill_slots
from compare.schema.plan import Plan
from compare.schema.results import Run
from compare.schema.scale import Mode, Scale, Series, batch_of, folder_of
from compare.schema.store import (
    RESULTS_FILE,
    SCALE_FILE,
    create_directory,
    create_output,
    default_output,
)
from compare.system.files import write_json


@dataclass(frozen=True, kw_only=True)
class ScaleRequest(UserRequest):
    """What the user asked ``ringside scale`` for; the hosts have slots for the largest count."""

    mode: Mode
    counts: tuple[int, ...]
    """The numbers of ranks, in rising order."""


def plan_scale(request: ScaleRequest, say: Callable[[str], None]) -> Plan:
    """Return the plan of the first round with the most ranks, whose hosts and arms all counts share.

    See ``plan`` for the argument and the errors.
    """
    most = request.counts[-1]

    def series_folder(config: RunConfig) -> Path:
        return request.output or default_output(config, purpose=f"-{request.mode}")

    largest = replace(_with_batch_of(request, most), output=None)
    return plan(largest, say, lambda config: folder_of(series_folder(config), most))


def scale_arms(
    request: ScaleRequest,
    say: Callable[[str], None],
    watch: Watch[RunConfig],
    on_early_end: Callable[[Scale], None] = lambda _: None,
) -> tuple[Scale, Path]:
    """Run every arm with every number of ranks, and return the runs and the folder with them.

    See ``compare_arms`` for the other arguments and the errors.
    """
    series = Series(
        ringside_version=__version__,
        started_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=list(request.command),
        mode=request.mode,
        counts=list(request.counts),
    )
    runs, source = _settle_counts(request, say)
    least = sum(least_round_seconds(run.config, run.interleaved.mode) for run in runs.values())
    require_time(request.allocation.job, "arm", least)
    largest = runs[request.counts[-1]].config
    directory = create_output(request.output, largest.model, largest.ranks, purpose=f"-{request.mode}")
    write_json(directory / SCALE_FILE, series)
    for count, run in runs.items():
        write_json(create_directory(folder_of(directory, count)) / RESULTS_FILE, run)
    with reporting_early_end(directory, on_early_end), watch(largest) as observer:
        for round_, count in back_and_forth(largest.rounds, request.counts):
            observer.count_begins(count)
            with _cluster_of(request, count, runs[count].network.interface) as cluster:
                cluster.stage(source, lambda _line: None)
                runs[count] = carry_out(
                    runs[count], folder_of(directory, count), cluster, observer, rounds=round_
                )
            if rounds_done(runs[count]) < round_:  # the job's time is over
                break
    return Scale(series=series, runs=runs), directory


def _settle_counts(request: ScaleRequest, say: Callable[[str], None]) -> tuple[dict[int, Run], DatasetSource]:
    """Return the new runs, keyed by their number of ranks, and the source of their data.

    Only the run with the most ranks is settled. It decides what all runs share: the arms, the device, the
    threads of each rank, and the network.

    Raises:
        RingsideError: a run cannot be settled, or hosts cannot be reached.
    """
    # A batch that cannot be shared, or ranks that an arm cannot divide, are refused before a host is reached.
    for count in request.counts:
        require_divisible(request.arms, count)
    requests = {count: _with_batch_of(request, count) for count in request.counts}
    *fewer, most = request.counts
    with open_hosts(request, say) as cluster:
        config, left_out = settle(requests[most], cluster, say)
        source = find_data(request, say)
        cluster.stage(source, say)
        last = new_run(config, source, cluster, left_out, request.command)
    runs: dict[int, Run] = {}
    for count in fewer:
        batch = requests[count].config["batch_size_per_rank"]
        settled = msgspec.structs.replace(config, ranks=count, batch_size_per_rank=batch)
        with _cluster_of(request, count, last.network.interface) as cluster:
            runs[count] = new_run(settled, source, cluster, left_out, request.command)
    return runs | {most: last}, source


def _with_batch_of(request: ScaleRequest, count: int) -> ScaleRequest:
    """Return a request with the batch of each of ``count`` ranks.

    Raises:
        UsageError: so many ranks cannot share the batch of all.
    """
    batch = batch_of(request.mode, request.config["batch_size_per_rank"], count)
    return replace(request, config={**request.config, "batch_size_per_rank": batch})


@contextmanager
def _cluster_of(request: ScaleRequest, count: int, interface: str) -> Iterator[Cluster]:
    """Yield a cluster of the hosts that ``count`` ranks need, whose agents are ended after the block."""
    allocation = request.allocation._replace(hosts=fill_slots(request.allocation.hosts, count))
    with (
        naming_scheduler(allocation.job),
        open_cluster(allocation, interface=interface, exported=request.exported) as cluster,
    ):
        yield cluster
