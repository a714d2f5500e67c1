"""List the backends: ``compare backends``."""

from __future__ import annotations

from compare.cli.console import make_console
from compare.cli.options import AsJson


def backends(*, as_json: AsJson = False) -> None:
    """List the backends with version, transport and options.

    For a backend that is missing, show the reason and the remedy.
    """
    from compare.doctor.availability import survey
    from compare.doctor.backends_table import listing, renderable
    from compare.schema.files import STANDARD_OUTPUT, write_json

    found = survey()
    if as_json:
        write_json(STANDARD_OUTPUT, listing(found))
    else:
        make_console().print(renderable(found))
