"""Test results on disk: written whole, read back, or refused."""

from __future__ import annotations

import errno
import gzip
import json
import os
import resource
import stat
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import msgspec
import pytest

from compare.analysis import analyse
from compare.errors import OutputError
from compare.schema.arms import Arm
from compare.schema.parity import Fingerprint
from compare.schema.results import (
    SCHEMA_VERSION,
    ArmVerification,
    Evaluation,
    Failure,
    Gate,
    MachineUse,
    Verification,
)
from compare.schema.store import RESULTS_FILE, find_run, read_run
from compare.system.files import temporary_root, write_json, write_text
from tests.comparing import ROOT
from tests.unit.factories import DIGITS, INITIAL, a_block, a_launch, a_phased_block, a_rank, a_run
from tests.unit.pages import render


@pytest.fixture(scope="module")
def published():
    """Return what validates against the JSON Schema that docs/ publishes."""
    schema = json.loads((ROOT / "docs" / "results.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def refusal(path):
    with pytest.raises(OutputError) as caught:
        read_run(path)
    assert caught.value.exit_code == 5
    return caught.value


@contextmanager
def full_disk():
    """Limit files to a few bytes, so that writes fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---- round trips ----


def test_write_json_writes_plain_json(tmp_path):
    write_json(tmp_path / RESULTS_FILE, a_run({"ddp": [5.0]}))
    read = json.loads((tmp_path / RESULTS_FILE).read_text())
    block = {"mode": "training", "steps": 30, "wall_ns": 150_000_000, "cpu_ns": 150_000_000}
    assert read["schema_version"] == SCHEMA_VERSION == 3
    assert read["config"]["arms"] == [{"backend": "ddp", "given": {}, "twin": 0, "against": None}]
    assert read["launches"][0]["ranks"][0]["blocks"] == [block | {"phases": {}, "turn": 0}]
    assert read["launches"][0]["ranks"][0]["machine"] is None


def launched(*ends, loss_sum=1.0):
    """Return a run of launches that ended with these hashes."""
    evaluation = Evaluation(correct=1, samples=2, loss_sum=loss_sum)
    launches = [
        a_launch(round_=number, ranks=[a_rank(r, final_hash=end, evaluation=evaluation) for r in (0, 1)])
        for number, end in enumerate(ends, start=1)
    ]
    return msgspec.structs.replace(a_run({"ddp": []}), launches=launches)


def test_run_proven_is_what_all_launches_of_an_arm_have_in_common():
    run = launched("a", "a", "a")
    (ddp,) = run.config.arms
    assert run.proven(ddp) == [Fingerprint(INITIAL, "a")] * 2
    assert run.proven(Arm("mpi")) == []


@pytest.mark.parametrize(
    "run", [launched(), launched("a", "b"), launched("a", "b", "a"), launched("a", "a", loss_sum=None)]
)
def test_run_proven_is_nothing_where_launches_differ_or_diverged(run):
    assert run.proven(run.config.arms[0]) == []


# ---- whole or not at all ----


def test_write_json_that_fails_leaves_only_the_old_file(tmp_path):
    path = tmp_path / RESULTS_FILE
    write_json(path, a_run({"ddp": [5.0]}))
    before = path.read_bytes()
    with full_disk(), pytest.raises(OutputError) as caught:
        write_json(path, a_run({"ddp": [5.0, 6.0]}))
    assert str(path) in caught.value.what
    assert caught.value.found == f"{os.strerror(errno.EFBIG)}."
    assert "choose another path" in caught.value.remedy
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("name", "left"), [("write_bytes", "old"), ("replace", "new")])
def test_write_text_interrupted_leaves_the_old_or_the_new_file(tmp_path, monkeypatch, name, left):
    path, function = tmp_path / RESULTS_FILE, getattr(Path, name)
    write_text(path, "old")

    def interrupt(*arguments):
        if left == "new":
            function(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == left
    assert list(tmp_path.iterdir()) == [path]


def test_read_run_sees_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / RESULTS_FILE
    short, long = a_run({"ddp": [5.0]}), a_run({"ddp": [5.0] * 50})
    write_json(path, short)
    seen = set()
    with ThreadPoolExecutor() as writer:
        writing = writer.submit(lambda: [write_json(path, run) for run in [long, short] * 40])
        while not writing.done():
            seen.add(len(read_run(tmp_path).launches))
    writing.result()
    assert seen <= {1, 50}


def test_temporary_root_without_a_place_names_the_places_tried(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nowhere"])
    with pytest.raises(OutputError, match="/proc/nowhere"):
        temporary_root()


def test_write_text_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "table.md", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "table.md").stat().st_mode) == 0o640


def test_write_text_keeps_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "table.md", tmp_path / "latest.md"
    link.symlink_to(target)
    for text in ("first", "second"):
        write_text(link, text)
        assert link.is_symlink()
        assert target.read_text() == text


def test_write_text_writes_into_a_pipe(tmp_path):
    """``--output /dev/stdout``: a rename would replace it for the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join(timeout=10)
    assert read == ["text"]


# ---- refused files ----


@pytest.mark.parametrize("path", ["nowhere", ".", "nowhere/results.json"])
def test_read_run_without_a_run_is_an_error(tmp_path, path):
    error = refusal(tmp_path / path)
    assert "no run" in error.what
    assert error.found.endswith("does not exist.")
    assert "ringside run" in error.remedy


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_read_run_refuses_a_truncated_file(tmp_path, share):
    write_json(tmp_path / RESULTS_FILE, a_run())
    whole = (tmp_path / RESULTS_FILE).read_bytes()
    (tmp_path / RESULTS_FILE).write_bytes(whole[: int(len(whole) * share)])
    error = refusal(tmp_path)
    assert str(tmp_path / RESULTS_FILE) in error.what
    assert error.found
    assert "cut short" in error.remedy


CONTENTS = (b"", b"null", b"[]", b"7", b"\xff\xfe", b"\x00" * 10, b"not json", b"{}")
EXPORTS = tuple(json.dumps({"summary": {}, "run": value}).encode() for value in (7, None, [], "text"))


@pytest.mark.parametrize("content", [*CONTENTS, *EXPORTS])
def test_read_run_refuses_other_content(tmp_path, content):
    (tmp_path / RESULTS_FILE).write_bytes(content)
    assert str(tmp_path / RESULTS_FILE) in refusal(tmp_path).what
    (tmp_path / RESULTS_FILE).unlink()
    (tmp_path / RESULTS_FILE).mkdir()
    assert "Is a directory" in refusal(tmp_path).found


def rewritten(tmp_path, run, edit):
    """Write the results of a run after ``edit`` changed their JSON."""
    write_json(tmp_path / RESULTS_FILE, run)
    content = json.loads((tmp_path / RESULTS_FILE).read_text())
    edit(content)
    (tmp_path / RESULTS_FILE).write_text(json.dumps(content))
    return tmp_path


def edited(tmp_path, **changes):
    return rewritten(tmp_path, a_run(), lambda content: content.update(changes))


@pytest.mark.parametrize(
    ("version", "changes"), [(0, {}), (1, {}), (4, {}), (99, {}), (4, {"launches": {"a": 1}, "config": None})]
)
def test_read_run_refuses_an_unknown_schema_version(tmp_path, version, changes):
    error = refusal(edited(tmp_path, schema_version=version, **changes))
    assert f"schema version {version}" in error.what
    assert "schema versions 2 and 3" in error.found


@pytest.mark.parametrize("exported", [False, True])
def test_read_run_reads_a_recorded_run_of_version_2(tmp_path, published, exported):
    """The last version with schema 2 wrote the file, which is abridged."""
    recorded = json.loads(gzip.decompress((Path(__file__).parent / "results-v2.json.gz").read_bytes()))
    content = {"summary": {}, "run": recorded} if exported else recorded
    (tmp_path / RESULTS_FILE).write_text(json.dumps(content))
    run = read_run(tmp_path)
    published.validate(json.loads(msgspec.json.encode(run)))
    assert (recorded["schema_version"], run.schema_version) == (2, SCHEMA_VERSION)
    launched_arms = [(arm.label, len(run.of(arm))) for arm in run.config.arms]
    assert launched_arms == [("none", 2), ("ddp", 2), ("manual", 2)]
    assert holds(msgspec.to_builtins(run.launches), recorded["launches"])
    assert holds(msgspec.to_builtins(run.discarded), recorded["set_aside"])
    analysis = analyse(run)
    assert analysis.summary.rounds_repeated == 1
    write_json(tmp_path / RESULTS_FILE, run)
    assert read_run(tmp_path) == run
    for form in ("markdown", "csv", "json"):
        assert render(run, analysis, form, detail=True)


def holds(found, recorded):
    """Return whether every recorded value is there; newer fields may be added."""
    if isinstance(recorded, dict):
        return all(holds(found[name], value) for name, value in recorded.items())
    if isinstance(recorded, list):
        return len(found) == len(recorded) and all(map(holds, found, recorded))
    return found == recorded


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"launches": [{"round": 1}]}, "launches[0]"),
        ({"complete": "yes"}, "complete"),
        ({"hosts": [{"name": "a b", "slots": 2}]}, "hosts[0]"),
        ({"config": {"arms": [{"backend": "pigeon"}], "baseline": "pigeon"}}, "pigeon"),
        ({"schema_version": 2, "config": 7}, "$.config"),
        ({"schema_version": 2, "set_aside": [{"round": 1}]}, "$.discarded[0]"),
    ],
    ids=["launch", "flag", "host", "backend", "version 2", "renamed in version 2"],
)
def test_read_run_names_the_wrong_place_of_an_edited_file(tmp_path, changes, named):
    assert named in refusal(edited(tmp_path, **changes)).found


# ---- edited files ----


PHASED = {"forward": [1.0] * 3, "backward": [2.0] * 3, "sync": [1.0] * 3, "step": [0.5] * 3}


def a_full_run(**changes):
    """Make a run with all raw samples: reference, phases, collectives."""

    def ranks():
        blocks = [a_block(5), a_block(4, mode="reference"), a_phased_block(**PHASED)]
        blocks.append(a_phased_block("reference", **PHASED))
        use = MachineUse(wall_ns=10, cpus=2, busy_ns=5, stolen_ns=0)
        return [a_rank(rank, blocks=blocks, machine=use) for rank in (0, 1)]

    order = [(arm, round_) for round_ in (1, 2, 3) for arm in ("none", "ddp")]
    launches = [a_launch(arm, r, ranks=ranks(), number=n) for n, (arm, r) in enumerate(order, start=1)]
    return a_run({"none": [1.0], "ddp": [1.0]}, launches=launches, **changes)


NEVER_TIMED = {"message_bytes": 4, "ns": []}


def last_rank(run):
    """Edits change the last rank of the last launch, so a check of only the first finds none."""
    return run["launches"][-1]["ranks"][-1]


@pytest.mark.parametrize(
    ("found", "edit"),
    [
        ("launches[5].ranks[1].blocks[0].wall_ns", lambda run: last_rank(run)["blocks"][0].update(wall_ns=0)),
        ("launches[5].ranks[1].blocks[0].cpu_ns", lambda run: last_rank(run)["blocks"][0].update(cpu_ns=-1)),
        ("launches[5].ranks[1].sweep[0].ns", lambda run: last_rank(run).update(sweep=[NEVER_TIMED])),
        ("$.launches[5].seconds", lambda run: run["launches"][-1].update(seconds=0)),
        ("whole number of 401 digits", lambda run: last_rank(run).update(peak_memory_bytes=10**400)),
        ("whole number of 401 digits", lambda run: last_rank(run)["attestation"].update(x=[{"y": 10**400}])),
        ("whole number of 20 digits", lambda run: last_rank(run)["message_bytes"].append(10**19)),
        ("$.config.arms", lambda run: run["config"].update(arms=[], baseline="", comparisons=None)),
        ("$.config.comparisons", lambda run: run["config"].update(comparisons=0)),
        ("$.hosts", lambda run: run.update(hosts=[])),
        ("--baseline cannot be mpi", lambda run: run["config"].update(baseline="mpi")),
        ("--batch-size cannot be 64", lambda run: run["config"].update(ranks=10**9)),
    ],
)
def test_read_run_refuses_numbers_that_no_run_has(tmp_path, found, edit):
    error = refusal(rewritten(tmp_path, a_full_run(), edit))
    assert str(tmp_path / RESULTS_FILE) in error.what
    assert found in error.found
    assert "edited" in error.remedy


def an_unfinished_run():
    return a_run(
        {"none": [4.0, 4.5], "ddp:bucket_cap_mb=0.1": [5.0, 5.5], "horovod:controller=mpi": [6.0]},
        dataset=DIGITS,
        left_out={"mpi": "mpi4py is not installed"},
        complete=False,
        failure=Failure(arm="horovod", round=2, kind="LaunchError", message="rank 1 failed\nits reason"),
        discarded=a_run({"none": [9.0], "ddp": [9.5]}).launches,
    )


RUNS = {
    "plain": a_run(),
    "full": a_full_run(),
    "unfinished": an_unfinished_run(),
    "one arm": a_run({"ddp": [5.0]}),
    "control": a_run({"none": [4.0]}),
    "not started": a_run(launches=[], complete=False),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_read_run_returns_what_was_written_and_every_format_shows(tmp_path, published, run):
    write_json(tmp_path / RESULTS_FILE, run)
    published.validate(json.loads((tmp_path / RESULTS_FILE).read_text()))
    read = read_run(tmp_path)
    assert read == read_run(tmp_path / RESULTS_FILE) == run
    for form in ("markdown", "csv", "json"):
        assert render(read, analyse(read), form, detail=True)
    assert read_run(edited(tmp_path, weather="fine")) == a_run()


def test_published_schema_refuses_a_wrong_or_missing_field(published):
    run = json.loads(msgspec.json.encode(a_run()))
    assert list(published.iter_errors(run | {"cores": "two"}))
    assert list(published.iter_errors({name: held for name, held in run.items() if name != "config"}))


# ---- other files of Ringside ----


def test_read_run_reads_an_export(tmp_path):
    run = a_full_run()
    write_text(tmp_path / "export.json", render(run, analyse(run), "json"))
    assert read_run(tmp_path / "export.json") == run


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda run: run.update(schema_version=1), "schema version 1"),
        (lambda run: run.pop("schema_version"), "no schema version"),
    ],
    ids=["version", "no version"],
)
def test_read_run_checks_an_exported_run_too(tmp_path, edit, named):
    run = a_full_run()
    content = json.loads(render(run, analyse(run), "json"))
    edit(content["run"])
    (tmp_path / "export.json").write_text(json.dumps(content))
    assert named in refusal(tmp_path / "export.json").what


def test_read_run_recognises_a_verification(tmp_path):
    gate = Gate(name="ranks", outcome="passed")
    arms = [ArmVerification(arm="ddp", gates=[gate], seconds=1.0)]
    write_json(tmp_path / "exported.json", Verification(run=a_run(), arms=arms))
    error = refusal(tmp_path / "exported.json")
    assert "is a verification" in error.what
    assert "ringside verify" in error.found
    assert "ringside run" in error.remedy


@pytest.mark.parametrize(
    ("newest", "older", "chosen"),
    [
        ({"complete": False}, {}, "older"),
        ({"complete": False}, {"complete": False}, "newest"),
        (
            {
                "complete": False,
                "failure": Failure(arm="ddp", round=1, kind="KeyboardInterrupt", message="It was stopped."),
            },
            {},
            "newest",
        ),
        ({}, {}, "newest"),
    ],
)
def test_last_is_a_run_that_has_ended_if_there_is_one(tmp_path, monkeypatch, newest, older, chosen):
    monkeypatch.chdir(tmp_path)
    for seconds, (name, changes) in enumerate({"older": older, "newest": newest}.items(), 1_700_000_000):
        file = tmp_path / "runs" / name / RESULTS_FILE
        file.parent.mkdir(parents=True)
        write_json(file, a_run(**changes))
        os.utime(file, (seconds, seconds))
    assert find_run(Path("last"), [RESULTS_FILE]).name == chosen
