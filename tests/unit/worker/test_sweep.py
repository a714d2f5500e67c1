"""Time an all-reduce of one size, and check its sum."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from backends.base import BackendError
from compare.worker.sweep import _data_of, time_size, time_sizes
from tests.unit.collectives import a_sweep_config


class _Group:
    """The group of rank 0 of two; rank 1's data is known."""

    device = torch.device("cpu")
    rank, world_size = 0, 2

    def __init__(self, spoil=lambda tensor: None):
        self.calls = 0
        self._spoil = spoil

    def barrier(self):
        pass

    def broadcast_(self, tensor, root=0):
        pass

    def prepare_all_reduce(self, tensor):
        other = _data_of(1).repeat(tensor.numel() // 251 + 1)[: tensor.numel()]

        def call():
            self.calls += 1
            if tensor.any():  # timed calls sum zeros
                tensor.add_(other)
                self._spoil(tensor)
            return tensor

        return call


def timed(group, size=4000, **changes):
    return time_size(group, size, a_sweep_config(**changes), lambda calls: None)


def test_time_size_right_sum_has_no_wrong_element():
    timing = timed(_Group(), iterations=3)
    assert (timing.message_bytes, timing.wrong, len(timing.ns)) == (4000, 0, 3)
    assert timing.calls > 1, "a quick call is repeated in a row"


def _drop(tensor):
    tensor[10:13] = 0.5


def _shift(tensor):
    tensor.copy_(tensor.roll(1))


def _no_number(tensor):
    tensor[0] = float("nan")


@pytest.mark.parametrize(("spoil", "least", "most"), [(_drop, 3, 3), (_shift, 900, 1000), (_no_number, 1, 1)])
def test_time_size_wrong_sum_is_counted(spoil, least, most):
    assert least <= timed(_Group(spoil)).wrong <= most


def test_data_depends_on_the_rank():
    assert len({tuple(_data_of(rank).tolist()) for rank in range(8)}) == 8


def test_time_size_refusal_is_kept_with_its_reason():
    def refuse(tensor):
        raise BackendError("no room")

    group = SimpleNamespace(device=torch.device("cpu"), prepare_all_reduce=refuse)
    timing = timed(group)
    assert (timing.refused, timing.ns, timing.wrong) == ("no room", [], 0)


def test_time_sizes_records_progress_at_every_size():
    noted = []
    watchdog = SimpleNamespace(note=lambda stage, number, expected_seconds: noted.append((stage, number)))
    config = a_sweep_config(iterations=1)
    timings = time_sizes(_Group(), config, watchdog)
    assert [timing.message_bytes for timing in timings] == config.sizes == [8, 16]
    assert {stage for stage, _ in noted} == {"collectives"}
    assert {number for _, number in noted} == {0, 1}
