"""Read the name of this machine's processor."""

from __future__ import annotations

from pathlib import Path


def processor_name(file: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor, such as ``AMD EPYC 7763``; empty where the kernel has none."""
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
