"""Models and losses that an arm trains as one process does."""

from __future__ import annotations

from tests.proof.case import right
from tests.proof.workloads.tasks import ddp_step, workload


@right("ddp", "manual", origin="own")
def mlp():
    """A small model without anything special."""
    return workload()


@right("own_torch", origin="own")
def mlp_by_ddp():
    """The step of the tutorials."""
    return workload(own_step=ddp_step())
