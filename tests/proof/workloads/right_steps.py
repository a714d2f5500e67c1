"""Right steps of the user's own."""

from __future__ import annotations

import copy
import dataclasses

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.proof.case import right
from tests.proof.workloads.tasks import WIDTH, ddp_step, gradients, hand_step, mse, rows, sgd, workload


def average(model):
    """Replace each gradient by the mean of all ranks."""
    for gradient in gradients(model):
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())


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

    def own_step(model, make_optimizer):
        wrapped = DistributedDataParallel(model)
        optimizer = make_optimizer(wrapped.parameters())

        def step(batch):
            first, second = zip(*(part.chunk(2) for part in batch), strict=True)
            optimizer.zero_grad()
            with wrapped.no_sync():
                (mse(wrapped, first) / 2).backward()
            (mse(wrapped, second) / 2).backward()
            optimizer.step()

        return step

    return workload(own_step=own_step)


@right("own_torch", origin="own")
def loss_scaled_up_and_gradients_down():
    """A static loss scale, a power of two."""

    def own_step(model, make_optimizer):
        def scaled_down(model):
            for gradient in gradients(model):
                gradient.div_(1024)

        return ddp_step(lambda model, batch: 1024 * mse(model, batch), after_backward=scaled_down)(
            model, make_optimizer
        )

    return workload(own_step=own_step)


@right("own_torch", origin="own")
def slow_copy_in_an_own_step():
    """An exponential mean of the weights, beside DDP."""

    def own_step(model, make_optimizer):
        means = copy.deepcopy(model)

        def follow(_):
            with torch.no_grad():
                for slow, fast in zip(means.parameters(), model.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)

        return ddp_step(after_step=follow)(model, make_optimizer)

    return workload(own_step=own_step)


@right("own_torch", origin="own")
def autocast_in_an_own_step():
    """bfloat16 in the loss, in a step of the user's own."""

    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            found = model(batch[0])
        return nn.functional.mse_loss(found.to(batch[1].dtype), batch[1])

    return workload(loss=loss, own_step=ddp_step(loss))


@right("own_torch", origin="a public report", ends="incomparable")
def rounded_on_purpose():
    """DDP with torch's hook that sends halves."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    def own_step(model, make_optimizer):
        wrapped = DistributedDataParallel(model)
        wrapped.register_comm_hook(None, fp16_compress_hook)
        optimizer = make_optimizer(wrapped.parameters())

        def step(batch):
            optimizer.zero_grad()
            mse(wrapped, batch).backward()
            optimizer.step()

        return step

    return workload(own_step=own_step)


# ---- steps that are no plain step of one loss ----


def _pair():
    return nn.ModuleDict(
        {
            "maker": nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, WIDTH)),
            "judge": nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1)),
        }
    )


def _of_judge(maker, judge, batch):
    real, noise = batch
    with torch.no_grad():
        made = maker(noise)
    return nn.functional.softplus(-judge(real)).mean() + nn.functional.softplus(judge(made)).mean()


def _of_maker(maker, judge, batch):
    return nn.functional.softplus(-judge(maker(batch[1]))).mean()


def in_turn(maker, judge, make_optimizer, each):
    """Return a step of both; ``each`` computes gradients of a loss."""
    of_judge, of_maker = make_optimizer(judge.parameters()), make_optimizer(maker.parameters())

    def step(batches):
        for optimizer, loss in ((of_judge, _of_judge), (of_maker, _of_maker)):
            for parameter in [*maker.parameters(), *judge.parameters()]:
                parameter.grad = None
            each(lambda batch, loss=loss: loss(maker, judge, batch), batches)
            optimizer.step()

    return step


def _by_ddp(model, make_optimizer):
    maker, judge = (DistributedDataParallel(model[name]) for name in ("maker", "judge"))
    return in_turn(maker, judge, make_optimizer, lambda loss, batch: loss(batch).backward())


def adversaries(own_step=_by_ddp):
    """Return a GAN with two optimizers."""

    def loss(model, batch):
        return model["judge"](batch[0]).square().mean() + model["maker"](batch[1]).square().mean()

    made = torch.Generator().manual_seed(8)
    data = torch.utils.data.TensorDataset(
        1 + torch.randn(256, WIDTH, generator=made), torch.randn(256, 3, generator=made)
    )
    return workload(model=_pair(), data=data, loss=loss, own_step=own_step)


@right("own_torch", ends="incomparable", origin="a public report")
def adversaries_alone():
    """A GAN with two optimizers, without a step of one process."""
    return adversaries()


@right("own_torch", origin="a public report")
def adversaries_with_a_reference():
    """A GAN with two optimizers, and the step of one process."""
    return with_reference(adversaries(), adversaries_in_one_process)


def adversaries_in_one_process(model, make_optimizer):
    """Take the step of one process."""
    return in_turn(model["maker"], model["judge"], make_optimizer, _mean_of_ranks)


def _mean_of_ranks(loss, batches):
    for batch in batches:
        (loss(batch) / len(batches)).backward()


def with_reference(made, reference_step):
    """Return a workload with the step of one process."""
    return dataclasses.replace(made, reference_step=reference_step)


def sharpness_aware(model, optimizer, compute):
    """Return a step from the gradient at the worst point nearby."""

    def step(batches):
        optimizer.zero_grad()
        compute(batches)
        held = [p for p in model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in held]))
        moves = [0.05 * p.grad / norm for p in held]
        with torch.no_grad():
            torch._foreach_add_(held, moves)
        optimizer.zero_grad()
        compute(batches)
        with torch.no_grad():
            torch._foreach_sub_(held, moves)
        optimizer.step()

    return step


def _sharpness_aware_ddp(model, make_optimizer):
    wrapped = DistributedDataParallel(model)
    optimizer = make_optimizer(wrapped.parameters())
    return sharpness_aware(model, optimizer, lambda batch: mse(wrapped, batch).backward())


def sharpness_aware_in_one_process(model, make_optimizer):
    """Take the step of one process."""
    optimizer = make_optimizer(model.parameters())
    compute = _mean_of_ranks
    return sharpness_aware(
        model, optimizer, lambda batches: compute(lambda batch: mse(model, batch), batches)
    )


@right("own_torch", ends="incomparable", origin="a public report")
def sharpness_aware_alone():
    """SAM: two backward passes, and weights moved between them."""
    return workload(own_step=_sharpness_aware_ddp)


@right("own_torch", origin="a public report")
def sharpness_aware_with_a_reference():
    """SAM with the step of one process."""
    return with_reference(workload(own_step=_sharpness_aware_ddp), sharpness_aware_in_one_process)


class _Taught(nn.Module):
    def __init__(self):
        super().__init__()
        self.pupil = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))
        self.teacher = copy.deepcopy(self.pupil).requires_grad_(requires_grad=False)

    def forward(self, inputs):
        return self.pupil(inputs), self.teacher(inputs)


def _taught(model, batch):
    found, wanted = model(batch[0])
    return nn.functional.mse_loss(found, batch[1]) + nn.functional.mse_loss(found, wanted)


def teacher_follows(model):
    """Move the teacher towards the pupil."""
    with torch.no_grad():
        for slow, fast in zip(model.teacher.parameters(), model.pupil.parameters(), strict=True):
            slow.lerp_(fast, 0.1)


def taught_in_one_process(model, make_optimizer):
    """Take the step of one process."""
    optimizer = make_optimizer(p for p in model.parameters() if p.requires_grad)

    def step(batches):
        optimizer.zero_grad()
        _mean_of_ranks(lambda batch: _taught(model, batch), batches)
        optimizer.step()
        teacher_follows(model)

    return step


def taught(follows):
    """Return a workload whose teacher follows after each step."""

    def own_step(model, make_optimizer):
        return ddp_step(_taught, after_step=lambda _: follows(model))(
            model, lambda parameters: make_optimizer(p for p in parameters if p.requires_grad)
        )

    return workload(model=_Taught(), data=rows(), loss=_taught, optimizer=sgd, own_step=own_step)


@right("own_torch", origin="a public report")
def mean_teacher_with_a_reference():
    """A teacher that follows, with the step of one process."""
    return with_reference(taught(teacher_follows), taught_in_one_process)


@right("own_torch", ends="incomparable", origin="a public report")
def mean_teacher_alone():
    """A teacher that follows after each step, which no loss tells."""
    return taught(teacher_follows)
