"""A later launch is proven by its hashes, and what trains otherwise is found by them."""

from __future__ import annotations

import dataclasses

import pytest

from compare.analysis.parity import check_gates, with_passes
from compare.schema.arms import parse_arm
from tests.proof.case import WORKLOADS, Case
from tests.unit.factories import a_launch

RIGHT = Case(WORKLOADS / "right_models.py", "plain", "manual")


def fingerprints(verdict):
    return [rank.fingerprint for rank in verdict.ranks]


@pytest.fixture(scope="module")
def first(prove):
    """Launch the right training once, which is proven before it."""
    verdict = prove(RIGHT)
    assert all(rank.parity for rank in verdict.ranks)
    return verdict


def later(prove, first, mutation=""):
    """Launch it once more, and judge it by the first one."""
    verdict = prove(dataclasses.replace(RIGHT, mutation=mutation), fingerprints(first))
    ranks = with_passes(verdict.ranks, [a_launch("manual", ranks=first.ranks)])
    return dataclasses.replace(verdict, gates=check_gates(parse_arm("manual"), ranks))


def test_launch_that_repeats_a_proven_one_takes_no_steps_for_it(prove, first):
    verdict = later(prove, first)
    assert fingerprints(verdict) == fingerprints(first)
    assert [rank.parity for rank in verdict.ranks] == [[], []]
    assert verdict.outcome == "passed", verdict.words


@pytest.mark.parametrize(
    "mutation",
    ["a_sum_from_step_25_on", "no_reduction", "one_rank_is_left_out", "all_ranks_train_the_first_shard"],
)
def test_fault_in_a_later_launch_alone_is_found(prove, first, mutation):
    verdict = later(prove, first, mutation)
    assert all(rank.parity for rank in verdict.ranks), "it differs, so it is proven after its training"
    assert verdict.outcome == "failed", verdict.words


def test_step_that_no_proof_takes_shows_in_the_hash_of_a_later_launch(prove, first):
    """One wrong step between those of the proof and the end is seen by no gate."""
    verdict = later(prove, first, "a_sum_in_step_25_alone")
    assert verdict.outcome == "passed"
    assert fingerprints(verdict) != fingerprints(first)
