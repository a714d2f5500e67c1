"""Define the rate and the latency of the network in a rehearsal."""

from __future__ import annotations

import re

import msgspec

from compare.errors import UsageError

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)bit")
_LATENCY = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
_RATES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SLOWEST = 10**5
_FASTEST = 10**12
_LONGEST_SECONDS = 10.0


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of each host's network interface in a rehearsal."""

    bits_per_second: int | None = None
    """Maximum rate in each direction; None for no limit."""
    latency_seconds: float = 0.0
    """Time that is added to each packet from one host to another."""

    def __str__(self) -> str:
        """Return rate and latency for people: ``1 gbit/s, 2 ms``, or ``no rate limit``."""
        if self.bits_per_second is None:
            return "no rate limit"
        rate = next(
            f"{self.bits_per_second / size:g} {prefix}bit/s"
            for prefix, size in reversed(_RATES.items())
            if self.bits_per_second >= size
        )
        return f"{rate}, {self.latency_seconds * 1e3:g} ms" if self.latency_seconds else rate


def parse_link(written: str) -> Link:
    """Read RATE[,LATENCY], each with a unit as in the tool ``tc``: ``1gbit,2ms``.

    Raises:
        UsageError: the text has another form, or a value is out of range.
    """
    rate_text, comma, latency_text = written.lower().partition(",")
    rate, latency = _RATE.fullmatch(rate_text.strip()), _LATENCY.fullmatch(latency_text.strip())
    if rate is None or (comma and latency is None):
        raise UsageError(
            f"--link cannot be {written!r}.", remedy="Use RATE or RATE,LATENCY: 100mbit, or 1gbit,2ms."
        )
    bits = float(rate[1]) * _RATES[rate[2]]
    seconds = float(latency[1]) * _TIMES[latency[2]] if latency else 0.0
    if not _SLOWEST <= bits <= _FASTEST or seconds > _LONGEST_SECONDS:
        raise UsageError(
            f"--link {written} is out of range.", remedy="Use a rate from 100kbit to 1tbit, and at most 10s."
        )
    return Link(bits_per_second=round(bits), latency_seconds=seconds)
