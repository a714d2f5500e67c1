"""Steps that are no plain step of one loss, right and wrong, with and without a step of one process."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.proof.case import right, wrong
from tests.proof.workloads.tasks import WIDTH, add_up, ddp_step, follow, mlp, mse, normal, workload


def mean_of_ranks(loss, batches):
    """Compute the gradients of the mean loss of all ranks' batches, in one process."""
    for batch in batches:
        (loss(batch) / len(batches)).backward()


def with_reference(made, reference_step):
    """Return a workload with the step of one process."""
    return dataclasses.replace(made, reference_step=reference_step)


# ---- a GAN ----


def _of_judge(maker, judge, batch):
    real, noise = batch
    with torch.no_grad():
        made = maker(noise)
    return nn.functional.softplus(-judge(real)).mean() + nn.functional.softplus(judge(made)).mean()


def _of_maker(maker, judge, batch):
    return nn.functional.softplus(-judge(maker(batch[1]))).mean()


def in_turn(maker, judge, make_optimizer, each=lambda loss, batch: loss(batch).backward()):
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
    return in_turn(maker, judge, make_optimizer)


def adversaries(own_step=_by_ddp):
    """Return a GAN with two optimizers."""

    def loss(model, batch):
        return model["judge"](batch[0]).square().mean() + model["maker"](batch[1]).square().mean()

    maker = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, WIDTH))
    data = torch.utils.data.TensorDataset(1 + normal(256, WIDTH, seed=8), normal(256, 3, seed=9))
    return workload(
        model=nn.ModuleDict({"maker": maker, "judge": mlp()}), data=data, loss=loss, own_step=own_step
    )


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
    return in_turn(model["maker"], model["judge"], make_optimizer, mean_of_ranks)


def _of_each_rank(model, make_optimizer):
    """Train both models on each rank alone."""
    return in_turn(model["maker"], model["judge"], make_optimizer)


@wrong(origin="a public report", ends="failed")
def adversaries_never_synchronised():
    """A GAN whose ranks train alone."""
    return with_reference(adversaries(_of_each_rank), adversaries_in_one_process)


@wrong(origin="a public report", ends="failed")
def adversaries_with_one_synchronised():
    """A GAN whose maker is not in DDP."""

    def own_step(model, make_optimizer):
        return in_turn(model["maker"], DistributedDataParallel(model["judge"]), make_optimizer)

    return with_reference(adversaries(own_step), adversaries_in_one_process)


# ---- SAM ----


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

    def compute(batches):
        mean_of_ranks(lambda batch: mse(model, batch), batches)

    return sharpness_aware(model, make_optimizer(model.parameters()), compute)


@right("own_torch", ends="incomparable", origin="a public report")
def sharpness_aware_alone():
    """SAM: two backward passes, and weights moved between them."""
    return workload(own_step=_sharpness_aware_ddp)


@right("own_torch", origin="a public report")
def sharpness_aware_with_a_reference():
    """SAM with the step of one process."""
    return with_reference(workload(own_step=_sharpness_aware_ddp), sharpness_aware_in_one_process)


@wrong(origin="a public report", ends="failed")
def sharpness_of_each_rank():
    """SAM, whose first gradient stays each rank's own."""

    def own_step(model, make_optimizer):
        wrapped = DistributedDataParallel(model)
        trained = itertools.cycle((model, wrapped))
        optimizer = make_optimizer(wrapped.parameters())
        return sharpness_aware(model, optimizer, lambda batch: mse(next(trained), batch).backward())

    return with_reference(workload(own_step=own_step), sharpness_aware_in_one_process)


@wrong(origin="a public report", ends="failed")
def sharpness_by_a_sum():
    """SAM by sums, in place of means."""

    def own_step(model, make_optimizer):
        def compute(batch):
            mse(model, batch).backward()
            add_up(model)

        return sharpness_aware(model, make_optimizer(model.parameters()), compute)

    return with_reference(workload(own_step=own_step), sharpness_aware_in_one_process)


# ---- a teacher that follows ----


class _Taught(nn.Module):
    def __init__(self):
        super().__init__()
        self.pupil = mlp()
        self.teacher = copy.deepcopy(self.pupil).requires_grad_(requires_grad=False)

    def forward(self, inputs):
        return self.pupil(inputs), self.teacher(inputs)


def _taught(model, batch):
    found, wanted = model(batch[0])
    return nn.functional.mse_loss(found, batch[1]) + nn.functional.mse_loss(found, wanted)


def teacher_follows(model):
    """Move the teacher towards the pupil."""
    follow(model.teacher, model.pupil)


def taught_in_one_process(model, make_optimizer):
    """Take the step of one process."""
    optimizer = make_optimizer(p for p in model.parameters() if p.requires_grad)

    def step(batches):
        optimizer.zero_grad()
        mean_of_ranks(lambda batch: _taught(model, batch), batches)
        optimizer.step()
        teacher_follows(model)

    return step


def taught(follows):
    """Return a workload whose teacher follows after each step."""

    def own_step(model, make_optimizer):
        return ddp_step(_taught, after_step=lambda _: follows(model))(
            model, lambda parameters: make_optimizer(p for p in parameters if p.requires_grad)
        )

    return workload(model=_Taught(), loss=_taught, own_step=own_step)


@right("own_torch", origin="a public report")
def mean_teacher_with_a_reference():
    """A teacher that follows, with the step of one process."""
    return with_reference(taught(teacher_follows), taught_in_one_process)


@right("own_torch", ends="incomparable", origin="a public report")
def mean_teacher_alone():
    """A teacher that follows after each step, which no loss tells."""
    return taught(teacher_follows)


@wrong(origin="a public report", ends="failed")
def teacher_follows_on_one_rank():
    """A teacher that follows the pupil on rank 0 alone."""

    def follows(model):
        if dist.get_rank() == 0:
            teacher_follows(model)

    return with_reference(taught(follows), taught_in_one_process)
