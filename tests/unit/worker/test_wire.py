"""Test the kernel's counters of an interface."""

from __future__ import annotations

import pytest

from compare.worker.wire import parse_counters, read_bytes_on

TABLE = """\
Inter-|   Receive                  |  Transmit
 face |bytes    packets errs drop fifo|bytes    packets errs drop fifo colls carrier
    lo:  100       1    0    0    0     0          0         0      200       2    0    0    0     0       0
  eth0:300 3 0 0 0 0 0 0 400 4 0 0 0 0 0 0
"""


@pytest.mark.parametrize(("interface", "sent", "received"), [("lo", 200, 100), ("eth0", 400, 300)])
def test_parse_counters_finds_an_interface(interface, sent, received):
    assert parse_counters(TABLE, interface) == (sent, received)


def test_parse_counters_unknown_interface_is_an_error():
    with pytest.raises(LookupError, match="eth1"):
        parse_counters(TABLE, "eth1")


def test_read_bytes_on_loopback_never_falls():
    assert read_bytes_on("lo") <= read_bytes_on("lo")
