"""Drive groups and replicas on one rank, and record what happens.

The references are plain torch in one process, without any strategy or group. Of the product they use only
the order of the samples. Nothing is judged here: every rank finishes, and all records are compared later.
"""

from __future__ import annotations

import hashlib
import importlib
import time
from dataclasses import asdict, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn
from torch.distributed.tensor import DTensor

import backends
from backends.base import BackendError
from compare.data.models import CLASSES, PIXELS
from compare.schema.arms import Arm, parse_arm
from compare.schema.config import RunConfig
from compare.worker.loop import train
from compare.worker.mnist import PixelBatches, classify, optimizer_maker
from tests.contract.records import GroupRecord, Lap, ReplicaRecord, Training

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from backends.base import Group, MakeOptimizer, Placement, Replica
    from tests.contract.plan import Launch, Member
    from tests.contract.records import RankRecord

CPU = torch.device("cpu")
STEPS = 12
"""Two more than PowerSGD waits for."""
BATCH_SIZE = 4
SAMPLES = 72  # fewer than STEPS at two ranks or more: the steps cross from one epoch into the next
SEED = 11
LATE_SECONDS = 0.3
JOIN_SECONDS = 30.0
SHAPES = ((), (1,), (7,), (3, 5, 7), (1_000_003,))

TRAININGS = {
    "sgd float64": ("sgd", 0.1, torch.float64, 1),
    "adam float64": ("adam", 0.001, torch.float64, 1),
    "sgd float32": ("sgd", 0.02, torch.float32, 1),
    "three passes float64": ("sgd", 0.1, torch.float64, 3),
}
"""Optimizer, learning rate, dtype, and passes per step."""


def observe(launch: Launch, placement: Placement, record: RankRecord, save: Callable[[], None]) -> None:
    """Do a rank's part of a launch."""
    torch.set_num_threads(1)
    for meeting in launch.meetings:
        arm = parse_arm(meeting.arm)
        make_group, _ = backends.load(arm.backend, arm.options)
        if launch.refusals:
            record.refusals |= _refusals(make_group, placement, arm)
        group = make_group.join(placement, CPU, arm.options, JOIN_SECONDS)
        save()
        if launch.group_checks:
            record.groups.append(_observe_group(group, meeting.name, arm))
            save()
        for name in meeting.broken_groups:
            # Another face on what was joined: a TorchGroup has no state of its own.
            record.groups.append(_observe_group(_broken(name)(placement, CPU), name, arm))
            save()
        for member in meeting.members:
            record.replicas.append(_observe_replica(group, member, launch.world))
            save()
        group.leave()


def _broken(name: str) -> Any:
    return getattr(importlib.import_module("tests.contract.broken"), name)


# ------------------------------------------------------------------------------------------------ groups


def _observe_group(group: Group, name: str, arm: Arm) -> GroupRecord:
    right: dict[str, dict[str, bool]] = {}
    refused: dict[str, str] = {}
    checks = {
        "all_reduce_": partial(_check_sums, group, _at_once),
        "all_reduce_start_": partial(_check_sums, group, _started_together),
        "broadcast_": partial(_check_broadcasts, group),
    }
    for operation, check in checks.items():
        if arm.traits.communicates:
            right[operation] = dict(check())
        else:
            refused[operation] = _refusal(partial(getattr(group, operation), torch.ones(3)))
    laps = [_lap(group, late) for late in sorted({0, group.world_size - 1})]
    attestation, attestation_error = _as_json(group.attest)
    return GroupRecord(
        name=name,
        arm=arm.label,
        rank=group.rank,
        world_size=group.world_size,
        placement=asdict(group.placement),
        device=group.device.type,
        laps=laps,
        right=right,
        sum_hash=_sum_hash(group) if arm.traits.communicates else "",
        refused=refused,
        attestation=attestation,
        attestation_error=attestation_error,
    )


def _lap(group: Group, late: int) -> Lap:
    group.barrier()
    if group.rank == late:
        time.sleep(LATE_SECONDS)
    arrived = time.monotonic_ns()
    group.barrier()
    return Lap(late=late, arrived_ns=arrived, left_ns=time.monotonic_ns())


def _at_once(group: Group, tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        group.all_reduce_(tensor)


def _started_together(group: Group, tensors: list[torch.Tensor]) -> None:
    """Start all before any wait, and wait in reverse order."""
    for wait in reversed([group.all_reduce_start_(tensor) for tensor in tensors]):
        wait()


def _check_sums(group, reduce):
    kinds = [(dtype, shape) for dtype in (torch.float32, torch.float64) for shape in SHAPES]
    tensors = [_counted(shape, dtype) + 1000 * group.rank for dtype, shape in kinds]
    offset = 1000 * sum(range(group.world_size))
    reduce(group, tensors)
    for (dtype, shape), tensor in zip(kinds, tensors, strict=True):
        right = torch.equal(tensor, _counted(shape, dtype) * group.world_size + offset)
        yield f"{dtype} {shape}", right


def _check_broadcasts(group: Group) -> Iterator[tuple[str, bool]]:
    for root in sorted({0, group.world_size - 1}):
        for dtype in (torch.float32, torch.float64, torch.int64):  # buffers of a model may be int64
            for shape in SHAPES:
                tensor = _counted(shape, dtype) + 1000 * group.rank
                group.broadcast_(tensor, root)
                right = torch.equal(tensor, _counted(shape, dtype) + 1000 * root)
                yield f"from {root}: {dtype} {shape}", right


def _counted(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    size = int(torch.Size(shape).numel())
    return torch.arange(1, size + 1).remainder_(997).to(dtype).view(shape)


def _sum_hash(group: Group) -> str:
    tensor = torch.randn(100_003, generator=torch.Generator().manual_seed(group.rank))
    group.all_reduce_(tensor)
    return _hash([tensor])


def _refusals(make_group: type[Group], placement: Placement, arm: Arm) -> dict[str, str]:
    """Try to join where the arm and the launch contradict each other."""
    join = partial(make_group.join, timeout_seconds=JOIN_SECONDS)
    elsewhere = replace(placement, rank=(placement.rank + 1) % placement.world_size)
    attempts: dict[str, Callable[[], object]] = {}
    if arm.backend in {"horovod", "mpi"}:
        attempts["another rank"] = partial(join, elsewhere, CPU, arm.options)
    if arm.backend == "horovod":
        other = {"gloo": "mpi", "mpi": "gloo"}[str(arm.options["controller"])]
        attempts["another controller"] = partial(join, placement, CPU, arm.options | {"controller": other})
    if arm.backend == "mpi":
        attempts["a GPU"] = partial(join, placement, torch.device("cuda", 0), arm.options)
        other = {"openmpi": "mpich", "mpich": "openmpi"}[str(arm.options["library"])]
        attempts["another library"] = partial(join, placement, CPU, arm.options | {"library": other})
    if "process_group" in arm.options:
        attempts["NCCL on the CPU"] = partial(join, placement, CPU, arm.options | {"process_group": "nccl"})
    return {name: _refusal(attempt) for name, attempt in attempts.items()}


def _refusal(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except BackendError as error:
        return f"BackendError: {error}"
    except Exception as error:  # noqa: BLE001 -- whatever it was, the record says so
        return f"not refused but failed: {error!r}"
    return "not refused"


# ---------------------------------------------------------------------------------------------- replicas


def _observe_replica(group: Group, member: Member, run_world: int) -> ReplicaRecord:
    arm = parse_arm(member.arm)
    _, make_replica = backends.load(arm.backend, arm.options)
    if member.strategy:
        make_replica = _broken(member.strategy)
    rank, world = group.rank, group.world_size
    task = _Task(torch.float64, _config(arm, run_world))
    maker = optimizer_maker(task.config)

    model = _build(rank, torch.float64)
    built = _hash(model.state_dict().values())
    replica = make_replica(model, maker, group, arm.options)
    started = _hash(replica.whole().state_dict().values())

    # One step by hand, for its gradients.
    reported: list[str] = []
    replica.learn(next(task.passes(replica.shard)), classify, reported.append)
    before_sync = _hash(_gathered_gradients(replica, world))
    replica.sync()
    gradients = _gathered_gradients(replica, world)
    gradient_bytes = replica.held_bytes()["gradient_bytes"]
    replica.step()

    alone = _Reference(0 if arm.traits.synchronises else rank, maker)
    make = partial(make_replica, group=group, options=arm.options)
    config = partial(_config, arm, run_world)
    trained, trainings = {}, {}
    for name, kind in TRAININGS.items():
        if kind[-1] > 1 and arm.never_accumulates:
            continue
        trained[name], trainings[name] = _observe_training(make, group, config, *kind)
    # Of one that has trained: DDP settles its buckets in the second step and tells of them in the third.
    attestation, attestation_error = _as_json(trained["sgd float64"].attest)
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    return ReplicaRecord(
        name=member.name,
        arm=member.arm,
        rank=rank,
        shard=replica.shard,
        phases=list(replica.phases),
        reported=reported,
        cycle=replica.cycle,
        held=trained["adam float64"].held_bytes() | {"gradient_bytes": gradient_bytes},
        held_whole=_held_by_one_process(config),
        names=list(replica.whole().state_dict()),
        plain_names=list(_build(0, torch.float64).state_dict()),
        gradient_bytes=sum(sizes),
        largest_gradient_bytes=max(sizes),
        built=built,
        started=started,
        gradients_before_sync=before_sync,
        gradients=_hash(gradients),
        gradient_error=_error(gradients, _Reference(0, maker).gradients(task.first((0, 1)))),
        gradient_error_alone=_error(gradients, alone.gradients(task.first((rank, world)))),
        trainings=trainings,
        attestation=attestation,
        attestation_error=attestation_error,
        group_attestation=_as_json(group.attest)[0],
    )


def _observe_training(make_replica, group, config, optimizer, learning_rate, dtype, passes):
    """Train through the product's loop, and in a single process."""
    rank, world = group.rank, group.world_size
    task = _Task(dtype, config(optimizer=optimizer, learning_rate=learning_rate, accumulate=passes))
    maker = optimizer_maker(task.config)
    replica = make_replica(_build(rank, dtype), maker)
    replica.accumulate(passes)
    started = _hash(replica.whole().state_dict().values())
    train(replica, task.passes(replica.shard), classify, STEPS)
    whole = replica.whole()
    found = list(whole.parameters())
    arm = task.config.arms[0]
    apart = _train_apart(task, maker, dtype, world, arm.options) if arm.backend == "localsgd" else found
    alone = partial(_train_alone, optimizer, learning_rate, task.config.global_batch_size, dtype)
    return replica, Training(
        started=started,
        ended=_hash(whole.state_dict().values()),
        error=_error(found, alone(0, (0, 1))),
        error_alone=_error(found, alone(rank, (rank, world))),
        error_apart=_error(found, apart),
    )


@cache
def _train_alone(
    optimizer: str,
    learning_rate: float,
    samples: int,
    dtype: torch.dtype,
    start: int,
    shard: tuple[int, int],
) -> list[torch.Tensor]:
    """Train a shard of the data in a single process, once for all arms of a launch.

    Of the run, this needs only ``samples``, the number of samples in a step of all shards.
    """
    config = RunConfig(
        arms=(parse_arm("none"),),
        ranks=1,
        optimizer=optimizer,
        learning_rate=learning_rate,
        batch_size_per_rank=samples,
        seed=SEED,
    )
    task = _Task(dtype, config)
    return _Reference(start, optimizer_maker(config), dtype).train(task.batches(shard))


def _train_apart(task, maker, dtype, world, options):
    """Train a model for each rank, and average them every ``period`` steps."""
    models = [_Reference(0, maker, dtype) for _ in range(world)]
    batches = [task.batches((index, world)) for index in range(world)]
    kept = [p.detach().clone() for p in models[0].model.parameters()]
    outer = torch.optim.SGD(kept, lr=0.7, momentum=0.9, nesterov=True)

    def mean() -> list[torch.Tensor]:
        return _mean([list(one.model.parameters()) for one in models])

    for step in range(1, STEPS + 1):
        for one, its in zip(models, batches, strict=True):
            one.step(next(its))
        if step % options["period"]:
            continue
        start = mean()
        if options["outer"] == "nesterov":
            for parameter, after in zip(kept, start, strict=True):
                parameter.grad = parameter - after
            outer.step()
            start = kept
        with torch.no_grad():
            for one in models:
                for parameter, value in zip(one.model.parameters(), start, strict=True):
                    parameter.copy_(value)
    return mean()


def _held_by_one_process(config: Callable[..., RunConfig]) -> dict[str, int]:
    """Count the bytes that plain Adam in one process holds."""
    task = _Task(torch.float64, config(optimizer="adam", learning_rate=0.001))
    reference = _Reference(0, optimizer_maker(task.config))
    reference.step(task.first((0, 1)))
    state = [
        tensor for held in reference.optimizer.state.values() for tensor in held.values() if tensor.dim()
    ]
    return {
        "parameter_bytes": _bytes_of(reference.model.parameters()),
        "gradient_bytes": _bytes_of(p.grad for p in reference.model.parameters()),
        "optimizer_state_bytes": _bytes_of(state),
    }


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class _Task:
    """The data and its order; shard (0, 1) is all of it."""

    def __init__(self, dtype: torch.dtype, config: RunConfig) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self.images = torch.randn(SAMPLES, PIXELS, generator=generator, dtype=torch.float64).to(dtype)
        self.labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
        self.config = config

    def batches(self, shard: tuple[int, int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield a shard's samples of each step, split here."""
        config = msgspec.structs.replace(
            self.config, ranks=1, accumulate=1, batch_size_per_rank=self.config.global_batch_size
        )
        index, count = shard
        for inputs, targets in PixelBatches(self.images, self.labels, (0, 1), config):
            yield inputs.chunk(count)[index], targets.chunk(count)[index]

    def passes(self, shard: tuple[int, int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield a shard's passes, as the product splits them."""
        return iter(PixelBatches(self.images, self.labels, shard, self.config))

    def first(self, shard: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        return next(self.batches(shard))


class _Reference:
    """The same training in a single process, as in a tutorial."""

    def __init__(self, start: int, make_optimizer: MakeOptimizer, dtype: torch.dtype = torch.float64) -> None:
        self.model = _build(start, dtype)
        self.optimizer = make_optimizer(self.model.parameters())

    def gradients(self, batch: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
        self.optimizer.zero_grad()
        classify(self.model, batch).backward()
        return _gradients(self.model)

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.gradients(batch)
        self.optimizer.step()

    def train(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        for _ in range(STEPS):
            self.step(next(batches))
        return list(self.model.parameters())


def _build(start: int, dtype: torch.dtype) -> nn.Module:
    """Build a model of four layers; another for every ``start``."""
    torch.manual_seed(SEED + 1 + start)
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        *(nn.Conv2d(1, 4, 5, stride=3), nn.Tanh(), nn.Dropout(0.0), nn.Flatten()),
        *(nn.Linear(256, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()),
        nn.Linear(16, CLASSES),
    ).to(dtype)


def _config(arm, world, *, optimizer="sgd", learning_rate=0.1, accumulate=1):
    config = RunConfig(
        arms=(arm,),
        ranks=world,
        optimizer=optimizer,
        learning_rate=learning_rate,
        batch_size_per_rank=BATCH_SIZE,
        accumulate=accumulate,
        seed=SEED,
    )
    return config.as_run_by(arm, world)


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    """Copy the gradients; a missing one is zero, which fails every comparison.

    Every rank gathers those that are held in shards.
    """
    held = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return [(g.full_tensor() if isinstance(g, DTensor) else g).detach().clone() for g in held]


def _gathered_gradients(replica: Replica, world: int) -> list[torch.Tensor]:
    """Copy the gradients of all layers, also of those on other ranks."""
    own = _gradients(replica.model)
    if replica.first_layer is None:
        return own
    parts: list[Any] = [None] * world
    torch.distributed.all_gather_object(parts, own)
    return [gradient for part in parts for gradient in part]


def _mean(all_gradients: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.stack(same).mean(0) for same in zip(*all_gradients, strict=True)]


def _error(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> float:
    """Return the largest relative difference within a tensor."""
    with torch.no_grad():
        return max(float((f - e).abs().max() / e.abs().max()) for f, e in zip(found, expected, strict=True))


def _hash(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().numpy())
    return digest.hexdigest()


def _as_json(attest: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], str]:
    try:
        return msgspec.json.decode(msgspec.json.encode(attest()), type=dict[str, Any]), ""
    except (TypeError, ValueError, OverflowError) as error:
        return {}, repr(error)
