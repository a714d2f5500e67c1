"""The parity passes, with plain replicas in one process."""

from __future__ import annotations

import copy
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import distributed, nn

from backends import base
from backends.base import BackendError
from backends.strategies.ddp import DDPReplica
from backends.strategies.models import cut_batch
from compare.analysis.parity import check_gates
from compare.schema.arms import parse_arm
from compare.schema.job import STEPS
from compare.worker import mnist
from compare.worker import parity as proving
from compare.worker.mnist import MnistTask
from compare.worker.parity import Proof, prove_steps
from compare.worker.randomness import states_of_generators
from compare.worker.reference import Reference
from compare.worker.shards import Shard, hash_tensors
from compare.worker.steps import differences
from compare.worker.watchdog import PassTimer
from tests.unit.factories import a_config, a_rank

CPU = torch.device("cpu")
GROUP = SimpleNamespace(rank=0, world_size=1, device=CPU)
WATCHDOG = SimpleNamespace(note=lambda *_, **__: None, stall_seconds=30.0)
TIMER = PassTimer(WATCHDOG, GROUP)


class Replica(base.Replica):
    """A tutorial's training, behind the seam."""

    group = GROUP

    def __init__(self, model, make_optimizer):
        super().__init__(model, make_optimizer, self.group, {})


class InParts(Replica):
    """Takes each pass in four parts, as a pipeline does."""

    parts_per_pass = 4

    def parts(self, batch):
        return cut_batch(batch, 4)

    def learn(self, batch, loss, *_):
        for part in self.parts(batch):
            (loss(self.model, part) / 4).backward()


class Doubles(Replica):
    def sync(self):
        for parameter in self.model.parameters():
            parameter.grad.mul_(2)


class Diverges(Replica):
    def step(self):
        super().step()
        with torch.no_grad():
            next(self.model.parameters()).fill_(float("nan"))


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(200, 784, generator=generator), torch.randint(10, (200,), generator=generator)


@pytest.fixture
def alone():
    """A group of this process only, for torch's DDP."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield GROUP
    distributed.destroy_process_group()


def a_task(data, **changes):
    return MnistTask(a_config("ddp", **{"ranks": 1, "seed": 3} | changes), None, *data)


def proof(data, replica=Replica, kind="float64", *, compares=True, brief=False, timer=TIMER, **changes):
    task = a_task(data, **changes).for_proof(kind)
    return Proof(replica, task, kind, timer, compares=compares).take(brief=brief)


def proof_of_a_job(arm, data, strategy, watchdog=WATCHDOG, **changes):
    """Take the brief proof of a launch, as a rank does."""
    arm = parse_arm(arm)
    config = a_config(arm.label, ranks=1, seed=3, **changes)
    job = SimpleNamespace(arm=arm, config=config, proof="brief")
    (taken,) = prove_steps(job, strategy, MnistTask(config, None, *data), GROUP, watchdog)
    return taken


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_prove_right_replica_equals_the_reference(data, kind):
    taken = proof(data, kind=kind)
    assert taken.kind == kind
    assert taken.steps == len(taken.differences) == STEPS
    assert taken.is_exact
    assert taken.wrong is None
    assert max(taken.limits) < {"float64": 1e-12, "float32": 1e-4}[kind]
    assert taken.share_of_first_update == pytest.approx(1, abs=1e-6)
    assert taken.error_of_first_update == pytest.approx(0, abs=1e-5)
    assert taken.error_of_whole_update == pytest.approx(0, abs={"float64": 1e-9, "float32": 1e-3}[kind])
    assert taken.seconds > 0


@pytest.mark.parametrize("first", [None, 0])
def test_prove_seeds_each_layer_of_a_divided_chain(data, first, monkeypatch):
    """Let a replica draw other random numbers first, as later ranks do."""

    class Elsewhere(InParts):
        first_layer = first

        def learn(self, *passed):
            torch.rand(7)
            super().learn(*passed)

    chain = nn.Sequential(nn.Linear(784, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 10))
    monkeypatch.setattr(mnist, "build_model", lambda _: copy.deepcopy(chain))
    assert proof(data, Elsewhere).is_exact is (first == 0)


def test_prove_step_without_a_right_gradient_is_not_explained(data, monkeypatch):
    class Constant(HasMore):
        def forward(self, inputs):
            return 0 * super().forward(inputs)

    class Wanders(Replica):
        def step(self):
            super().step()
            with torch.no_grad():
                next(self.model.parameters()).add_(1)

    monkeypatch.setattr(mnist, "build_model", lambda _: Constant())
    wrong = proof(data, Wanders).wrong
    assert (wrong.step, wrong.shares, wrong.kept) == (1, [], 1.0)


def test_prove_large_models_are_not_explained(data, monkeypatch):
    """That the update is twice the right one is known without the gradients of the shards."""
    monkeypatch.setattr("compare.worker.steps.MOST_EXPLAINED", 10)
    taken = proof(data, Doubles)
    assert (taken.wrong.step, taken.wrong.shares) == (1, [])
    assert (taken.share_of_first_update, taken.error_of_first_update) == pytest.approx((2, 1), abs=1e-9)


def test_reference_of_a_large_model_holds_two_shards_beside_the_sum(data, monkeypatch):
    """Of four shards, only its own gradients and those that are just computed are there."""
    monkeypatch.setattr("compare.worker.steps.MOST_EXPLAINED", 10)
    computed, alive = [], []

    def gradients(shard, *given, plainly=Shard.gradients, **named):
        alive.append(sum(gradient() is not None for gradient in computed))
        found = plainly(shard, *given, **named)
        computed.append(weakref.ref(found[0]))
        return found

    monkeypatch.setattr(Shard, "gradients", gradients)
    task = a_task(data, ranks=4).for_proof("float64")
    shard = SimpleNamespace(shard=(1, 4), parts=lambda batch: [batch], broadcasts_buffers=False)
    start = task.anew().build_model()
    reference = Reference(task, shard, start, TIMER, drifts=False)
    for step in range(2):
        reference.start_from(start)
        reference.step(step)
    assert len(reference.alone) == 4
    # The first shard begins the sum and is then replaced by it; the second one is this rank's own.
    assert alive == [0, 1, 1, 1, 0, 1, 1, 1]


class ForgetsGradients(DDPReplica):
    def step(self):
        self.optimizer.step()


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("arm", ["ddp:comm_hook=fp16", "ddp:comm_hook=powersgd"])
def test_prove_lossy_arm_passes_and_a_wrong_one_fails(data, monkeypatch, alone, arm, large):
    """The limit lies between them for every length of a pass."""
    if large:
        monkeypatch.setattr(proving, "_LARGE_PARAMETERS", 1000)
    options = parse_arm(arm).options_while_proven

    def gate_of(strategy):
        def make(model, make_optimizer):
            return strategy(model, make_optimizer, alone, options)

        taken = proof(data, make, brief=True, model="mlp:784-256-10")
        gates = check_gates(parse_arm(arm), [a_rank(0, parity=[taken])])
        return gates[0].outcome

    assert gate_of(DDPReplica) == "exempt"
    assert gate_of(ForgetsGradients) == "failed"


class HasMore(nn.Module):
    """A model with dropout, BatchNorm and a layer that takes no part."""

    def __init__(self, extra=False):
        super().__init__()
        self.path = nn.Sequential(nn.Linear(784, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 10))
        if extra:
            self.extra = nn.Linear(2, 2)

    def forward(self, inputs):
        return self.path(inputs)


class NeedsEveryGradient(Replica):
    needs_every_gradient = True


def test_prove_zero_gradients_of_a_zero_bias_are_rounding(data, monkeypatch):
    """Start a bias before BatchNorm at zero: its true gradient is zero."""

    class StartsAtZero(HasMore):
        def __init__(self):
            super().__init__()
            nn.init.zeros_(self.path[0].bias)

    class InAnotherOrder(Replica):
        def sync(self):
            for parameter in self.model.parameters():
                parameter.grad.mul_(1 / 3).mul_(3)

    monkeypatch.setattr(mnist, "build_model", lambda _: StartsAtZero())
    taken = proof(data, InAnotherOrder)
    assert max(taken.differences) > 0
    assert taken.is_exact


def test_prove_names_parameters_that_some_ranks_do_not_use(data, monkeypatch):
    class Chooses(HasMore):
        def forward(self, inputs):
            return super().forward(inputs) + (self.extra.weight.sum() if inputs[0, 0] > threshold else 0)

    class OfTwo(NeedsEveryGradient):
        group = SimpleNamespace(rank=0, world_size=2)

    task = a_task(data, ranks=2)
    first = [float(next(iter(task.for_proof("float64").batches((index, 2))))[0][0, 0]) for index in (0, 1)]
    threshold = sum(first) / 2
    monkeypatch.setattr(mnist, "build_model", lambda _: Chooses(extra=True))
    assert "extra.bias" in proof(data).unused
    with pytest.raises(BackendError, match=r"on any rank: extra\.bias"):
        proof(data, OfTwo, ranks=2)
    model = Chooses(extra=True)
    model.extra.bias = None
    monkeypatch.setattr(mnist, "build_model", lambda _: copy.deepcopy(model))
    with pytest.raises(BackendError, match=r"on some ranks: extra\.weight"):
        proof(data, OfTwo, ranks=2)


def test_prove_ends_where_the_single_process_diverges(data):
    """What was right until then is proven."""
    huge = (data[0] * 1e30, data[1])
    taken = proof(huge)
    assert 3 <= taken.steps == len(taken.differences) < STEPS
    assert taken.diverged
    (gate, _) = check_gates(parse_arm("single"), [a_rank(0, parity=[taken])])
    assert f"Proven by {taken.steps} steps: the single process diverges" in gate.what
    assert max(taken.differences[:2]) <= min(taken.limits[:2])


def test_prove_nan_is_none(data):
    taken = proof(data, Diverges)
    assert taken.differences == [None] * 3, "then the single process, too, has no numbers"
    assert taken.share_of_first_update is None
    assert taken.error_of_first_update is None
    assert taken.error_of_whole_update is None


def test_prove_other_ranks_compare_only_the_first_step(data):
    leads, follows = proof(data), proof(data, compares=False)
    assert len(follows.differences) == 1
    assert follows.error_of_whole_update is None
    assert follows.hash == leads.hash


@pytest.mark.parametrize(("brief", "steps"), [(True, 5), (False, STEPS)])
def test_prove_large_model_takes_fewer_steps_only_if_brief(data, monkeypatch, brief, steps):
    monkeypatch.setattr(proving, "_LARGE_PARAMETERS", 1000)
    assert proof(data, brief=brief).steps == steps


def test_prove_fewest_steps_show_late_compression(data, monkeypatch, alone):
    monkeypatch.setattr(proving, "_LARGE_PARAMETERS", 1000)
    arm = "ddp:comm_hook=powersgd:powersgd_start=25"
    taken = proof_of_a_job(arm, data, DDPReplica, model="mlp:784-16-10")
    assert taken.steps == 5
    assert max(taken.differences[:2]) <= min(taken.limits[:2])
    assert min(taken.differences[2:]) > 1e-3


@pytest.mark.parametrize(("compiled", "limit"), [(True, 300.0), (False, 30.0)])
def test_prove_first_step_may_take_as_long_as_a_launch(data, monkeypatch, compiled, limit):
    monkeypatch.setattr("compare.worker.task.compile_in_place", lambda _: None)
    noted = []
    watchdog = SimpleNamespace(
        stall_seconds=30.0, note=lambda *_, limit_seconds, **__: noted.append(limit_seconds)
    )
    proof_of_a_job("manual", data, base.Replica, watchdog, compile=compiled)
    assert noted[:3] == [limit] * 3
    in_first_step = 5
    assert all(30 < later < 40 for later in noted[in_first_step:])
    assert len(noted) == in_first_step + 2 * (STEPS - 1)


@pytest.mark.parametrize(
    ("ranks", "batch", "samples"), [(1, 64, 8), (2, 64, 4), (3, 64, 2), (100, 64, 1), (1, 3, 3)]
)
def test_prove_takes_few_samples_of_all_ranks_and_no_more_than_the_run(data, ranks, batch, samples):
    task = a_task(data, ranks=ranks, batch_size_per_rank=batch, steps=50).for_proof("float64")
    assert task.config.batch_size_per_rank == samples


def test_prove_restores_what_the_training_needs(data):
    before, images = states_of_generators(), data[0].clone()
    settings = torch.get_default_dtype(), torch.get_num_threads()
    taken = proof_of_a_job("manual", data, base.Replica, model="convnet")
    assert max(taken.differences) == 0, "dropout takes the same random numbers"
    assert states_of_generators() == before
    assert torch.equal(data[0], images)
    assert (torch.get_default_dtype(), torch.get_num_threads()) == settings


@pytest.mark.parametrize(("kind", "combined"), [("float64", [1]), ("float32", [])])
def test_prove_notes_every_pass_and_meets_before_each_step_and_at_the_end(data, kind, combined):
    timer, passes, met = PassTimer(None, None), [], []
    timer.begin_passes = lambda count=1: passes.append(count)
    timer.wait_for_ranks = lambda: met.append(len(passes))
    proof(data, kind=kind, timer=timer)
    begun, first = [0, 0], [1, *combined, 1]
    assert passes == [*begun, *first, *[1, 1] * (STEPS - 1)], "one of the reference and one of the arm"
    assert len(met) == STEPS + 1


def test_differences_are_relative_to_the_largest_number_of_a_parameter():
    found, expected = nn.Linear(2, 1), nn.Linear(2, 1)
    with torch.no_grad():
        expected.weight.copy_(torch.tensor([[100.0, 1.0]]))
        found.weight.copy_(torch.tensor([[100.0, 2.0]]))
        expected.bias.zero_()
        found.bias.fill_(1e-9)
    assert differences(found, expected.parameters()) == {"weight": pytest.approx(0.01, rel=1e-3), "bias": 1}
    found.bias.data.zero_()
    assert differences(found, expected.parameters())["bias"] == 0, "zeros are defined"
    assert differences(found, expected.parameters(), least=200.0)["weight"] == pytest.approx(1 / 200)


def test_hash_covers_every_bit():
    weight = torch.ones(3, dtype=torch.bfloat16)
    changed = weight.clone()
    changed[0] = torch.nextafter(weight[0], torch.tensor(2.0, dtype=torch.bfloat16))
    assert hash_tensors([weight]) == hash_tensors([weight.clone()]) != hash_tensors([changed])
