"""Every command shows files from elsewhere without harm."""

import contextlib
import copy
import csv
import io
import json

import msgspec
import pytest
from typer.testing import CliRunner

from compare.cli.main import app
from compare.errors import RingsideError
from compare.schema.collectives import COLLECTIVES_FILE
from compare.schema.store import RESULTS_FILE, read_result
from compare.system.files import write_json
from tests.unit.collectives import a_collectives_run, a_sweep_config, a_sweep_launch
from tests.unit.predictions import a_measured_run
from tests.unit.runs import measured

EVIL = "=cmd|' /C calc'!A0<script>alert(1)</script>\x1b]0;mine\x07\x9b31m\u202e\x7f\U000e0001\r\n| x |"
STEERING = "\x1b\x07\x9b\u202e\x7f\U000e0001\r"
NAME = EVIL.replace("/", "").strip()


def spoil(file, made, kept=()):
    """Save a file with evil text wherever its reader takes it.

    What lies below a key of ``kept`` stays as it is.
    """
    content = json.loads(msgspec.json.encode(made))
    for path in [path for path in _places(content) if not {*kept} & {*path}]:
        changed = copy.deepcopy(content)
        _spoil(changed, path)
        write_json(file, changed)
        with contextlib.suppress(RingsideError):
            read_result(file)
            content = changed
    write_json(file, content)
    assert str(content).count("<script>") > 20


def _places(value, path=()):
    """Yield the paths of texts and of objects.

    An object may take another key. Of a list, the first two entries are enough.
    """
    if isinstance(value, str | dict):
        yield path
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, inner in entries:
        yield from _places(inner, (*path, key))


def _spoil(content, path):
    *parents, last = [None, *path]
    holder = {None: content}
    for key in parents:
        holder = holder[key]
    if isinstance(holder[last], dict):
        holder[last][EVIL] = EVIL
    else:
        holder[last] = EVIL


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Save spoilt files in folders of evil names."""
    runs = tmp_path_factory.mktemp("runs")
    config = a_sweep_config()
    made = {
        "run": measured({"none": 4.0, "ddp": 6.0}, rounds=2, turns=2),
        "predicted": a_measured_run(rounds=1),
        "stopped": measured({"none": 4.0, "ddp": 6.0}, rounds=1, complete=False),
        "collectives": a_collectives_run(
            config, [a_sweep_launch(config, "gloo", 1), a_sweep_launch(config, "mpi", 2)]
        ),
    }
    for name, content in made.items():
        folder = runs / f"{name}{NAME}"
        folder.mkdir()
        file = folder / (COLLECTIVES_FILE if name == "collectives" else RESULTS_FILE)
        # Arms with other names have no launches, and without the names in attestations nothing is predicted.
        kept = ["arm", "arms", "baseline"]
        spoil(file, content, [*kept, "attestation"] if name == "predicted" else kept)
    return {name: runs / f"{name}{NAME}" for name in made} | {"all": runs}


FORMATS = [["--format", form] for form in ("markdown", "csv", "json", "html")]
CALLS = [
    *(["report", name, *flags] for name in ("run", "stopped", "collectives") for flags in ([], *FORMATS)),
    *(["report", name, "--detail"] for name in ("run", "collectives")),
    ["report", "run", "--format", "lesson"],
    *(["report", "run", "run", *flags] for flags in ([], FORMATS[0], FORMATS[2])),
    *(["predict", "predicted", "--hosts", "2,4", *flags] for flags in ([], *FORMATS)),
    ["report", "all"],
]


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_command_shows_a_hostile_file_without_harm(folders, call):
    done = CliRunner().invoke(app, [str(folders.get(word, word)) for word in call])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    shown = done.output
    assert len(shown) > 80
    assert not set(STEERING) & set(shown)
    if call[-1] in {"markdown", "html"}:
        assert "<script" not in shown
    if call[-1] == "json":
        json.loads(shown)
    if call[-1] == "csv":
        for row in csv.reader(io.StringIO(shown)):
            for cell in row:
                assert not cell.startswith(("=", "+", "-", "@")) or float(cell) <= 0
