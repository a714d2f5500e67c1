"""Measure things in turns, and take again the turns during which others used the machine."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench import launches
from tests.bench.estimate import Estimate, estimate
from tests.bench.machine import FOREIGN_LIMIT, Load, LoadMeter

_LOOK_SECONDS = 1.0


class Patience:
    """How long to wait, in the whole run, for others to leave the machine alone."""

    seconds_left = 120.0


@dataclass(frozen=True)
class Turn:
    """Everything measured once, side by side."""

    figures: dict[str, dict[str, float]]
    """What was measured (``step_seconds``, say) -> of whom -> how much."""
    foreign: float
    """Share of the machine that others used meanwhile."""


@dataclass(frozen=True)
class Turns:
    """What was kept of all that was taken."""

    kept: list[Turn]
    repeated: int
    """How many were dropped and taken again."""

    def ratio(self, one: str, other: str, figure: str = "step_seconds") -> Estimate:
        """Estimate one's figure over another's, from their ratio in every turn."""
        return estimate([turn.figures[figure][one] / turn.figures[figure][other] for turn in self.kept])

    def median(self, name: str, figure: str = "step_seconds") -> float:
        return statistics.median(turn.figures[figure][name] for turn in self.kept)

    @property
    def conditions(self) -> str:
        worst = max(turn.foreign for turn in self.kept)
        text = f"{len(self.kept)} pairs, others used {worst:.0%} of the machine at most"
        text += f", {self.repeated} repeated" if self.repeated else ""
        return text + (" (**disturbed**)" if worst > FOREIGN_LIMIT else "")


def take_launches(members, wanted: int) -> Turns:
    """Launch everybody once a turn, forwards and backwards by turns: A B, B A.

    A turn is taken again where it, or any launch of it, was disturbed; at most twice as many in all.

    Args:
        members: name -> launches it, and returns an ``Outcome``.
        wanted: how many turns.
    """
    taken = []
    while len(taken) < 2 * wanted and _quiet(taken) < wanted:
        await_quiet()
        names = list(members)[:: -1 if len(taken) % 2 else 1]
        taken.append(_turn_of_launches({name: members[name]() for name in names}))
    return _keep(taken, wanted)


def _turn_of_launches(outcomes):
    measured = next(iter(outcomes.values())).figures
    figures = {
        figure: {name: outcome.figures[figure] for name, outcome in outcomes.items()} for figure in measured
    }
    return Turn(figures, max(outcome.load.foreign for outcome in outcomes.values()))


def take_palindromes(start, wanted: int, *, ranks: int = 1, merge=statistics.fmean) -> Turns:
    """Take palindromes, all that a launch measures at once; launch again if too many are disturbed.

    Args:
        start: given a folder, launches what measures ``wanted`` palindromes and leaves them there.
        wanted: how many palindromes.
        ranks: how many processes leave theirs.
        merge: makes one figure of all ranks'.
    """
    taken = []
    for _ in range(2):
        await_quiet()
        with tempfile.TemporaryDirectory() as folder:
            start(folder)
            by_rank = launches.read_ranks(Path(folder), ranks)
        taken += [_turn_of_ranks(entries, merge) for entries in zip(*by_rank, strict=True)]
        if _quiet(taken) >= wanted:
            break
    return _keep(taken, wanted)


def _turn_of_ranks(entries, merge):
    first = entries[0]
    # Each rank sees the whole machine, but only its own part of what is ours.
    load = Load(first["busy_seconds"], sum(e["own_seconds"] for e in entries), first["wall_seconds"])
    figures = {
        figure: {name: merge([entry[figure][name] for entry in entries]) for name in first[figure]}
        for figure in ("step_seconds", "step_cpu_seconds")
    }
    return Turn(figures, load.foreign)


def _quiet(taken):
    return sum(turn.foreign <= FOREIGN_LIMIT for turn in taken)


def _keep(taken, wanted):
    """Keep the quietest; among those quiet enough, the earliest."""
    ranked = sorted(range(len(taken)), key=lambda index: max(taken[index].foreign, FOREIGN_LIMIT))
    return Turns([taken[index] for index in sorted(ranked[:wanted])], len(taken) - wanted)


def await_quiet() -> None:
    """Wait until others leave the machine alone, as long as there is patience left."""
    while Patience.seconds_left > 0:
        meter = LoadMeter()
        time.sleep(_LOOK_SECONDS)
        if meter.read().foreign <= FOREIGN_LIMIT:
            return
        Patience.seconds_left -= _LOOK_SECONDS
