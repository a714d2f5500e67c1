"""Test that each planted fault breaks exactly the right promises."""

from __future__ import annotations

import pytest

from tests.contract import promises
from tests.contract.plan import Launch, Meeting, Member

pytestmark = pytest.mark.faults

ARM = "manual:mode=flat"
BUCKETS = "manual:mode=overlap:bucket_mb=0.01"

GRADIENTS = {"gradients_are_those_of_the_full_batch"}
PASSES = {"twenty_steps_of_three_passes_equal_a_single_process"}
SGD = PASSES | {
    "twenty_steps_of_sgd_equal_a_single_process",
    "twenty_float32_steps_equal_a_single_process",
}
ADAM = {"twenty_steps_of_adam_equal_a_single_process"}
TRAINING = SGD | ADAM
AGREEMENT = {"gradients_are_bitwise_equal_on_all_ranks", "all_ranks_end_bitwise_equal"}

REPLICAS = {
    ARM: set(),
    "NeverSyncs": GRADIENTS
    | TRAINING
    | AGREEMENT
    | {"every_rank_starts_from_rank_0", "attestation_repeats_the_options_that_were_given"},
    "Sums": GRADIENTS | TRAINING,
    "SkipsAParameter": GRADIENTS | TRAINING | AGREEMENT,
    "NeverSteps": TRAINING | {"parameters_move", "bytes_held_are_those_of_the_declaration"},
    "Unsharded": GRADIENTS | TRAINING | {"shards_are_the_parts_of_the_data"},
    "StartsApart": GRADIENTS | TRAINING | {"every_rank_starts_from_rank_0", "all_ranks_end_bitwise_equal"},
    "Accumulates": TRAINING,
    "StepsTheOptimizerFirst": ADAM,
    "TakesOnePassOfAll": PASSES,
    "ReportsAPhaseTooMany": {"learn_reports_the_phases_that_are_declared"},
    "CyclesByRank": {"the_cycle_is_a_number_of_steps"},
    "ReturnsAnOldModel": TRAINING | {"parameters_move"},
    "HoldsMoreThanItSays": {"bytes_held_are_those_of_the_declaration"},
    "HidesItsSync": {"without_a_sync_phase_backward_leaves_nothing_to_sync"},
    "ReordersItsPhases": {"phases_are_in_order_and_end_with_the_step"},
    "WrapsItsModel": {"model_is_the_plain_one"},
    "IgnoresItsBucketSize": {
        "attestation_repeats_the_options_that_were_given",
        "small_buckets_make_several_messages",
    },
    "ForgetsAMessage": {"messages_hold_every_gradient_once"},
    "LosesAShard": TRAINING | {"bytes_held_are_those_of_the_declaration"},
    "KeepsAStaleShard": TRAINING,
    "SkipsAMicrobatch": GRADIENTS | TRAINING,
    "AttestsObjects": {
        "attestation_is_json_and_names_the_reduce_op",
        "attestation_repeats_the_options_that_were_given",
    },
}

LOCAL = {"NeverAverages": {"ranks_train_apart_and_are_averaged"}}

GROUPS = {
    "TorchGroup": set(),
    "SharesALocalRank": {"ranks_are_numbered_and_placed"},
    "LeaksThroughItsBarrier": {"no_rank_leaves_a_barrier_before_the_last_has_come"},
    "RoundsItsSums": {"sums_are_exact"},
    "StartsNothing": {"started_sums_are_exact"},
    "KnowsOneRoot": {"broadcasts_come_from_the_root"},
    "HasNoTransport": {"attestation_is_json_and_names_the_transport", "only_ranks_together_have_a_transport"},
    "AttestsAnotherVersion": {"versions_are_those_of_what_is_loaded"},
}


ARM_OF = {
    "IgnoresItsBucketSize": BUCKETS,
    "ForgetsAMessage": BUCKETS,
    "LosesAShard": "fsdp",
    "KeepsAStaleShard": "zero",
    "SkipsAMicrobatch": "pipeline",
    "NeverAverages": "localsgd:period=5",
}


def member(name: str) -> Member:
    return Member(ARM_OF.get(name, ARM), "" if name == ARM else name)


@pytest.fixture(scope="module")
def broken(carry_out):
    groups = tuple(name for name in GROUPS if name != "TorchGroup")
    meeting = Meeting(ARM, tuple(member(name) for name in [*REPLICAS, *LOCAL]), broken_groups=groups)
    return carry_out(Launch("torchrun", (meeting,), refusals=True), 2)


@pytest.mark.parametrize("name", REPLICAS)
def test_a_broken_strategy_breaks_these_promises_and_no_others(broken, name):
    assert _broken(promises.OF_A_REPLICA, broken.replicas(name)) == REPLICAS[name]


@pytest.mark.parametrize("name", LOCAL)
def test_a_broken_local_training_breaks_these_promises_and_no_others(broken, name):
    assert _broken(promises.OF_LOCAL_TRAINING, broken.replicas(name)) == LOCAL[name]


@pytest.mark.parametrize("name", GROUPS)
def test_a_broken_group_breaks_these_promises_and_no_others(broken, name):
    assert _broken(promises.OF_A_GROUP, broken.groups(name)) == GROUPS[name]


def test_nccl_is_refused_on_the_cpu(broken):
    for rank in broken.ranks:
        assert list(rank.refusals) == ["NCCL on the CPU"]
        assert rank.refusals["NCCL on the CPU"].startswith("BackendError: NCCL needs CUDA")


def test_every_promise_has_been_broken_by_something():
    promised = {promise.__name__ for promise in promises.OF_A_REPLICA + promises.OF_A_GROUP}
    assert promised - set().union(*REPLICAS.values(), *GROUPS.values()) == {
        "rounded_sums_are_bitwise_equal_on_all_ranks"  # two summands have but one order
    }


def _broken(promised, records) -> set[str]:
    found = set()
    for promise in promised:
        try:
            promise(records)
        except (AssertionError, KeyError):
            found.add(promise.__name__)
    return found
