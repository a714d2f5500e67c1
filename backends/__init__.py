"""Register every way of synchronising gradients that can be compared.

The registry holds strings, so that reading it imports no library. A new backend is an entry of ``arms.py``,
or of another package, found by ``ENTRY_POINT``. Its group or strategy is one file, if it is new.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from backends.arms import ARMS
from backends.entry import Backend, GroupEntry, Option, Runtime

if TYPE_CHECKING:
    from backends.base import Group, Options, Replica

__all__ = ["BACKENDS", "GROUPS", "UNREADABLE", "Backend", "GroupEntry", "Option", "Runtime", "load"]

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in ARMS}
"""Our arms and those of other packages, by name."""
ENTRY_POINT = "ringside.backends"
"""The group of entry points by which other packages add backends; each names an entry."""
UNREADABLE: dict[str, str] = {}
"""Entry points that add nothing, with the reasons."""


def _add_from_packages() -> None:
    """Add the backends of other packages; the first of each name counts."""
    for point in entry_points(group=ENTRY_POINT):
        try:
            backend = point.load()
        except Exception as error:  # noqa: BLE001 -- another package's code
            UNREADABLE[point.name] = f"{point.value} cannot be loaded: {error}"
            continue
        if not isinstance(backend, Backend):
            UNREADABLE[point.name] = f"{point.value} is not a backends.Backend"
        elif backend.name in BACKENDS:
            UNREADABLE[point.name] = f"{point.value} is called {backend.name}, as another backend is"
        else:
            BACKENDS[backend.name] = backend


_add_from_packages()

GROUPS: dict[str, GroupEntry] = {
    "gloo": GroupEntry("torch.distributed over Gloo", "manual", {"process_group": "gloo"}),
    "nccl": GroupEntry("torch.distributed over NCCL", "manual", {"process_group": "nccl"}, device="cuda"),
    "horovod": GroupEntry("Horovod with its Gloo controller", "horovod", {"controller": "gloo"}),
    "horovod_mpi": GroupEntry("Horovod with its MPI controller", "horovod", {"controller": "mpi"}),
    "mpi": GroupEntry("MPI through mpi4py", "mpi", device="cpu"),
    "shared_memory": GroupEntry(
        "sums in memory that all ranks of one host map",
        "manual",
        {"mode": "shared_memory"},
        group="backends.groups.shared_memory_group:SharedMemoryGroup",
        device="cpu",
        one_host=True,
    ),
}
"""What ``compare collectives`` can compare, by name."""


def load_group(name: str) -> type[Group]:
    """Import the group of an entry in ``GROUPS``.

    Raises:
        ImportError: its library is missing, or was built for another torch.
        KeyError: there is no group of that name.
    """
    entry = GROUPS[name]
    group: type[Group] = _attribute(entry.group or BACKENDS[entry.backend].group)
    return group


def load(name: str, options: Options) -> tuple[type[Group], type[Replica]]:
    """Import a backend's group, and the strategy that the arm's options choose.

    Raises:
        ImportError: its library is missing, or was built for another torch.
        KeyError: there is no backend of that name.
    """
    backend = BACKENDS[name]
    strategy = backend.strategy
    for option in backend.options:
        strategy = option.strategies.get(str(options[option.name]), strategy)
    return _attribute(backend.group), _attribute(strategy)


def _attribute(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
