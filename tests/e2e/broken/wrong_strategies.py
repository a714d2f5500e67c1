"""Choose the fault of each arm, for ``sitecustomize.py`` beside this file."""

from backends.strategies.ddp import DDPReplica
from tests.contract.broken import NeverSteps, SkipsAParameter, Sums, Unsharded

FAULTS = {
    ("torch.distributed", "flat"): Sums,
    ("torch.distributed", "per_parameter"): SkipsAParameter,
    ("mpi", "flat"): Unsharded,
    ("mpi", "per_parameter"): NeverSteps,
}


def choose(model, make_optimizer, group, options):
    return FAULTS[group.name, options["mode"]](model, make_optimizer, group, options)


def choose_ddp(model, make_optimizer, group, options):
    replica = DDPReplica(model, make_optimizer, group, options)
    if options["comm_hook"] != "none":
        replica.shard = (0, group.world_size)  # every rank trains on the same batches
    return replica
