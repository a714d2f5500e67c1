"""Test the sizes and settings of ``ringside collectives``."""

from __future__ import annotations

import pytest

from compare.analysis.collectives import FORMS
from compare.errors import UsageError
from compare.schema.collectives import COLLECTIVES, Exchange, parse_size, read_collective, sizes_of_steps
from compare.schema.job import Job, SweepJob, read_job
from compare.schema.launch_files import LaunchFiles
from compare.schema.results import StepCall
from compare.system.files import write_json
from tests.unit.collectives import a_sweep_config
from tests.unit.factories import DIGITS, a_config, a_launch, a_rank, a_run


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("32K", 32 << 10), ("64M", 64 << 20), ("1g", 1 << 30), ("4KiB", 4096)]
)
def test_parse_size_units_are_powers_of_two(text, size):
    assert parse_size("-b", text) == size


@pytest.mark.parametrize("text", ["", "-8", "8.5M", "8T", "many"])
def test_parse_size_no_size_is_refused_with_the_flag(text):
    with pytest.raises(UsageError, match="-e/--end cannot be"):
        parse_size("-e/--end", text)


def test_sizes_default_rise_from_8_b_to_64_mib_by_twos():
    config = a_sweep_config(end_bytes=64 << 20)
    assert config.sizes_of(*config.exchanges) == [8 << power for power in range(24)]
    assert config.total_launches == 2


def test_sizes_are_whole_elements_within_the_bounds():
    config = a_sweep_config(begin_bytes=10, end_bytes=100, factor=3)
    assert config.sizes_of(Exchange()) == [8, 28, 88]
    assert config.sizes_of(Exchange(dtype="float64")) == [8, 24, 88]
    assert config.sizes_of(Exchange("all_gather")) == [8, 24, 88]


def test_sizes_without_an_element_on_each_rank_are_left_out():
    config = a_sweep_config(ranks=4, begin_bytes=8, end_bytes=64)
    assert config.sizes_of(Exchange("all_to_all")) == [16, 32, 64]
    assert config.sizes_of(Exchange("barrier", "none", "none")) == [0]


def a_run_of(*arms):
    """Return a run of arms, in which a step of fsdp has recorded calls."""
    calls = [
        StepCall(collective="all_gather", message_bytes=48),
        StepCall(collective="all_gather", message_bytes=30),
        StepCall(collective="reduce_scatter", message_bytes=48),
        StepCall(collective="all_reduce", message_bytes=24, ranks=[0, 2]),
    ]
    recorded = {arm: calls if arm == "fsdp" else [] for arm in arms}
    ranks = {arm: [a_rank(rank, calls=recorded[arm]) for rank in range(2)] for arm in arms}
    return a_run({arm: [] for arm in arms}, launches=[a_launch(arm, ranks=ranks[arm]) for arm in arms])


def test_sizes_of_steps_are_those_of_calls_among_all_ranks():
    sizes = sizes_of_steps(a_run_of("ddp", "fsdp"))
    assert sizes == {"all_gather": (30, 48), "reduce_scatter": (48,)}
    config = a_sweep_config(ranks=2, collectives=tuple(sizes), sizes=sizes)
    assert config.measurements == [
        (Exchange("all_gather", "float32", "none"), 24),
        (Exchange("all_gather", "float32", "none"), 48),
        (Exchange("reduce_scatter"), 48),
    ]


def test_sizes_of_steps_need_an_arm_that_shards():
    with pytest.raises(UsageError) as raised:
        sizes_of_steps(a_run_of("ddp"))
    assert raised.value.found == "Its arms are ddp."


def test_exchanges_have_only_what_a_collective_takes():
    config = a_sweep_config(
        collectives=("all_reduce", "broadcast", "barrier"),
        dtypes=("int8", "float64"),
        operations=("sum", "max"),
    )
    assert list(map(str, config.exchanges)) == [
        *(f"all_reduce {dtype} {operation}" for dtype in ("int8", "float64") for operation in ("sum", "max")),
        *("broadcast int8", "broadcast float64", "barrier"),
    ]


@pytest.mark.parametrize("text", ["all-to-all", "all_to_all", "alltoall", "All_To_All"])
def test_read_collective_takes_every_spelling(text):
    assert read_collective(text) == "all_to_all"
    assert read_collective("send/recv") == "send_recv"
    assert read_collective("gossip") == "gossip"


def test_every_collective_has_forms():
    assert set(FORMS) == set(COLLECTIVES)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"begin_bytes": 0}, "-b/--begin"),
        ({"begin_bytes": 2, "end_bytes": 3}, "-e/--end"),
        ({"collectives": ("gossip",)}, "--collective"),
        ({"sizes": {"all_gather": (8,)}}, "--collective"),
        ({"dtypes": ("float31",)}, "--dtype"),
        ({"operations": ("xor",)}, "--op"),
        ({"begin_bytes": 32}, "-b/--begin"),
        ({"end_bytes": 1 << 40}, "-e/--end"),
        ({"factor": 1}, "-f/--factor"),
        ({"iterations": 0}, "-n/--iterations"),
        ({"warmup_iterations": -1}, "-w/--warmup"),
        ({"rounds": 0}, "--repeats"),
        ({"ranks": 0}, "-np/--num-proc"),
        ({"groups": ("gloo", "ring")}, "--group"),
        ({"groups": ("gloo", "gloo")}, "--group"),
    ],
)
def test_config_wrong_setting_names_its_flag(changes, flag):
    with pytest.raises(UsageError, match=flag):
        a_sweep_config(*changes.pop("groups", ()), **changes)


def test_read_job_tells_a_sweep_from_a_training(tmp_path):
    files = LaunchFiles(tmp_path)
    common = {"affinity": [0], "number": 1, "launched_at": 0.0}
    sweep, training = a_sweep_config(), a_config("ddp")
    for job in (
        SweepJob(config=sweep, group="gloo", arm=sweep.arm_of("gloo"), **common),
        Job(config=training, arm=training.arms[0], dataset=DIGITS, **common),
    ):
        write_json(files.job, job)
        assert read_job(files) == job
