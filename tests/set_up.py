"""Carry out one part of the set-up, with its time and that of the parts that are left.

Usage: python tests/set_up.py PART 'PART ...' COMMAND ...

The Makefile calls it before anything is installed, so it needs nothing but Python.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

STAMPS = Path(".venv")
SECONDS = {"packages": 40, "horovod": 100, "tools": 60, "mpich": 10, "comparison": 300}
"""How long each part takes on two shared cores, without its downloads."""


def begin(part: str) -> str:
    """Return the line before a part."""
    return f"[{part}] about {minutes(SECONDS[part])} on two cores; downloads come on top"


def end(part: str, parts: Sequence[str], seconds: float, stamps: Path = STAMPS) -> str:
    """Return the line after a part, with the parts that are left."""
    later = parts[parts.index(part) + 1 :]
    left = [f"{minutes(SECONDS[name])} for {name}" for name in later if not (stamps / f".{name}").exists()]
    return f"[{part}] took {minutes(seconds)}; left: {', '.join(left) or 'nothing'}"


def minutes(seconds: float) -> str:
    """Write a duration as ``2:05``."""
    whole, rest = divmod(round(seconds), 60)
    return f"{whole}:{rest:02d}"


def main() -> int:
    """Carry out the part on the command line; return its exit status."""
    part, parts, *command = sys.argv[1:]
    print(begin(part), flush=True)
    started = time.monotonic()
    try:
        status = subprocess.run(command, check=False).returncode
    except KeyboardInterrupt:
        return 130
    if status == 0:
        print(end(part, parts.split(), time.monotonic() - started), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
