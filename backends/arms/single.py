"""Register the arm ``single``, which trains in one process without distributing anything."""

from backends.entry import Backend

ARM = Backend(
    name="single",
    summary="one process with all threads and the global batch: should I distribute at all?",
    group="backends.groups.none:NoGroup",
    strategy="backends.strategies.data_parallel:SingleReplica",
    code=("backends.base:Replica.step",),
    only_named=True,
    one_process=True,
)
