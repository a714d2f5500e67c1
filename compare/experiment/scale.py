"""Carry out ``compare scale``: the same arms with several numbers of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from compare import __version__
from compare.analysis.budget import rounds_done
from compare.data import DatasetSource
from compare.experiment.allocation import endings_named, require_time
from compare.experiment.run import Watch, carry_out, find_data, kept, new_run, open_hosts
from compare.experiment.settle import UserRequest, settle
from compare.experiment.turn_plan import least_round_seconds
from compare.launch.arm import Observer
from compare.launch.cluster import Cluster, open_cluster
from compare.launch.engines import Allocation
from compare.schema.config import RunConfig
from compare.schema.hosts import place
from compare.schema.results import Run
from compare.schema.scale import Mode, Scale, Series, batch_of, folder_of
from compare.schema.store import RESULTS_FILE, SCALE_FILE, create_directory, create_output, read_run
from compare.system.clock import unix_time
from compare.system.files import write_json


@dataclass(frozen=True, kw_only=True)
class ScaleRequest(UserRequest):
    """What the user asked ``compare scale`` for; the hosts have slots for the largest count."""

    mode: Mode
    counts: tuple[int, ...]
    """Numbers of ranks, rising."""


class ScaleObserver(Observer, Protocol):
    """Gets the events of ``compare scale``."""

    def count_begins(self, ranks: int) -> None:
        """Handle the number of ranks that all launches have until the next call."""


def scale_arms(
    request: ScaleRequest,
    say: Callable[[str], None],
    watch: Watch[RunConfig, ScaleObserver],
    on_early_end: Callable[[Scale], None] = lambda _: None,
) -> tuple[Scale, Path]:
    """Run every arm with every number of ranks, and save the runs in a folder.

    ``say`` prints a line, and ``watch`` makes the observer of the series. ``on_early_end`` receives the saved
    part of a series that is stopped or fails.

    Returns:
        The series with its runs, and the path of the folder.

    Raises:
        RingsideError: something failed; a note of the error names the folder of the finished part, if any.
        KeyboardInterrupt: the user stopped the series; with the same note.
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
    require_time(request.allocation.job, "arm", least, unix_time())
    largest = runs[request.counts[-1]].config
    directory = create_output(request.output, largest.model, largest.ranks, purpose=f"-{request.mode}")
    write_json(directory / SCALE_FILE, series)
    for count, run in runs.items():
        write_json(create_directory(folder_of(directory, count)) / RESULTS_FILE, run)
    early = kept(directory, lambda: _saved(series, directory), on_early_end)
    with early, watch(largest) as observer:
        for round_, count in _order(largest.rounds, request.counts):
            observer.count_begins(count)
            with _cluster_of(request, count, runs[count], source) as cluster:
                runs[count] = carry_out(
                    runs[count], folder_of(directory, count), cluster, observer, rounds=round_
                )
            if rounds_done(runs[count]) < round_:  # the job's time is over
                break
    return Scale(series=series, runs=runs), directory


def _saved(series: Series, directory: Path) -> Scale:
    """Return a series that ended early, with its runs as they were saved."""
    return Scale(series=series, runs={n: read_run(folder_of(directory, n)) for n in series.counts})


def _order(rounds: int, counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each round, from 1, with each number of ranks.

    Each round reverses the order of the one before, so a machine that slows down favours no number of ranks.
    """
    for round_ in range(1, rounds + 1):
        for count in counts if round_ % 2 else reversed(counts):
            yield round_, count


def _settle_counts(request: ScaleRequest, say: Callable[[str], None]) -> tuple[dict[int, Run], DatasetSource]:
    """Return the new runs, keyed by their number of ranks, and the source of their data.

    The largest number is settled first. It decides what all runs share: arms, device, threads of a rank, and
    the network.

    Raises:
        RingsideError: the run of some number cannot be settled.
    """
    # A batch that cannot be shared is refused before any host is reached.
    *fewer, largest = (_with_batch(request, count) for count in request.counts)
    runs: dict[int, Run] = {}
    with open_hosts(request, say) as cluster:
        config, left_out = settle(largest, cluster)
        source = find_data(request, say)
        cluster.stage(source, say)
        runs[request.counts[-1]] = new_run(config, source, cluster, left_out, request.command)
        network = cluster.network
    for count, asked in zip(request.counts, fewer, strict=False):
        own = replace(
            asked,
            arms=config.arms,
            threads_per_rank=config.threads_per_rank,
            config={**asked.config, "device": config.device},
        )
        allocation = _allocation(request, count)
        with (
            endings_named(allocation.job),
            open_cluster(allocation, interface=network.interface, exported=own.exported) as cluster,
        ):
            settled, _ = settle(own, cluster)
            runs[count] = new_run(settled, source, cluster, left_out, request.command)
    return {count: runs[count] for count in request.counts}, source


def _with_batch(request: ScaleRequest, count: int) -> ScaleRequest:
    batch = batch_of(request.mode, request.config["batch_size_per_rank"], count)
    return replace(request, config={**request.config, "batch_size_per_rank": batch})


@contextmanager
def _cluster_of(request: ScaleRequest, count: int, run: Run, source: DatasetSource) -> Iterator[Cluster]:
    """Start agents on the hosts of a count, stage the data, and end the agents after the block."""
    allocation = _allocation(request, count)
    with (
        endings_named(allocation.job),
        open_cluster(allocation, interface=run.network.interface, exported=request.exported) as cluster,
    ):
        cluster.stage(source, lambda _line: None)
        yield cluster


def _allocation(request: ScaleRequest, count: int) -> Allocation:
    return request.allocation._replace(hosts=place(request.allocation.hosts, count))
