"""Measure things in turns, and repeat noisy turns.

A launch counts as one sample. The memory layout of a process and the timing of its ranks move all its
turns together. So more turns within one launch do not make the result more certain.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from compare.text import counted
from tests.bench import launches
from tests.bench.estimate import Estimate, estimate
from tests.bench.machine import OTHER_LOAD_LIMIT, Load, LoadMeter

_LOOK_SECONDS = 1.0


class QuietWait:
    """The time left, in the whole run, to wait for quiet."""

    seconds_left = 120.0


@dataclass(frozen=True)
class Turn:
    """One measurement of every member, side by side."""

    figures: dict[str, dict[str, float]]
    """Figure (e.g. ``step_seconds``) -> member -> value."""
    others: float
    """Share of the machine that others used meanwhile."""


@dataclass(frozen=True)
class Turns:
    """The turns that were kept."""

    kept: list[Turn]
    repeated: int
    """How many turns were discarded and repeated."""

    def ratio(self, one: str, other: str, figure: str = "step_seconds") -> Estimate:
        """Estimate the ratio of two members' figures from every turn."""
        return estimate([turn.figures[figure][one] / turn.figures[figure][other] for turn in self.kept])

    def median(self, name: str, figure: str = "step_seconds") -> float:
        return statistics.median(turn.figures[figure][name] for turn in self.kept)

    @property
    def conditions(self) -> str:
        worst = max(turn.others for turn in self.kept)
        text = f"{len(self.kept)} pairs, in which other programs used at most {worst:.0%} of the machine"
        text += f", not counting {counted(self.repeated, 'noisier pair')}" if self.repeated else ""
        return text + (" (**noisy**)" if worst > OTHER_LOAD_LIMIT else "")


def take_launches(members, wanted: int) -> Turns:
    """Launch every member once a turn, in alternating order.

    Args:
        members: name -> a function that launches it and returns an ``Outcome``.
        wanted: how many turns.
    """

    def take(number):
        names = list(members)[:: -1 if number % 2 else 1]
        return _turn_of_launches({name: members[name]() for name in names})

    return _take(take, wanted)


def take_palindromes(start, wanted: int, *, ranks: int = 1, merge=statistics.fmean) -> Turns:
    """Launch processes that measure all members; a launch is one turn.

    Args:
        start: takes a folder and the number of the launch; its ranks write their palindromes there.
        wanted: how many launches.
        ranks: how many ranks write palindromes.
        merge: makes one figure from those of all ranks.
    """

    def take(number):
        with tempfile.TemporaryDirectory() as folder:
            start(folder, number)
            by_rank = launches.read_ranks(Path(folder), ranks)
        return _turn_of_palindromes([_merged(entries, merge) for entries in zip(*by_rank, strict=True)])

    return _take(take, wanted)


def _take(take, wanted):
    """Take turns and repeat noisy ones, at most twice as many."""
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
    return Turn(figures, max(outcome.load.others for outcome in outcomes.values()))


def _merged(entries, merge):
    """Make one turn from every rank's measurements in one palindrome."""
    first = entries[0]
    # Each rank measures the whole machine's load, but only its own CPU time.
    load = Load(first["busy_seconds"], sum(e["own_seconds"] for e in entries), first["wall_seconds"])
    figures = {
        figure: {name: merge([entry[figure][name] for entry in entries]) for name in first[figure]}
        for figure in ("step_seconds", "step_cpu_seconds")
    }
    return Turn(figures, load.others)


def _turn_of_palindromes(turns):
    """Make one turn from a launch's palindromes, by geometric means."""
    figures = {
        figure: {
            name: statistics.geometric_mean(turn.figures[figure][name] for turn in turns) for name in by_name
        }
        for figure, by_name in turns[0].figures.items()
    }
    return Turn(figures, max(turn.others for turn in turns))


def _quiet(taken):
    return sum(turn.others <= OTHER_LOAD_LIMIT for turn in taken)


def _keep(taken, wanted):
    """Keep the least noisy turns; within the limit, keep the earliest."""
    ranked = sorted(range(len(taken)), key=lambda index: max(taken[index].others, OTHER_LOAD_LIMIT))
    return Turns([taken[index] for index in sorted(ranked[:wanted])], len(taken) - wanted)


def await_quiet() -> None:
    """Wait for a quiet machine, as long as waiting time is left."""
    while QuietWait.seconds_left > 0:
        meter = LoadMeter()
        time.sleep(_LOOK_SECONDS)
        if meter.read().others <= OTHER_LOAD_LIMIT:
            return
        QuietWait.seconds_left -= _LOOK_SECONDS
