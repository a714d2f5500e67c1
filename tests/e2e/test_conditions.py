"""Test in real launches that different conditions are overruled or found."""

import msgspec
import pytest

from compare.analysis.causes import compare_conditions
from compare.errors import ConditionsError
from compare.schema.store import read_run
from tests.comparing import RUN, compare

SHELL = {
    "OMP_NUM_THREADS": "7",
    "MALLOC_TRIM_THRESHOLD_": "1",
    "MALLOC_ARENA_MAX": "3",
    "NCCL_ALGO": "Ring",
    "HOROVOD_FUSION_THRESHOLD": "0",
    "HOROVOD_CONTROLLER": "mpi",
    "TORCH_API_KEY": "hunter2hunter2",
}

pytestmark = pytest.mark.long


def compare_run(mnist_dir, directory, *flags, environment=None):
    short = ("--steps", "40:warmup=5", "--repeats", 1)
    return compare(*RUN, *short, "--data", mnist_dir, "--output", directory, *flags, environment=environment)


@pytest.fixture(scope="module")
def contradicted(tmp_path_factory, mnist_dir, every_backend):
    folder = tmp_path_factory.mktemp("conditions") / "run"
    done = compare_run(mnist_dir, folder, "--backend", "ddp,horovod,mpi", "--strict", environment=SHELL)
    return done, read_run(folder), folder


def test_strict_with_different_conditions_keeps_results_and_exits_10(contradicted):
    done, run, _ = contradicted
    assert done.returncode == ConditionsError.exit_code, done.stderr
    assert run.complete
    assert "ran under different conditions" in done.stderr
    assert "HOROVOD_FUSION_THRESHOLD (none –; ddp –; horovod 0; mpi –)" in done.stderr
    assert "CONDITIONS DIFFER: HOROVOD_FUSION_THRESHOLD" in done.stdout


def test_conditions_of_the_shell_are_overruled_or_found(contradicted):
    run = contradicted[1]
    found = {finding.item: finding for finding in compare_conditions(run)}
    assert [item for item, f in found.items() if f.kind == "different"] == ["HOROVOD_FUSION_THRESHOLD"]
    assert set(found["threads"].values.values()) == {"1"}
    assert set(found["MALLOC_ARENA_MAX"].values.values()) == {"3"}
    assert found["NCCL_ALGO"].why == "no arm of this run reads it"
    assert found["controller"].values["horovod"] == "gloo"
    assert not {"OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_", "HOROVOD_CONTROLLER"} & set(found)
    attested = run.launches[0].ranks[0].attestation
    assert attested["malloc"]["MALLOC_TRIM_THRESHOLD_"] != "1"


def test_conditions_are_attested_by_every_arm(contradicted):
    found = {finding.item: finding for finding in compare_conditions(contradicted[1])}
    everywhere = {
        *("device", "host", "threads", "inter-op threads", "affinity", "malloc settings", "nice"),
        "matmul precision",
        *("parameter dtypes", "input dtype", "global batch size", "training samples", "shard", "optimizer"),
        *("timed steps", "gradient bytes", "initial parameters", "python", "torch"),
    }
    for item in everywhere:
        assert "–" not in found[item].values.values(), item
    assert set(found) >= {"reduce op", "compression", "transport", "buckets in bytes", "fusion in bytes"}
    assert "lr=0.01" in found["optimizer"].values["horovod"]


def test_results_record_no_secret_of_the_shell(contradicted):
    assert b"hunter2hunter2" not in msgspec.json.encode(contradicted[1])


def test_strict_with_the_same_conditions_exits_with_0(tmp_path, mnist_dir):
    done = compare_run(mnist_dir, tmp_path / "run", "--backend", "ddp,manual", "--strict")
    assert done.returncode == 0, done.stderr
    assert "CONDITIONS DIFFER" not in done.stdout
