"""List the runs of a folder with their trends: ``ringside history``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.cli.options import AsJson
from compare.cli.output import as_output_error, show
from compare.errors import OutputError

RunsFolder = Annotated[Path, typer.Argument(metavar="RUNS", help="Folder that holds the folders of runs.")]


def history(runs: RunsFolder = Path("runs"), *, as_json: AsJson = False) -> None:
    """List the runs of a folder, and the trend of every arm.

    Trends join only runs that trained alike.
    """
    from compare.analysis.runs import entry_of, follow_runs
    from compare.report.of_history import document_of
    from compare.schema.store import list_runs, read_run

    entries, unread = [], {}
    for folder in list_runs(runs):
        try:
            with as_output_error(folder):
                entries.append(entry_of(folder.name, read_run(folder)))
        except OutputError as error:  # one of another version must not conceal the others
            unread[folder.name] = error.found
    show(document_of(follow_runs(entries, unread), str(runs)), "json" if as_json else "table")
