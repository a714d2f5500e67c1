"""Print the schema of results: ``compare schema``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from compare.cli.options import output_flag


def schema(
    output: Annotated[Path, output_flag(help="File to write; `-` is standard output.")] = Path("-"),
) -> None:
    """Print the JSON Schema of results.json."""
    from compare.schema.published import results_schema
    from compare.system.files import write_text

    write_text(output, results_schema() + "\n")
