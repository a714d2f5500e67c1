"""Examine hosts: ``ringside doctor``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compare.cli.flag_options import read_exports
from compare.cli.options import Exports, Formats, HostFlags, with_flags
from compare.cli.output import make_console, make_say, show_and_export
from compare.cli.requests import find_hosts

if TYPE_CHECKING:
    from compare.doctor.facts import Examination
    from compare.launch.engines import Allocation


@with_flags(HostFlags)
def doctor(
    flags: HostFlags,
    *,
    python: Annotated[
        str | None, typer.Option(show_default="this one's path", help="The interpreter on the hosts.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the checks that take less than a second.")
    ] = False,
    ports: Annotated[
        bool, typer.Option("--ports/--no-ports", help="Let all hosts connect to a port of the first.")
    ] = True,
    workload: Annotated[
        str | None, typer.Option(help="Also look for the folder of your workload: train.py:make.")
    ] = None,
    form: Formats = "table",
    export: Exports = None,
) -> None:
    """Examine the hosts, or this machine.

    Report what would break or slow down a run, and how to fix it.

    Exits with 0 where there is no problem, otherwise with 9; warnings and notes do not count.
    """
    from compare.data import own_source
    from compare.doctor.report import document_of
    from compare.schema.store import require_writable
    from compare.text import counted

    exports = read_exports(export)
    for _, path in exports:
        require_writable(path, to_be_made=None)
    allocation = find_hosts(flags)
    hosts = allocation.hosts
    source = own_source(workload) if workload else None
    joint = ": " if allocation.source.startswith("this machine") else " of "
    say = make_say(make_console(stderr=True))
    say(f"Examining {counted(len(hosts), 'host')}{joint}{allocation.source}")
    examination = _examine(
        allocation,
        say,
        python=python or sys.executable,
        quick=quick,
        ports=ports and not quick and len(hosts) > 1,
        workload=source,
    )
    show_and_export(document_of(examination), exports, form)
    raise typer.Exit(examination.exit_code)


def _examine(allocation: Allocation, say: Callable[[str], None], **options: Any) -> Examination:
    """Examine the hosts of an allocation, which are made or waited for before if that is needed."""
    from compare.doctor.examine import examine
    from compare.launch.engines.commands import wait_for_hosts

    with allocation.opened() as opened:
        if opened.wait_seconds:
            wait_for_hosts(opened.hosts, carrier=opened.carrier, seconds=opened.wait_seconds, say=say)
        return examine(opened.hosts, carrier=opened.carrier, **options)
