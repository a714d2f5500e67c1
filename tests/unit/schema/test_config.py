"""Test the validation of a run's config."""

from __future__ import annotations

import pytest

from compare.errors import UsageError
from compare.schema.arms import Arm
from compare.schema.config import RunConfig
from tests.unit.factories import a_config

NAN, INFINITE = float("nan"), float("inf")


def refusal(**changes):
    with pytest.raises(UsageError) as caught:
        a_config(**changes)
    return caught.value


WRONG = {
    ("-np", "ranks"): (0, -1),
    ("--batch-size", "batch_size_per_rank"): (0, 60_001),
    ("--repeats", "rounds"): (0,),
    ("--threads", "threads_per_rank"): (0,),
    ("epochs of --steps", "epochs"): (0,),
    ("--steps", "steps"): (0, -5),
    ("warmup of --steps", "warmup_steps"): (-1,),
    ("--timeout", "launch_timeout_seconds"): (0.0, NAN, INFINITE),
    ("stall of --timeout", "stall_seconds"): (-1.0, NAN, INFINITE),
    ("lr of --optimizer", "learning_rate"): (0.0, -0.1, NAN, INFINITE),
    ("--seed", "seed"): (-1,),
    ("reruns of --interleave", "max_reruns"): (-1,),
    ("--accumulate", "accumulate"): (0,),
}


@pytest.mark.parametrize(("flag", "field"), WRONG)
def test_config_names_the_flag_of_a_wrong_value(flag, field):
    for value in WRONG[flag, field]:
        error = refusal(**{field: value})
        assert flag in error.what
        assert str(value) in error.what
        assert error.remedy
    if flag not in {"-np", "--batch-size", "warmup of --steps", "lr of --optimizer"}:
        # JSON, the watchdog and torch's generators hold smaller numbers than Python.
        assert flag in refusal(**{field: 10**30}).what


@pytest.mark.parametrize(
    ("field", "value", "right"),
    [
        ("model", "resnet", "mlp or wide or convnet, or widths of your own: mlp:784-4096-10"),
        ("model", "", "mlp or wide or convnet, or widths of your own: mlp:784-4096-10"),
        ("baseline", "mpi", "none or ddp"),
    ],
)
def test_config_answers_a_wrong_name_with_the_right_ones(field, value, right):
    error = refusal(**{field: value})
    assert error.what == f"--{field} cannot be {value}."
    assert error.remedy == f"Use {right}."


WIDTHS = {
    "whole numbers above 0, joined by dashes: mlp:784-4096-10": (
        *("mlp:", "mlp:784", "mlp:784-0-10", "mlp:784--10", "mlp:784-1e3-10", "mlp:784-²-10"),
        "mlp:784-256-10\n",
    ),
    "784 as the first width (pixels) and 10 as the last (digits)": ("mlp:256-10", "mlp:784-256"),
    "these widths have 1000794000000": ("mlp:784-1000000-1000000-10",),
    "mlp or wide or convnet": ("wide:784-10",),
}


@pytest.mark.parametrize("right", WIDTHS)
def test_config_answers_wrong_widths_with_the_right_ones(right):
    for model in WIDTHS[right]:
        error = refusal(model=model)
        assert error.what == f"--model cannot be {model}."
        assert right in error.remedy
    for model in ("mlp:784-10", "mlp:784-4096-10", "mlp:784-1-2-3-10"):
        assert a_config(model=model).model == model


def test_config_without_arms_has_no_baseline():
    assert RunConfig(arms=()).baseline == ""
    with pytest.raises(UsageError, match="--baseline"):
        RunConfig(arms=(), baseline="ddp")
    assert a_config("none,ddp").control == Arm("none")
    assert a_config("ddp,mpi").control is None
    with pytest.raises(AttributeError):
        a_config().ranks = 3


def test_config_of_one_process_has_the_global_batch_and_all_threads():
    config = a_config("single,ddp", ranks=4, batch_size_per_rank=16, accumulate=3, threads_per_rank=2)
    single, ddp = config.arms
    own = config.as_run_by(single, slots=2)
    assert (own.ranks, own.batch_size_per_rank, own.accumulate, own.threads_per_rank) == (1, 64, 3, 4)
    assert (own.global_batch_size, own.total_steps) == (config.global_batch_size, config.total_steps)
    assert config.as_run_by(ddp, slots=2) is config


def test_config_accumulate_multiplies_the_global_batch():
    config = a_config(ranks=2, batch_size_per_rank=16, accumulate=4, epochs=1, steps=None)
    assert config.global_batch_size == 128
    assert config.total_steps == 468
    assert "60000" in refusal(ranks=2, batch_size_per_rank=30_001).remedy
    assert "80000" in refusal(ranks=2, batch_size_per_rank=10_000, accumulate=4).remedy


def test_config_refuses_to_accumulate_with_a_static_graph():
    assert a_config("none,ddp:static_graph=false", accumulate=2).accumulate == 2
    assert a_config("none,ddp:static_graph=true", accumulate=1).accumulate == 1
    error = refusal(arms="none,ddp:static_graph=true", accumulate=2)
    assert error.what == "ddp:static_graph=true cannot accumulate gradients."
    assert "static_graph=true" in error.found


def test_config_refuses_to_compile_with_buckets_that_torch_refuses():
    assert a_config("ddp:bucket_cap_mb=1,mpi", compile=True).compile
    assert not a_config("ddp:bucket_cap_mb=0.5").compile
    error = refusal(arms="mpi,zero:bucket_cap_mb=0.5", compile=True)
    assert error.what == "zero:bucket_cap_mb=0.5 cannot be compiled."
    assert "bucket_cap_mb=0.5" in error.found


@pytest.mark.parametrize("asked", [{"accumulate": 2}, {"precision": "bf16-autocast"}, {"compile": True}])
def test_config_leaves_an_own_step_to_its_author(asked):
    with pytest.raises(UsageError, match="needs a training step of your own"):
        a_config("own_torch")
    assert a_config("own_torch", model="train.py:make").is_own
    (flag,) = asked
    error = refusal(arms="own_torch", model="train.py:make", **asked)
    assert error.what.startswith(f"own_torch cannot take --{flag}")


@pytest.mark.parametrize(("steps", "warmup"), [(10, 30), (10, 10), (1, 1), (1, 0)])
def test_config_refuses_a_run_without_timed_steps(steps, warmup):
    # The first step is never timed, because libraries allocate buffers in it.
    error = refusal(steps=steps, warmup_steps=warmup)
    assert "time" in error.what
    assert str(steps) in error.found
    assert "--steps" in error.remedy
    assert "warmup=N" in error.remedy


def test_config_accepts_the_least_and_prefers_steps_to_epochs():
    config = a_config(ranks=2, batch_size_per_rank=64, epochs=3, steps=None)
    assert (config.global_batch_size, config.total_steps) == (128, 3 * 468)  # 60,000 / 128 = 468.75
    assert a_config(epochs=3, steps=77).total_steps == 77
    assert a_config(steps=11, warmup_steps=10).total_steps == 11
    assert a_config(steps=2, warmup_steps=0).total_steps == 2
    assert a_config(max_reruns=0).max_reruns == 0
