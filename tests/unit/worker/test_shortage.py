"""Exceptions that say that memory is short, and the limits that they have met."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
import torch

from compare.schema.memory import Shortage
from compare.worker import shortage
from compare.worker.shortage import find_shortage

GIB = 1 << 30
ALLOCATOR = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."
NO_MEMORY = OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.fixture
def limited(monkeypatch):
    monkeypatch.setattr(shortage, "address_limit_bytes", lambda: GIB)
    monkeypatch.setattr(shortage, "_address_space_bytes", lambda: GIB - 1024)


@pytest.fixture
def unlimited(monkeypatch):
    monkeypatch.setattr(shortage, "address_limit_bytes", lambda: None)
    monkeypatch.setattr(shortage, "memory_limit_bytes", lambda: (GIB, True))


@pytest.mark.parametrize(
    ("error", "asked"),
    [(RuntimeError(ALLOCATOR), 4096), (MemoryError(), 0), (NO_MEMORY, 0)],
)
def test_shortage_of_addresses_counts_what_was_used_and_asked_for(limited, error, asked):
    needed = GIB - 1024 + asked
    assert find_shortage(error) == Shortage(limit_bytes=GIB, limit="address space", needed_bytes=needed)


def test_shortage_without_a_limit_on_addresses_is_of_the_control_group(unlimited):
    assert find_shortage(MemoryError()) == Shortage(limit_bytes=GIB, limit="control group")


def test_shortage_is_found_behind_the_error_that_it_led_to(unlimited):
    error = ValueError("the workload failed")
    error.__cause__ = MemoryError()
    error.__cause__.__cause__ = error
    assert find_shortage(error)


@pytest.mark.parametrize("error", [RuntimeError("Connection closed by peer"), OSError(errno.ENOSPC, "full")])
def test_other_errors_are_no_shortage(unlimited, error):
    assert find_shortage(error) is None


@pytest.mark.parametrize(("free", "is_short"), [(0.1, True), (0.5, False)])
def test_error_without_a_size_is_no_shortage_while_memory_is_free(unlimited, monkeypatch, free, is_short):
    """A network's adapter, for example, has memory of its own."""
    monkeypatch.setattr(shortage, "memory_left_bytes", lambda: int(free * GIB))
    assert bool(find_shortage(RuntimeError("ibv_reg_mr: Cannot allocate memory"))) is is_short


def test_shortage_of_a_gpu_is_known_by_its_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=8 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 7 * GIB)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total ...")
    found = find_shortage(error)
    assert found == Shortage(limit_bytes=8 * GIB, limit="GPU", needed_bytes=int(9.5 * GIB))


def test_a_real_allocation_that_fails_is_a_shortage():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert find_shortage(caught.value)
