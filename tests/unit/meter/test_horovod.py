"""What the meter asks of Horovod, whose module a stand-in gives."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from compare.meter.horovod import Horovod, HorovodRanks
from compare.meter.ranks import DisagreementError


@pytest.fixture
def hvd(monkeypatch):
    """Return a stand-in for ``horovod.torch`` on one of two ranks, without any communication."""
    module = ModuleType("horovod.torch")
    module.rank, module.size = (lambda: 0), (lambda: 2)
    module.synchronize = lambda _: None
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(torch=module))
    monkeypatch.setitem(sys.modules, "horovod.torch", module)
    return module


def test_an_error_of_horovod_between_blocks_ends_the_measuring_alone(hvd):
    def fail(*_, **__):
        raise RuntimeError("Horovod has been shut down.\nThis was caused by another rank.")

    hvd.allgather_object = fail
    with pytest.raises(DisagreementError, match=r"could not be compared: Horovod has been shut down\.$"):
        HorovodRanks().exchange({})


def test_messages_of_two_optimizers_have_two_names_and_are_compressed(hvd):
    sent = []
    hvd.allreduce_async_ = lambda zeros, name: sent.append((name, zeros.dtype))
    for number in range(2):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2)) for _ in range(2)])
        optimizer._compression = SimpleNamespace(compress=lambda tensor: (tensor.half(), tensor.dtype))
        Horovod(optimizer, [], number).start_messages()()
    assert sent == [
        (name, torch.float16) for name in ("ringside.0.0", "ringside.0.1", "ringside.1.0", "ringside.1.1")
    ]
