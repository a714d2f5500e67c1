"""Write figures and names as the text of table cells, and structs as records for CSV."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from compare.analysis.figures import Estimate
from compare.text import in_form, printable

_BYTE_UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
_EXPONENT_FROM = 999.5
"""Smallest number that the format ``.3g`` would write with an exponent."""
_TWO_DECIMALS_FROM, _TWO_DECIMALS_BELOW = 0.095, 9.995
"""Ratios between these have two decimals, which are two or three digits."""


def printable_line(text: str, style: str = "") -> Text:
    """Return text in a style of rich, with control characters escaped so that none steers a terminal."""
    return Text(printable(text), style=style)


def cut_in_the_middle(name: str, width: int) -> str:
    """Return a name shortened to ``width`` cells of a terminal, with … in place of its middle."""
    if cell_len(name) <= width:
        return name
    end_cells = (width - 1) // 2
    end = name[-end_cells:] if end_cells else ""
    while cell_len(end) > end_cells:
        end = end[1:]
    return set_cell_size(name, width - 1 - cell_len(end)) + "…" + end


def format_figure(figure: float | Estimate | None, form: str, factor: float = 1.0) -> str:
    """Return ``factor`` times a figure or the mean of an estimate, in the format ``form``; – for None."""
    mean = figure.mean if isinstance(figure, Estimate) else figure
    return "–" if mean is None else in_form(mean * factor, form)


def format_estimate(
    estimate: Estimate | None, form: str, factor: float = 1.0, *, shows_narrow: bool = True
) -> str:
    """Return ``factor`` times an estimate, with its interval in brackets; – for None.

    An estimate from a single launch has no interval. If ``shows_narrow`` is False, the interval is left out
    wherever both of its ends would be written alike, and only there.
    """
    if estimate is None:
        return "–"
    mean, low, high = (in_form(end * factor, form) for end in (estimate.mean, estimate.low, estimate.high))
    dash = " to " if estimate.low < 0 else "–"  # no dash before a minus
    is_alone = estimate.n == 1 if shows_narrow else low == high
    return mean if is_alone else f"{mean} ({low}{dash}{high})"


def format_ratio(ratio: float, low: float | None = None, high: float | None = None, state: str = "") -> str:
    """Return a ratio of speeds as every output writes it: ``3.90× (3.70–4.10)``, above 1 is faster.

    ``state`` is a word that follows, such as *open* or *same*. Without both ends there is no interval.
    """
    interval = "" if low is None or high is None else f"({_in_digits(low)}–{_in_digits(high)})"
    return " ".join(filter(None, [f"{_in_digits(ratio)}×", interval, state]))


def _in_digits(ratio: float) -> str:
    """Return a ratio with two decimals, or with three digits from 10 on and two below 0.1."""
    if _TWO_DECIMALS_FROM <= ratio < _TWO_DECIMALS_BELOW:
        return f"{ratio:.2f}"
    return f"{ratio:.2g}" if ratio < 1 else f"{ratio:.3g}" if ratio < _EXPONENT_FROM else f"{ratio:.0f}"


def format_difference(relative: float | None) -> str:
    """Return a relative difference as text, such as ``2e-16``; None stands for one that is not a number."""
    return "not a number" if relative is None else f"{relative:.0e}" if relative else "0"


def in_units(value: float, units: Mapping[str, float]) -> str:
    """Return a value with a unit, such as ``1.5 ms``.

    ``units`` maps the names of units to their sizes, the largest first. The unit is the largest that does not
    exceed the value, or the smallest of all.
    """
    name, size = next((unit for unit in units.items() if value >= unit[1]), [*units.items()][-1])
    number = value / size
    return f"{number:.0f} {name}" if number >= _EXPONENT_FROM else f"{number:.3g} {name}"


def format_size(size_bytes: float) -> str:
    """Return a number of bytes in the largest decimal unit that it fills, such as ``4.7 MB`` and ``84 B``."""
    return in_units(size_bytes, _BYTE_UNITS)


def as_record(
    struct: msgspec.Struct, prefix: str = "", *, instead: Mapping[str, Mapping[str, object]] | None = None
) -> dict[str, object]:
    """Return the fields of a struct as one flat record, with ``prefix`` before each name.

    A struct in the field ``x`` gives fields with names ``x_…``. An estimate gives ``x`` (its mean), ``x_low``
    and ``x_high``, which are all None if it is not known. The items of a list are joined by blanks.
    ``instead`` maps the name of a field to the entries that replace it.
    """
    row: dict[str, object] = {}
    for field in msgspec.structs.fields(struct):
        name, value = f"{prefix}{field.name}", getattr(struct, field.name)
        if instead and field.name in instead:
            row |= instead[field.name]
        elif "Estimate" in str(field.type):
            row |= {
                name + end: getattr(value, part, None)
                for end, part in {"": "mean", "_low": "low", "_high": "high"}.items()
            }
        elif isinstance(value, msgspec.Struct):
            row |= as_record(value, f"{name}_")
        else:
            row[name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return row
