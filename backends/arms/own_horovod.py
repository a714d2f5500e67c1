"""The arm own_horovod."""

from __future__ import annotations

from backends.arms._shared import CONTROLLER
from backends.entry import Backend

ARM = Backend(
    name="own_horovod",
    summary="the distributed step of your own Workload, over Horovod",
    group="backends.groups.horovod_group:HorovodGroup",
    strategy="backends.strategies.own:OwnReplica",
    code=("backends.strategies.own:OwnReplica.learn",),
    launcher="horovodrun",
    libraries=("horovod",),
    install="compare install horovod",
    options=(CONTROLLER,),
    only_named=True,
    runs_while_waiting=True,
    own_step=True,
)
