"""Right steps of the user's own, optimizers, clips, schedules, batches and loaders."""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, DistributedSampler

from tests.proof.case import right
from tests.proof.workloads.tasks import (
    WIDTH,
    Reader,
    anew,
    average,
    clip,
    ddp_step,
    follow,
    following,
    gradients,
    halves_step,
    hand_step,
    in_bfloat16,
    mlp,
    mse,
    normal,
    nothing,
    rows,
    series,
    workload,
)

# ---- steps of the user's own ----


@right("own_torch", origin="own")
def tutorial():
    """DDP as in the tutorials."""
    return workload(own_step=ddp_step())


@right("own_torch", origin="own")
def average_by_hand():
    """An all-reduce of each gradient, then a division."""
    return workload(own_step=hand_step(average))


@right("own_torch", origin="own")
def divided_before_the_sum():
    """Gradients divided by the ranks before they are added up."""

    def divided(model):
        for gradient in gradients(model):
            dist.all_reduce(gradient.div_(dist.get_world_size()))

    return workload(own_step=hand_step(divided))


@right("own_torch", origin="own")
def ddp_in_small_buckets():
    """DDP with views of buckets, and many buckets."""
    return workload(own_step=ddp_step(bucket_cap_mb=1e-4, gradient_as_bucket_view=True))


@right("own_torch", origin="a public report")
def two_halves_with_no_sync():
    """Two passes a step; the last one communicates."""
    return workload(own_step=halves_step(quiet=0))


@right("own_torch", origin="own")
def loss_scaled_up_and_gradients_down():
    """A static loss scale, a power of two."""

    def scaled_down(model):
        for gradient in gradients(model):
            gradient.div_(1024)

    return workload(
        own_step=ddp_step(lambda model, batch: 1024 * mse(model, batch), after_backward=scaled_down)
    )


@right("own_torch", origin="own")
def slow_copy_in_an_own_step():
    """An exponential mean of the weights, beside DDP."""

    def fresh(model):
        means = copy.deepcopy(model)
        return ddp_step(after_step=lambda _: follow(means, model))

    return workload(own_step=anew(fresh))


@right("own_torch", origin="own")
def autocast_in_an_own_step():
    """bfloat16 in the loss, in a step of the user's own."""
    return workload(loss=in_bfloat16, own_step=ddp_step(in_bfloat16))


@right("own_torch", origin="a public report", ends="incomparable")
def rounded_on_purpose():
    """DDP with torch's hook that sends halves."""
    return workload(own_step=ddp_step(hook=lambda ddp: ddp.register_comm_hook(None, fp16_compress_hook)))


# ---- optimizers ----


@right("manual", origin="pytorch#14467")
def two_groups_of_parameters():
    """Weights decay and biases do not."""

    def optimizer(parameters):
        held = list(parameters)
        groups = [
            {"params": [p for p in held if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in held if p.dim() <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=0.01)

    return workload(optimizer=optimizer)


@right("zero", ends=("passed", "refused"), origin="pytorch#14467")
def two_groups_in_shards():
    """Groups of an optimizer whose state is in shards."""
    return two_groups_of_parameters()


@right("ddp", origin="a public report")
def groups_by_name():
    """The optimizer asks for as many parameters as the model has names."""
    net = mlp()
    names = [name for name, _ in net.named_parameters()]

    def optimizer(parameters):
        named = zip(names, parameters, strict=True)
        rates = {"0": 0.05, "2": 0.01}
        return torch.optim.SGD([{"params": [p], "lr": rates[name[0]]} for name, p in named], momentum=0.9)

    return workload(model=net, optimizer=optimizer)


@right("manual", "zero", origin="own")
def adam():
    """Adam without anything special."""
    return workload(optimizer=lambda p: torch.optim.Adam(p, lr=0.01))


class _Orthogonal(torch.optim.Optimizer):
    """Steps by the signs of singular directions, as Muon does."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002 -- as torch calls it
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                change = parameter.grad
                if change.dim() > 1:
                    left, _, right = torch.linalg.svd(change, full_matrices=False)
                    change = left @ right
                parameter.sub_(group["lr"] * change)


@right("ddp", origin="a public report")
def optimizer_of_the_users_own():
    """A step by orthogonal matrices, as Muon takes it."""
    return workload(optimizer=_Orthogonal)


@right("ddp", "manual", "fsdp", origin="own")
def start_of_each_rank():
    """Each rank draws a start, and rank 0 sends its own."""
    net = mlp()
    made = torch.Generator().manual_seed(os.getpid())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=made) / 3)
    return workload(model=net)


# ---- clips and schedules ----


@right("ddp", "manual", "zero", origin="a public report")
def clip_after_the_average():
    """A clip that acts in every step."""
    return workload(before_step=clip(0.1))


@right("ddp", origin="a public report")
def clip_that_rarely_acts():
    """A clip whose limit is far above every norm."""
    return workload(before_step=clip(500.0))


@right("manual", origin="own")
def noise_is_no_gradient():
    """Gradients without their mean, after the average."""

    def before_step(parameters):
        for parameter in parameters:
            if parameter.dim() > 1:
                parameter.grad.sub_(parameter.grad.mean(1, keepdim=True))

    return workload(before_step=before_step)


def warm_up(step):
    """Grow to step 5, then decay."""
    return min(1.0, (step + 1) / 5) * 0.97**step


def late_drop(step):
    """Drop after 24 steps."""
    return 1.0 if step < 24 else 0.1


@right("ddp", origin="accelerate#2926")
def warm_up_and_decay():
    """A learning rate that changes in every step."""
    return workload(schedule=warm_up)


@right("manual", origin="a public report")
def drop_after_the_proof():
    """A learning rate that drops after 24 steps."""
    return workload(schedule=late_drop)


def _scheduled(schedule, limit=None):
    """Return a workload whose own step follows a schedule, and clips after the average."""
    before_step = clip(limit) if limit else None
    change = before_step or nothing
    make_step = partial(ddp_step, after_backward=lambda model: change(model.parameters()))
    return workload(own_step=following(schedule, make_step), schedule=schedule, before_step=before_step)


@right("own_torch", origin="accelerate#2926")
def warm_up_in_an_own_step():
    """LambdaLR, stepped once a step."""
    return _scheduled(warm_up)


@right("own_torch", origin="a public report")
def late_drop_in_an_own_step():
    """LambdaLR, whose rate drops after 24 steps."""
    return _scheduled(late_drop)


@right("own_torch", origin="a public report")
def clip_and_schedule_in_an_own_step():
    """A clip after DDP's average, and a schedule."""
    return _scheduled(warm_up, 0.1)


@right("own_torch", origin="a public report")
def high_clip_in_an_own_step():
    """A clip after the average, whose limit is far above every norm."""
    return _scheduled(lambda step: 1.0, 500.0)


@right("own_torch", origin="a public report")
def frozen_at_first_in_an_own_step():
    """A learning rate of zero for the first 22 steps."""
    return _scheduled(lambda step: 0.0 if step < 22 else 1.0)


@right("ddp", "manual", accumulate=2, batch_size_per_rank=2, origin="a public report")
def two_passes_a_step():
    """Gradients of two passes add up before the average."""
    return workload()


# ---- batches and loaders ----


@dataclass
class _Batch:
    series: torch.Tensor
    targets: torch.Tensor


def _joined(samples):
    return torch.stack([one for one, _ in samples]), torch.stack([two for _, two in samples])


def _of(collate, read=lambda batch: batch, **reader):
    return workload(
        model=Reader(**reader),
        data=series(),
        collate=collate,
        loss=lambda model, batch: mse(model, read(batch)),
    )


@right("ddp", origin="accelerate users")
def batch_as_dataclass():
    """A batch that is a dataclass."""
    return _of(lambda samples: _Batch(*_joined(samples)), lambda batch: (batch.series, batch.targets))


@right("manual", origin="accelerate users")
def batch_as_default_dictionary():
    """A batch that is a defaultdict."""
    return _of(
        lambda samples: defaultdict(list, zip("xy", _joined(samples), strict=True)),
        lambda batch: (batch["x"], batch["y"]),
    )


@right("manual", origin="pytorch#7890")
def packed_sequences():
    """Sequences of unequal length, packed."""

    def collate(samples):
        cut = [one[: 2 + index % 4] for index, (one, _) in enumerate(samples)]
        return pack_sequence(cut, enforce_sorted=False), torch.stack([two for _, two in samples])

    return _of(collate)


@right("ddp", origin="pytorch#7890")
def time_first():
    """Batches whose first dimension is time."""

    def collate(samples):
        inputs, targets = _joined(samples)
        return inputs.transpose(0, 1).contiguous(), targets

    return _of(collate, batch_first=False)


@right("own_torch", "ddp", origin="own")
def loader_with_a_distributed_sampler():
    """Shards by torch's own sampler."""
    data = rows()

    def loader(rank, ranks, size):
        return DataLoader(data, size, sampler=DistributedSampler(data, ranks, rank))

    return workload(data=data, loader=loader, own_step=ddp_step())


@right("manual", origin="transformers#13780")
def loader_of_a_stream():
    """Every rank reads each second sample of a stream."""

    class Stream(torch.utils.data.IterableDataset):
        def __init__(self, first, step):
            self.places = range(first, 256, step)

        def __iter__(self):
            for place in self.places:
                row = normal(WIDTH, seed=place)
                yield row, row.square().sum()[None]

    return workload(loader=lambda rank, ranks, size: DataLoader(Stream(rank, ranks), size))
