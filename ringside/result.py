"""Show a result as records, as text, as a page in a notebook and as files."""

from __future__ import annotations

from functools import cached_property
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compare.analysis import Analysis, analyse
from compare.cli.flag_options import read_exports
from compare.cli.output import export
from compare.errors import UsageError
from compare.report import Result as Stored
from compare.report import View, document_of, write
from compare.schema.results import Run
from compare.schema.store import name_of_run

_PAGE_HEIGHT = 720
"""Height of a page in a notebook, in pixels; it scrolls."""


class Result:
    """A run, or what another command measured, with all that Ringside says of it.

    Attributes:
        stored: the raw record, as the command wrote it.
        folder: the folder or file where it is stored.
    """

    def __init__(self, stored: Stored, folder: Path) -> None:
        self.stored = stored
        self.folder = folder

    @cached_property
    def analysis(self) -> Analysis:
        """Return all figures and judgements of a run.

        Raises:
            UsageError: the result is not a run's.
        """
        if isinstance(self.stored, Run):
            return analyse(self.stored)
        raise UsageError(
            f"{self.folder} has no analysis, because it is not a run's.",
            remedy="Use table(), which every result has.",
        )

    def table(self) -> Any:
        """Return one record for each arm, in seconds and bytes: what ``--export run.csv`` writes.

        They are a pandas data frame where pandas is installed, and otherwise a list of dictionaries.
        """
        records = document_of(self.stored, "csv").records()
        if not find_spec("pandas"):
            return records
        import pandas as pd

        return pd.DataFrame(records)

    def save(self, *paths: str | Path) -> None:
        """Write the result to files, each as its suffix says: .json, .csv, .md or .html.

        Raises:
            UsageError: a suffix is unknown.
            OutputError: a file cannot be written.
        """
        export(self.stored, read_exports([str(path) for path in paths]))

    def __str__(self) -> str:
        return write(document_of(self.stored, view=View(report_argument=name_of_run(self.folder))), "table")

    def __repr__(self) -> str:
        return f"<ringside.Result of {self.folder}>"

    def _repr_html_(self) -> str:
        """Return the page for a notebook, in a frame so that neither one's styles reach the other."""
        page = escape(write(document_of(self.stored, "html"), "html"))
        return f'<iframe srcdoc="{page}" width="100%" height="{_PAGE_HEIGHT}" style="border: 0"></iframe>'
