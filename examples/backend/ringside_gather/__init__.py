"""The entry of an arm. Ringside reads it to list the arm, so it imports no torch."""

from backends import Backend, Option

ENTRY = Backend(
    name="gather",
    summary="every rank gathers the gradients of all, and averages them itself",
    group="backends.groups.torch_group:TorchGroup",
    strategy="ringside_gather.replica:GatherReplica",
    code=("ringside_gather.replica:GatherReplica.sync",),
    options=(
        Option("process_group", "auto", "auto is NCCL on CUDA and Gloo on CPU", ("auto", "nccl", "gloo")),
        Option("calls", "one", "one call for all gradients, or one each", ("one", "each")),
    ),
    only_named=True,
)
