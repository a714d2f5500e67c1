"""Register the arm ``none``, the control, whose ranks do not communicate."""

from backends.entry import Backend

ARM = Backend(
    name="none",
    summary="the control: the same ranks, no communication, no library",
    group="backends.groups.none:NoGroup",
    strategy="backends.base:Replica",
    code=("backends.base:Replica.step",),
    synchronises=False,
)
