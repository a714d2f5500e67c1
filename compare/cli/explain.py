"""Explain a run as a lesson: ``ringside explain``."""

from __future__ import annotations

from typing import Annotated, Literal

from compare.cli.options import RunFolder, output_flag
from compare.cli.output import as_output_error, show
from compare.errors import UsageError


def explain(
    run_directory: RunFolder,
    *,
    arm: Annotated[list[str] | None, output_flag("--arm", help="Explain this arm alone; repeatable.")] = None,
    form: Annotated[Literal["text", "markdown"], output_flag("--format", help="What to write.")] = "text",
) -> None:
    """Explain a run's figures as a lesson, with the code that synchronises."""
    from compare.analysis import analyse
    from compare.report.of_lesson import document_of
    from compare.schema.store import RESULTS_FILE, find_run, read_run

    path = find_run(run_directory, [RESULTS_FILE])
    run = read_run(path)
    labels = [one.label for one in run.config.arms if one.traits.communicates]
    for name in arm or ():
        if name not in labels:
            raise UsageError(
                f"{run_directory} has no arm {name} that communicates.",
                remedy=f"Use one of: {', '.join(labels)}." if labels else "None of its arms communicates.",
            )
    with as_output_error(path):
        show(document_of(run, analyse(run), arm or ()), "table" if form == "text" else form)
