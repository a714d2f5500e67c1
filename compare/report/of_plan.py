"""Make the document of a dry run: what would run, where, on which data and for how long."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from backends.launchers.request import Command
from compare.report.document import Column, Document, Listing, Row, Table
from compare.report.origin import DATASETS, headline
from compare.report.outlook import budget_warning, cores_warning, planned_time
from compare.schema.hosts import Host, is_local
from compare.schema.plan import LaunchPlan, Plan
from compare.schema.results import Run
from compare.text import listed


def document_of(plan: Plan, *, counts: Sequence[int] = (), verbose: bool = False) -> Document:
    """Return the document of a plan.

    ``counts`` has the numbers of ranks that ``ringside scale`` compares; the plan is that of the largest.
    ``verbose`` adds the environment and the job of each command.
    """
    run = plan.run
    places = [arm.label for arm in run.config.arms]
    launches = sorted(plan.launches, key=lambda launch: places.index(launch.job.arm.label))
    tables = [_settings(plan, counts), _arms(launches, run.hosts, verbose=verbose)]
    if not all(map(is_local, run.hosts)):
        tables.insert(1, Table.of(_HOST_COLUMNS, run.hosts))
    return Document(
        title=f"Dry run: {headline(run)}",
        tables=tables,
        warnings=[
            *filter(None, [cores_warning(run), budget_warning(run)]),
            *(f"{name} would not run: {reason}." for name, reason in run.left_out.items()),
        ],
        notes=[*_notes(launches), *plan.assumptions],
        content=lambda: plan,
    )


def _settings(plan: Plan, counts: Sequence[int]) -> Table:
    """Return a table of sentences on the hosts, the data, the length of the run and its baseline."""
    length = planned_time(plan.run)
    if counts:
        each = listed(map(str, counts))
        length += f" That is for one number of ranks, and each round takes {each} in turn."
        length += f" The commands below are those of {counts[-1]} ranks."
    rows = [
        ("hosts", plan.hosts_source),
        ("data", _data(plan.run)),
        ("length", length),
        ("baseline", plan.run.config.baseline),
    ]
    return Table(columns=[Column("", str, is_text=True)] * 2, rows=[*map(Row, rows)], is_prose=True)


def _data(run: Run) -> str:
    """Return a clause on the data set and its folder, and how to get it if it is not there."""
    source = run.dataset
    if source.name == "own":
        return f"what {source.workload} in {source.directory} makes"
    return f"{DATASETS[source.name]} in {source.directory}" + (f". {source.note}" if source.note else "")


_HOST_COLUMNS: tuple[Column[Host], ...] = (
    Column("host", lambda host: host.name, is_text=True),
    Column("ranks", lambda host: str(host.slots)),
    Column("source", lambda host: host.source, is_text=True),
)


def _arms(launches: Sequence[LaunchPlan], hosts: Sequence[Host], *, verbose: bool) -> Table:
    """Return the table of the arms in their order, with their command lines below it."""
    columns: list[Column[LaunchPlan]] = [
        Column("arm", lambda launch: launch.job.arm.label, is_text=True),
        Column("launcher", lambda launch: launch.job.arm.runtime.launcher, is_text=True),
        Column("ranks", lambda launch: str(launch.job.config.ranks)),
        Column("hosts", lambda launch: "1" if launch.job.arm.traits.one_process else str(len(hosts))),
        Column("threads per rank", lambda launch: str(launch.job.config.threads_per_rank)),
    ]
    listings = [listing for launch in launches for listing in _listings(launch, verbose=verbose)]
    return replace(Table.of(columns, launches), listings=listings)


def _listings(launch: LaunchPlan, *, verbose: bool) -> Iterator[Listing]:
    """Yield the command of an arm's first host; with ``verbose`` also its environment and its job."""
    first, label = launch.commands[0], launch.job.arm.label
    place = f"{label} on {first.host.name}" if first.host else label
    variables = first.environment.items() if verbose else ()
    lines = [f"{name}={shlex.quote(value)} \\" for name, value in variables]
    yield Listing(place, "\n".join([*lines, shlex.join(first.argv)]), "sh")
    if verbose:
        yield Listing(f"job.json of {place}", msgspec.json.encode(launch.job).decode(), "json")


def _notes(launches: Sequence[LaunchPlan]) -> Iterator[str]:
    """Yield lines on what the commands leave out: the lines of other hosts, and the file of the job."""
    differences = {
        command.host.name: _difference(launch.commands[0], command)
        for launch in launches
        for command in launch.commands[1:]
        if command.host
    }
    if differences:
        each = listed(f"{name} has {arguments}" for name, arguments in differences.items())
        yield f"torchrun starts on every host, with the same line except that {each}."
    yield "Nothing was started. Each rank reads job.json, which a run writes first; -v prints it."


def _difference(first: Command, other: Command) -> str:
    """Return the arguments of another host's command that are not those of the first."""
    return shlex.join(theirs for ours, theirs in zip(first.argv, other.argv, strict=True) if ours != theirs)
