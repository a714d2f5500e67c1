"""Test which runs ``ringside report`` lists, and what it says of them."""

from __future__ import annotations

import json
import os
import re

import msgspec
import pytest
from typer.testing import CliRunner

from compare.analysis.runs import entry_of, follow_runs
from compare.cli.main import app
from compare.errors import OutputError, RingsideError
from compare.schema.hosts import Host
from compare.schema.results import Failure, Interleaved, Verification
from compare.schema.store import list_results
from compare.system.files import write_json
from tests.unit.factories import DIGITS, a_launch, a_rank, a_run, noisy


def a_folder(root, name, **changes):
    folder = root / name
    folder.mkdir(parents=True)
    write_json(folder / "results.json", msgspec.structs.replace(a_run(), **changes))
    return folder


def call(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def runs(tmp_path):
    for number in range(4):
        a_folder(tmp_path / "runs", f"run-{number}")
    return tmp_path / "runs"


def test_folder_without_a_results_file_is_no_run(runs, tmp_path):
    (runs / "source").mkdir()
    (runs / "directory" / "results.json").mkdir(parents=True)
    (runs / "linked").symlink_to(runs / "run-1")
    (runs / "pipe").mkdir()
    os.mkfifo(runs / "pipe" / "results.json")
    assert [file.parent.name for file in list_results(runs)] == [f"run-{number}" for number in range(4)]
    with pytest.raises(OutputError, match="cannot be listed"):
        list_results(tmp_path / "missing")


def test_hostile_names_reach_no_terminal(tmp_path):
    a_folder(tmp_path / "runs", "a\x1b[31m\nwould remove /home")
    a_folder(tmp_path / "runs", "tab\there")
    shown = call("report", tmp_path / "runs").output
    assert "\x1b" not in shown
    assert "tab\\there" in shown
    assert not any(line.lstrip().startswith("would remove /home") for line in shown.splitlines())


def test_history_has_a_line_for_each_run_and_a_trend(runs):
    a_folder(runs, "killed", complete=False)
    ctrl_c = Failure(arm="ddp", round=1, kind="KeyboardInterrupt", message="interrupted")
    a_folder(runs, "2026-11-21T09-00-00-mlp-np2", complete=False, failure=ctrl_c)
    (runs / "old").mkdir()
    (runs / "old" / "results.json").write_text('{"ringside_version": "0.0.1", "schema_version": 1}')
    shown = call("report", runs).output
    assert sum("2026-11-21 09:00" in line for line in shown.splitlines()) == 5
    assert "killed" in shown
    assert re.search(r"  killed +3 rounds, unfinished +none", shown)
    assert re.search(r"^ 2026-11-21T09-00-00-mlp-np2 +3 rounds, interrupted +none", shown, re.MULTILINE)
    assert "old: not read." in shown
    assert any(line.split()[:2] == ["ddp", "▁▁▁▁▁▁"] for line in shown.splitlines())
    found = msgspec.json.decode(call("report", runs, "--format", "json").output)
    assert {trend["arm"] for trend in found["trends"]} == {"none", "ddp"}


@pytest.mark.parametrize(
    "text",
    [
        '{"ringside_version": "0.1", "schema_version": 3, "launches": ' + "[" * 100_000,
        '{"ringside_version": "0.1", "schema_version": 3, "failure": {"n": 1' + "0" * 400 + "}}",
        "[" * 100_000,
    ],
    ids=["deep within a run", "400 digits", "deep"],
)
def test_history_shows_the_other_runs_beside_a_hostile_file(tmp_path, text):
    a_folder(tmp_path, "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "results.json").write_text(text)
    done = call("report", tmp_path)
    assert done.exit_code == 0, done.output
    assert re.search(r"good +3 rounds +none", done.output)
    assert "bad: not read." in done.output


@pytest.mark.parametrize(
    "spoilt",
    [
        {"blocks": []},
        {"attestation": {"group": ["a"], "threads": 1}},
        {"attestation": {"replica": None}},
        {"evaluation": {"samples": 0, "correct": 0, "loss_sum": 500.0}},
    ],
    ids=["blocks", "group", "replica", "samples"],
)
def test_edited_run_is_shown_or_refused_beside_the_others(tmp_path, spoilt):
    a_folder(tmp_path, "good")
    file = a_folder(tmp_path, "bad") / "results.json"
    content = json.loads(file.read_text())
    for launch in content["launches"]:
        for rank in launch["ranks"]:
            rank.update(spoilt)
    file.write_text(json.dumps(content))
    for words in ([file], [file, "--detail"], [file, "--format", "lesson"], [file, file]):
        done = call("report", *words)
        assert done.exception is None or isinstance(done.exception, RingsideError), done.exception
    listed = call("report", tmp_path)
    assert listed.exit_code == 0, listed.output
    assert re.search(r"good +3 rounds +none", listed.output)


def test_history_names_a_noisy_run_in_its_line_and_its_trends(tmp_path):
    a_folder(tmp_path, "quiet")
    write_json(a_folder(tmp_path, "loud") / "results.json", noisy(a_run(), 1, 3))
    shown = call("report", tmp_path).output
    assert re.search(r"loud +3 rounds, 2 noisy +none", shown)
    assert re.search(r"quiet +3 rounds +none", shown)
    assert re.search(r"none +▁▁ +4.00 +4.00 +1 of 2", shown)


def a_verification(root, name):
    folder = root / name
    folder.mkdir(parents=True)
    write_json(folder / "verification.json", Verification(run=a_run(), arms=[]))
    return folder


def test_history_lists_results_that_are_no_runs(runs, tmp_path):
    a_verification(runs, "proof")
    shown = call("report", runs).output
    assert "4 runs and 1 other result in" in shown
    assert re.search(r"^ *proof +a verification", shown, re.MULTILINE)
    assert "run-3" in shown
    assert msgspec.json.decode(call("report", runs, "--format", "json").output)["others"] == {
        "proof": "a verification"
    }
    a_verification(tmp_path / "alone", "proof")
    assert "proof" in call("report", tmp_path / "alone").output


@pytest.mark.parametrize("words", [["--format", "lesson"], ["again"]], ids=["lesson", "side by side"])
@pytest.mark.parametrize("given", ["proof", "proof/verification.json"])
def test_verification_is_refused_by_name_where_a_run_is_needed(tmp_path, monkeypatch, words, given):
    monkeypatch.chdir(tmp_path)
    a_verification(tmp_path, "proof")
    a_verification(tmp_path, "again")
    refused = call("report", given, *words).exception
    assert isinstance(refused, OutputError)
    assert refused.what == f"{given} holds a verification, not a run."
    assert f"ringside report {given}" in refused.remedy
    assert call("report", given).exit_code == 0


ON_A_GPU = {"group": {"transport": "TCP over lo"}, "threads": 1, "device": "NVIDIA H200"}


@pytest.mark.parametrize(
    "changes",
    [
        {"cores": 8},
        {"interleaved": Interleaved(mode="blocks")},
        {"config": {"optimizer": "adam"}},
        {"config": {"learning_rate": 0.5}},
        {"config": {"steps": 50}},
        {"launches": [a_launch(arm, ranks=[a_rank(attestation=ON_A_GPU)]) for arm in ("none", "ddp")]},
        {"dataset": DIGITS},
    ],
    ids=["cores", "turns", "optimizer", "learning rate", "steps", "device", "data"],
)
def test_history_has_no_trend_over_unlike_runs(changes):
    one, other = entry_of("one", a_run()), entry_of("other", a_run(**changes))
    assert follow_runs([one, other], {}, {}).trends == []
    assert len(follow_runs([one, entry_of("again", a_run())], {}, {}).trends) == 2


def test_history_names_what_the_runs_of_a_trend_have_in_common(tmp_path):
    hosts = [Host("n1", 1), Host("n2", 1)]
    for name in ("one", "two"):
        run = a_run(config={"steps": 50}, hosts=hosts, cores=1, cores_by_host=[1, 4])
        write_json(a_folder(tmp_path, name) / "results.json", run)
    title = (
        "Step in ms, oldest to newest: mlp on mnist · 2 ranks × 1 thread · 2 hosts of 1 rank · cpu · "
        "1+4 cores · batch 64 · steps 50 · warmup_steps 10 · one launch after another"
    )
    assert title in " ".join(call("report", tmp_path).output.split())
