"""What a rank attests comes from the live objects."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from compare.worker.attest import _attest_gpu, _attest_optimizer
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


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("580.159.04, 1980, [N/A], 700.00", ["580.159.04", 1980, None, 700]),
        ("", [None, None, None, None]),
        (None, [None, None, None, None]),
    ],
)
def test_attest_gpu_reads_what_the_driver_tells(tmp_path, monkeypatch, told, expected):
    """Without a driver's program, only the memory is known."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if told is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!{sys.executable}\nprint({told!r})\n")
        program.chmod(0o755)
    properties = SimpleNamespace(uuid="0", total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    found = _attest_gpu(torch.device("cuda", 0))
    assert found.pop("memory_bytes") == 80 << 30
    assert list(found) == ["driver", "clock_mhz", "clock_limit_mhz", "power_limit_watts"]
    assert list(found.values()) == expected
