"""Register the arm ``own_torch``, which runs a user's own training step over torch.distributed."""

from backends.arms import manual
from backends.arms.shared import PROCESS_GROUP, own_step

ARM = own_step("own_torch", "torch.distributed", manual.ARM, PROCESS_GROUP)
