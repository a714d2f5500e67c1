"""Map one piece of memory in all ranks of a host."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from backends.base import BackendError

if TYPE_CHECKING:
    from backends.base import Group
    from backends.shared_memory.layout import Layout

OFFER_BYTES = 256
_CLOSE_ON_EXEC = 1
"""MFD_CLOEXEC of linux/memfd.h."""


class Trouble(IntEnum):
    """Why a rank cannot map the shared memory."""

    NONE = 0
    OTHER_HOST = 1
    NOT_OPENED = 2
    NO_ROOM = 3


def share(group: Group, layout: Layout) -> tuple[mmap.mmap, str]:
    """Map one memory in every rank; return it and its name in ``/proc/self/maps``. Collective.

    The memory is in no file system, so nothing remains of it, however the ranks end. The size of /dev/shm,
    which is 64 MB by default in a container, does not limit it either.

    Raises:
        BackendError: a rank cannot map the memory; all ranks raise this.
    """
    name = f"ringside-gradients-{secrets.token_hex(8)}"
    created, opened, trouble, reason = -1, -1, Trouble.OTHER_HOST, ""
    if group.rank == 0:
        try:
            created = _create(name)
        except OSError as error:
            reason = f" ({error.strerror})"
    pid, descriptor, name, boot = _broadcast_words(
        group, str(os.getpid()), str(created), name, _boot_identity()
    )
    try:
        if boot == _boot_identity():
            trouble = Trouble.NOT_OPENED
            opened = _open(f"/proc/{pid}/fd/{descriptor}", name)
            trouble = Trouble.NO_ROOM
            _reserve(opened, layout, group.rank)
            trouble = Trouble.NONE
    except OSError as error:
        reason = reason or f" ({error.strerror})"
    try:
        _agree(group, trouble, layout, reason)  # after this no rank needs rank 0's descriptor
        return mmap.mmap(opened, layout.nbytes), name
    finally:
        for handle in {created, opened} - {-1}:
            os.close(handle)


def problem_here() -> str:
    """Return why ranks cannot share memory on this machine; empty if they can."""
    name, descriptors = "ringside-probe", []
    try:
        descriptors.append(_create(name))
        descriptors.append(_open(f"/proc/{os.getpid()}/fd/{descriptors[0]}", name))
        _boot_identity()
    except OSError as error:
        return f"memory cannot be shared here ({error.strerror})"
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return ""


def mapped_bytes(name: str) -> int:
    """Return how many bytes of the memory with this name the process has mapped."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if name in line:
            begin, _, end = line.split()[0].partition("-")
            total += int(end, 16) - int(begin, 16)
    return total


def _create(name: str) -> int:
    """Create memory that is in no file system, and return its descriptor.

    This calls ``memfd_create`` in libc, because a Python that was built on an old libc lacks it.
    """
    try:
        create = ctypes.CDLL(None, use_errno=True).memfd_create
    except AttributeError:
        raise OSError(errno.ENOSYS, "the C library has no memfd_create") from None
    descriptor = int(create(name.encode(), ctypes.c_uint(_CLOSE_ON_EXEC)))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def _open(path: str, name: str) -> int:
    """Open rank 0's memory by the path of its descriptor in ``/proc``, and return a new descriptor.

    In another process namespace, rank 0's process number belongs to another process. The name then differs,
    or there is no such path.

    Raises:
        OSError: the path is not that of the memory, or cannot be opened.
    """
    if str(Path(path).readlink()) != f"/memfd:{name} (deleted)":
        raise FileNotFoundError(errno.ENOENT, "its process number means another process here")
    return os.open(path, os.O_RDWR)


def _reserve(descriptor: int, layout: Layout, rank: int) -> None:
    """Reserve the memory of this rank's chunks, because a lack of it would later be a fatal signal."""
    os.ftruncate(descriptor, layout.nbytes)
    for offset, length in layout.reserved_by(rank):
        os.posix_fallocate(descriptor, offset, length)


def _agree(group: Group, trouble: Trouble, layout: Layout, reason: str) -> None:
    """Exchange the ranks' troubles, so that all ranks raise an error if one has any."""
    troubles = torch.zeros(group.world_size, dtype=torch.int64)
    troubles[group.rank] = trouble
    group.all_reduce_(troubles)
    found = troubles.tolist()
    for kind in (Trouble.OTHER_HOST, Trouble.NOT_OPENED, Trouble.NO_ROOM):
        ranks = [rank for rank, code in enumerate(found) if code == kind]
        if ranks:
            raise BackendError(_message(kind, ranks, layout) + (reason if group.rank in ranks else ""))


def _message(trouble: Trouble, ranks: list[int], layout: Layout) -> str:
    who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    if trouble == Trouble.OTHER_HOST:
        return (
            f"mode=shared_memory needs all ranks on one host, but {who} and rank 0 are on different hosts. "
            "Put all ranks on one host, or use mode=flat."
        )
    if trouble == Trouble.NOT_OPENED:
        return (
            f"mode=shared_memory: {who} cannot open the memory of rank 0 on the same host. "
            "Run all ranks as one user and in one container, or use mode=flat."
        )
    return (
        f"mode=shared_memory needs {layout.nbytes / 1e6:.1f} MB of memory on this host, and {who} could "
        "not reserve their part. Free memory, raise the container's limit, or use mode=flat."
    )


def _boot_identity() -> str:
    """Return the identity of the kernel's boot, which is the same for all processes of a host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _broadcast_words(group: Group, *words: str) -> list[str]:
    text = torch.frombuffer(bytearray(" ".join(words).encode().ljust(OFFER_BYTES)), dtype=torch.uint8)
    group.broadcast_(text)
    return bytes(text.tolist()).decode().split()
