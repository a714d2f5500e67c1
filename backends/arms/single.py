"""The arm single."""

from __future__ import annotations

from backends.entry import Backend

ARM = Backend(
    name="single",
    summary="one process with all threads and the global batch: should I distribute at all?",
    group="backends.groups.none:NoGroup",
    strategy="backends.strategies.single:SingleReplica",
    code=("backends.strategies.local:LocalReplica.sync",),
    only_named=True,
    one_process=True,
)
