"""What a rank holds: as it attests, and as arithmetic has it."""

from __future__ import annotations

import msgspec
import pytest

from compare.analysis.memory import (
    divide_memory,
    does_not_fit,
    memory_of,
    predict_memory,
    scale_memory,
    state_per_byte,
)
from compare.schema.arms import parse_arm
from compare.schema.memory import ModelParameter, Unfit
from tests.unit.runs import ADAM, OF_SHARDS, PARAMETERS, RUNS, attesting, measured

RUN = RUNS["shards"]
WHOLE = sum(one.bytes for one in PARAMETERS)


def a_parameter(*shape, name="0.weight", trained=True):
    size = 4
    for length in shape:
        size *= length
    return ModelParameter(name=name, shape=list(shape), bytes=size, trained=trained)


def divided(parameters, shards, ranks, **more):
    return [
        (held.parameter_bytes, held.gradient_bytes, held.optimizer_state_bytes)
        for held in divide_memory(parameters, shards, ranks, ADAM, **more)
    ]


def test_divide_memory_cuts_rows_and_leaves_the_last_rank_what_is_left():
    # Five rows are two, two, one and none, as torch.chunk cuts them.
    assert divided([a_parameter(5, 3)], "parameters", 4) == [
        (24, 24, 48),
        (24, 24, 48),
        (12, 12, 24),
        (0, 0, 0),
    ]


def test_divide_memory_gives_the_state_of_the_largest_parameters_first():
    parameters = [a_parameter(1), a_parameter(6), a_parameter(4), a_parameter(3)]
    states = [state for _, _, state in divided(parameters, "optimizer state", 2)]
    assert states == [2 * 4 * (6 + 1), 2 * 4 * (4 + 3)]


def test_divide_memory_leaves_gradients_and_state_of_frozen_parameters_out():
    parameters = [a_parameter(8, trained=False), a_parameter(2)]
    assert divided(parameters, "nothing", 1) == [(40, 8, 16)]
    assert divided(parameters, "parameters", 2) == [(20, 4, 8)] * 2


def test_divide_memory_gives_layers_to_the_ranks_that_they_start_at():
    parameters = [a_parameter(size, name=f"{layer}.weight") for layer, size in ((0, 3), (2, 5), (3, 7))]
    assert divided(parameters, "layers", 2, first_layers=[0, 3]) == [(32, 32, 64), (28, 28, 56)]


def test_memory_of_is_that_of_the_rank_with_the_most():
    memory = memory_of(RUN, parse_arm("fsdp"))
    assert memory.rank == 0
    assert memory.held == memory.predicted
    assert memory.held.parameter_bytes == 4 * 501 * 401
    peak = RUN.of(parse_arm("fsdp"))[-1].ranks[0].peak_memory_bytes
    assert memory.rest_bytes == peak - memory.held_bytes - memory.activation_bytes


def test_memory_of_results_that_attest_none_is_none():
    assert memory_of(measured(OF_SHARDS), parse_arm("ddp")) is None


def test_memory_of_an_arm_on_a_gpu_is_part_of_the_peak_there():
    launches = [
        msgspec.structs.replace(
            launch, ranks=[msgspec.structs.replace(r, peak_device_memory_bytes=9 << 20) for r in launch.ranks]
        )
        for launch in RUN.launches
    ]
    memory = memory_of(msgspec.structs.replace(RUN, launches=launches), parse_arm("ddp"))
    assert memory.rest_bytes == (9 << 20) - memory.held_bytes - memory.activation_bytes


@pytest.mark.parametrize("arms", [["none", "zero"], ["zero"], ["fsdp", "zero"]])
def test_state_per_byte_is_the_same_from_every_arm(arms):
    assert state_per_byte(attesting(measured(dict.fromkeys(arms, 5.0)))) == pytest.approx(ADAM)


def test_state_per_byte_counts_the_state_of_replicas_once():
    """Two ranks that are replicas hold the whole state each."""
    run = measured({"fsdp:replicate=2": 5.0})
    assert state_per_byte(attesting(run, optimizer_state_bytes=int(ADAM * WHOLE))) == pytest.approx(ADAM)


def test_predict_memory_tells_of_other_numbers_of_ranks():
    parameters = [held.parameter_bytes for held in predict_memory(RUN, parse_arm("fsdp"), 4)]
    assert parameters == [4 * 251 * 401] * 3 + [4 * 248 * 401]
    assert [held.parameter_bytes for held in predict_memory(RUN, parse_arm("ddp"), 3)] == [WHOLE] * 3


def test_predict_memory_repeats_the_shards_of_each_replica():
    alone = predict_memory(RUN, parse_arm("fsdp"), 2)
    assert predict_memory(RUN, parse_arm("fsdp:replicate=2"), 4) == alone * 2


def test_predict_memory_knows_nothing_without_the_parameters():
    assert predict_memory(measured(OF_SHARDS), parse_arm("fsdp")) == []


# ---- arms that do not fit ----

GIB = 1 << 30


def unfit(arm="ddp", **changes):
    fields = {"round": 1, "stage": "warm-up", "limit_bytes": GIB, "limit": "address space"}
    return Unfit(arm=parse_arm(arm), **fields | changes)


def with_peaks(run, **peaks):
    launches = [
        msgspec.structs.replace(
            launch,
            ranks=[
                msgspec.structs.replace(rank, attestation=rank.attestation | peaks) for rank in launch.ranks
            ],
        )
        for launch in run.launches
    ]
    return msgspec.structs.replace(run, launches=launches)


OF_FSDP = with_peaks(attesting(measured({"fsdp": 8.0})), peak_address_bytes=GIB - 10, peak_gpu_bytes=GIB - 10)
BARE = msgspec.structs.replace(OF_FSDP, bare=[unfit("fsdp", stage="parity")])
"""A run of the same arm without a proof, as every arm is before it is left out."""
SAVED = WHOLE - 4 * 501 * 401
"""What fsdp saves of the parameters on the rank that holds the most."""


@pytest.mark.parametrize("limit", ["address space", "GPU"])
def test_an_arm_needs_the_peak_of_another_and_what_it_holds_beyond_it(limit):
    found = does_not_fit(BARE, unfit(limit=limit))
    assert found.needs_bytes == GIB - 10 + SAVED * (1 + 1 + ADAM)


def test_an_arm_needs_no_state_but_float64_in_its_proof():
    """Both had one, or neither, because a proof has a peak of its own."""
    assert does_not_fit(OF_FSDP, unfit(stage="parity")).needs_bytes == GIB - 10 + 2 * 2 * SAVED
    assert does_not_fit(BARE, unfit(stage="parity")).needs_bytes is None
    assert does_not_fit(OF_FSDP, unfit()).needs_bytes is None


def test_ranks_of_a_host_share_its_memory():
    peak = sum(rank.whole_peak_memory_bytes for rank in OF_FSDP.launches[-1].ranks)
    found = does_not_fit(BARE, unfit(limit="control group", limit_bytes=peak))
    assert found.needs_bytes == peak + 2 * SAVED * (1 + 1 + ADAM)


def test_need_of_one_process_is_not_computed_from_ranks():
    assert does_not_fit(BARE, unfit("single", limit="control group")).needs_bytes is None


def test_a_need_below_the_limit_is_not_shown_as_one():
    found = does_not_fit(BARE, unfit(limit_bytes=2 * GIB, needed_bytes=2 * GIB + 1))
    assert (found.needs_bytes, found.least_bytes) == (None, 2 * GIB + 1)


def test_nothing_is_computed_beside_others_or_from_the_control_of_a_proof():
    assert does_not_fit(BARE, unfit(beside_others=True)).needs_bytes is None
    control = with_peaks(attesting(measured({"none": 4.0})), peak_address_bytes=GIB)
    assert does_not_fit(control, unfit("ddp", stage="parity")).needs_bytes is None


def test_scale_memory_multiplies_what_ranks_hold():
    (row,) = scale_memory(OF_FSDP, 4)
    assert (row.ranks, row.whole_bytes) == (2, 4 * row.measured_bytes)
    rows = scale_memory(msgspec.structs.replace(OF_FSDP, unfit=[unfit()]), 4, [1, 2])
    assert [(row.arm, row.ranks, row.measured_bytes is None) for row in rows] == [
        ("fsdp", 1, False),
        ("fsdp", 2, False),
        ("ddp", 1, True),
        ("ddp", 2, True),
    ]
