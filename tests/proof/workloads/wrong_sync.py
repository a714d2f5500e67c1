"""Steps that do not average as they should."""

from __future__ import annotations

from tests.proof.case import wrong
from tests.proof.workloads.tasks import mse, workload


@wrong(origin="own", ends="failed")
def never_synchronised():
    """A step that never communicates."""
    return workload(own_step=_alone)


def _alone(model, make_optimizer):
    optimizer = make_optimizer(model.parameters())

    def step(batch):
        optimizer.zero_grad()
        mse(model, batch).backward()
        optimizer.step()

    return step
