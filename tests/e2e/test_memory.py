"""Arms that do not fit into memory, under a limit on the address space of their ranks."""

from __future__ import annotations

import csv
import json
import re

import pytest

from tests.comparing import compare, inject
from tests.unit.pages import text_of

pytestmark = pytest.mark.slow
NO_ROOM = "ddp:env.TEST_ROOM=16777216"
# The proof holds a model in float64 several times, which is more than this room, and training is not.
NO_PROOF = "manual:env.TEST_ROOM=671088640"
WIDE = ("--model", "mlp:784-2048-2048-10", "--batch-size", 8, "--steps", "6:warmup=2", "--repeats", 1)


def run(folder, mnist_dir, arms, *flags):
    environment = inject("e2e/limited", folder / "limited", None)
    words = ("run", "--backend", arms, "-np", 2, "--threads", 1, *WIDE, "--data", mnist_dir)
    one_by_one = ("--interleave", "launches:reruns=0")  # in turns, every arm starts again
    return compare(*words, *one_by_one, "--output", folder / "run", *flags, environment=environment)


def test_arm_that_does_not_fit_is_left_out_and_one_without_proof_is_timed(tmp_path, mnist_dir):
    page, record, rows = tmp_path / "page.html", tmp_path / "run.json", tmp_path / "run.csv"
    exports = (part for path in (page, record, rows) for part in ("--export", path))
    done = run(tmp_path, mnist_dir, f"mpi,{NO_ROOM},{NO_PROOF}", *exports)
    assert done.returncode == 0, done.stderr
    printed, logged = (" ".join(text.split()) for text in (done.stdout, done.stderr))
    assert f"{NO_ROOM} does not fit, so the run goes on without it" in logged
    assert f"{NO_PROOF} does not fit with its proof, so it goes on without one" in logged
    assert f"{NO_ROOM} does not fit" in printed
    need = (
        r" does not fit: it needs (an estimated|at least) [\d.]+( GiB)? of [\d.]+ [GM]iB of address space\."
    )
    told = f"NOT PROVEN: {NO_PROOF}, because a launch with its proof"
    assert re.search(re.escape(told) + need, printed), printed
    assert told in text_of(page.read_text())
    assert f"{NO_ROOM} does not fit" in text_of(page.read_text())
    content = json.loads(record.read_text())
    (unfit,), (bare,) = content["summary"]["unfit"], content["summary"]["bare"]
    assert (unfit["arm"], unfit["limit"]) == (NO_ROOM, "address space")
    assert (bare["arm"], bare["stage"], bare["limit"]) == (NO_PROOF, "parity", "address space")
    assert max(bare["needs_bytes"] or 0, bare["least_bytes"] or 0) > bare["limit_bytes"]
    arms = {arm["arm"]: arm for arm in content["summary"]["arms"]}
    assert {label: arm["parity"]["outcome"] for label, arm in arms.items()} == {
        "none": "none",
        "mpi": "passed",
        NO_PROOF: "unfit",
    }
    assert arms[NO_PROOF]["step_seconds"]["mean"] > 0
    (rank, *_) = next(one for one in content["run"]["launches"] if one["arm"] == NO_PROOF)["ranks"]
    assert rank["parity"] == []
    assert rank["end"] is None
    assert content["run"]["complete"]
    verdicts = {row["arm"]: row["verdict"] for row in csv.DictReader(rows.read_text().splitlines())}
    assert verdicts[NO_ROOM] == "does not fit"
    logs = [folder.name for folder in (tmp_path / "run" / "launches").iterdir() if "ddp" in folder.name]
    assert len(logs) == 1, "the logs of the arm that was left out are kept"


@pytest.mark.faults
def test_a_run_fails_and_says_so_if_no_arm_fits(tmp_path, mnist_dir):
    done = run(tmp_path, mnist_dir, NO_ROOM)
    assert done.returncode == 6, done.stderr
    assert "got no more memory. No arm fits into memory." in done.stderr
    assert "The address space is limited to " in done.stderr


@pytest.mark.faults
def test_verify_says_that_a_proof_does_not_fit_and_that_nothing_is_proven(tmp_path, mnist_dir):
    environment = inject("e2e/limited", tmp_path / "limited", None)
    words = ("verify", "--backend", NO_PROOF, "-np", 2, "--threads", 1, *WIDE[:2], "--data", mnist_dir)
    done = compare(*words, "--output", tmp_path / "run", environment=environment)
    assert done.returncode == 16, done.stderr
    assert f"{NO_PROOF}: not proven." in " ".join(done.stdout.split())
    assert "The address space is limited to " in " ".join(done.stdout.split())
