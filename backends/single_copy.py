"""Find how MPI copies large messages between ranks of a host, and whether the system allows that.

MPI saves one of two copies where the receiver may read the sender's memory (CMA, the call
``process_vm_readv``). Many containers refuse that call. Open MPI then tries it for every large message before
it copies the message in parts, but MPICH raises an error.

Run as a program, this module prints why a process may not read the memory of its parent, or prints nothing
if it may. It then needs only the standard library.
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
"""Start of the line that the program prints."""
_VARIABLES = {
    "btl_vader_single_copy_mechanism": {0: "XPMEM", 1: "CMA", 2: "KNEM", 3: NONE, 4: NONE},  # Open MPI 4
    "MPIR_CVAR_CH4_CMA_ENABLE": {0: NONE, 1: "CMA"},
}
"""The variables in which MPI libraries hold the mechanism, each with the meanings of its values."""
_MPI_LIBRARY = re.compile(r"/\S*/libmpi\.so\S*")
_SECCOMP = re.compile(r"^Seccomp:\t2$", re.MULTILINE)
_READABLE = ctypes.create_string_buffer(b"ringside", 8)
"""The memory that another process tries to read; its address stays the same."""


def attest(group: Group, transport: str) -> Facts:
    """Return how MPI copies large messages, and why the system refuses reads of memory, if it does.

    Each rank tries to read the memory of the next rank on its host, as MPI would, so every rank must call
    this. There are no facts if the rank is alone on its host, or if ``transport`` is not shared memory.
    """
    refused = _neighbour_refusal(group)
    if refused is None or "shared memory" not in transport:
        return {}
    return {"single_copy": mechanism(), "memory_reads_refused": refused}


def mechanism() -> str:
    """Return the mechanism that the loaded MPI uses for single copies, or ``none`` or ``unknown``.

    The mechanisms are ``CMA``, ``XPMEM`` and ``KNEM``.
    """
    with suppress(OSError):
        loaded = _MPI_LIBRARY.search(Path("/proc/self/maps").read_text())
        if loaded:
            library = ctypes.CDLL(loaded[0])
            values = ((_read_variable(library, name), meanings) for name, meanings in _VARIABLES.items())
            return next((meanings.get(v, UNKNOWN) for v, meanings in values if v is not None), UNKNOWN)
    return UNKNOWN


def refusal(pid: int, address: int) -> str:
    """Return why this process may not read another process's memory at ``address``; empty if it may."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if call is None:
        return "the C library has no process_vm_readv"
    target = ctypes.create_string_buffer(len(_READABLE))
    # Each is a ``struct iovec`` of readv(2): an address and a length.
    ours, theirs = ((ctypes.c_size_t * 2)(at, len(target)) for at in (ctypes.addressof(target), address))
    if call(pid, ours, 1, theirs, 1, 0) == len(target):
        return ""
    number = ctypes.get_errno()
    return f"{os.strerror(number)}, {errno.errorcode.get(number, number)}{_probable_cause()}"


def _probable_cause() -> str:
    """Return a clause, to end a reason, that names what probably refuses the call; empty if unknown."""
    with suppress(OSError):
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
        if scope != "0":
            return f"; kernel.yama.ptrace_scope is {scope}"
    with suppress(OSError):
        if _SECCOMP.search(Path("/proc/self/status").read_text()):
            return "; a seccomp filter is active"
    return ""


def _neighbour_refusal(group: Group) -> str | None:
    """Return why this rank may not read the memory of the next rank on its host.

    The result is empty if it may, and None if there is no other rank on the host. Every rank must call this.
    """
    import torch

    placement, ranks = group.placement, group.world_size
    # Sums of one number and zeros are exact, and addresses have 47 bits.
    addresses = torch.zeros(ranks, 2, dtype=torch.float64, device=group.device)
    addresses[group.rank] = torch.tensor([os.getpid(), ctypes.addressof(_READABLE)], dtype=torch.float64)
    group.all_reduce_(addresses)
    if placement.local_world_size == 1:
        return None
    first = placement.rank - placement.local_rank
    neighbour = first + (placement.local_rank + 1) % placement.local_world_size
    pid, address = map(int, addresses[neighbour].tolist())
    return refusal(pid, address)


def _read_variable(library: ctypes.CDLL, name: str) -> int | None:
    """Return the value of a variable of MPI's tools interface; None if the library has no such variable."""
    index, count, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    handle = ctypes.c_void_p()
    initialise = getattr(library, "MPI_T_init_thread", None)
    if initialise is None or initialise(0, ctypes.byref(ctypes.c_int())):
        return None
    try:
        was_read = (
            not library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index))
            and not library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count))
            and not library.MPI_T_cvar_read(handle, ctypes.byref(value))
        )
        return value.value if was_read else None
    finally:
        library.MPI_T_finalize()


def main() -> None:
    """Let a child process try to read this process's memory, and print why if the system refuses that."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    if reason := refusal(os.getppid(), ctypes.addressof(_READABLE)):
        os.write(sys.stdout.fileno(), f"{REFUSED}{reason}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
