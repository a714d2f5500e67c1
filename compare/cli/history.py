"""List the runs of a folder with their trends: ``compare history``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.cli.options import AsJson
from compare.cli.output import shown_from
from compare.errors import OutputError
from compare.text import printable

RunsFolder = Annotated[Path, typer.Argument(metavar="RUNS", help="Folder that holds the folders of runs.")]


def history(runs: RunsFolder = Path("runs"), *, as_json: AsJson = False) -> None:
    """List the runs of a folder, and the trend of every arm.

    Trends join only runs that trained alike.
    """
    from compare.analysis.history import enter, follow_runs
    from compare.report.history import table
    from compare.schema.store import list_runs, read_run
    from compare.system.files import STANDARD_OUTPUT, write_json

    entries, unread = [], {}
    for folder in list_runs(runs):
        try:
            with shown_from(folder):
                entries.append(enter(folder.name, read_run(folder)))
        except OutputError as error:  # one of another version must not conceal the others
            unread[folder.name] = error.found
    found = follow_runs(entries, unread)
    if as_json:
        write_json(STANDARD_OUTPUT, found)
    else:
        typer.echo(table(found) or f"No folder in {printable(str(runs))} holds a run.")
