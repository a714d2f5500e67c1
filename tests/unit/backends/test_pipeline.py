"""Test how a chain is divided, and what its loss may do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backends.base import BackendError
from backends.strategies.models import cut_batch
from backends.strategies.pipeline import PipelineReplica, divide

OPTIONS = {"schedule": "1f1b", "microbatches": 2}
BATCH = torch.zeros(4, 3), torch.zeros(4, 2)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def layers_of(*widths):
    """Return layers of so many parameters; none for 0."""
    return [nn.Linear(width, 1, bias=False) if width else nn.ReLU() for width in widths]


@pytest.mark.parametrize(
    ("widths", "ranks", "starts"),
    [
        ((5, 0, 5), 1, [0]),
        ((5, 0, 5), 2, [0, 2]),
        ((0, 9, 0, 1, 0, 1), 2, [0, 3]),
        ((1, 1, 9), 2, [0, 2]),
        ((3, 3, 3, 3, 3, 3), 3, [0, 2, 4]),
        ((1, 1, 1, 20, 1), 3, [0, 3, 4]),
    ],
)
def test_divide_keeps_the_largest_part_small(widths, ranks, starts):
    assert divide(layers_of(*widths), ranks) == starts


def test_divide_refuses_too_few_layers_and_tied_ones():
    with pytest.raises(BackendError, match="2 layers with parameters cannot be divided among 3 ranks"):
        divide(layers_of(5, 0, 5), 3)
    tied = layers_of(4, 0, 4)
    tied[2].weight = tied[0].weight
    assert divide(tied, 1) == [0]
    with pytest.raises(BackendError, match="layer 2 shares its parameter weight"):
        divide(tied, 2)


def test_pipeline_refuses_a_model_that_is_no_chain(group):
    class Branches(nn.Sequential):
        def forward(self, inputs):
            return inputs + super().forward(inputs)

    for model in (nn.LSTM(3, 2), Branches(nn.Linear(3, 3))):
        with pytest.raises(
            BackendError, match=rf"a {type(model).__name__}, but ranks can divide only an nn\.Sequential"
        ):
            PipelineReplica(model, sgd, group, OPTIONS)


def test_pipeline_of_one_rank_trains_and_restores_generators_and_buffers(group):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    replica = PipelineReplica(model, sgd, group, OPTIONS)
    torch.manual_seed(1)
    replica.learn(BATCH, lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
    assert replica.model[1].num_batches_tracked == 2
    after = torch.rand(1)
    torch.manual_seed(1)
    for _ in range(2):
        nn.functional.dropout(torch.zeros(2, 2))
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda model, batch: batch[0].sum(), "never calls the model"),
        (lambda model, batch: model(batch[0], 1).sum(), "other arguments than one tensor"),
        (lambda model, batch: (model(batch[0]) - model(batch[0])).sum(), "more than once, or with"),
        (lambda model, batch: model(batch[0]).sum() + model.weight, "reads weight of the model"),
    ],
)
def test_pipeline_refuses_a_loss_that_needs_the_whole_model(group, loss, reason):
    with pytest.raises(BackendError, match=reason):
        PipelineReplica(nn.Sequential(nn.Linear(3, 2)), sgd, group, OPTIONS).learn(BATCH, loss)


def test_pipeline_computes_under_the_autocast_of_the_loss(group):
    replica = PipelineReplica(nn.Sequential(nn.Linear(3, 2)), sgd, group, OPTIONS)
    seen = []

    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            answers = model(batch[0])
        seen.append((answers.dtype, torch.is_autocast_enabled("cpu")))
        return nn.functional.mse_loss(answers.float(), batch[1])

    replica.learn(BATCH, loss)
    assert set(seen) == {(torch.bfloat16, False)}
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        replica.learn(BATCH, loss)
    assert set(seen) == {(torch.bfloat16, True)}


def test_pipeline_refuses_few_microbatches_and_another_shape(group):
    with pytest.raises(BackendError, match=r"as many microbatches as ranks, but there are 0 for 1"):
        PipelineReplica(nn.Sequential(nn.Linear(3, 2)), sgd, group, OPTIONS | {"microbatches": 0})
    replica = PipelineReplica(nn.Sequential(nn.Linear(3, 2)), sgd, group, OPTIONS)
    replica.learn(torch.zeros(4, 3), lambda model, batch: model(batch).mean())
    with pytest.raises(BackendError, match=r"have the shape \(6, 3\), but .* had \(4, 3\)"):
        replica.learn(torch.zeros(6, 3), lambda model, batch: model(batch).mean())


def test_cut_divides_tensors_with_a_row_for_each_sample():
    batch = {"words": torch.arange(6), "mask": torch.ones(2, 2), "name": "x", "more": [torch.zeros(6, 1)]}
    parts = cut_batch(batch, 3)
    assert [part["words"].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert {part["name"] for part in parts} == {"x"}
    assert all(part["mask"].shape == (2, 2) and part["more"][0].shape == (2, 1) for part in parts)
    with pytest.raises(BackendError, match="6 samples does not divide into 4 equal parts"):
        cut_batch(batch, 4)
