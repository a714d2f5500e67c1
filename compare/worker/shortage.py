"""Tell whether an exception says that memory is short, and which limit it has met."""

from __future__ import annotations

import errno
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from compare.schema.memory import Shortage
from compare.system.limits import address_limit_bytes, memory_left_bytes, memory_limit_bytes

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|[KMG]iB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_OF_ALLOCATORS = ("can't allocate memory", "not enough memory", "std::bad_alloc", "Cannot allocate memory")
"""What allocators of torch and C++ say in a RuntimeError."""
_PLENTY = 0.2
"""Share of the limit that is free where an error that names no size is not about this memory."""


def find_shortage(error: BaseException) -> Shortage | None:
    """Return the limit on memory that an exception, or one before it, has met; None if there is none.

    To be called while the exception's frames still hold the memory, because what is in use is counted.
    """
    for one in _chain(error):
        if (torch := sys.modules.get("torch")) and isinstance(one, torch.OutOfMemoryError):
            device = torch.cuda.get_device_properties(torch.cuda.current_device())
            used = torch.cuda.memory_reserved()
            return Shortage(limit_bytes=device.total_memory, limit="GPU", needed_bytes=used + _asked(one))
        is_full = isinstance(one, OSError) and one.errno == errno.ENOMEM
        says_so = isinstance(one, RuntimeError) and any(mark in str(one) for mark in _OF_ALLOCATORS)
        if isinstance(one, MemoryError) or is_full or says_so:
            if limit := address_limit_bytes():
                needed = _address_space_bytes() + _asked(one)
                return Shortage(limit_bytes=limit, limit="address space", needed_bytes=needed)
            limit, is_of_group = memory_limit_bytes()
            if says_so and not _asked(one) and memory_left_bytes() > _PLENTY * limit:
                continue  # it is a device, such as a network's, whose memory is short
            return Shortage(limit_bytes=limit, limit="control group" if is_of_group else "host")
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, and then those that led to it."""
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:
        yield one
        seen.append(one)
        one = one.__cause__ or one.__context__


def _asked(error: BaseException) -> int:
    """Return how many bytes were asked for in vain, by the error's text; 0 if it does not say."""
    match = _ASKED.search(str(error))
    return round(float(match[1]) * _UNITS[match[2]]) if match else 0


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
