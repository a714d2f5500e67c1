"""Compare two runs: ``ringside diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.cli.options import output_flag
from compare.cli.output import ChangeFormat, as_output_error, show, show_changes


def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Folder of the older run, or its results.json.")],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="Folder of the newer one; or `last`, the newest in runs/.")
    ],
    *,
    force: Annotated[
        bool, output_flag("--force", help="Compare unlike runs; every output states it.")
    ] = False,
    form: Annotated[ChangeFormat, output_flag("--format", help="What to print.")] = "table",
    export_markdown: Annotated[Path | None, output_flag(help="Also write the Markdown here.")] = None,
) -> None:
    """Compare what synchronising costs in two runs, as ratios within each.

    It describes two runs and decides nothing: `ringside gate` decides, in one run. A
    slower computation slows both sides of a ratio, so only a gate sees that.
    """
    from compare.analysis.change import diff as compare_runs
    from compare.report.changes import document_of
    from compare.schema.store import RESULTS_FILE, find_run, read_run

    first, second = (find_run(path, (RESULTS_FILE,)) for path in (old, new))
    runs, names = (read_run(first), read_run(second)), (str(first), str(second))
    with as_output_error(first, second):
        changes = compare_runs(*runs, names, force=force)
    if export_markdown:
        show(document_of(changes), "markdown", output=export_markdown)
    show_changes(changes, form, stderr=export_markdown == Path("-"))
