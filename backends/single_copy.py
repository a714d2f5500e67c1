"""Find how MPI copies large messages between ranks of a host, and whether the system refuses it.

MPI saves a copy where the receiver may read the sender's memory (CMA, the call ``process_vm_readv``). Many
containers refuse that call. Open MPI then tries it for every large message before it copies the message in
parts, but MPICH raises an error.

Run as a program, this module prints why a process may not read its parent's memory, or nothing if it may. It
then needs only the standard library.
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
"""Variables of MPI libraries that hold the mechanism, and the meaning of their values."""
_MPI = re.compile(r"/\S*/libmpi\.so\S*")
_SECCOMP = re.compile(r"^Seccomp:\t2$", re.MULTILINE)
_TO_READ = ctypes.create_string_buffer(b"ringside", 8)
"""The memory that a neighbour reads; its address never changes."""


def attest(group: Group, transport: str) -> Facts:
    """Return how MPI copies large messages, and why the system refuses it. Collective.

    Each rank tries to read the memory of the next rank on its host, as MPI would. The reason is empty if it
    may. There are no facts if the rank is alone on its host, or if ``transport`` is not shared memory.
    """
    refused = _refusal_by_neighbour(group)
    if refused is None or "shared memory" not in transport:
        return {}
    return {"single_copy": mechanism(), "memory_reads_refused": refused}


def mechanism() -> str:
    """Return the mechanism that is set in the loaded MPI, such as ``CMA``, ``none`` or ``unknown``."""
    with suppress(OSError):
        loaded = _MPI.search(Path("/proc/self/maps").read_text())
        if loaded:
            library = ctypes.CDLL(loaded[0])
            known = ((_variable(library, name), meanings) for name, meanings in _VARIABLES.items())
            return next((meanings.get(v, UNKNOWN) for v, meanings in known if v is not None), UNKNOWN)
    return UNKNOWN


def refusal(pid: int, address: int) -> str:
    """Return why this process may not read another process's memory at ``address``; empty if it may."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if call is None:
        return "the C library has no process_vm_readv"
    into = ctypes.create_string_buffer(len(_TO_READ))
    # Each is a ``struct iovec`` of readv(2): an address and a length.
    ours, theirs = ((ctypes.c_size_t * 2)(at, len(into)) for at in (ctypes.addressof(into), address))
    if call(pid, ours, 1, theirs, 1, 0) == len(into):
        return ""
    number = ctypes.get_errno()
    return f"{os.strerror(number)}, {errno.errorcode.get(number, number)}{_probable_cause()}"


def _probable_cause() -> str:
    """Return the setting that probably refuses the call, as the end of a reason; empty if unknown."""
    with suppress(OSError):
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
        if scope != "0":
            return f"; kernel.yama.ptrace_scope is {scope}"
    with suppress(OSError):
        if _SECCOMP.search(Path("/proc/self/status").read_text()):
            return "; a seccomp filter is active"
    return ""


def _refusal_by_neighbour(group: Group) -> str | None:
    """Return why this rank may not read the next one on its host; None if it has no neighbour."""
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
    """Return a variable of MPI's tools interface; None if the library has no such variable."""
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
    """Let a child process try to read this one's memory, and print the reason if it may not."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    if found := refusal(os.getppid(), ctypes.addressof(_TO_READ)):
        os.write(sys.stdout.fileno(), f"{REFUSED}{found}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
