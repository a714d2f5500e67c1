"""Steps that go wrong late, or where a clip or schedule acts."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from tests.proof.case import wrong
from tests.proof.workloads.tasks import ddp_step, gradients, hand_step, mse, workload
from tests.proof.workloads.wrong_steps import average

LATE = 25
"""First wrong step; the proof before the training takes twenty."""


# ---- schedules ----


def decay(step):
    """Decay in every step."""
    return 0.95**step


def drop_at_46(step):
    """Drop after 46 steps, so twice as fast within the run."""
    return 1.0 if step < 46 else 0.1


def zero_at_first(step):
    """Begin with a rate of zero."""
    return 0.0 if step < 22 else 1.0


def _following(schedule, times, average=average):
    """Return a step that follows a schedule, several times as fast."""

    def own_step(model, make_optimizer):
        optimizer = make_optimizer(model.parameters())
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)

        def step(batch):
            optimizer.zero_grad()
            mse(model, batch).backward()
            average(model)
            optimizer.step()
            for _ in range(times):
                scheduler.step()

        return step

    return own_step


@wrong(origin="accelerate#2926", ends="failed")
def schedule_once_a_rank():
    """The schedule steps once for each rank."""
    return workload(own_step=_following(decay, 2), schedule=decay)


@wrong(origin="transformers#24088", or_names="schedule")
def late_schedule_once_a_rank():
    """The schedule steps once for each rank, and bends after the proof."""
    return workload(own_step=_following(drop_at_46, 2), schedule=drop_at_46)


def zero_in_the_end(step):
    """End with a rate of zero."""
    return 1.0 if step < LATE else 0.0


@wrong(origin="diffusers#3954", ends="failed", names="learning rate is not zero")
def schedule_to_zero_left_out():
    """The step has no schedule, and that of the workload ends at zero."""
    return workload(own_step=hand_step(average), schedule=zero_in_the_end)


@wrong(origin="own", ends="passed", names="the schedule bends at step 26")
def schedule_that_bends_between_left_out():
    """The schedule bends in steps that the proof does not take, so it is only named."""
    return workload(own_step=hand_step(average), schedule=lambda step: 0.1 if step in {26, 27} else 1.0)


@wrong(origin="diffusers#3954", or_names="schedule")
def schedule_left_out():
    """The step has no schedule, and that of the workload bends late."""
    return workload(own_step=hand_step(average), schedule=lambda step: 1.0 if step < 26 else 0.1)


def add_up(model):
    """Replace each gradient by the sum of all ranks."""
    for gradient in gradients(model):
        dist.all_reduce(gradient)


@wrong(origin="a public report")
def sum_after_a_rate_of_zero():
    """A sum for the mean, where the rate is zero at first."""
    return workload(own_step=_following(zero_at_first, 1, add_up), schedule=zero_at_first)


@wrong(origin="a public report", ends="failed")
def alone_after_a_rate_of_zero():
    """No average at all, where the rate is zero at first."""
    return workload(own_step=_following(zero_at_first, 1, lambda model: None), schedule=zero_at_first)


# ---- errors that begin late ----


def late(average, wrong):
    """Return a step that averages, and later does something else."""

    def own_step(model, make_optimizer):
        steps = 0

        def changing(model):
            nonlocal steps
            (wrong if steps >= LATE else average)(model)
            steps += 1

        return hand_step(changing)(model, make_optimizer)

    return own_step


@wrong(origin="a public report", ends="failed")
def no_average_after_25_steps():
    """Ranks train alone from the 26th step on."""
    return workload(own_step=late(average, lambda model: None))


@wrong(origin="a public report", ends="failed")
def sum_after_25_steps():
    """A sum for the mean from the 26th step on."""
    return workload(own_step=late(average, add_up))


@wrong(origin="a public report", ends="failed")
def clip_before_the_average_after_25_steps():
    """Each rank clips its own gradient from the 26th step on."""

    def clipped(model):
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        average(model)

    return workload(own_step=late(average, clipped))


def _hooked(hook):
    def own_step(model, make_optimizer):
        wrapped = DistributedDataParallel(model)
        hook(wrapped)
        optimizer = make_optimizer(wrapped.parameters())

        def step(batch):
            optimizer.zero_grad()
            mse(wrapped, batch).backward()
            optimizer.step()

        return step

    return own_step


@wrong(origin="a public report", ends=("failed", "incomparable"))
def compression_after_25_steps():
    """PowerSGD of rank one, from the 26th step on."""

    def hook(wrapped):
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=LATE, min_compression_rate=0.5
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return workload(own_step=_hooked(hook))


@wrong(origin="a public report", ends="failed")
def hook_that_leaves_out_the_division():
    """DDP's hook returns the sum, from the 26th step on."""

    def hook(wrapped):
        calls = 0

        def sum_late(_, bucket):
            nonlocal calls
            calls += 1
            share = bucket.buffer() if calls > LATE else bucket.buffer().div_(dist.get_world_size())
            sent = dist.all_reduce(share, async_op=True).get_future()
            return sent.then(lambda done: done.value()[0])

        wrapped.register_comm_hook(None, sum_late)

    return workload(own_step=_hooked(hook))


@wrong(origin="own", ends="failed")
def frozen_after_25_steps():
    """The optimizer takes no step from the 26th on."""

    def nothing(model):
        average(model)
        for gradient in gradients(model):
            gradient.zero_()

    return workload(own_step=late(average, nothing))


@wrong(origin="own", ends="failed", names="differ from the mean")
def one_layer_frozen_after_25_steps():
    """One layer gets no gradient from the 26th step on."""

    def without_the_first(model):
        average(model)
        for parameter in model[0].parameters():
            parameter.grad = None

    return workload(own_step=late(average, without_the_first))


@wrong(origin="own", ends="failed", names="change outside the optimizer's step")
def weights_shrink_after_25_steps():
    """Weights are halved after the optimizer's step, from the 26th on."""

    def own_step(model, make_optimizer):
        optimizer, taken = make_optimizer(model.parameters()), [0]

        def step(batch):
            optimizer.zero_grad()
            mse(model, batch).backward()
            average(model)
            optimizer.step()
            taken[0] += 1
            if taken[0] > LATE:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(0.5)

        return step

    return workload(own_step=own_step)


# ---- clips ----


def clip(limit):
    """Return a clip of the averaged gradients."""

    def before_step(parameters):
        nn.utils.clip_grad_norm_(parameters, limit)

    return before_step


def _clipped(limit):
    return lambda model: nn.utils.clip_grad_norm_(model.parameters(), limit)


def _first(change, average=average):
    def changed(model):
        change(model)
        average(model)

    return changed


ACTED = "before_step"


@wrong(origin="a public report", or_names=ACTED)
def clip_before_the_average():
    """Each rank clips its own gradient, with a limit above all norms."""
    return workload(own_step=hand_step(_first(_clipped(500.0))), before_step=clip(500.0))


@wrong(origin="a public report", ends="failed")
def low_clip_before_the_average():
    """Each rank clips its own gradient in every step."""
    return workload(own_step=hand_step(_first(_clipped(0.1))), before_step=clip(0.1))


@wrong(origin="a public report", or_names=ACTED)
def norm_counted_twice():
    """The norm counts each parameter twice, as tied ones often are."""

    def twice(model):
        held = gradients(model)
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in [*held, *held]]))
        torch._foreach_mul_(held, float(min(1.0, 500.0 / norm)))

    return workload(own_step=hand_step(average, before_step=twice), before_step=clip(500.0))


@wrong(origin="a public report", or_names=ACTED)
def sum_with_an_exact_clip():
    """A sum for the mean, which a clip hides while it acts."""

    def exact(parameters):
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in parameters]))
        scale = float(min(1.0, 1e-4 / norm))
        for parameter in parameters:
            parameter.grad.mul_(scale)

    step = hand_step(add_up, before_step=lambda model: exact(list(model.parameters())))
    return workload(own_step=step, before_step=exact)


@wrong(origin="a public report", or_names=ACTED)
def clip_left_out():
    """The step has no clip, and that of the workload never acts."""
    return workload(own_step=ddp_step(), before_step=clip(500.0))


@wrong(origin="a public report", or_names=ACTED)
def values_clipped_before_the_average():
    """Each rank cuts large values of its own gradient."""
    limit = 200.0

    def cut(parameters):
        nn.utils.clip_grad_value_(parameters, limit)

    step = hand_step(_first(lambda model: cut(model.parameters())))
    return workload(own_step=step, before_step=cut)


@wrong(origin="own", or_names=ACTED)
def spikes_skipped_by_each_rank():
    """A rank whose own norm is too large sends zeros."""

    def skip(parameters):
        held = [p.grad for p in parameters]
        if torch.linalg.vector_norm(torch.stack([g.norm() for g in held])) > 500.0:
            torch._foreach_zero_(held)

    step = hand_step(_first(lambda model: skip(list(model.parameters()))))
    return workload(own_step=step, before_step=skip)
