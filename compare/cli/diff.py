"""Compare two runs: ``compare diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.cli.choices import ChangeFormat
from compare.cli.gating import (
    ExportJUnit,
    SlowerLimit,
    print_changes,
    read_percent,
    require_passed,
    write_junit,
)
from compare.cli.options import output_flag
from compare.errors import UsageError


def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Folder of the older run, or its results.json.")],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="Folder of the newer one; or `last`, the newest in runs/.")
    ],
    *,
    fail_if_slower: SlowerLimit = None,
    force: Annotated[
        bool, output_flag("--force", help="Compare unlike runs; every output states it.")
    ] = False,
    form: Annotated[ChangeFormat, output_flag("--format", help="What to print.")] = ChangeFormat.TABLE,
    export_markdown: Annotated[Path | None, output_flag(help="Also write the Markdown here.")] = None,
    export_junit: ExportJUnit = None,
) -> None:
    """Compare what synchronising costs in two runs, as ratios within each.

    It sees what synchronising costs. A slower computation slows both sides of a
    ratio, so only `compare gate` sees that.

    With --fail-if-slower, the exit code is 14 if an arm is slower, and 15 if that is open.
    """
    from compare.analysis.change import SLOWER_LIMIT
    from compare.analysis.diff import diff as compare_runs
    from compare.report.changes import markdown
    from compare.schema.files import write_text
    from compare.schema.store import RESULTS_FILE, find_run, read_run

    if export_junit and not fail_if_slower:
        raise UsageError(
            "--export-junit needs --fail-if-slower.",
            found="Without a limit no test could fail.",
            remedy="Add --fail-if-slower 5%.",
        )
    limit = read_percent(fail_if_slower) if fail_if_slower else SLOWER_LIMIT
    first, second = (find_run(path, (RESULTS_FILE,)) for path in (old, new))
    runs, names = (read_run(first), read_run(second)), (str(first), str(second))
    changes = compare_runs(*runs, names, limit=limit, force=force)
    if export_markdown:
        write_text(export_markdown, markdown(changes) + "\n")
    write_junit(changes, export_junit)
    print_changes(changes, form, stderr=Path("-") in {export_markdown, export_junit})
    if fail_if_slower:
        require_passed(changes)
