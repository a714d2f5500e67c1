"""The arm own_horovod."""

from backends.arms import horovod
from backends.arms.shared import CONTROLLER, own_step

ARM = own_step("own_horovod", "Horovod", horovod.ARM, CONTROLLER)
