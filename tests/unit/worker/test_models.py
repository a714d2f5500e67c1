"""Models and optimizers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backends.base import BackendError
from compare.data.models import MODELS, PIXELS
from compare.worker import models
from compare.worker.models import build_model, loss_function, optimizer_maker
from tests.unit.factories import a_config


@pytest.mark.parametrize("name", [*MODELS, "mlp:784-10", "mlp:784-5-7-10"])
def test_build_model_maps_pixels_to_logits(name):
    model = build_model(name)
    loss = loss_function(model(torch.randn(3, PIXELS)), torch.tensor([0, 1, 2]))
    loss.backward()
    assert loss.shape == ()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [
        ("mlp", 784 * 256 + 256 + 256 * 10 + 10, 4),
        # The network of pytorch/examples' mnist/main.py.
        ("convnet", 1_199_882, 8),
        ("wide", 784 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 10 + 10, 6),
        ("mlp:784-10", 784 * 10 + 10, 2),
        ("mlp:784-20-30-10", 784 * 20 + 20 + 20 * 30 + 30 + 30 * 10 + 10, 6),
    ],
)
def test_build_model_has_the_documented_parameters(name, parameters, tensors):
    model = build_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert len(list(model.parameters())) == tensors


def test_build_model_name_equals_its_widths():
    torch.manual_seed(7)
    named = build_model("mlp")
    torch.manual_seed(7)
    written = build_model("mlp:784-256-10")
    assert str(named) == str(written)
    assert all(map(torch.equal, named.parameters(), written.parameters()))


def test_build_model_convnet_drops_out_only_in_training():
    pixels = torch.randn(4, PIXELS)
    dropping, exact = build_model("convnet"), build_model("convnet", dropout=False)
    assert not torch.equal(dropping(pixels), dropping(pixels))
    assert torch.equal(exact(pixels), exact(pixels))
    dropping.eval()
    assert torch.equal(dropping(pixels), dropping(pixels))


def test_build_model_refuses_an_unknown_name():
    with pytest.raises(ValueError, match="resnet"):
        build_model("resnet")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_optimizer_maker_steps_as_torch_bit_for_bit(kind):
    config = a_config(optimizer=kind.__name__.lower(), learning_rate=0.125)
    ours, theirs = nn.Linear(7, 3), nn.Linear(7, 3)
    theirs.load_state_dict(ours.state_dict())
    optimizers = [optimizer_maker(config)(ours.parameters()), kind(theirs.parameters(), lr=0.125)]
    for _ in range(3):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.arange(7.0)).square().sum().backward()
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("before", [True, False])
def test_optimizer_maker_has_no_wrapper_and_refuses_hooks(before):
    model = nn.Linear(2, 1)
    if before:  # which makes torch wrap the step of its class
        torch.optim.SGD(model.parameters(), lr=0.5)
        models.without_hooks.cache_clear()
    optimizer = optimizer_maker(a_config(optimizer="sgd"))(model.parameters())
    model(torch.ones(2)).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    names = {event.name for event in profile.events()}
    assert "aten::add_" in names
    assert not [name for name in names if "Optimizer" in name]
    for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
        with pytest.raises(BackendError, match=r"without hooks.* call it in the replica's step\(\)"):
            register(print)
