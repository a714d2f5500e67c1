"""Write counts, sizes, times and lists as people read them, and make other programs' text printable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

_LISTED_NAMES = 6
_MOST_LINES, _MOST_CHARACTERS = 5, 300
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_WITH_AN_EXPONENT = 1000
_TIME = re.compile(r"(.+?) ?(s|m|min|h|)")


def counted(number: float, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1: ``1 round``, ``1.5 cores``."""
    shown = f"{number}" if isinstance(number, int) else f"{number:g}"  # a count has no exponent
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"


def in_form(number: float, form: str) -> str:
    """Return a number in the format ``form`` as people read it: ``−1.00`` has a true minus sign."""
    text = f"{number:{form}}"
    return f"−{text[1:]}" if text.startswith("-") else text


def percent(share: float, form: str = ".0f") -> str:
    """Return a share in per cent, such as ``28 %``, its number in the format ``form``."""
    return f"{in_form(share * 100, form)} %"


def binary_size(size_bytes: int) -> str:
    """Return a size in the largest binary unit that it fills: ``64 GiB``, ``1.5 MiB``, ``8 B``."""
    power = min(max(size_bytes.bit_length() - 1, 0) // 10, len(_BINARY) - 1)
    size = size_bytes / (1 << 10 * power)
    return f"{size:.3g} {_BINARY[power]}" if size < _WITH_AN_EXPONENT else f"{size:.0f} {_BINARY[power]}"


def duration(seconds: float) -> str:
    """Return a time in its largest unit and the next smaller one: ``45 s``, ``2 min 10 s``, ``5 min``."""
    whole = round(seconds)
    parts = [(whole // 3600, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), 2)
    shown = [f"{number} {unit}" for number, unit in parts[first : first + 2] if number]
    return " ".join(shown) or "0 s"


def seconds_of(text: str) -> float:
    """Return the seconds of a time such as ``90s``, ``5m``, ``1h`` or ``90``, which has no unit.

    Raises:
        ValueError: the text is not a length of time; the message states the right forms.
    """
    match = _TIME.fullmatch(text)
    try:
        number, unit = match.groups() if match else ("", "")
        return float(number) * _UNITS[unit]
    except ValueError:
        raise ValueError(
            f"{text[:80]!r} is not a length of time. Give a number of seconds, or a number with a unit: "
            "90s, 5m, 1h."
        ) from None


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """Return a noun with ascending numbers, and ranges for runs of them: ``round 3``, ``rounds 1–3, 7``.

    At most six numbers or ranges are shown, and the others are counted.
    """
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    spans = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    one = len(runs) == 1 and len(runs[0]) == 1
    return f"{noun}{'' if one else 's'} {listed(spans)}"


def listed(names: Iterable[str]) -> str:
    """Join the first six names with commas, and count the others: ``a, b, c, d, e, f and 3 more``."""
    shown = list(names)
    more = len(shown) - _LISTED_NAMES
    return ", ".join(shown[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


def printable(text: str) -> str:
    """Escape all characters but printable ones and newlines, so that none controls a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def cut(text: str) -> str:
    """Return the first five non-blank lines of another program's text, each cut after 300 characters.

    A line with "…" follows if there are more.
    """
    lines = [line[:_MOST_CHARACTERS].rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:_MOST_LINES] + ["…"] * (len(lines) > _MOST_LINES))
