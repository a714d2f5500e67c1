"""Print the schema of ``results.json`` as JSON Schema: ``python -m compare.schema.published``."""

from __future__ import annotations

import sys

import msgspec

from compare.schema.results import SCHEMA_VERSION, Run
from compare.system.files import json_text

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def results_schema() -> str:
    """Return the JSON Schema of ``results.json`` as text, without a newline at the end.

    It is made from ``Run`` and the types of its fields, so class docstrings become descriptions. Unknown
    fields are allowed, because readers ignore them.
    """
    schema = {
        "$schema": _DIALECT,
        "title": f"results.json of Ringside, schema version {SCHEMA_VERSION}",
        **msgspec.json.schema(Run),
    }
    return json_text(schema)


if __name__ == "__main__":
    sys.stdout.write(results_schema() + "\n")
