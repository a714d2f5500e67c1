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
    """Why a rank cannot take part."""

    NONE = 0
    OTHER_HOST = 1
    NOT_OPENED = 2
    NO_ROOM = 3


def share(group: Group, layout: Layout) -> tuple[mmap.mmap, str]:
    """Map one memory in every rank; return it with its kernel name.

    It has no name in a file system, so the ranks leave nothing, however they end. The size of /dev/shm does
    not limit it either. In a container that is 64 MB by default.

    Raises:
        BackendError: a rank cannot take part.
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
    """Return why ranks cannot share memory on this machine, or nothing."""
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
    """Return how much of a named memory this process has mapped."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if name in line:
            begin, _, end = line.split()[0].partition("-")
            total += int(end, 16) - int(begin, 16)
    return total


def _create(name: str) -> int:
    """Make memory that is in no file system.

    It calls libc: Pythons built on an old libc lack the function.
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
    """Open rank 0's memory by its descriptor.

    In another process namespace the number belongs to another process, and the name differs.
    """
    if str(Path(path).readlink()) != f"/memfd:{name} (deleted)":
        raise FileNotFoundError(errno.ENOENT, "its process number means another process here")
    return os.open(path, os.O_RDWR)


def _reserve(descriptor: int, layout: Layout, rank: int) -> None:
    """Reserve this rank's chunk; without it, a lack is a fatal signal."""
    os.ftruncate(descriptor, layout.nbytes)
    for offset, length in layout.reserved_by(rank):
        os.posix_fallocate(descriptor, offset, length)


def _agree(group: Group, trouble: Trouble, layout: Layout, reason: str) -> None:
    """Exchange the ranks' troubles, so that all stop for the same reason."""
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
    """Return an identity that all processes under one kernel share."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _broadcast_words(group: Group, *words: str) -> list[str]:
    text = torch.frombuffer(bytearray(" ".join(words).encode().ljust(OFFER_BYTES)), dtype=torch.uint8)
    group.broadcast_(text)
    return bytes(text.tolist()).decode().split()
