"""Read the memory that a rank takes on host and GPU."""

from __future__ import annotations

from pathlib import Path

import torch

from compare.schema.turns import Memory


def read_memory(device: torch.device, earlier: Memory | None = None) -> Memory:
    """Return the peaks of memory so far, and what is free on the GPU.

    The peaks are at least those of ``earlier``, because both may have been reset after that reading.
    """
    host, on_gpu, left = peak_memory_bytes(), 0, None
    if device.type == "cuda":
        on_gpu, left = torch.cuda.max_memory_reserved(device), torch.cuda.mem_get_info(device)[0]
    if earlier:
        host, on_gpu = max(host, earlier.peak_bytes), max(on_gpu, earlier.gpu_peak_bytes)
    return Memory(peak_bytes=host, gpu_peak_bytes=on_gpu, gpu_left_bytes=left)


def peak_memory_bytes() -> int:
    """Return the largest resident set of this process since its start or the last reset.

    It is read from VmHWM, because ``ru_maxrss`` is inherited from the launcher that forked this process.
    """
    with Path("/proc/self/status").open() as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def peak_device_memory_bytes(device: torch.device) -> int | None:
    """Return the peak bytes of torch's tensors on a GPU since the last reset; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def reset_peak_memory(device: torch.device) -> bool:
    """Reset the peaks of memory, and return whether the kernel could reset that of the host.

    It does so by ``clear_refs``, see proc(5), which some sandboxes lack.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True
