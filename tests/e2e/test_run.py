"""Test ``ringside run`` end to end: real launchers, real libraries, real MNIST."""

import json
import time
from pathlib import Path

import pytest

from backends.launchers.request import MARKER
from compare.analysis import analyse
from compare.analysis.summary import Detail
from compare.schema.arms import parse_arm
from compare.schema.store import read_run
from tests.comparing import RUN, compare
from tests.unit.pages import render

ARMS = ("ddp", "mpi")
"""Two libraries and two launchers; test_arms.py has the others."""


def processes_of(run_directory: Path) -> list[str]:
    """List the command lines of a run's live processes."""
    found, mark = [], f"{MARKER}={run_directory.resolve()}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            if any(entry.startswith(mark) for entry in environment):
                found.append((process / "cmdline").read_bytes().decode())
        except OSError:
            continue
    return found


SECRET = {"AWS_SECRET_ACCESS_KEY": "hunter2hunter2"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, mnist_dir, every_backend):
    """Run one epoch of the MLP on two ranks, through two arms and the control."""
    folder = tmp_path_factory.mktemp("whole")
    done = compare(
        *RUN,
        *("--backend", ",".join(ARMS), "-np", 2, "--repeats", 1, "--data", mnist_dir),
        *("--output", folder / "run", "--export", folder / "run.json"),
        environment=SECRET,
    )
    assert done.returncode == 0, done.stderr
    assert "Hosts: this machine, because no hosts are named" in done.stderr
    return folder / "run", done


def test_run_of_an_epoch_ends_with_equal_parameters_and_accuracy(whole):
    run = read_run(whole[0])
    for launch in run.launches:
        assert sum(rank.evaluation.samples for rank in launch.ranks) == 10_000
    summaries = {s.arm: s for s in analyse(run).summary.arms}
    assert {s.final_hash for name, s in summaries.items() if name != "none"} == {summaries["ddp"].final_hash}
    assert summaries["ddp"].final_hash is not None
    assert len({s.accuracy for name, s in summaries.items() if name != "none"}) == 1
    assert 0.85 < summaries["ddp"].accuracy < 0.95


def test_control_trains_each_rank_by_itself(whole):
    (control,) = read_run(whole[0]).of(parse_arm("none"))
    assert control.ranks[0].final_hash != control.ranks[1].final_hash
    assert control.ranks[0].attestation["group"]["transport"] == "none"


def test_run_executes_the_real_launchers(whole):
    launchers = {
        launch.arm: (launch.launcher, Path(launch.argv[0][0]).name) for launch in read_run(whole[0]).launches
    }
    assert launchers["ddp"] == launchers["none"] == ("torchrun", "torchrun")
    assert launchers["mpi"] == ("mpirun", "mpirun")


def test_attestation_is_read_back_from_the_libraries(whole):
    facts = {launch.arm: launch.ranks[1].attestation for launch in read_run(whole[0]).launches}
    assert facts["ddp"]["group"]["library"] == "torch.distributed gloo"
    assert facts["ddp"]["replica"]["bucket_bytes"] == [814_120]
    assert facts["ddp"]["group"]["transport"] == "TCP over lo"
    assert facts["mpi"]["group"]["library"].startswith("Open MPI")
    assert facts["mpi"]["group"]["transport"] == "shared memory"
    for launch in read_run(whole[0]).launches:  # also the rank that reads last, after others have left
        assert len({rank.attestation["group"]["transport"] for rank in launch.ranks}) == 1, launch.arm
    threads = {tuple(f["affinity"]) + (f["threads"],) for f in facts.values()}
    assert len(threads) == 1, "threads and affinity must be the same for every arm"


def test_report_prints_the_same_table_as_the_run(whole):
    directory, done = whole
    again = compare("report", directory)
    assert again.returncode == 0
    assert again.stdout.strip() in done.stdout
    for arm in ARMS:
        assert arm in done.stdout
    assert "mlp on MNIST · 2 ranks" in done.stdout
    assert "the same model: proven for 20 steps and one at the end, equal bit for bit." in done.stdout
    assert "What the arms trained" in compare("report", directory, "--detail").stdout


def test_export_json_holds_raw_samples_and_summary(whole):
    exported = json.loads((whole[0].parent / "run.json").read_text())
    assert {arm["arm"] for arm in exported["summary"]["arms"]} == {"none", *ARMS}
    blocks = exported["run"]["launches"][0]["ranks"][0]["blocks"]
    timed = [block["steps"] for block in blocks if block["mode"] == "training"]
    assert sum(timed) + len(timed) == 468 - 30, "the first step of a block is not timed"
    assert exported["run"]["schema_version"] == 3
    run = read_run(whole[0])
    again = json.loads(render(run, analyse(run), "json"))
    assert exported == again, "every figure follows from the raw samples"


def test_launch_measures_the_arm_its_reference_and_its_collectives(whole):
    for launch in read_run(whole[0]).launches:
        controls = launch.arm == "none"
        assert sum(rank.machine is not None for rank in launch.ranks) == 1, "once for every host"
        for rank in launch.ranks:
            modes = {block.mode for block in rank.blocks}
            assert modes == ({"training"} if controls else {"training", "reference"})
            phased = [block for block in rank.blocks if block.phases]
            assert {block.mode for block in phased} == modes
            assert len(phased) == len(modes)
            for block in phased:
                assert {len(times) for times in block.phases.values()} == {block.steps}
                assert sum(map(sum, block.phases.values())) <= block.wall_ns
            assert bool(rank.collective_ns) is bool(rank.message_bytes) is not controls
            assert sum(rank.message_bytes) == (0 if controls else rank.gradient_bytes)


def test_report_detail_shows_the_costs_of_every_arm(whole):
    directory, _ = whole
    detailed = compare("report", directory, "--detail")
    assert detailed.returncode == 0
    assert "Where the sync cost goes" in detailed.stdout
    for arm in analyse(read_run(directory)).summary.arms:
        known = [name for name in Detail.__struct_fields__ if getattr(arm.detail, name) is not None]
        if arm.arm != "none":
            assert known == list(Detail.__struct_fields__), arm.arm
            assert arm.detail.cores_per_rank.mean > 0


def test_launch_compares_every_arm_with_a_single_process(whole):
    for launch in read_run(whole[0]).launches:
        if launch.arm == "none":
            assert [rank.parity for rank in launch.ranks] == [[], []]
            continue
        (first,), (second,) = (rank.parity for rank in launch.ranks)
        assert first.kind == "float64"
        assert first.differences[-1] <= 1e-12
        assert first.hash == second.hash


def test_run_leaves_no_process_running_and_writes_no_secret_of_the_shell(whole):
    assert processes_of(whole[0]) == []
    (secret,) = (value.encode() for value in SECRET.values())
    files = [file for file in whole[0].parent.rglob("*") if file.is_file()]
    assert whole[0] / "results.json" in files
    assert [file for file in files if secret in file.read_bytes()] == []


@pytest.mark.faults
def test_run_ends_a_launch_that_exceeds_its_timeout(tmp_path, mnist_dir):
    done = compare(
        *RUN,
        *("--backend", "mpi", "--no-control", "--repeats", 1, "--steps", "500epochs", "--timeout", 12),
        *("--data", mnist_dir, "--output", tmp_path / "run"),
    )
    assert done.returncode == 7, done.stderr
    assert "did not end within 12 s" in done.stderr
    assert processes_of(tmp_path / "run") == []


@pytest.mark.timed
def test_run_budget_ends_the_run_with_whole_rounds(tmp_path, mnist_dir, requires_backend):
    requires_backend("mpi")
    started_at = time.monotonic()
    short = ("--backend", "mpi", "--no-control", "--steps", "40:warmup=5", "--data", mnist_dir)
    done = compare(*RUN, *short, "--budget", 12, "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    launches = [*run.launches, *run.discarded]
    assert max(la.started_at + la.seconds for la in launches) - launches[0].started_at < 12
    assert time.monotonic() - started_at < 12 + 15
    assert "Ended after" in compare("report", tmp_path / "run", "--detail").stdout
    too_short = compare(*RUN, *short, "--budget", 1, "--output", tmp_path / "none")
    assert too_short.returncode == 11, too_short.stderr
    assert "--budget 1 ran out before every arm had run once" in too_short.stderr
    assert processes_of(tmp_path) == []


@pytest.mark.faults
def test_run_compares_two_mpi_libraries_under_the_same_conditions(tmp_path, any_data, requires_backend):
    """Two launches of each must end well, too."""
    dataset, folder = any_data
    requires_backend("mpi")
    requires_backend("mpi", library="mpich")
    done = compare(
        *RUN,
        *("--backend", "mpi,mpi:library=mpich", "--no-control", "--steps", "40:warmup=5"),
        *("--repeats", 2, "--strict"),
        *("--data", f"{dataset}:folder={folder}", "--output", tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    found = {la.arm: {rank.attestation["group"]["library"] for rank in la.ranks} for la in run.launches}
    assert {arm: min(names).split()[0] for arm, names in found.items()} == {
        "mpi": "Open",
        "mpi:library=mpich": "MPICH",
    }
    assert len({rank.final_hash for la in run.launches for rank in la.ranks}) == 1
    assert processes_of(tmp_path / "run") == []


def test_dry_run_prints_every_command_and_starts_nothing(tmp_path, every_backend):
    done = compare(*RUN, "--backend", "ddp,horovod,mpi", "--output", tmp_path / "run", "--dry-run")
    assert done.returncode == 0, done.stderr
    for launcher in ("torchrun", "horovodrun", "mpirun"):
        assert f"/{launcher} " in done.stdout
    assert not (tmp_path / "run").exists()
