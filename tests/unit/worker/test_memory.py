"""Memory of a rank on its host and on its GPU."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from compare.worker import memory
from compare.worker.memory import peak_device_memory_bytes, read_memory, reset_peak_memory

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def test_memory_on_a_cpu_has_no_gpu():
    found = read_memory(CPU)
    assert (found.gpu_peak_bytes, found.gpu_left_bytes) == (0, None)
    assert found.peak_bytes > 0
    assert peak_device_memory_bytes(CPU) is None


def test_memory_counts_the_larger_peak_before_and_after_a_reset(monkeypatch):
    """What is left is always what is left now."""
    known, resets = SimpleNamespace(host=300, on_gpu=70, left=50), []
    monkeypatch.setattr(memory, "peak_memory_bytes", lambda: known.host)
    monkeypatch.setattr(memory.Path, "write_text", lambda path, text: resets.append(str(path)))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: known.on_gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (known.left, 100))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    before = read_memory(GPU)
    assert (before.peak_bytes, before.gpu_peak_bytes, before.gpu_left_bytes) == (300, 70, 50)
    assert reset_peak_memory(GPU)
    assert resets == [GPU, "/proc/self/clear_refs"]
    known.host, known.on_gpu, known.left = 200, 90, 40
    after = read_memory(GPU, before)
    assert (after.peak_bytes, after.gpu_peak_bytes, after.gpu_left_bytes) == (300, 90, 40)
