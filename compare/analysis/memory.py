"""Compute the memory that a rank of an arm holds, beside what ranks attest.

Parameters, gradients and optimizer state follow by arithmetic from the model's parameters, from what the arm
declares that its ranks divide, and from the number of ranks. Activations, and what a library keeps beside
these, are only measured.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

import msgspec

from backends import Shards
from compare.schema.arms import Arm
from compare.schema.memory import Limit, ModelParameter, Unfit
from compare.schema.results import RankResult, Run

_FLOAT64_BYTES = 8


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that one rank holds, by kind."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int

    @property
    def whole_bytes(self) -> int:
        """Return the sum of the three kinds."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_state_bytes

    def scaled(self, factor: float) -> Held:
        """Return ``factor`` times these bytes."""
        return Held(**{name: round(getattr(self, name) * factor) for name in Held.__struct_fields__})


class ArmMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of that rank of an arm which holds the most, in bytes."""

    rank: int
    held: Held
    """The rank's parameters and optimizer state between steps, and its gradients after a backward pass."""
    library_bytes: int | None
    """What the library keeps or gathers beside them, such as buckets; None if it cannot be known."""
    activation_bytes: int | None
    """What autograd saves for a backward pass; None if it cannot be known."""
    rest_bytes: int
    """The rest of the rank's peak in training, which belongs to no kind; on a GPU only that of tensors."""
    predicted: Held | None
    """``held`` as arithmetic has it; None if the optimizer's state is not known."""

    @property
    def held_bytes(self) -> int | None:
        """Return the bytes of the model's state with the library's; None if these are not known."""
        return None if self.library_bytes is None else self.held.whole_bytes + self.library_bytes


class ScaledMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the rank with the most would hold of a larger or smaller model, by arithmetic."""

    arm: str
    ranks: int
    held: Held
    whole_bytes: int
    """The sum of the kinds in ``held``."""
    measured_bytes: int | None
    """The same sum as the run measured it, with its own model and ranks; None if it did not."""


class DoesNotFit(msgspec.Struct, frozen=True, kw_only=True):
    """An arm that did not fit into memory."""

    arm: str
    stage: str
    """The stage in which a rank got no more memory, such as ``parity``; empty if it is not known."""
    limit: Limit
    """What is limited."""
    limit_bytes: int
    needs_bytes: int | None
    """About what it needs, by arithmetic from an arm that fits; None if that does not exceed the limit."""
    least_bytes: int | None
    """What a rank had, with what it asked for in vain; None if that does not exceed the limit."""
    beside_others: bool
    """Whether ranks of other arms waited beside it, and took a part of what is limited."""


def memory_of(run: Run, arm: Arm) -> ArmMemory | None:
    """Return the memory of an arm in its last launch; None if that attests none, as in older results."""
    ranks = run.of(arm)[-1].ranks
    if not all("library_bytes" in rank.attestation.get("held", {}) for rank in ranks):
        return None
    rank = max(ranks, key=lambda rank: (_kinds(rank).whole_bytes, -rank.rank))
    kinds, facts = _kinds(rank), rank.attestation["held"]
    on_gpu = rank.peak_device_memory_bytes
    peak = rank.peak_memory_bytes if on_gpu is None else on_gpu
    known = [kinds.whole_bytes, facts["library_bytes"], facts["activation_bytes"]]
    predicted = predict_memory(run, arm)
    return ArmMemory(
        rank=rank.rank,
        held=kinds,
        library_bytes=facts["library_bytes"],
        activation_bytes=facts["activation_bytes"],
        rest_bytes=max(0, peak - sum(filter(None, known))),
        predicted=max(predicted, key=lambda held: held.whole_bytes) if predicted else None,
    )


def predict_memory(run: Run, arm: Arm, ranks: int = 0) -> list[Held]:
    """Return what each rank of an arm would hold, by arithmetic, with another number of ranks if it is given.

    The arm need not have a launch. The list is empty if no launch of the run tells the model's parameters, or
    how large the optimizer's state is, or if the arm cannot have so many ranks.
    """
    parameters = next((launch.ranks[0].parameters for launch in run.launches), [])
    state = state_per_byte(run)
    own = run.of(arm)
    if not parameters or state is None:
        return []
    count = 1 if arm.traits.one_process else ranks or run.config.ranks
    starts: list[int] = []
    if arm.traits.in_layers:
        starts = own[-1].ranks[0].attestation["replica"].get("first_layers", []) if own else []
        if len(starts) != count:
            return []
    # Where replicas hold the same shards (HSDP), they begin anew with each replica.
    replicas = int(arm.options.get("replicate", 1))
    if count % replicas:
        return []
    shards = count // replicas
    return divide_memory(parameters, arm.traits.shards, shards, state, starts) * (count // shards)


def scale_memory(run: Run, scale: float, counts: Sequence[int] = ()) -> list[ScaledMemory]:
    """Return what ranks of every arm would hold if each parameter had ``scale`` times its elements.

    ``counts`` are numbers of ranks; without them it is the run's own. Arms that did not fit are included.
    An arm is left out where its memory cannot be computed.
    """
    rows = []
    for arm in [*run.config.arms, *(unfit.arm for unfit in run.unfit)]:
        measured = memory_of(run, arm) if run.of(arm) else None
        for count in counts or [run.config.ranks]:
            if ranks := predict_memory(run, arm, count):
                held = max(ranks, key=lambda one: one.whole_bytes).scaled(scale)
                rows.append(
                    ScaledMemory(
                        arm=arm.label,
                        ranks=len(ranks),
                        held=held,
                        whole_bytes=held.whole_bytes,
                        measured_bytes=measured.held.whole_bytes if measured else None,
                    )
                )
    return rows


def timed_bare(run: Run) -> list[DoesNotFit]:
    """Return what the arms that were timed in bare launches would need with a proof."""
    return [does_not_fit(run, bare) for bare in run.bare if run.of(bare.arm)]


def does_not_fit(run: Run, unfit: Unfit) -> DoesNotFit:
    """Return what an arm that did not fit would need, by arithmetic from an arm that did.

    The other arm's peak of what is limited is measured. To it comes what the one holds beyond the other. In
    the proof that is without the optimizer's state, and in float64. Both must have had a proof, or neither.
    """
    had_proof = unfit in run.bare or unfit.stage == "parity"
    others = [
        arm
        for arm in run.config.arms
        if run.of(arm) and not arm.traits.one_process and not unfit.beside_others
        # The control never has a proof.
        if (arm.traits.synchronises and not run.is_bare(arm)) is had_proof
    ]
    needs = next(filter(None, (_need(run, unfit, other) for other in others)), None)
    return DoesNotFit(
        arm=unfit.arm.label,
        stage=unfit.stage,
        limit=unfit.limit,
        limit_bytes=unfit.limit_bytes,
        needs_bytes=needs if needs and needs > unfit.limit_bytes else None,
        least_bytes=unfit.needed_bytes if (unfit.needed_bytes or 0) > unfit.limit_bytes else None,
        beside_others=unfit.beside_others,
    )


def _need(run: Run, unfit: Unfit, other: Arm) -> int | None:
    """Return what an arm needs of what is limited, from the peak of another; None if that is not known."""
    if unfit.arm.traits.one_process:  # it does not have a rank for each rank of the other
        return None
    ranks = run.of(other)[-1].ranks
    name = {"address space": "peak_address_bytes", "GPU": "peak_gpu_bytes"}.get(unfit.limit)
    own, base = predict_memory(run, unfit.arm), predict_memory(run, other)
    if not own or not base or (name and not all(name in rank.attestation for rank in ranks)):
        return None
    difference = _most(run, unfit, own) - _most(run, unfit, base)
    if name:
        return max(int(rank.attestation[name]) for rank in ranks) + difference
    by_host = Counter[str]()
    for rank in ranks:
        by_host[rank.host] += rank.whole_peak_memory_bytes + difference
    return max(by_host.values())


def _most(run: Run, unfit: Unfit, ranks: Sequence[Held]) -> int:
    """Return the most that one of these ranks holds in the stage in which an arm did not fit."""
    if unfit.stage != "parity":
        return max(held.whole_bytes for held in ranks)
    one = next(launch.ranks[0].parameters[0] for launch in run.launches)
    widening = _FLOAT64_BYTES * max(1, math.prod(one.shape)) / max(1, one.bytes)
    return round(widening * max(held.parameter_bytes + held.gradient_bytes for held in ranks))


def state_per_byte(run: Run) -> float | None:
    """Return the bytes of the optimizer's state for each byte of trained parameters; None if not known.

    They are those of an arm that divides nothing, such as the control, or the sum over the ranks of another,
    where each replica of shards (HSDP) holds them once.
    """
    launches = [(arm, run.of(arm)[-1]) for arm in run.config.arms if run.of(arm)]
    for arm, launch in sorted(launches, key=lambda pair: pair[0].traits.shards != "nothing"):
        ranks = launch.ranks[:1] if arm.traits.shards == "nothing" else launch.ranks
        trained = sum(one.bytes for one in launch.ranks[0].parameters if one.trained)
        if trained and all("held" in rank.attestation for rank in ranks):
            replicas = int(arm.options.get("replicate", 1))
            return sum(_kinds(rank).optimizer_state_bytes for rank in ranks) / trained / replicas
    return None


def divide_memory(
    parameters: Sequence[ModelParameter],
    shards: Shards,
    ranks: int,
    state_bytes: float,
    first_layers: Sequence[int] = (),
) -> list[Held]:
    """Return what each of so many ranks holds of a model.

    Args:
        parameters: the parameters of the whole model, in order.
        shards: what the ranks divide among each other.
        ranks: the number of ranks.
        state_bytes: bytes of the optimizer's state for each byte of trained parameters.
        first_layers: the index of each rank's first layer, where ranks divide the layers.
    """
    owners = _owners(parameters, shards, ranks, first_layers)
    divides_all = shards in {"parameters", "layers"}
    held = []
    for rank in range(ranks):
        own = [one.bytes * share for one, share in zip(parameters, owners[rank], strict=True)]
        kept = own if divides_all else [one.bytes for one in parameters]
        held.append(
            Held(
                parameter_bytes=round(sum(kept)),
                gradient_bytes=round(_trained(parameters, kept)),
                optimizer_state_bytes=round(_trained(parameters, own) * state_bytes),
            )
        )
    return held


def _trained(parameters: Sequence[ModelParameter], sizes: Sequence[float]) -> float:
    """Return the sum of those sizes whose parameters are trained."""
    return sum(size for one, size in zip(parameters, sizes, strict=True) if one.trained)


def _owners(
    parameters: Sequence[ModelParameter], shards: Shards, ranks: int, first_layers: Sequence[int]
) -> list[list[float]]:
    """Return for each rank which share of each parameter it holds, or holds the state of.

    ZeroRedundancyOptimizer gives whole parameters, the largest first, to the rank that has the least so far.
    ``fully_shard`` cuts each parameter along its first dimension as ``torch.chunk`` does, so a last rank may
    have less, or nothing.
    """
    if shards == "optimizer state":
        owner, sizes = dict[int, int](), [0] * ranks
        elements = [math.prod(one.shape) for one in parameters]
        for index in sorted(range(len(parameters)), key=lambda index: -elements[index]):
            owner[index] = sizes.index(min(sizes))
            sizes[owner[index]] += elements[index]
        return [[float(owner[index] == rank) for index in range(len(parameters))] for rank in range(ranks)]
    if shards == "parameters":
        return [[_share_of_rows(one.shape, rank, ranks) for one in parameters] for rank in range(ranks)]
    if shards == "layers":
        layers = [bisect_right(first_layers, int(one.name.partition(".")[0])) - 1 for one in parameters]
        return [[float(layer == rank) for layer in layers] for rank in range(ranks)]
    return [[1.0] * len(parameters)] * ranks


def _share_of_rows(shape: Sequence[int], rank: int, ranks: int) -> float:
    """Return the share of a tensor's rows in one of ``ranks`` chunks, which are alike except the last."""
    rows = shape[0] if shape else 1
    chunk = -(-rows // ranks)
    return max(0, min(chunk, rows - rank * chunk)) / rows if rows else 0.0


def _kinds(rank: RankResult) -> Held:
    return Held(**{name: int(rank.attestation["held"][name]) for name in Held.__struct_fields__})
