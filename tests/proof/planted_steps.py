"""Register the common mistakes of tests/e2e/planted.py, each with its cause."""

from __future__ import annotations

from tests.e2e import planted
from tests.proof.case import wrong

CAUSES = {
    planted.sums: "a sum in place of the mean",
    planted.clips: "they are scaled or clipped before the average",
    planted.scales: "It is 1.5 times the right one: gradients or the learning rate are scaled or clipped",
    planted.steps_twice: "wrong from step 5: 2.weight is off by 5.4e-02. It calls optimizer.step() 2 times",
}

for _factory, _cause in CAUSES.items():
    wrong(origin="own", ends="failed", names=_cause, batch_size_per_rank=8)(_factory)
