"""Register the arm ``own_horovod``, which runs a user's own training step over Horovod."""

from backends.arms import horovod
from backends.arms.shared import CONTROLLER, own_step

ARM = own_step("own_horovod", "Horovod", horovod.ARM, CONTROLLER)
