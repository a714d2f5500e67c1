"""Write the files of ``--export-json`` and of the other formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from compare.errors import OutputError

if TYPE_CHECKING:
    from compare.cli.options import LaunchFlags


def write_exports(flags: LaunchFlags, render: Callable[[str], str]) -> None:
    """Write every format that the flags name.

    Raises:
        OutputError: one cannot be written; the others are written all the same.
    """
    from compare.schema.files import write_text

    errors = []
    for form, path in flags.exports.items():
        try:
            write_text(path, render(form) + "\n")
        except OutputError as error:
            errors.append(error)
    if errors:
        raise errors[0]
