"""What a rank attests comes from the live objects."""

from __future__ import annotations

import json

import pytest

from compare.worker.attest import _attest_optimizer
from compare.worker.models import build_model, optimizer_maker
from tests.unit.factories import a_config


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_attest_optimizer_reads_the_held_learning_rate(name):
    config = a_config(optimizer=name, learning_rate=0.5)
    optimizer = optimizer_maker(config)(build_model("mlp").parameters())
    assert _attest_optimizer(optimizer)["groups"][0]["lr"] == 0.5
    optimizer.param_groups[0]["lr"] = 0.125
    attested = _attest_optimizer(optimizer)
    assert attested["groups"][0]["lr"] == 0.125
    assert attested["class"].lower() == name
    assert "params" not in attested["groups"][0]
    assert json.loads(json.dumps(attested))
