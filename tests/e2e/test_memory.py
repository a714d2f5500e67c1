"""Arms that do not fit into memory, under a limit on the address space of their ranks."""

from __future__ import annotations

import json
import re

import pytest

from tests.comparing import compare, inject
from tests.unit.pages import text_of

pytestmark = pytest.mark.slow
ROOM = 256 << 20
TIGHT = f"ddp:env.TEST_ROOM={ROOM}"
# The proof holds a model in float64 several times, which is more than the room.
WIDE = ("--model", "mlp:784-1024-1024-10", "--batch-size", 8, "--steps", "6:warmup=2", "--repeats", 1)


def run(folder, mnist_dir, arms, *flags):
    environment = inject("e2e/limited", folder / "limited", None)
    words = ("run", "--backend", arms, "-np", 2, "--threads", 1, *WIDE, "--data", mnist_dir)
    return compare(*words, "--output", folder / "run", *flags, environment=environment)


def test_an_arm_that_does_not_fit_is_a_result_and_the_others_go_on(tmp_path, mnist_dir):
    page, record = tmp_path / "page.html", tmp_path / "run.json"
    exports = ("--export", page, "--export", record)
    done = run(tmp_path, mnist_dir, f"manual,{TIGHT}", *exports)
    assert done.returncode == 0, done.stderr
    told = f"{TIGHT} does not fit: it needs "
    need = r"(about|at least) [\d.]+( GiB)? of [\d.]+ [GM]iB of address space, in its proof\."
    assert re.search(re.escape(told) + need, " ".join(done.stdout.split())), done.stdout
    assert f"{TIGHT} does not fit, so the run goes on without it" in " ".join(done.stderr.split())
    assert told in text_of(page.read_text())
    content = json.loads(record.read_text())
    (unfit,) = content["summary"]["unfit"]
    assert (unfit["arm"], unfit["stage"], unfit["limit"]) == (TIGHT, "parity", "address space")
    assert max(unfit["needs_bytes"] or 0, unfit["least_bytes"] or 0) > unfit["limit_bytes"]
    assert [arm["arm"] for arm in content["summary"]["arms"]] == ["none", "manual"]
    assert content["run"]["complete"]
    logs = [folder for folder in (tmp_path / "run" / "launches").iterdir() if "ddp" in folder.name]
    assert len(logs) == 1, "its logs are kept"


def test_a_run_fails_and_says_so_if_no_arm_fits(tmp_path, mnist_dir):
    done = run(tmp_path, mnist_dir, f"manual:env.TEST_ROOM={ROOM}", "--interleave", "launches:reruns=0")
    assert done.returncode == 6, done.stderr
    assert "No arm fits into memory. " in done.stderr
    assert "The address space is limited to " in done.stderr
