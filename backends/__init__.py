"""Register every way of synchronising gradients that can be compared.

The registry names classes by strings, so that reading it imports no library. A new backend is a file in
``arms/``, or an object in another package that declares the entry point ``ENTRY_POINT``. A new group or
strategy is one more file.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pkgutil import resolve_name

from backends.arms import ARMS
from backends.base import Group, Options, Replica
from backends.entry import Backend, GroupEntry, Option, Runtime, Shards

__all__ = ["BACKENDS", "GROUPS", "UNREADABLE", "Backend", "GroupEntry", "Option", "Runtime", "Shards", "load"]

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in ARMS}
"""All backends by name, both those of ``arms/`` and those that other packages add."""
ENTRY_POINT = "ringside.backends"
"""The name under which other packages declare their entry points, which must be ``Backend`` objects."""
UNREADABLE: dict[str, str] = {}
"""The reasons why entry points of other packages add no backend, by the entry point's name."""


def _add_backends_of_packages() -> None:
    """Add the backends of other packages to ``BACKENDS``, except those whose name is taken."""
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


_add_backends_of_packages()

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
"""The groups that ``ringside collectives`` can compare, by name."""


def load_group(name: str) -> type[Group]:
    """Import and return the ``Group`` class of an entry in ``GROUPS``.

    Raises:
        ImportError: the group's library is missing, or was built for another torch.
        KeyError: ``GROUPS`` has no such name.
    """
    entry = GROUPS[name]
    return resolve_name(entry.group or BACKENDS[entry.backend].group)


def load(name: str, options: Options) -> tuple[type[Group], type[Replica]]:
    """Import and return two classes: a backend's group, and the strategy that ``options`` choose.

    Raises:
        ImportError: a library of the backend is missing, or was built for another torch.
        KeyError: there is no backend of that name, or ``options`` lacks a value for one of its options.
    """
    backend = BACKENDS[name]
    strategy = backend.strategy
    for option in backend.options:
        strategy = option.strategies.get(str(options[option.name]), strategy)
    return resolve_name(backend.group), resolve_name(strategy)
