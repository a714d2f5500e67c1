"""Hold results to the JSON Schema that docs/ publishes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from compare.schema.store import read_run
from tests.comparing import ROOT
from tests.unit.factories import a_phased_block, a_rank, a_run

PUBLISHED = ROOT / "docs" / "results.schema.json"
RECORDED = Path(__file__).with_name("results-v2.json.gz")


def as_json(value):
    return json.loads(msgspec.json.encode(value))


@pytest.fixture(scope="module")
def validator():
    schema = json.loads(PUBLISHED.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_recorded_results_follow_the_schema(validator, tmp_path):
    file = tmp_path / "results.json"
    file.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    validator.validate(as_json(read_run(file)))


def test_results_of_today_follow_the_schema_and_wrong_ones_do_not(validator):
    block = a_phased_block(forward=[1.0], backward=[1.0], sync=[1.0], step=[1.0])
    run = as_json(a_run())
    validator.validate(run)
    validator.validate(
        run | {"launches": [{**run["launches"][0], "ranks": [as_json(a_rank(blocks=[block]))]}]}
    )
    assert list(validator.iter_errors(run | {"cores": "two"}))
    assert list(validator.iter_errors({name: held for name, held in run.items() if name != "config"}))
