"""Register the arm ``fsdp``, which trains through torch's ``fully_shard``."""

from backends.arms.shared import BF16, FP16, PROCESS_GROUP
from backends.entry import Backend, Option

_DTYPES = ("none", "fp16", "bf16")

ARM = Backend(
    name="fsdp",
    summary="ZeRO stage 3, by fully_shard (FSDP2): parameters, gradients and optimizer state in shards",
    strategy="backends.strategies.fsdp:FSDPReplica",
    code=("backends.strategies.fsdp:FSDPReplica._shard",),
    options=(
        PROCESS_GROUP,
        Option(
            "units",
            "blocks",
            "what is gathered at once: a block that the model repeats or names, else a layer",
            ("blocks", "layers", "model"),
        ),
        Option(
            "reshard_after_forward",
            default=True,
            summary="gather parameters again in backward, as ZeRO stage 3 does; false sends what stage 2 "
            "sends, but between steps parameters are in shards, too",
            summaries={
                "false": "ZeRO stage 2 while it trains, by fully_shard (FSDP2): parameters are gathered "
                "until backward ends, and are in shards between steps"
            },
        ),
        Option(
            "replicate",
            1,
            "replicas of the model, each in shards on consecutive ranks, as HSDP has them: one for each host",
            divides_ranks=True,
        ),
        Option(
            "prefetch",
            0,
            "units gathered ahead of the one that computes; 0 leaves that to torch",
            least=0,
        ),
        Option(
            "offload",
            "none",
            "where shards and the optimizer's state lie; cpu is the host's memory, where the optimizer steps",
            ("none", "cpu"),
            cuda_only=("cpu",),
        ),
        Option(
            "reduce_dtype",
            "none",
            "the dtype in which gradients are summed",
            _DTYPES,
            lossy={"fp16": FP16, "bf16": BF16},
        ),
        Option(
            "param_dtype",
            "none",
            "the dtype in which parameters are gathered and layers compute",
            _DTYPES,
            # Every layer rounds its result, and the next one computes with it.
            lossy={"fp16": 8 * FP16, "bf16": 8 * BF16},
        ),
    ),
    only_named=True,
    shards="parameters",
)
