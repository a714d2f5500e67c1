"""Remove old runs: ``compare clean``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from compare.cli.history import RunsFolder
from compare.cli.options import AsJson
from compare.text import counted, printable


def clean(
    runs: RunsFolder = Path("runs"),
    *,
    keep: Annotated[int, typer.Option(min=0, help="Number of newest folders to keep.")] = 10,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them. Otherwise they are listed only.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the folders of old runs, and remove them with --yes.

    Only folders with a results file count. No link is followed, and an unfinished
    run that changed within a day is kept.
    """
    from compare.experiment.folders import old_folders, remove
    from compare.system.files import STANDARD_OUTPUT, write_json

    old, going = old_folders(runs, keep=keep)
    for folder in old:
        if yes:
            remove(folder)
        if not as_json:
            path = printable(str(folder.path)).replace("\n", "\\n")
            typer.echo(f"{'removed' if yes else 'would remove'} {path}")
    if as_json:
        # A path may hold bytes that are no text; they are shown, not lost.
        paths, kept = (
            [os.fsencode(folder.path).decode(errors="replace") for folder in folders]
            for folders in (old, going)
        )
        write_json(STANDARD_OUTPUT, {"removed": yes, "folders": paths, "kept": kept})
        return
    if not old:
        typer.echo("Nothing to remove." if keep == 0 else f"Nothing to remove: the newest {keep} are kept.")
    elif not yes:
        typer.echo(f"{counted(len(old), 'folder')} in {printable(str(runs))} would go. Add --yes to remove.")
    if going:
        typer.echo(f"Kept: {counted(len(going), 'run')} without an end, changed within a day; may go on.")
