"""Test ``ringside collectives`` through real launchers."""

from __future__ import annotations

import json
import sys

import pytest

from tests import refusing
from tests.comparing import compare

SIZES = (8, 4096, 2 << 20)


@pytest.fixture(scope="module")
def timed(tmp_path_factory, requires_backend):
    """Time two groups where ranks may not read each other's memory."""
    requires_backend("mpi")
    folder = tmp_path_factory.mktemp("collectives")
    done = compare(
        *("collectives", "--group", "shared_memory,mpi", "-np", 2, "-b", 8, "-e", "2M", "-f", 512),
        *("-n", 2, "--repeats", 1, "--output", folder / "run"),
        *("--export", folder / "out.json", "--export", folder / "out.md"),
        environment={"COLUMNS": "400"},
        below=[sys.executable, refusing.__file__],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done


def test_collectives_two_groups_are_timed_and_right(timed):
    folder, done = timed
    assert "Hosts: this machine" in done.stderr
    content = json.loads((folder / "out.json").read_text())
    figures = {(row["group"], row["message_bytes"]): row for row in content["figures"]}
    assert set(figures) == {(group, size) for group in ("shared_memory", "mpi") for size in SIZES}
    for row in figures.values():
        assert row["wrong"] == 0
        assert row["seconds"]["n"] == 2
        assert row["bus_bandwidth"] == row["algorithm_bandwidth"] > 0
    transports = {
        launch["group"]: launch["ranks"][0]["attestation"]["group"]["transport"]
        for launch in content["run"]["launches"]
    }
    assert transports == {"shared_memory": "shared memory", "mpi": "shared memory"}
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == [str(SIZES[1])]]
    assert len(rows) == 1, "groups stand side by side"
    assert rows[0][-1] == "0", "no element is wrong"
    assert json.loads((folder / "run" / "collectives.json").read_text()) == content["run"]


def test_collectives_where_mpi_may_not_read_memory_warn_beside_the_figure(timed):
    folder, done = timed
    warning = "mpi: large messages fail at first, and are then copied in parts, because this host refuses"
    for shown in (done.stdout, (folder / "out.md").read_text()):
        assert warning in shown
        assert "EPERM; a seccomp filter is active" in shown
    logs = [log.read_text() for log in (folder / "run" / "launches").glob("*/rank-0.log")]
    assert any("Read -1, expected" in log for log in logs), "the refusal is real"


@pytest.mark.faults
@pytest.mark.parametrize(
    ("arm", "variable", "printed"),
    [
        ("mpi:library=mpich", {}, "The check of localhost found: Ranks may not read each other's memory"),
        ("mpi", {"OMPI_MCA_btl": "nonsense"}, "It inherited from your shell: OMPI_MCA_btl=nonsense"),
        ("ddp", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    ],
)
def test_run_that_a_known_cause_ends_names_it(tmp_path, requires_backend, arm, variable, printed):
    requires_backend(arm.partition(":")[0])
    done = compare(
        *("run", "--backend", arm, "--data", "digits", "--steps", 40, "--repeats", 1, "--no-control"),
        *("-np", 2, "--output", tmp_path / "run"),
        environment=variable,
        below=[sys.executable, refusing.__file__],
    )
    assert done.returncode == 6, done.stdout + done.stderr
    assert printed in done.stderr


@pytest.mark.faults
@pytest.mark.rest
def test_collectives_every_group_is_right_or_says_why(tmp_path, every_backend):
    done = compare(
        *("collectives", "--collective", "all", "--dtype", "int8,bfloat16,float32", "--op", "sum,avg"),
        *("-b", "3K", "-e", "3K", "-n", 1, "--repeats", 1, "-np", 2),
        *("--output", tmp_path / "run", "--export", tmp_path / "out.json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "out.json").read_text())["figures"]
    cells = {(r["group"], r["collective"], r["dtype"], r["operation"]): r for r in figures}
    assert {row["status"] for row in figures} == {"timed", "refused"}
    assert [row for row in figures if row["wrong"]] == []
    refused = {cell: row["problem"] for cell, row in cells.items() if row["status"] == "refused"}
    assert all(refused.values())
    without_avg = (("gloo", "int8"), ("mpi", "float32"), ("shared_memory", "float32"))
    assert {cell for cell in refused if cell[3] == "avg"} >= {
        (group, name, dtype, "avg")
        for group, dtype in without_avg
        for name in ("all_reduce", "reduce_scatter", "reduce")
    }
    assert cells["gloo", "all_reduce", "float32", "avg"]["status"] == "timed"
    of_sums = {cell[:3] for cell in refused if cell[3] != "avg"}
    assert {cell for cell in of_sums if cell[0] == "gloo"} == set()
    assert {cell for cell in of_sums if cell[0] == "mpi"} == {
        ("mpi", name, "bfloat16") for name in ("all_reduce", "reduce_scatter", "reduce")
    }
    for name in ("reduce", "send_recv"):
        assert refused["horovod", name, "float32", "sum" if name == "reduce" else "none"] == (
            f"horovod has no {name}"
        )
    assert cells["gloo", "barrier", "none", "none"]["wrong"] is None
