"""Check that a user's own loader gives every rank samples of its own."""

from __future__ import annotations

from collections.abc import Iterator

from compare.analysis.passes import pass_of
from compare.schema.arms import Arm
from compare.schema.results import Gate, RankResult

_MOSTLY = 0.5
"""Share of a rank's samples that duplicates in the data set cannot explain if another rank has them too."""
_SHARD = "Use torch's DistributedSampler with num_replicas and rank."


def check_samples(arm: Arm, ranks: list[RankResult]) -> Iterator[Gate]:
    """Yield the gate ``samples`` of one launch; nothing if no float64 pass used a loader of the user's own.

    A failed gate describes the first fault. The order may depend on the rank, ranks may share samples, or
    their epochs may differ in length. The epochs of all ranks may also miss or repeat samples.
    """
    passes = {r.rank: taken for r in ranks if (taken := pass_of(r, "float64")) and taken.first_batches}
    if 0 not in passes or len(passes[0].first_batches) < len(ranks):
        return
    expected = passes[0].first_batches
    what = f"{arm.label}: the ranks do not share the samples as one process would see them."
    batch = ranks[0].attestation["batch"]
    whole, there = batch.get("samples_of_an_epoch"), batch["training_samples"]
    lengths = {rank.rank: rank.attestation["batch"].get("samples_of_an_epoch") for rank in ranks}
    known = {rank: length for rank, length in lengths.items() if length is not None}
    least, most = (choose(known, key=known.__getitem__, default=0) for choose in (min, max))
    other = [rank for rank, taken in passes.items() if taken.first_batches[rank] != expected[rank]]
    same = [(expected.index(one), rank) for rank, one in enumerate(expected) if one in expected[:rank]]
    if other:
        found = (
            f"loader({other[0]}, {len(ranks)}, …) yields other samples on rank {other[0]} than on rank 0. "
            "Its order must depend on its arguments and on torch's seed alone."
        )
    elif same:
        found = f"Ranks {same[0][0]} and {same[0][1]} begin with the same batch. {_SHARD}"
    elif passes[0].shared_samples >= _MOSTLY:
        found = f"{passes[0].shared_samples:.0%} of a rank's samples at the start are another's. {_SHARD}"
    elif known and known[most] - known[least] > batch["samples"]:
        found = (
            f"An epoch has {known[least]} samples on rank {least} and {known[most]} on rank {most}, so their "
            f"epochs drift apart. {_SHARD}"
        )
    elif known and sum(known.values()) + len(ranks) * batch["samples"] < there and len(known) == len(ranks):
        found = (
            f"An epoch of all ranks has {sum(known.values())} samples, of {there} in all: the others never "
            "take part. Hand over as data what the loader yields."
        )
    elif whole is not None and len(ranks) > 1 and whole * len(ranks) > there + batch["samples"] * len(ranks):
        found = f"An epoch of every rank has {whole} samples, of {there} in all. {_SHARD}"
    else:
        yield Gate(name="samples", outcome="passed")
        return
    yield Gate(name="samples", outcome="failed", what=what, found=found, remedy="Fix your loader.")
