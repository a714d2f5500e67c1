"""Find how MPI copies large messages on a host, or is refused.

MPI saves a copy where the receiver may read the sender's memory (CMA, the call ``process_vm_readv``). Many
containers refuse that call. Open MPI then fails at every large message and copies it in parts; MPICH raises.

As a program it prints why a process may not read its parent's memory, if so. Python alone suffices.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.base import Facts, Group

NONE, UNKNOWN = "none", "unknown"
REFUSED = "refused: "
"""Marks the line that the program prints."""
_VARIABLES = {
    "btl_vader_single_copy_mechanism": {0: "XPMEM", 1: "CMA", 2: "KNEM", 3: NONE, 4: NONE},  # Open MPI 4
    "MPIR_CVAR_CH4_CMA_ENABLE": {0: NONE, 1: "CMA"},
}
"""MPI's own variables that hold the mechanism, and what their values mean."""
_MPI = re.compile(r"/\S*/libmpi\.so\S*")
_SECCOMP = re.compile(r"^Seccomp:\t2$", re.MULTILINE)
_TO_READ = ctypes.create_string_buffer(b"ringside", 8)
"""What a neighbour reads; it stays where it is."""


class _Vector(ctypes.Structure):
    """The ``struct iovec`` of readv(2)."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def attest(group: Group, transport: str) -> Facts:
    """Return how MPI copies large messages, and what refuses that. Collective.

    That is known for shared memory. Each rank reads the memory of the next one on its host, as MPI would.
    """
    refused = _refusal_by_neighbour(group)
    if refused is None or "shared memory" not in transport:
        return {}
    return {"single_copy": mechanism(), "memory_reads_refused": refused}


def mechanism() -> str:
    """Return the mechanism that the loaded MPI holds in its variables."""
    with suppress(OSError):
        loaded = _MPI.search(Path("/proc/self/maps").read_text())
        if loaded:
            library = ctypes.CDLL(loaded[0])
            known = ((_variable(library, name), meanings) for name, meanings in _VARIABLES.items())
            return next((meanings.get(v, UNKNOWN) for v, meanings in known if v is not None), UNKNOWN)
    return UNKNOWN


def refusal(pid: int, address: int) -> str:
    """Return why this process may not read another's memory, or nothing."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if call is None:
        return "the C library has no process_vm_readv"
    into = ctypes.create_string_buffer(len(_TO_READ))
    ours, theirs = (_Vector(where, len(into)) for where in (ctypes.addressof(into), address))
    if call(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) == len(into):
        return ""
    number = ctypes.get_errno()
    return f"{os.strerror(number)}, {errno.errorcode.get(number, number)}{_by_what()}"


def _by_what() -> str:
    """Name what refuses it here, as far as the kernel tells."""
    with suppress(OSError):
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
        if scope != "0":
            return f"; kernel.yama.ptrace_scope is {scope}"
    with suppress(OSError):
        if _SECCOMP.search(Path("/proc/self/status").read_text()):
            return "; a seccomp filter is active"
    return ""


def _refusal_by_neighbour(group: Group) -> str | None:
    """Return why the next rank here cannot be read; None without one."""
    import torch

    placement, ranks = group.placement, group.world_size
    # Sums of one number and zeros are exact, and addresses have 47 bits.
    everyone = torch.zeros(ranks, 2, dtype=torch.float64, device=group.device)
    everyone[group.rank] = torch.tensor([os.getpid(), ctypes.addressof(_TO_READ)], dtype=torch.float64)
    group.all_reduce_(everyone)
    if placement.local_world_size == 1:
        return None
    first = placement.rank - placement.local_rank
    neighbour = first + (placement.local_rank + 1) % placement.local_world_size
    pid, address = map(int, everyone[neighbour].tolist())
    return refusal(pid, address)


def _variable(library: ctypes.CDLL, name: str) -> int | None:
    """Read a variable of MPI's tools interface; None where there is none."""
    index, count, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    handle = ctypes.c_void_p()
    begin = getattr(library, "MPI_T_init_thread", None)
    if begin is None or begin(0, ctypes.byref(ctypes.c_int())):
        return None
    try:
        found = (
            not library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index))
            and not library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count))
            and not library.MPI_T_cvar_read(handle, ctypes.byref(value))
        )
        return value.value if found else None
    finally:
        library.MPI_T_finalize()


def main() -> None:
    """Let a child try to read this process, and print the refusal."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    if found := refusal(os.getppid(), ctypes.addressof(_TO_READ)):
        os.write(sys.stdout.fileno(), f"{REFUSED}{found}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
