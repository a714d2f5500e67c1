"""Measure things in turns, and take again the turns during which others used the machine.

What is launched is what is counted: where a process's memory happens to lie, and how its ranks fall into
step, moves all that it measures together, so more turns within one launch do not make it less uncertain.
"""

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

    Args:
        members: name -> launches it, and returns an ``Outcome``.
        wanted: how many turns.
    """

    def take(number):
        names = list(members)[:: -1 if number % 2 else 1]
        return _turn_of_launches({name: members[name]() for name in names})

    return _take(take, wanted)


def take_palindromes(start, wanted: int, *, ranks: int = 1, merge=statistics.fmean) -> Turns:
    """Launch what measures everybody in turns in the same processes; a turn is such a launch.

    Args:
        start: given a folder and the number of the launch, launches what measures palindromes and leaves
            them there.
        wanted: how many launches.
        ranks: how many processes leave theirs.
        merge: makes one figure of all ranks'.
    """

    def take(number):
        with tempfile.TemporaryDirectory() as folder:
            start(folder, number)
            by_rank = launches.read_ranks(Path(folder), ranks)
        return _turn_of_palindromes([_merged(entries, merge) for entries in zip(*by_rank, strict=True)])

    return _take(take, wanted)


def _take(take, wanted):
    """Take turns, those during which others used the machine again; at most twice as many in all."""
    taken = []
    while len(taken) < 2 * wanted and _quiet(taken) < wanted:
        await_quiet()
        taken.append(take(len(taken)))
    return _keep(taken, wanted)


def _turn_of_launches(outcomes):
    measured = next(iter(outcomes.values())).figures
    figures = {
        figure: {name: outcome.figures[figure] for name, outcome in outcomes.items()} for figure in measured
    }
    return Turn(figures, max(outcome.load.foreign for outcome in outcomes.values()))


def _merged(entries, merge):
    """Make one turn of what every rank measured in one palindrome."""
    first = entries[0]
    # Each rank sees the whole machine, but only its own part of what is ours.
    load = Load(first["busy_seconds"], sum(e["own_seconds"] for e in entries), first["wall_seconds"])
    figures = {
        figure: {name: merge([entry[figure][name] for entry in entries]) for name in first[figure]}
        for figure in ("step_seconds", "step_cpu_seconds")
    }
    return Turn(figures, load.foreign)


def _turn_of_palindromes(turns):
    """Make one turn of a launch's palindromes, by geometric means: and so of their ratios too."""
    figures = {
        figure: {
            name: statistics.geometric_mean(turn.figures[figure][name] for turn in turns) for name in by_name
        }
        for figure, by_name in turns[0].figures.items()
    }
    return Turn(figures, max(turn.foreign for turn in turns))


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
