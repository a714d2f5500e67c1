"""Register the arm ``manual``, which averages gradients by calls of torch.distributed."""

from backends.arms.shared import AVERAGING, AVERAGING_CODE, BUCKET_MB, PROCESS_GROUP
from backends.entry import Backend, Option

_BY_HAND = {
    "shared_memory": "a sum in memory that all ranks of one host map",
    "ring": "an all-reduce by hand: parts travel around a ring",
    "reduce_broadcast": "an all-reduce by hand: a sum on rank 0, which sends it to all",
    "reduce_scatter": "an all-reduce by hand: each rank sums a part, and all gather the parts",
    "all_gather": "an all-reduce by hand: each rank gets all gradients, and sums them itself",
}
_BY_HAND_CODE = {
    "shared_memory": ("backends.shared_memory.sum:SharedSum.reduce",),
    "ring": ("backends.strategies.reducers:ring", "backends.groups.torch_group:pass_on"),
    "reduce_broadcast": ("backends.strategies.reducers:reduce_broadcast",),
    "reduce_scatter": ("backends.strategies.reducers:reduce_scatter",),
    "all_gather": ("backends.strategies.reducers:all_gather",),
}

ARM = Backend(
    name="manual",
    summary="torch.distributed.all_reduce of every gradient, by hand",
    strategy=AVERAGING,
    options=(
        Option(
            "mode",
            "flat",
            "one call per parameter, one for all, during backward, in memory of one host, or an "
            "all-reduce's own collectives",
            ("per_parameter", "flat", "overlap", *_BY_HAND),
            summaries=_BY_HAND,
            code=AVERAGING_CODE | _BY_HAND_CODE,
        ),
        BUCKET_MB,
        PROCESS_GROUP,
    ),
    on_one_host={"mode": "shared_memory"},
)
