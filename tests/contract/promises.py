"""The promises of every backend, as assertions over all ranks' records."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from backends import BACKENDS
from compare.schema.arms import parse_arm

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.records import GroupRecord, ReplicaRecord, Training

    Groups = list[GroupRecord]
    Replicas = list[ReplicaRecord]

FLOAT64 = 1e-12
FLOAT32 = 1e-6
ROUNDED = 0.03
"""Limit for rounding arms after 20 steps: Adam reached 0.013, SGD 0.0003."""
LOW_RANK = 0.35
"""Limit for PowerSGD of rank 1, which sends a twelfth: 0.26 seen."""
PHASES = ("forward", "backward", "sync", "step")


# ---------------------------------------------------------------------------------------------- replicas


def shards_are_the_parts_of_the_data(ranks: Replicas) -> None:
    """Check that equally many ranks train on every part of the data."""
    count = ranks[0].shard[1]
    expected = [(index, count) for index in range(count) for _ in range(len(ranks) // count)]
    assert sorted(r.shard for r in ranks) == expected


def the_cycle_is_a_number_of_steps(ranks: Replicas) -> None:
    for r in ranks:
        assert r.cycle >= 1
        assert r.cycle == ranks[0].cycle


def bytes_held_are_those_of_the_declaration(ranks: Replicas) -> None:
    """Check that sharded parts add up to one model a replica, and that ranks hold others whole."""
    replicas = int(parse_arm(ranks[0].arm).options.get("replicate", 1))
    shards = BACKENDS[parse_arm(ranks[0].arm).backend].shards
    in_shards = dict.fromkeys(("parameter_bytes", "gradient_bytes"), shards in {"parameters", "layers"})
    in_shards["optimizer_state_bytes"] = shards != "nothing"
    for part, sharded in in_shards.items():
        held = [r.held[part] for r in ranks]
        whole = ranks[0].held_whole[part]
        assert sum(held) == replicas * whole if sharded else held == [whole] * len(ranks), part


def model_is_the_plain_one(ranks: Replicas) -> None:
    for r in ranks:
        assert r.names == r.plain_names


def phases_are_in_order_and_end_with_the_step(ranks: Replicas) -> None:
    for r in ranks:
        assert r.phases == [phase for phase in PHASES if phase in r.phases]
        assert r.phases[-1] == "step"
        assert r.phases == ranks[0].phases


def learn_reports_the_phases_that_are_declared(ranks: Replicas) -> None:
    for r in ranks:
        assert r.reported == [phase for phase in ("forward", "backward") if phase in r.phases]


def without_a_sync_phase_backward_leaves_nothing_to_sync(ranks: Replicas) -> None:
    for r in ranks:
        if "sync" not in r.phases:
            assert r.gradients_before_sync == r.gradients


def parameters_move(ranks: Replicas) -> None:
    for r in ranks:
        for name, training in r.trainings.items():
            assert training.ended != training.started, f"rank {r.rank} never trained: {name}"


def attestation_is_json_and_names_the_reduce_op(ranks: Replicas) -> None:
    for r in ranks:
        assert not r.attestation_error
        assert r.attestation["reduce_op"]
        assert r.attestation == ranks[0].attestation


def attestation_repeats_the_options_that_were_given(ranks: Replicas) -> None:
    arm = parse_arm(ranks[0].arm)
    for r in ranks:
        facts = r.group_attestation | r.attestation
        for name, value in arm.given.items():
            if name == "bucket_cap_mb":
                assert facts["bucket_cap_bytes"] == int(float(value) * 2**20)
            elif name == "library":  # its own name, "Open MPI v4.1.8"
                assert facts["library"].replace(" ", "").lower().startswith(str(value))
            elif name == "bucket_mb":
                cap = max(float(value) * 2**20, r.largest_gradient_bytes)
                assert max(facts["message_bytes"]) <= cap
            else:
                assert facts[name] == value


def messages_hold_every_gradient_once(ranks: Replicas) -> None:
    """Check the attested bytes, which are those of a float64 replica."""
    for r in ranks:
        for key in ("message_bytes", "bucket_bytes"):
            if key in r.attestation:
                assert sum(r.attestation[key]) == r.gradient_bytes


def small_buckets_make_several_messages(ranks: Replicas) -> None:
    given = parse_arm(ranks[0].arm).given
    for r in ranks:
        if "bucket_mb" in given or "bucket_cap_mb" in given:
            assert len(r.attestation.get("message_bytes") or r.attestation["bucket_bytes"]) > 1


def every_rank_starts_from_rank_0(ranks: Replicas) -> None:
    assert len({r.built for r in ranks}) == len(ranks), "the ranks must bring different models along"
    assert {r.started for r in ranks} == {ranks[0].built}
    for name in ranks[0].trainings:
        assert len({r.trainings[name].started for r in ranks}) == 1, name


def _within(name: str, error: Callable[[ReplicaRecord], float], limit: float = FLOAT64) -> Callable:
    """Return the promise that no rank has a larger error."""

    def promise(ranks: Replicas) -> None:
        for r in ranks:
            assert error(r) <= limit, f"rank {r.rank}"

    promise.__name__ = name
    return promise


def _trained_within(name: str, error: Callable[[Training], float]) -> Callable:
    """Return the promise that no training of a rank has a larger error than its dtype's."""

    def promise(ranks: Replicas) -> None:
        for r in ranks:
            for kind, training in r.trainings.items():
                tolerance = FLOAT32 if "float32" in kind else FLOAT64
                assert error(training) <= tolerance, f"rank {r.rank}: {kind}"

    promise.__name__ = name
    return promise


def gradients_are_bitwise_equal_on_all_ranks(ranks: Replicas) -> None:
    assert len({r.gradients for r in ranks}) == 1


def twenty_steps_of_three_passes_equal_a_single_process(ranks: Replicas) -> None:
    if not parse_arm(ranks[0].arm).never_accumulates:
        for r in ranks:
            assert r.trainings["three passes float64"].error <= FLOAT64, f"rank {r.rank}"


def all_ranks_end_bitwise_equal(ranks: Replicas) -> None:
    for name in ranks[0].trainings:
        assert len({r.trainings[name].ended for r in ranks}) == 1, name


def gradients_are_as_close_to_the_mean_as_is_stated(ranks: Replicas) -> None:
    stated = parse_arm(ranks[0].arm).gradient_tolerance
    assert stated > 0
    for r in ranks:
        assert r.gradient_error <= stated, f"rank {r.rank}"


def twenty_rounded_steps_stay_close_to_a_single_process(ranks: Replicas) -> None:
    tolerance = ROUNDED if parse_arm(ranks[0].arm).gradient_tolerance < 1 else LOW_RANK
    for r in ranks:
        for name, training in r.trainings.items():
            assert training.error <= tolerance, f"rank {r.rank}: {name}"


def what_is_called_lossy_is(ranks: Replicas) -> None:
    for r in ranks:
        if len(ranks) > 1:  # Horovod sends nothing if there is only one rank
            assert r.trainings["sgd float64"].error > FLOAT64, f"rank {r.rank}"


def steps_of_sgd_at_period_1_equal_a_single_process(ranks: Replicas) -> None:
    if parse_arm(ranks[0].arm).same_training:
        for r in ranks:
            assert r.trainings["sgd float64"].error <= FLOAT64, f"rank {r.rank}"


def every_rank_keeps_its_own_start(ranks: Replicas) -> None:
    assert len({r.built for r in ranks}) == len(ranks), "the ranks must bring different models along"
    for r in ranks:
        assert r.started == r.built


def the_ranks_end_apart(ranks: Replicas) -> None:
    for name in ranks[0].trainings:
        assert len({r.trainings[name].ended for r in ranks}) == len(ranks), name


_EVERY: tuple[Callable[[Replicas], None], ...] = (
    shards_are_the_parts_of_the_data,
    the_cycle_is_a_number_of_steps,
    model_is_the_plain_one,
    phases_are_in_order_and_end_with_the_step,
    learn_reports_the_phases_that_are_declared,
    without_a_sync_phase_backward_leaves_nothing_to_sync,
    bytes_held_are_those_of_the_declaration,
    parameters_move,
    attestation_is_json_and_names_the_reduce_op,
    attestation_repeats_the_options_that_were_given,
    messages_hold_every_gradient_once,
    small_buckets_make_several_messages,
)

OF_A_REPLICA = (
    *_EVERY,
    every_rank_starts_from_rank_0,
    _within("gradients_are_those_of_the_full_batch", lambda r: r.gradient_error),
    gradients_are_bitwise_equal_on_all_ranks,
    _within("twenty_steps_of_sgd_equal_a_single_process", lambda r: r.trainings["sgd float64"].error),
    _within("twenty_steps_of_adam_equal_a_single_process", lambda r: r.trainings["adam float64"].error),
    _within(
        "twenty_float32_steps_equal_a_single_process", lambda r: r.trainings["sgd float32"].error, FLOAT32
    ),
    twenty_steps_of_three_passes_equal_a_single_process,
    all_ranks_end_bitwise_equal,
)

OF_A_LOSSY_REPLICA = (
    *_EVERY,
    every_rank_starts_from_rank_0,
    gradients_are_as_close_to_the_mean_as_is_stated,
    gradients_are_bitwise_equal_on_all_ranks,
    twenty_rounded_steps_stay_close_to_a_single_process,
    what_is_called_lossy_is,
    all_ranks_end_bitwise_equal,
)

OF_LOCAL_TRAINING = (
    *_EVERY,
    every_rank_starts_from_rank_0,
    _within("gradients_are_those_of_its_own_shard", lambda r: r.gradient_error_alone),
    _trained_within("ranks_train_apart_and_are_averaged", lambda training: training.error_apart),
    steps_of_sgd_at_period_1_equal_a_single_process,
    all_ranks_end_bitwise_equal,
)

OF_THE_CONTROL = (
    *_EVERY,
    every_rank_keeps_its_own_start,
    _within("gradients_are_those_of_its_own_shard", lambda r: r.gradient_error_alone),
    _trained_within("every_rank_trains_as_if_it_were_alone", lambda training: training.error_alone),
    the_ranks_end_apart,
)


# ------------------------------------------------------------------------------------------------ groups


def ranks_are_numbered_and_placed(ranks: Groups) -> None:
    everyone = list(range(len(ranks)))
    assert [r.rank for r in ranks] == everyone
    assert {r.world_size for r in ranks} == {len(ranks)}
    # All ranks are on this one machine.
    assert sorted(r.placement["local_rank"] for r in ranks) == everyone
    assert {r.placement["local_world_size"] for r in ranks} == {len(ranks)}
    assert len({r.placement["host"] for r in ranks}) == 1
    assert {r.device for r in ranks} == {"cpu"}


def no_rank_leaves_a_barrier_before_the_last_has_come(ranks: Groups) -> None:
    for laps in zip(*(r.laps for r in ranks), strict=True):
        came = max(lap.arrived_ns for lap in laps)
        for rank, lap in enumerate(laps):
            early = (came - lap.left_ns) / 1e9
            assert early <= 0, f"rank {rank} left {early:.3f} s before rank {lap.late} came"


def attestation_is_json_and_names_the_transport(ranks: Groups) -> None:
    for r in ranks:
        assert not r.attestation_error
        assert r.attestation["library"]
        assert r.attestation["transport"]
        assert r.attestation["transport"] == ranks[0].attestation["transport"]


def versions_are_those_of_what_is_loaded(ranks: Groups) -> None:
    for r in ranks:
        versions = dict(r.attestation["versions"])
        assert versions or not parse_arm(r.arm).traits.communicates
        if "mpi4py" in versions:
            name = {"openmpi": "Open MPI", "mpich": "MPICH"}[parse_arm(r.arm).options["library"]]
            assert r.attestation["library"] == f"{name} {versions.pop(name)}"
        assert versions == {library: version(library) for library in versions}


def sums_are_exact(ranks: Groups) -> None:
    _require_right(ranks, "all_reduce_", cases=10)


def started_sums_are_exact(ranks: Groups) -> None:
    _require_right(ranks, "all_reduce_start_", cases=10)


def rounded_sums_are_bitwise_equal_on_all_ranks(ranks: Groups) -> None:
    assert len({r.sum_hash for r in ranks}) == 1


def broadcasts_come_from_the_root(ranks: Groups) -> None:
    _require_right(ranks, "broadcast_", cases=15 if len(ranks) == 1 else 30)


def only_ranks_together_have_a_transport(ranks: Groups) -> None:
    for r in ranks:
        allowed = {"shared memory", "TCP over lo"} if len(ranks) > 1 else {"none (one rank)"}
        assert r.attestation["transport"] in allowed


def collectives_are_refused(ranks: Groups) -> None:
    for r in ranks:
        assert set(r.refused) == {"all_reduce_", "all_reduce_start_", "broadcast_"}
        for message in r.refused.values():
            assert message.startswith("BackendError: this group has no collectives")


def nothing_is_attested_but_nothing(ranks: Groups) -> None:
    for r in ranks:
        assert r.attestation == {"library": "none", "transport": "none", "versions": {}}


def _require_right(ranks: Groups, operation: str, *, cases: int) -> None:
    for r in ranks:
        assert len(r.right[operation]) == cases
        assert all(r.right[operation].values()), f"rank {r.rank}"


_EVERY_GROUP: tuple[Callable[[Groups], None], ...] = (
    ranks_are_numbered_and_placed,
    no_rank_leaves_a_barrier_before_the_last_has_come,
    attestation_is_json_and_names_the_transport,
    versions_are_those_of_what_is_loaded,
)

OF_A_GROUP = (
    *_EVERY_GROUP,
    sums_are_exact,
    started_sums_are_exact,
    rounded_sums_are_bitwise_equal_on_all_ranks,
    broadcasts_come_from_the_root,
    only_ranks_together_have_a_transport,
)

OF_NO_GROUP = (*_EVERY_GROUP, collectives_are_refused, nothing_is_attested_but_nothing)
