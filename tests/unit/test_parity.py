"""Parity: which launches are no comparison, and which ranks are to blame."""

from __future__ import annotations

import pytest

from compare.arms import Arm
from compare.errors import ParityError
from compare.parity import check_launch
from tests.unit.factories import INITIAL, TRAINED, a_rank

OTHER = "5" * 64
DDP, CONTROL = Arm("ddp", {"bucket_cap_mb": 1.0}), Arm("none")


def ranks(*hashes):
    return [
        a_rank(rank, host=f"host{rank}", initial_hash=initial, final_hash=final)
        for rank, (initial, final) in enumerate(hashes)
    ]


def refusal(arm, *hashes):
    with pytest.raises(ParityError) as caught:
        check_launch(arm, ranks(*hashes))
    assert caught.value.exit_code == 8
    assert arm.label in caught.value.what
    assert caught.value.found
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("arm", [DDP, CONTROL], ids=lambda arm: arm.label)
def test_ranks_that_trained_one_model_pass(arm, world_size):
    check_launch(arm, ranks(*[(INITIAL, TRAINED)] * world_size))


def test_the_ranks_of_the_control_train_apart():
    check_launch(CONTROL, ranks((INITIAL, TRAINED), (INITIAL, OTHER)))


def test_ranks_that_ended_apart_are_refused():
    error = refusal(DDP, (INITIAL, TRAINED), (INITIAL, TRAINED), (INITIAL, OTHER))
    assert "different models" in error.what
    assert f"rank 2 {OTHER[:12]}" in error.found
    assert f"rank 0 {TRAINED[:12]}" in error.found


@pytest.mark.parametrize("arm", [DDP, CONTROL], ids=lambda arm: arm.label)
def test_ranks_that_started_apart_are_refused_even_in_the_control(arm):
    error = refusal(arm, (INITIAL, TRAINED), (OTHER, TRAINED))
    assert "start" in error.what
    assert f"rank 1 {OTHER[:12]}" in error.found


@pytest.mark.parametrize("arm", [DDP, CONTROL], ids=lambda arm: arm.label)
def test_a_rank_that_never_trained_is_refused_by_its_name(arm):
    error = refusal(arm, (INITIAL, TRAINED), (INITIAL, INITIAL))
    assert "rank 1 on host1 never trained" in error.what


def test_ranks_that_all_stood_still_are_refused_although_they_agree():
    assert "never trained" in refusal(DDP, (INITIAL, INITIAL), (INITIAL, INITIAL)).what
