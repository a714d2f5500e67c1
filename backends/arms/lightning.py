"""Register the arm ``lightning``, which trains through Lightning Fabric."""

from backends.arms.shared import BUCKET_CAP_MB, BUCKET_VIEW, FIND_UNUSED, PROCESS_GROUP
from backends.entry import Backend, Runtime

ARM = Backend(
    name="lightning",
    summary="Lightning Fabric over DDP",
    strategy="backends.strategies.lightning:LightningReplica",
    code=(
        "backends.strategies.lightning:LightningReplica._wrap",
        "backends.strategies.lightning:LightningReplica.backward",
    ),
    default_runtime=Runtime(
        libraries=("lightning_fabric",), install="pip install 'lightning-fabric>=2.6,<3'"
    ),
    options=(PROCESS_GROUP, BUCKET_CAP_MB, BUCKET_VIEW, FIND_UNUSED),
    only_named=True,
)
