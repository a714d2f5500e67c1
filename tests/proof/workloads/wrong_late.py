"""Steps that go wrong late, or where a clip or schedule acts."""

from __future__ import annotations

import itertools
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from tests.proof.case import wrong
from tests.proof.workloads.tasks import (
    LATE,
    add_up,
    anew,
    average,
    clip,
    ddp_step,
    following,
    gradients,
    hand_step,
    nothing,
    workload,
)

# ---- schedules ----


def _scheduled(schedule, average=average, **how):
    """Return a workload with a schedule that its own step follows."""
    return workload(own_step=following(schedule, partial(hand_step, average), **how), schedule=schedule)


def _left_out(schedule):
    """Return a workload with a schedule that its own step knows nothing of."""
    return workload(own_step=hand_step(average), schedule=schedule)


@wrong(origin="accelerate#2926", ends="failed")
def schedule_once_a_rank():
    """The schedule steps once for each rank."""
    return _scheduled(lambda step: 0.95**step, times=2)


@wrong(origin="transformers#24088", or_names="schedule")
def late_schedule_once_a_rank():
    """The schedule steps once for each rank, and drops after 46 steps, so twice as fast within the run."""
    return _scheduled(lambda step: 1.0 if step < 46 else 0.1, times=2)


@wrong(origin="diffusers#3954", ends="failed", names="learning rate is not zero")
def schedule_to_zero_left_out():
    """The step has no schedule, and that of the workload ends at zero."""
    return _left_out(lambda step: 1.0 if step < LATE else 0.0)


@wrong(origin="own", ends="passed", names="the schedule bends at step 26")
def schedule_that_bends_between_left_out():
    """The schedule bends in steps that the proof does not take, so it is only named."""
    return _left_out(lambda step: 0.1 if step in {26, 27} else 1.0)


@wrong(origin="diffusers#3954", or_names="schedule")
def schedule_left_out():
    """The step has no schedule, and that of the workload bends late."""
    return _left_out(lambda step: 1.0 if step < 26 else 0.1)


def zero_at_first(step):
    """Begin with a rate of zero."""
    return 0.0 if step < 22 else 1.0


@wrong(origin="a public report")
def sum_after_a_rate_of_zero():
    """A sum for the mean, where the rate is zero at first."""
    return _scheduled(zero_at_first, add_up)


@wrong(origin="a public report", ends="failed")
def alone_after_a_rate_of_zero():
    """No average at all, where the rate is zero at first."""
    return _scheduled(zero_at_first, nothing)


# ---- errors that begin late ----


@wrong(origin="a public report", ends="failed")
def no_average_after_25_steps():
    """Ranks train alone from the 26th step on."""
    return workload(own_step=hand_step(average, late=nothing))


@wrong(origin="a public report", ends="failed")
def sum_after_25_steps():
    """A sum for the mean from the 26th step on."""
    return workload(own_step=hand_step(average, late=add_up))


def _clipped(limit):
    """Return an average of gradients that each rank clips before."""

    def clipped(model):
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        average(model)

    return clipped


@wrong(origin="a public report", ends="failed")
def clip_before_the_average_after_25_steps():
    """Each rank clips its own gradient from the 26th step on."""
    return workload(own_step=hand_step(average, late=_clipped(0.01)))


@wrong(origin="a public report", ends=("failed", "incomparable"))
def compression_after_25_steps():
    """PowerSGD of rank one, from the 26th step on."""

    def hook(wrapped):
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=LATE, min_compression_rate=0.5
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return workload(own_step=ddp_step(hook=hook))


@wrong(origin="a public report", ends="failed")
def hook_that_leaves_out_the_division():
    """DDP's hook returns the sum, from the 26th step on."""

    def hook(wrapped):
        calls = itertools.count(1)

        def sum_late(_, bucket):
            share = bucket.buffer() if next(calls) > LATE else bucket.buffer().div_(dist.get_world_size())
            sent = dist.all_reduce(share, async_op=True).get_future()
            return sent.then(lambda done: done.value()[0])

        wrapped.register_comm_hook(None, sum_late)

    return workload(own_step=ddp_step(hook=hook))


@wrong(origin="own", ends="failed")
def frozen_after_25_steps():
    """The optimizer takes no step from the 26th on."""
    return workload(own_step=hand_step(average, late=lambda model: model.zero_grad(set_to_none=False)))


@wrong(origin="own", ends="failed", names="differ from the mean")
def one_layer_frozen_after_25_steps():
    """One layer gets no gradient from the 26th step on."""

    def without_the_first(model):
        average(model)
        model[0].zero_grad()

    return workload(own_step=hand_step(average, late=without_the_first))


@wrong(origin="own", ends="failed", names="change outside the optimizer's step")
def weights_shrink_after_25_steps():
    """Weights are halved after the optimizer's step, from the 26th on."""

    def fresh(model):
        taken = itertools.count(1)

        @torch.no_grad()
        def shrink(_):
            if next(taken) > LATE:
                torch._foreach_mul_([*model.parameters()], 0.5)

        return hand_step(average, after_step=shrink)

    return workload(own_step=anew(fresh))


# ---- clips ----

ACTED = "before_step"


def _changed_first(change):
    """Return a workload whose own step changes each rank's gradients before the average, not after it."""

    def first(model):
        change([*model.parameters()])
        average(model)

    return workload(own_step=hand_step(first), before_step=change)


def _norm(tensors):
    return torch.linalg.vector_norm(torch.stack([tensor.norm() for tensor in tensors]))


@wrong(origin="a public report", or_names=ACTED)
def clip_before_the_average():
    """Each rank clips its own gradient, with a limit above all norms."""
    return _changed_first(clip(500.0))


@wrong(origin="a public report", ends="failed")
def low_clip_before_the_average():
    """Each rank clips its own gradient in every step."""
    return _changed_first(clip(0.1))


@wrong(origin="a public report", or_names=ACTED)
def values_clipped_before_the_average():
    """Each rank cuts large values of its own gradient."""
    return _changed_first(lambda parameters: nn.utils.clip_grad_value_(parameters, 200.0))


@wrong(origin="a public report", or_names=ACTED)
def norm_counted_twice():
    """The norm counts each parameter twice, as tied ones often are."""

    def twice(model):
        held = gradients(model)
        torch._foreach_mul_(held, float(min(1.0, 500.0 / _norm([*held, *held]))))

    return workload(own_step=hand_step(average, before_step=twice), before_step=clip(500.0))


@wrong(origin="a public report", or_names=ACTED)
def sum_with_an_exact_clip():
    """A sum for the mean, which a clip hides while it acts."""

    def exact(parameters):
        held = [p.grad for p in parameters]
        torch._foreach_mul_(held, float(min(1.0, 1e-4 / _norm(held))))

    step = hand_step(add_up, before_step=lambda model: exact([*model.parameters()]))
    return workload(own_step=step, before_step=exact)


@wrong(origin="a public report", or_names=ACTED)
def clip_left_out():
    """The step has no clip, and that of the workload never acts."""
    return workload(own_step=ddp_step(), before_step=clip(500.0))
