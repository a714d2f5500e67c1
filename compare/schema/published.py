"""Publish the schema of ``results.json`` as JSON Schema: ``python -m compare.schema.published``."""

from __future__ import annotations

import sys

import msgspec

from compare.schema.results import SCHEMA_VERSION, Run
from compare.system.files import json_text

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def results_schema() -> str:
    """Return the JSON Schema of ``results.json``, without a newline at the end.

    It follows from the types that write the file. Unknown fields are allowed, because readers ignore them.
    """
    schema = {
        "$schema": _DIALECT,
        "title": f"results.json of Ringside, schema version {SCHEMA_VERSION}",
        **msgspec.json.schema(Run),
    }
    return json_text(schema)


if __name__ == "__main__":
    sys.stdout.write(results_schema() + "\n")
