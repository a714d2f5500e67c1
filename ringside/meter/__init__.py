"""Measure what synchronising costs in a training loop of one's own, in a process that is a rank.

The package gives its name to the context manager: ``ringside.meter`` is the function, and ``python -m
ringside.meter`` runs the command.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compare.meter.start import Hooks
    from compare.schema.metered import MeterSettings
    from ringside.result import Result


class Measured:
    """What a meter finds in the loop that it is around."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._result: Result | None = None

    @property
    def result(self) -> Result | None:
        """Return what was measured on rank 0, as ``ringside.load`` does; None on all other ranks.

        Raises:
            UsageError: the loop has not ended.
            UnmeasuredError: no optimizer of torch took a step, or the record could not be written.
            OutputError: the record was written, but is not there any more or is damaged.
        """
        from compare.errors import UnmeasuredError, UsageError
        from compare.schema.metered import read_metered
        from ringside.result import Result

        session = self._hooks.session
        if self._hooks.are_attached:
            raise UsageError(
                "ringside.meter has no result yet.", remedy="Read `result` after the `with` statement."
            )
        if session is None:
            raise UnmeasuredError(
                "ringside.meter measured nothing.",
                found="No rank took a step of an optimizer of torch.",
                remedy="Put the whole training loop into the `with` statement.",
            )
        if session.is_first and session.file is None:
            raise UnmeasuredError(
                "ringside.meter could not write its record.",
                found=session.ended,
                remedy="Give a folder that can be written as `output`.",
            )
        if self._result is None and session.file is not None:
            self._result = Result(read_metered(session.file), session.file.parent)
        return self._result


@contextmanager
def meter(
    *,
    pairs: int | None = None,
    block: int | None = None,
    warmup: int | None = None,
    seed: int | None = None,
    aa: bool | None = None,
    output: str | Path | None = None,
) -> Iterator[Measured]:
    """Measure what synchronising costs in the training loop inside, as ``ringside meter`` does.

    Every rank opens it around the same steps, and the model and its optimizer are made before or inside.
    Steps without synchronising are undone. Where the loop ends before all pairs are measured, the result has
    what was measured until then.

    Args:
        pairs: number of pairs of blocks, 20 by default; with 0, steps are only counted.
        block: number of timed steps of a block, 25 by default.
        warmup: number of steps before the first block, 30 by default.
        seed: seed of the order of blocks, which must be the same on all ranks.
        aa: whether both blocks of a pair synchronise, for an A/A test of the meter.
        output: the folder of the record, which rank 0 writes; the default is a new one in ``runs``.

    Raises:
        UsageError: a setting has a wrong value, or this process is metered already.
    """
    from compare.meter.start import metering

    given = {"pairs": pairs, "block": block, "warmup": warmup, "seed": seed, "aa": aa}
    settings = _settings({name: value for name, value in given.items() if value is not None})
    with metering(settings, str(output or "")) as hooks:
        yield Measured(hooks)


def _settings(given: dict[str, int | bool]) -> MeterSettings:
    """Return the settings of a meter.

    Raises:
        UsageError: a setting has a wrong value.
    """
    import msgspec

    from compare.errors import UsageError
    from compare.schema.metered import MeterSettings

    for name, value in given.items():
        try:
            msgspec.convert({name: value}, MeterSettings)
        except msgspec.ValidationError:
            least = 0 if name in {"pairs", "seed"} else 1
            kind = "True or False" if name == "aa" else f"a whole number of at least {least}"
            raise UsageError(f"ringside.meter: {name} cannot be {value!r}.", remedy=f"Give {kind}.") from None
    return msgspec.convert(given, MeterSettings)
