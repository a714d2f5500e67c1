"""Test ``compare collectives`` through real launchers."""

from __future__ import annotations

import json

from tests.comparing import compare


def test_collectives_two_groups_are_timed_and_right(tmp_path, requires_backend):
    requires_backend("mpi")
    done = compare(
        *("collectives", "--group", "shared_memory,mpi", "-np", 2, "-b", 8, "-e", "64K", "-f", 64),
        *("-n", 2, "--repeats", 1, "--output", tmp_path / "run", "--export-json", tmp_path / "out.json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "out.json").read_text())
    figures = {(row["group"], row["message_bytes"]): row for row in content["figures"]}
    assert set(figures) == {(group, size) for group in ("shared_memory", "mpi") for size in (8, 512, 32768)}
    for row in figures.values():
        assert row["wrong"] == 0
        assert row["seconds"]["n"] == 2
        assert row["bus_bandwidth"] == row["algorithm_bandwidth"] > 0
    transports = {
        launch["group"]: launch["ranks"][0]["attestation"]["group"]["transport"]
        for launch in content["run"]["launches"]
    }
    assert transports == {"shared_memory": "shared memory", "mpi": "shared memory"}
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["32768"]]
    assert len(rows) == 1, "groups stand side by side"
    assert rows[0][-1] == "0", "no element is wrong"
    assert json.loads((tmp_path / "run" / "collectives.json").read_text()) == content["run"]
