"""The meter around a training loop of a user's own, as a user would write it."""

from __future__ import annotations

import re

import ringside
from compare.schema.metered import METER_FILE, read_metered
from tests.comparing import torchrun

SCRIPT = """
import torch
import torch.distributed as dist
import ringside

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for name in ("first", "second"):
    with ringside.meter(pairs=3, block=5, warmup=10, output=name) as measured:
        for step in range(100):
            optimizer.zero_grad()
            model(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print(measured.result)
    else:
        assert measured.result is None
dist.destroy_process_group()
"""


def test_a_loop_of_ones_own_is_measured_under_torchrun(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = torchrun(tmp_path, "train.py")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"exposed sync +-?[\d.]+ \(", done.stdout)) == 2
    for name in ("first", "second"):
        record = read_metered(tmp_path / name / METER_FILE)
        assert (record.ended, record.steps, len(record.ranks)) == ("Everything was measured.", 100, 2)
        assert len(record.complete_pairs) == 3
    assert "exposed sync" in str(ringside.load(tmp_path / "second"))
