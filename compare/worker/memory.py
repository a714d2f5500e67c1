"""Read the memory that a rank takes on host and GPU."""

from __future__ import annotations

from pathlib import Path

import torch

from compare.schema.turns import Memory


def read_memory(device: torch.device, earlier: Memory | None = None) -> Memory:
    """Return the peaks so far, and what is left of the GPU.

    The peaks of ``earlier`` count, since both may have been reset after it.
    """
    host, on_gpu, left = peak_memory_bytes(), 0, None
    if device.type == "cuda":
        on_gpu, left = torch.cuda.max_memory_reserved(device), torch.cuda.mem_get_info(device)[0]
    if earlier:
        host, on_gpu = max(host, earlier.peak_bytes), max(on_gpu, earlier.gpu_peak_bytes)
    return Memory(peak_bytes=host, gpu_peak_bytes=on_gpu, gpu_left_bytes=left)


def peak_memory_bytes() -> int:
    """Return the largest resident set of this process so far.

    It is VmHWM, because ``ru_maxrss`` is inherited from the launcher that forked this process.
    """
    with Path("/proc/self/status").open() as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def peak_device_memory_bytes(device: torch.device) -> int | None:
    """Return a GPU's peak of tensors since the last reset."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def reset_peak_memory(device: torch.device) -> bool:
    """Restart the peaks of memory; return whether the kernel did.

    See clear_refs in proc(5); some sandboxes have no such file.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True
