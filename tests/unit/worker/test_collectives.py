"""Collectives without training: those of a step, and of one size, whose results are checked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from backends.base import BackendError
from compare.schema.collectives import Exchange
from compare.schema.job import SweepJob
from compare.worker import collectives, meters
from compare.worker.collectives import sweep, time_collectives, time_repeated, time_size, time_sizes
from compare.worker.patterns import Pattern
from tests.unit.collectives import a_sweep_config

CPU = torch.device("cpu")


# ---- beside a training ----


@pytest.mark.parametrize(("nbytes", "calls"), [(1, 10), (10_000_000, 10), (40_000_000, 2), (10**9, 1)])
def test_time_collectives_makes_fewer_calls_of_larger_messages(nbytes, calls):
    events = []
    group = SimpleNamespace(device=CPU, barrier=lambda: events.append("barrier"))
    of_step = SimpleNamespace(message_bytes=[nbytes], run=lambda: events.append("call"))
    sizes, times = time_collectives(of_step, group, events.append)
    assert sizes == [nbytes]
    assert len(times) >= 5
    # Once untimed, then every sample from a common start, after a record for the watchdog.
    sample = ["call"] * calls
    assert events == [calls, *sample, *[calls, "barrier", *sample] * len(times)]


def test_time_repeated_returns_the_time_of_one_call(monkeypatch):
    now = [0]

    def call():
        now[0] += 250

    def barrier():
        now[0] += 100_000

    monkeypatch.setattr(meters, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(meters, "process_time_ns", lambda: 0)
    assert time_repeated(call, barrier, CPU, samples=3, calls=8, warmup=1) == [250] * 3


def swept(message_bytes, **facts):
    """Return the sizes of a sweep, the bytes that the group has summed, and what the watchdog gets."""
    reduced, noted = [], []
    replica = SimpleNamespace(model=torch.nn.Linear(2, 2), attest=lambda: facts)
    group = SimpleNamespace(
        device=CPU, barrier=lambda: None, all_reduce_=lambda tensor: reduced.append(tensor.nbytes)
    )
    return [one.message_bytes for one in sweep(message_bytes, replica, group, noted.append)], reduced, noted


def test_sweep_has_the_fixed_sizes_and_small_own_ones():
    alike = [1 << 10, 32 << 10, 1 << 20]
    sizes, reduced, noted = swept([40, 1000])
    assert sizes == sorted([*alike, 1000, 1040]) == sorted(set(reduced))
    assert noted == [len(reduced) // len(sizes)] * len(sizes), "the watchdog is notified of every size"
    assert swept([1 << 20])[0] == swept([80_000_000])[0] == alike


def test_sweep_of_a_strategy_with_own_transport_is_empty():
    assert swept([814_120], transport="shared memory") == swept([]) == ([], [], [])


# ---- in a launch of their own ----


class _Group:
    """The group of rank 0 of two; rank 1's data is known."""

    device = CPU
    placement = SimpleNamespace(local_rank=0)
    rank, world_size = 0, 2

    def __init__(self, spoil=lambda tensor: None):
        self.calls = 0
        self._spoil = spoil

    def barrier(self):
        pass

    def broadcast_(self, tensor, root=0):
        pass

    def prepare(self, exchange):
        target = exchange.target
        other = Pattern(Exchange(), 2).data_of(1, target)

        def call():
            self.calls += 1
            if target.any():  # timed calls sum zeros
                target.add_(other)
                self._spoil(target)
            return target

        return call


def a_job(interface="", **changes):
    config = a_sweep_config(**changes)
    return SweepJob(
        config=config,
        group="gloo",
        arm=config.arm_of("gloo"),
        affinity=[0],
        number=1,
        launched_at=0.0,
        interface=interface,
    )


def timed(group, size=4000, **job):
    return time_size(group, Exchange(), size, a_job(**job), lambda calls: None)


def test_time_size_right_sum_has_no_wrong_element():
    timing = timed(_Group(), iterations=3)
    assert (timing.message_bytes, timing.wrong, len(timing.ns)) == (4000, 0, 3)
    assert timing.calls > 1, "a quick call is repeated in a row"
    assert timing.sent_bytes is None, "on one host nothing is counted"


@pytest.mark.parametrize(
    ("spoil", "least", "most"),
    [
        (lambda tensor: tensor[10:13].fill_(0.5), 3, 3),
        (lambda tensor: tensor.copy_(tensor.roll(1)), 900, 1000),
        (lambda tensor: tensor[0].fill_(float("nan")), 1, 1),
    ],
    ids=["some elements", "shifted", "no number"],
)
def test_time_size_wrong_sum_is_counted(spoil, least, most):
    assert least <= timed(_Group(spoil)).wrong <= most


def test_time_size_counts_the_bytes_of_a_call(monkeypatch):
    group = _Group()

    def counted(pernic, nowrap):
        assert pernic
        assert not nowrap, "else psutil changes the kernel's counters"
        of_call = {"bytes_sent": 3, "bytes_recv": 2, "packets_sent": 1, "packets_recv": 4}
        return {"eth0": SimpleNamespace(**{name: n * group.calls for name, n in of_call.items()})}

    monkeypatch.setattr(collectives.psutil, "net_io_counters", counted)
    timing = timed(group, interface="eth0")
    assert (timing.sent_bytes, timing.received_bytes) == (3, 2)
    assert (timing.sent_packets, timing.received_packets) == (1, 4)
    monkeypatch.setattr(group, "placement", SimpleNamespace(local_rank=1))
    assert timed(group, interface="eth0").sent_bytes is None, "one rank counts for its host"


class _Refusing(_Group):
    def __init__(self, error, *, at):
        super().__init__()
        self._error, self._at = error, at

    def barrier(self):
        """Raise a refused call again, as Gloo may."""
        raise self._error

    def prepare(self, _exchange):
        if self._at == "prepare":
            raise self._error
        return self.barrier


@pytest.mark.parametrize("at", ["prepare", "call"])
@pytest.mark.parametrize(
    "error", [BackendError("no room"), TypeError("no room\nC++ frames"), ValueError("no room")]
)
def test_time_size_refusal_is_kept_with_its_reason(error, at):
    timing = timed(_Refusing(error, at=at))
    assert (timing.refused, timing.ns, timing.wrong) == ("no room", [], 0)


class _Keeping(_Group):
    """It keeps what it has refused, by itself or in a cycle."""

    def __init__(self, kept):
        super().__init__()
        self._kept = kept

    def prepare(self, exchange):
        cycle = [exchange.target]
        cycle.append(cycle)
        self._kept.extend(cycle[:1] if self._kept else [])
        raise RuntimeError("Invalid scalar type")


def test_time_size_refused_call_in_a_cycle_is_collected():
    assert timed(_Keeping([])).refused == "Invalid scalar type"


def test_time_size_refused_call_that_is_kept_fails_with_its_reason(monkeypatch):
    monkeypatch.setattr(collectives, "_RELEASE_SECONDS", 0.05)
    with pytest.raises(BackendError, match=r"Invalid scalar type.*still holds.*0.05 s.*Leave this one out"):
        timed(_Keeping(["others"]))


def timed_sizes(**changes):
    """Return the timings, and the records of the watchdog: stage, number and expected time."""
    noted = []
    watchdog = SimpleNamespace(note=lambda *what, expected_seconds: noted.append((*what, expected_seconds)))
    return time_sizes(_Group(), a_job(iterations=1, **changes), watchdog), noted


def test_time_sizes_records_progress_at_every_size():
    timings, noted = timed_sizes()
    assert [timing.message_bytes for timing in timings] == [8, 16]
    assert {what[:2] for what in noted} == {("collectives", 0), ("collectives", 1)}


def test_time_sizes_large_first_size_has_a_limit_of_its_own():
    """A call on a slow link may take longer than the stall."""
    (timing,), noted = timed_sizes(begin_bytes=4 << 20, end_bytes=4 << 20)
    assert timing.message_bytes == 4 << 20, "the smaller size before it is no result"
    expected = [seconds for _, _, seconds in noted]
    limited = next(seconds for seconds in expected if seconds)
    assert all(expected[expected.index(limited) :]), "every record after it has a limit"
