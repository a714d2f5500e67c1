"""``ringside scale`` on one machine."""

import json

from tests.comparing import compare


def test_scale_with_one_and_two_ranks(tmp_path, mnist_dir, requires_backend):
    requires_backend("mpi")  # its launcher loads no torch, so its four launches take half the time
    folder = tmp_path / "scale"
    done = compare(
        *("scale", "-np", "1,2", "--strong", "--backend", "mpi", "--data", mnist_dir),
        *("--repeats", "2", "--steps", "40:warmup=5", "--no-control", "--threads", "1"),
        *("--interleave", "auto:reruns=0", "--output", folder, "--export", tmp_path / "scale.json"),
    )
    assert done.returncode == 0, done.stderr
    assert "Hosts: this machine" in done.stderr
    assert "strong scaling · mlp on MNIST · 1, 2 ranks × 1 thread · cpu · batch 64 in all" in done.stdout
    content = json.loads((tmp_path / "scale.json").read_text())
    assert [run["config"]["batch_size_per_rank"] for run in content["runs"]] == [64, 32]
    starts = [
        (launch["started_at"], run["config"]["ranks"])
        for run in content["runs"]
        for launch in run["launches"]
    ]
    assert [ranks for _, ranks in sorted(starts)] == [1, 2, 2, 1], "each round reverses the one before"
    again = compare("report", folder, "--format", "csv")
    assert again.returncode == 0, again.stderr
    assert len(again.stdout.splitlines()) == 3
    one = compare("report", folder / "np2")
    assert "2 ranks × 1 thread" in one.stdout
