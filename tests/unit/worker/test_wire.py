"""Test the kernel's counters of an interface."""

from __future__ import annotations

import pytest

from compare.worker.wire import parse_counters, read_counters

TABLE = """\
Inter-|   Receive                  |  Transmit
 face |bytes    packets errs drop fifo|bytes    packets errs drop fifo colls carrier
    lo:  100       1    0    0    0     0          0         0      200       2    0    0    0     0       0
  eth0:300 3 0 0 0 0 0 0 400 4 0 0 0 0 0 0
"""


@pytest.mark.parametrize(
    ("interface", "sent", "received"), [("lo", (200, 2), (100, 1)), ("eth0", (400, 4), (300, 3))]
)
def test_parse_counters_finds_an_interface(interface, sent, received):
    found = parse_counters(TABLE, interface)
    assert (found.sent_bytes, found.sent_packets) == sent
    assert (found.received_bytes, found.received_packets) == received


def test_parse_counters_unknown_interface_is_an_error():
    with pytest.raises(LookupError, match="eth1"):
        parse_counters(TABLE, "eth1")


def test_counters_of_loopback_never_fall():
    assert read_counters("lo") <= read_counters("lo")
