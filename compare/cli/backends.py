"""List the backends: ``compare backends``."""

from __future__ import annotations

from compare.cli.console import make_console


def backends() -> None:
    """List the backends with version, transport and options.

    For a backend that is missing, show the reason and the remedy.
    """
    from compare.doctor.availability import survey
    from compare.doctor.backends_table import renderable

    make_console().print(renderable(survey()))
