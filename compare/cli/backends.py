"""List the backends: ``ringside backends``."""

from __future__ import annotations

from compare.cli.options import Formats
from compare.cli.output import show


def backends(*, form: Formats = "table") -> None:
    """List the backends with version, transport and options.

    For a backend that is missing, show the reason and the remedy.
    """
    from compare.doctor.availability import survey
    from compare.doctor.backends_table import document_of

    show(document_of(survey()), form)
