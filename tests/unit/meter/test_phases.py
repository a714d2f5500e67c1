"""Where the time of a step goes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compare.meter import phases
from compare.meter.phases import Stopwatch, reading_clock


@pytest.fixture
def clock(monkeypatch):
    """Advance the time by hand."""
    now = [0.0]
    monkeypatch.setattr(phases.time, "perf_counter", lambda: now[0])

    def advance(seconds):
        now[0] += seconds

    return advance


class Slow(nn.Linear):
    def __init__(self, clock):
        super().__init__(2, 1)
        self.clock = clock

    def forward(self, x):
        self.clock(1)
        return super().forward(x)


def test_each_part_of_a_step_counts_to_its_phase(clock):
    stopwatch, model = Stopwatch(torch.device("cpu")), Slow(clock)
    original = torch.autograd.backward
    with reading_clock(stopwatch, [model]):
        stopwatch.mark("optimizer")
        for _ in range(2):
            clock(0.5)  # loading
            loss = model(torch.ones(1, 2)).sum()
            clock(2)
            loss.register_hook(lambda _: clock(3))
            loss.backward()
            clock(4)
            stopwatch.mark("clipping")
            clock(5)
            stopwatch.mark("optimizer")
    found = stopwatch.seconds(2)
    assert found.pop("waiting") == 0
    assert found == {
        "outside": 0.5,
        "forward": 1,
        "between": 2,
        "backward": 3,
        "clipping": 4,
        "optimizer": 5,
    }
    assert torch.autograd.backward is original
    model(torch.ones(1, 2)).sum().backward()
    assert stopwatch.seconds(2)["forward"] == 1
