"""Carry one launch from its start to its end."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compare.launch.arm import Observer as Observer
    from compare.launch.arm import launch_arm as launch_arm
    from compare.launch.arm import launch_sweep as launch_sweep
    from compare.launch.cluster import open_cluster as open_cluster

_FACE = {"Observer": "arm", "launch_arm": "arm", "launch_sweep": "arm", "open_cluster": "cluster"}


def __getattr__(name: str) -> Any:
    # On demand: the command line imports its signals from here, before anything else.
    if name not in _FACE:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_FACE[name]}"), name)
