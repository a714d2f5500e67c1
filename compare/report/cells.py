"""Write figures and names as cells, structs as records, and text that cannot steer a terminal."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from compare.analysis.estimate import Estimate
from compare.text import printable

_WITH_AN_EXPONENT = 999.5
"""Number from which three digits would be written with an exponent."""


def printable_line(text: str, style: str = "") -> Text:
    """Return a line with a style and with its control characters escaped."""
    return Text(printable(text), style=style)


def cut_in_the_middle(name: str, width: int) -> str:
    """Return a name in at most ``width`` cells of a terminal; a longer one has … in place of its middle."""
    if cell_len(name) <= width:
        return name
    tail = (width - 1) // 2
    end = name[-tail:] if tail else ""
    while cell_len(end) > tail:
        end = end[1:]
    return set_cell_size(name, width - 1 - cell_len(end)) + "…" + end


def written(figure: float | Estimate | None, form: str, factor: float = 1.0) -> str:
    """Return a figure, or the mean of an estimate, times a factor; a dash if it is not known."""
    mean = figure.mean if isinstance(figure, Estimate) else figure
    return "–" if mean is None else f"{mean * factor:{form}}"


def with_interval(
    estimate: Estimate | None, form: str, factor: float = 1.0, *, shows_narrow: bool = True
) -> str:
    """Return an estimate times a factor, with its interval if it has several launches; a dash for None.

    Without ``shows_narrow``, the interval is left out only if both of its ends are written alike.
    """
    if estimate is None:
        return "–"
    mean, low, high = (f"{end * factor:{form}}" for end in (estimate.mean, estimate.low, estimate.high))
    dash = " to " if estimate.low < 0 else "–"  # no dash before a minus
    is_alone = estimate.n == 1 if shows_narrow else low == high
    return mean if is_alone else f"{mean} ({low}{dash}{high})"


def difference(relative: float | None) -> str:
    """Return a relative difference such as ``2e-16``; None is one that is not a number."""
    return "not a number" if relative is None else f"{relative:.0e}" if relative else "0"


def in_units(value: float, units: Mapping[str, float]) -> str:
    """Return a value in the largest unit that it reaches, otherwise in the smallest: ``1.5 ms``.

    ``units`` maps names to sizes, the largest first.
    """
    name, size = next((unit for unit in units.items() if value >= unit[1]), [*units.items()][-1])
    number = value / size
    return f"{number:.0f} {name}" if number >= _WITH_AN_EXPONENT else f"{number:.3g} {name}"


def as_record(
    struct: msgspec.Struct, prefix: str = "", *, instead: Mapping[str, Mapping[str, object]] | None = None
) -> dict[str, object]:
    """Return the fields of a struct by name, those of a struct within it behind its name.

    An estimate gives three: ``x``, ``x_low`` and ``x_high``. They are None where the estimate is. The items
    of a list are joined by blanks. ``instead`` has what replaces a field.
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
