"""Test arms in a real run.

All launchers, sweeps, accumulation, rounding, own environments, one process, and sharded optimizer state.
"""

from pathlib import Path

import pytest

from compare.analysis import analyse
from compare.schema.arms import Arm, parse_arm
from compare.schema.store import read_run
from tests.comparing import RUN, compare

LAUNCHED_DIFFERENTLY = ("manual:mode=per_parameter", "horovod", "horovod:controller=mpi", "mpi")
ARMS = "ddp:comm_hook=fp16,{" + ",".join(LAUNCHED_DIFFERENTLY) + "}:env.MALLOC_ARENA_MAX=3"
OWN_ENVIRONMENT = [f"{arm}:env.MALLOC_ARENA_MAX=3" for arm in LAUNCHED_DIFFERENTLY]
PER_PARAMETER, HOROVOD, HOROVOD_BY_MPI, MPI = OWN_ENVIRONMENT
CONTRADICTING = {
    "OMP_NUM_THREADS": "7",
    "HOROVOD_CONTROLLER": "mpi",
    "HOROVOD_CPU_OPERATIONS": "mpi",
    "HOROVOD_FUSION_THRESHOLD": "0",
    "HOROVOD_CYCLE_TIME": "5",
}
"""A shell that sets what an arm settles itself, and two things that no arm does."""


def a_run(*, arms, flags=(), environment=None):
    """Return a fixture that runs these arms once on two ranks."""

    @pytest.fixture(scope="module")
    def ran(tmp_path_factory, mnist_dir, every_backend):
        folder = tmp_path_factory.mktemp("arms") / "run"
        done = compare(
            *(*RUN, "--backend", arms, "-np", 2, *flags, "--model", "mlp:784-16-10", "--batch-size", 32),
            *("--steps", "40:warmup=10", "--repeats", 1),
            *("--data", mnist_dir, "--output", folder),
            environment=environment,
        )
        assert done.returncode == 0, done.stderr
        return read_run(folder), compare("report", folder, "--detail").stdout

    return ran


ran = a_run(arms=ARMS, flags=("--no-control", "--threads", 1, "--accumulate", 2), environment=CONTRADICTING)
"""Arms of all launchers, written as a sweep, with two passes a step, in a shell that contradicts them."""
ADAM = ("--strict", "--threads", 1, "--optimizer", "adam")
declared = a_run(arms="ddp,single,pipeline", flags=ADAM)
"""Arms that train one model in all, beside DDP and the control."""
sharded = a_run(arms="ddp,zero,fsdp,localsgd:period=5", flags=ADAM)
"""Arms whose parts `make test` tries in the contract suite, beside DDP and the control."""


def test_sweep_of_arms_launches_each_of_them(ran):
    labels = ["ddp:comm_hook=fp16", *OWN_ENVIRONMENT]
    assert [arm.label for arm in ran[0].config.arms] == labels
    assert {launch.arm for launch in ran[0].launches} == set(labels)


def test_run_executes_the_launcher_of_each_arm(ran):
    launchers = {launch.arm: (launch.launcher, Path(launch.argv[0][0]).name) for launch in ran[0].launches}
    assert launchers["ddp:comm_hook=fp16"] == launchers[PER_PARAMETER] == ("torchrun", "torchrun")
    assert launchers[HOROVOD] == launchers[HOROVOD_BY_MPI] == ("horovodrun", "horovodrun")
    assert launchers[MPI] == ("mpirun", "mpirun")


def test_attestation_of_each_arm_is_read_back_from_its_library(ran):
    facts = {launch.arm: launch.ranks[1].attestation for launch in ran[0].launches}
    assert facts[HOROVOD]["group"]["controller"] == "gloo"
    assert facts[HOROVOD_BY_MPI]["group"]["controller"] == "mpi"
    assert facts[HOROVOD]["group"]["versions"]["horovod"] == "0.28.1"
    assert facts[PER_PARAMETER]["replica"]["message_bytes"] == [50_176, 64, 640, 40]
    for launch in ran[0].launches:  # also the rank that reads last, after others have left
        assert len({rank.attestation["group"]["transport"] for rank in launch.ranks}) == 1, launch.arm
    assert len({tuple(f["affinity"]) for f in facts.values()}) == 1, "the affinity is the same for every arm"


def test_environment_that_contradicts_an_arm_is_overruled(ran):
    """Check that the arm's options win, and the shell sets the others."""
    facts = {launch.arm: launch.ranks[0].attestation for launch in ran[0].launches}
    assert {attested["threads"] for attested in facts.values()} == {1}
    assert facts[HOROVOD]["group"]["controller"] == "gloo"
    assert facts[HOROVOD]["group"]["fusion_bytes"] == 0
    assert facts[HOROVOD]["group"]["cycle_milliseconds"] == 5
    assert facts[HOROVOD]["group"]["observed_cycle_milliseconds"] > 4


def test_accumulate_counts_the_samples_of_all_passes_in_a_step(ran):
    run, printed = ran
    assert "batch 32 per rank × 2 passes" in printed
    assert run.config.global_batch_size == 128
    for arm in analyse(run).summary.arms:
        assert arm.samples_per_second.mean == pytest.approx(128 / arm.step_seconds.mean)


def test_accumulate_trains_one_model_except_in_arms_that_round(ran):
    arms = {arm.arm: arm for arm in analyse(ran[0]).summary.arms}
    exact = [arms[label] for label in OWN_ENVIRONMENT]
    assert [label for label in arms if parse_arm(label).exact] == OWN_ENVIRONMENT
    (trained,) = {arm.final_hash for arm in exact}
    assert trained not in {None, arms["ddp:comm_hook=fp16"].final_hash}
    assert len({arm.accuracy for arm in exact}) == 1


@pytest.mark.parametrize("label", OWN_ENVIRONMENT)
def test_arm_environment_reaches_its_ranks_under_every_launcher(ran, label):
    (launch,) = ran[0].of(parse_arm(label))
    assert launch.environment["MALLOC_ARENA_MAX"] == "3"
    for rank in launch.ranks:
        assert rank.attestation["malloc"]["MALLOC_ARENA_MAX"] == "3"


def test_arm_environment_reaches_no_other_arm(ran):
    for launch in ran[0].launches:
        if launch.arm not in OWN_ENVIRONMENT:
            assert "MALLOC_ARENA_MAX" not in launch.environment
            assert "MALLOC_ARENA_MAX" not in launch.ranks[0].attestation["malloc"]


def ranks_of(run, label):
    (launch,) = run.of(Arm(label))
    return launch.ranks


def test_single_is_one_process_with_all_threads_and_the_global_batch(declared):
    run, _ = declared
    (rank,) = ranks_of(run, "single")
    assert rank.attestation["threads"] == 2
    assert rank.attestation["batch"] | {"dtype": ""} == {
        "samples": 64,
        "dtype": "",
        "shard": [0, 1],
        "training_samples": 60_000,
    }
    assert rank.evaluation.samples == 10_000
    assert [block for block in rank.blocks if block.mode == "reference"] == []


def test_single_has_an_efficiency_and_no_sync_cost(declared):
    run, printed = declared
    single = next(arm for arm in analyse(run).summary.arms if arm.arm == "single")
    assert single.efficiency is not None
    assert (single.sync_seconds, single.sync_share) == (None, None)
    assert single.samples_per_second.mean == pytest.approx(64 / single.step_seconds.mean)
    assert "single: one process with all threads of a host and the global batch of 64." in printed
    assert "CONDITIONS DIFFER" not in printed


def test_single_trains_what_the_other_arms_train(declared):
    summary = analyse(declared[0]).summary
    of = {arm.arm: arm for arm in summary.arms}
    assert of["single"].parity.outcome == "passed"
    assert of["single"].test_loss == pytest.approx(of["ddp"].test_loss, rel=1e-3)


@pytest.mark.faults
def test_zero_and_fsdp_end_with_the_parameters_of_ddp_and_hold_parts(sharded):
    run, printed = sharded
    hashes = {rank.final_hash for label in ("ddp", "zero", "fsdp") for rank in ranks_of(run, label)}
    assert len(hashes) == 1
    parts = [rank.attestation["held"] for rank in ranks_of(run, "fsdp")]
    held = {label: [rank.attestation["held"] for rank in ranks_of(run, label)] for label in ("ddp", "zero")}
    whole = held["ddp"][0]["optimizer_state_bytes"]
    assert [own["gradient_bytes"] for label in held for own in held[label]] == [whole // 2] * 4
    assert [own["optimizer_state_bytes"] for own in held["ddp"]] == [whole] * 2
    assert sum(own["optimizer_state_bytes"] for own in held["zero"]) == whole
    for part in ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes"):
        of_all = whole if part == "optimizer_state_bytes" else whole // 2
        assert sum(own[part] for own in parts) == of_all, "Adam keeps two numbers for each parameter"
        assert max(own[part] for own in parts) == pytest.approx(of_all / 2, rel=0.02)
    assert "bytes held" in printed


def test_pipeline_divides_the_layers_and_trains_what_the_others_train(declared):
    run, printed = declared
    of = {arm.arm: arm for arm in analyse(run).summary.arms}
    pipeline, ranks = of["pipeline"], ranks_of(run, "pipeline")
    assert pipeline.parity.outcome == "passed"
    assert pipeline.test_loss == pytest.approx(of["ddp"].test_loss, rel=1e-3)
    assert sum(rank.evaluation.samples for rank in ranks) == 10_000
    assert (pipeline.sync_seconds, pipeline.efficiency is not None) == (None, True)
    assert [block for rank in ranks for block in rank.blocks if block.mode == "reference"] == []
    first, last = (rank.attestation["held"] for rank in ranks)
    assert (first["parameter_bytes"], last["parameter_bytes"]) == (4 * 785 * 16, 4 * 17 * 10)
    assert (first["gradient_bytes"], last["gradient_bytes"]) == (4 * 785 * 16, 4 * 17 * 10)
    facts = ranks[0].attestation["replica"]
    assert (facts["schedule"], facts["microbatches"], facts["bubble_in_theory"]) == ("1f1b", 4, 0.2)
    assert 0 < facts["waiting_share"] < 1
    assert "pipeline: its ranks hold different layers, and share the global batch of 64." in printed


@pytest.mark.faults
def test_localsgd_is_proven_at_period_1_and_shows_its_loss(sharded):
    run, printed = sharded
    of = {arm.arm: arm for arm in analyse(run).summary.arms}
    local = of["localsgd:period=5"]
    assert local.parity.outcome == "passed"
    assert local.final_hash not in {None, of["ddp"].final_hash}
    assert local.sync_seconds is not None
    assert "localsgd:period=5 * the same training at period 1 alone" in " ".join(printed.split())
    assert "test loss" in printed


@pytest.mark.faults
@pytest.mark.rest
def test_shards_of_four_ranks_are_fourth_parts(tmp_path, mnist_dir):
    done = compare(
        *(*RUN, "--backend", "zero,fsdp,modelparallel", "-np", 4, "--threads", 1, "--no-control"),
        *("--model", "mlp:784-64-64-64-10", "--batch-size", 16, "--optimizer", "adam"),
        *("--steps", "8:warmup=2", "--repeats", 1, "--data", mnist_dir, "--output", tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    whole = 4 * (785 * 64 + 65 * 64 * 2 + 65 * 10)
    sizes = {"parameter_bytes": whole, "gradient_bytes": whole, "optimizer_state_bytes": 2 * whole}
    for label, parts in (
        ("zero", ["optimizer_state_bytes"]),
        ("fsdp", list(sizes)),
        ("modelparallel", list(sizes)),
    ):
        held = [rank.attestation["held"] for rank in ranks_of(run, label)]
        assert len(held) == 4
        for part, size in sizes.items():
            found = [own[part] for own in held]
            assert sum(found) == size if part in parts else found == [size] * 4
            if label == "fsdp":
                assert max(found) == pytest.approx(size / 4, rel=0.02)
