"""Plant one fault each in a strategy of ours.

Each function changes a strategy in a rank before it begins, and no other test sees the change.
"""

from __future__ import annotations

import dataclasses
import itertools

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

import backends
from backends.base import Replica
from backends.groups.torch_group import TorchGroup
from backends.shared_memory.sum import SharedSum
from backends.strategies import averaging, fsdp, local_sgd, reducers
from backends.strategies.averaging import AveragingReplica
from backends.strategies.ddp import DDPReplica
from backends.strategies.fsdp import FSDPReplica
from backends.strategies.local_sgd import LocalSGDReplica
from backends.strategies.reducers import Bucket, FlatReducer
from tests.proof.case import CASES, WORKLOADS, add, mutation
from tests.proof.workloads.tasks import LATE

PLAIN = "right_models.py:plain"
BUCKETS = "manual:mode=overlap:bucket_mb=0.0001"


def between(cls, name, change, *, first=0, last=1_000_000):
    """Replace a method in some calls of each object, counted from 0."""
    real, calls = getattr(cls, name), f"_calls_of_{name}"

    def changed(self, *arguments, **named):
        number = getattr(self, calls, 0)
        setattr(self, calls, number + 1)
        if first <= number < last:
            return change(self, *arguments, **named)
        return real(self, *arguments, **named)

    setattr(cls, name, changed)
    return real


def is_last():
    """Return whether this is the last rank."""
    return dist.get_rank() == dist.get_world_size() - 1


# ---- strategies that break the contract's promises ----

OF_THE_CONTRACT = {
    "Sums": ("manual", "2 times the right one: a sum in place of the mean"),
    "SkipsAParameter": ("manual:mode=per_parameter", ()),
    "NeverSteps": ("manual", "the step does not reach them"),
    "Accumulates": ("manual", ()),
    "LosesAShard": ("fsdp", "A shard is not updated, or samples are left out."),
    "KeepsAStaleShard": ("zero", "Something is left over from the step before, or a rank leaves out a part."),
    "SkipsAMicrobatch": ("pipeline", "A shard is not updated, or samples are left out."),
}
"""Classes of ``tests/contract/broken.py``, each with the arm that builds it, and texts of its gates."""
for _fault, (_arm, _names) in OF_THE_CONTRACT.items():
    add([_arm], WORKLOADS / "right_models.py", "plain", ends="failed", names=_names, mutation=_fault)


def plant(name):
    """Plant a fault in this process: a wrong strategy of the contract's tests, or a function of this file."""
    if name in OF_THE_CONTRACT:
        backend = OF_THE_CONTRACT[name][0].partition(":")[0]
        strategy = f"tests.contract.broken:{name}"
        backends.BACKENDS[backend] = dataclasses.replace(backends.BACKENDS[backend], strategy=strategy)
    else:
        globals()[name]()


# ---- what is averaged, and by how much ----


@mutation("manual", of=PLAIN)
def a_sum_from_step_25_on():
    between(AveragingReplica, "backward", lambda self, loss: loss.backward(), first=LATE)


def a_sum_in_step_25_alone():
    """Plant what no gate sees."""
    between(AveragingReplica, "backward", lambda self, loss: loss.backward(), first=LATE, last=LATE + 1)


@mutation("manual", of=PLAIN)
def no_reduction():
    FlatReducer.reduce = lambda self: None


@mutation("manual", of=PLAIN)
def no_reduction_from_step_25_on():
    between(FlatReducer, "reduce", lambda self: None, first=LATE)


@mutation("manual", of="right_models.py:unequal_dtypes")
def the_bucket_of_another_dtype_is_left_out():
    real = FlatReducer.__init__

    def init(self, *arguments):
        real(self, *arguments)
        self.buckets = self.buckets[:1]

    FlatReducer.__init__ = init


@mutation("manual", of=PLAIN)
def one_rank_is_left_out():
    real = TorchGroup.all_reduce_
    TorchGroup.all_reduce_ = lambda self, tensor: real(self, tensor.zero_() if is_last() else tensor)


def _use_views(bucket):
    for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
        parameter.grad = view


@mutation("manual", of=PLAIN)
def a_bucket_keeps_the_step_before():
    between(Bucket, "collect", _use_views, first=2)


@mutation(BUCKETS, of=PLAIN)
def buckets_are_collected_two_steps_late():
    between(Bucket, "collect", lambda self: None, last=8)


@mutation(BUCKETS, of=PLAIN)
def every_second_bucket_is_not_sent():
    real, sent = TorchGroup.all_reduce_start_, itertools.count()
    TorchGroup.all_reduce_start_ = lambda self, tensor: real(
        self, tensor.clone() if next(sent) % 2 else tensor
    )


@mutation(BUCKETS, of=PLAIN)
def buckets_keep_the_step_before_from_step_25_on():
    between(Bucket, "collect", _use_views, first=LATE)


@mutation("manual:mode=ring", of=PLAIN)
def sums_do_not_travel_around_the_ring():
    def half_a_ring(tensor, rank, world):
        parts = tensor.tensor_split(world)
        incoming = torch.empty_like(parts[0])
        for step in range(world - 1):
            own = parts[(rank - step - 1) % world]
            reducers.pass_on(parts[(rank - step) % world], incoming[: own.numel()], rank, world)
            own += incoming[: own.numel()]

    reducers.FORMS["ring"] = half_a_ring


@mutation("manual:mode=reduce_broadcast", of=PLAIN)
def the_root_keeps_the_sum():
    reducers.FORMS["reduce_broadcast"] = lambda tensor, rank, world: dist.reduce(tensor, dst=0)


@mutation("manual:mode=reduce_scatter", of=PLAIN)
def parts_are_gathered_without_a_sum():
    def gathered(tensor, rank, world):
        own = tensor.chunk(world)[rank].clone()
        dist.all_gather_into_tensor(tensor, own)

    reducers.FORMS["reduce_scatter"] = gathered


@mutation("manual:mode=all_gather", of=PLAIN)
def one_rank_is_not_added_up():
    def most(tensor, rank, world):
        all_of_them = tensor.new_empty(world * tensor.numel())
        dist.all_gather_into_tensor(all_of_them, tensor)
        torch.sum(all_of_them.view(world, -1)[:-1], 0, out=tensor)

    reducers.FORMS["all_gather"] = most


@mutation("manual:mode=shared_memory", of=PLAIN)
def shared_memory_returns_the_step_before():
    SharedSum.views = property(lambda self: self._results[1].views)


@mutation("manual:mode=shared_memory", of=PLAIN)
def shared_memory_leaves_out_a_share():
    real = SharedSum.reduce

    def reduce(self, gradients):
        real(self, [torch.zeros_like(g) for g in gradients] if is_last() else gradients)

    between(SharedSum, "reduce", reduce, first=3)


# ---- what travels ----


def _through(dtype, only=None):
    real = TorchGroup.all_reduce_

    def rounded(self, tensor):
        if only is None or tensor.dtype == only:
            tensor.copy_(tensor.to(dtype))
        real(self, tensor)

    TorchGroup.all_reduce_ = rounded


@mutation("manual", of=PLAIN)
def bfloat16_on_the_wire():
    _through(torch.bfloat16)


@mutation("manual", of=PLAIN)
def half_precision_of_float32_alone_on_the_wire():
    _through(torch.float16, torch.float32)


# ---- ddp ----


@mutation("ddp", of=PLAIN)
def ddp_is_in_no_sync_from_step_25_on():
    between(DDPReplica, "_in_pass", lambda self: self.wrapped.no_sync(), first=LATE)


@mutation("ddp", of="right_training.py:two_passes_a_step", accumulate=2, batch_size_per_rank=2)
def only_the_first_of_two_passes_is_synchronised():
    DDPReplica._is_last_pass = lambda self: self._passes_done % self.passes_per_step == 0


@mutation("manual", "ddp", of="right_training.py:two_passes_a_step", accumulate=2, batch_size_per_rank=2)
def passes_add_up_without_a_division():
    def learn(self, batch, loss, on_phase=lambda _: None):
        self.backward(loss(self.module, batch))
        on_phase("forward")
        on_phase("backward")

    Replica.learn = learn


# ---- the step ----


@mutation("manual", of=PLAIN)
def weights_decay_a_little():
    real = Replica.step

    @torch.no_grad()
    def step(self):
        real(self)
        torch._foreach_mul_(self.parameters, 1 - 1e-6)

    Replica.step = step


# ---- samples and starts ----


@mutation("manual", "ddp", of=PLAIN, names="Check that the shards are the parts of every global batch.")
def all_ranks_train_the_first_shard():
    real = Replica.__init__

    def init(self, model, make_optimizer, group, options):
        real(self, model, make_optimizer, group, options)
        self.shard = (0, group.world_size)

    Replica.__init__ = init


@mutation("manual", of=PLAIN)
def each_step_learns_the_batch_before():
    real = Replica.learn

    def learn(self, batch, *others):
        last = getattr(self, "_last", batch)
        self._last = batch
        return real(self, last, *others)

    Replica.learn = learn


@mutation("manual", "localsgd:period=1", of="right_training.py:start_of_each_rank")
def the_start_is_not_broadcast():
    for module in (averaging, local_sgd):
        module.start_from_first_rank = lambda model, group: None


# ---- shards and local steps ----


@mutation("zero", of=PLAIN)
def updated_parts_are_not_sent():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ZeroRedundancyOptimizer._sync_params = lambda self: None


@mutation("fsdp", of=PLAIN)
def shards_are_not_reduced_from_step_3_on():
    real = FSDPReplica.learn

    def learn(self, *arguments):
        self._units[-1].set_requires_gradient_sync(False)
        real(self, *arguments)

    between(FSDPReplica, "learn", learn, first=3)


@mutation("fsdp", of=PLAIN)
def shards_of_gradients_reach_the_next_rank():
    real = _fsdp_collectives.DefaultReduceScatter.__call__

    def call(self, output_tensor, input_tensor, group, op, async_op=False):
        parts = input_tensor.view(group.size(), -1)
        return real(self, output_tensor, parts.roll(1, 0).flatten(), group, op, async_op)

    _fsdp_collectives.DefaultReduceScatter.__call__ = call


@mutation("fsdp", "fsdp:reshard_after_forward=false", of=PLAIN)
def a_unit_is_not_wrapped():
    real = fsdp.fully_shard

    def fully_shard(module, **policies):
        if isinstance(module, FSDPModule) or module in skipped:
            return module
        first = next(module.children(), None)
        if first is None and not skipped:
            skipped.append(module)
            return module
        return real(module, ignored_params={p for one in skipped for p in one.parameters()}, **policies)

    skipped = []
    fsdp.fully_shard = fully_shard


@mutation("fsdp:reshard_after_forward=false", of=PLAIN)
def gathered_parameters_are_used_again_after_the_step():
    real = FSDPReplica.learn

    def learn(self, *arguments):
        self._units[-1].set_reshard_after_backward(False)
        real(self, *arguments)

    between(FSDPReplica, "learn", learn, first=3)


@mutation("fsdp:replicate=2", of=PLAIN)
def replicas_are_not_averaged():
    real = FSDPReplica.learn

    def learn(self, *arguments):
        self._units[-1].set_requires_all_reduce(False)
        real(self, *arguments)

    FSDPReplica.learn = learn


CASES += [
    dataclasses.replace(case, settings=case.settings | {"ranks": 4})
    for case in CASES
    if case.mutation and case.arm.startswith("fsdp")
]
"""The faults of shards are found among four ranks, too."""


@mutation("localsgd:period=1", of=PLAIN)
def parameters_are_never_averaged():
    LocalSGDReplica.step = Replica.step
