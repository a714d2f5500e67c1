"""Links of rehearsed hosts: how they are written and shown."""

import pytest

from compare.errors import UsageError
from compare.schema.hosts import Link, parse_link


@pytest.mark.parametrize(
    ("written", "bits", "seconds", "shown"),
    [
        ("100mbit", 100_000_000, 0, "100 mbit/s"),
        ("1gbit,2ms", 1_000_000_000, 0.002, "1 gbit/s, 2 ms"),
        ("2.5Gbit, 500us", 2_500_000_000, 0.0005, "2.5 gbit/s, 0.5 ms"),
        ("100kbit,1s", 100_000, 1, "100 kbit/s, 1000 ms"),
    ],
)
def test_link_is_read_as_tc_writes_it(written, bits, seconds, shown):
    link = parse_link(written)
    assert (link.bits_per_second, link.latency_seconds) == (bits, pytest.approx(seconds))
    assert str(link) == shown


def test_link_without_a_rate_has_no_limit():
    assert str(Link()) == "no rate limit"


WRONG = ["", "fast", "1", "1gbps", "1gbit,", "1gbit,2", "2ms", "1gbit,2ms,3ms", "-1gbit"]


@pytest.mark.parametrize("written", WRONG)
def test_link_in_another_spelling_is_refused(written):
    with pytest.raises(UsageError, match="--link cannot be") as caught:
        parse_link(written)
    assert "1gbit,2ms" in caught.value.remedy


@pytest.mark.parametrize("written", ["1bit", "0gbit", "2tbit", "1gbit,11s"])
def test_link_out_of_range_is_refused(written):
    with pytest.raises(UsageError, match="out of range"):
        parse_link(written)
