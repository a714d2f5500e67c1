"""Examine hosts: ``ringside doctor``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from compare.cli.options import AsJson, HostFlags, with_flags
from compare.cli.output import make_console, make_say, show
from compare.cli.requests import find_hosts


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
    as_json: AsJson = False,
    export_json: Annotated[
        Path | None, typer.Option(help="Also write all facts and findings to this file.")
    ] = None,
    export_markdown: Annotated[
        Path | None, typer.Option(help="Also write the printed report to this file.")
    ] = None,
) -> None:
    """Examine the hosts, or this machine.

    Report what would break or slow down a run, and how to fix it.

    Exits with 0 where there is no problem, otherwise with 9; warnings and notes are no problems.
    """
    from compare.data import own_source
    from compare.doctor.examine import examine
    from compare.doctor.report import document_of
    from compare.schema.store import require_writable
    from compare.system.files import STANDARD_OUTPUT
    from compare.text import counted

    exports = {"json": export_json, "markdown": export_markdown}
    for path in filter(None, exports.values()):
        require_writable(path, to_be_made=None)
    allocation = find_hosts(flags)
    hosts = allocation.hosts
    source = own_source(workload) if workload else None
    joint = ": " if allocation.source.startswith("this machine") else " of "
    make_say(make_console(stderr=True))(f"Examining {counted(len(hosts), 'host')}{joint}{allocation.source}")
    examination = examine(
        hosts,
        carrier=allocation.carrier,
        python=python or sys.executable,
        quick=quick,
        ports=ports and not quick and len(hosts) > 1,
        workload=source,
    )
    document = document_of(examination)
    for form, output in exports.items():
        if output:
            show(document, form, output=output)
    to_stderr = STANDARD_OUTPUT in exports.values()
    show(document, "json" if as_json else "table", stderr=to_stderr and not as_json)
    raise typer.Exit(examination.exit_code)
