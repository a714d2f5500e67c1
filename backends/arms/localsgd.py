"""Register the arm ``localsgd``, whose ranks average parameters instead of gradients."""

from backends.arms.shared import PROCESS_GROUP
from backends.entry import Backend, Option

ARM = Backend(
    name="localsgd",
    summary="each rank trains alone, and parameters are averaged every few steps",
    strategy="backends.strategies.local_sgd:LocalSGDReplica",
    code=(
        "backends.strategies.local_sgd:LocalSGDReplica.step",
        "backends.strategies.local_sgd:LocalSGDReplica._means",
    ),
    options=(
        PROCESS_GROUP,
        Option("period", 8, "steps between two averages", while_proven=1),
        Option(
            "outer",
            "none",
            "nesterov is DiLoCo: SGD with momentum uses the averaged change as its gradient",
            ("none", "nesterov"),
            while_proven="none",
        ),
    ),
    only_named=True,
    training="same at period 1",
)
