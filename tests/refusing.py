"""Run a command whose processes may not read each other's memory.

Usage: python tests/refusing.py COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL_WITH_EPERM = 0x7FFF0000, 0x00050001
_CALLS = {"x86_64": (310, 311), "aarch64": (270, 271)}
"""Numbers of ``process_vm_readv`` and ``process_vm_writev``."""


class _Program(ctypes.Structure):
    """The ``struct sock_fprog`` of seccomp(2)."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def refuse() -> None:
    """Let the two calls fail in this process and its children."""
    read, write = _CALLS[platform.machine()]
    steps = (
        *((_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 2, 0, read), (_JUMP_IF_EQUAL, 1, 0, write)),
        *((_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL_WITH_EPERM)),
    )
    held = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = _Program(len(steps), ctypes.addressof(held))
    call = ctypes.CDLL(None, use_errno=True).prctl
    if call(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or call(_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    refuse()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 -- the command of the caller
