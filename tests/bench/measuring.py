"""Measure how much the product's own measuring costs."""

from __future__ import annotations

from tests.bench import launches
from tests.bench.estimate import Row, Section, at_most
from tests.bench.pairs import take_palindromes

RANKS = 2
LAUNCHES = 12
CASES = {"mpi": (120, 10), "ddp": (80, 6)}
"""Steps in a turn and palindromes in a launch, by arm.

The arm with the shortest steps is the hardest case. Turns are short: the cost is smaller than the
machine's drift.
"""
TEXT = f"""\
{RANKS} ranks, one thread each, MLP, batch 64. *Reported* is the step time that the product reports, with a
reference in turns, over that without a clock. *Whole* is the time of all training with
clock, progress records and watchdog, over that without. It does not contain the parent's checks of a launch,
two a second. *A/A* is the training without a clock over itself: the difference that noise alone makes."""


def bench(settings) -> Section:
    rows, conditions = [], []
    for arm, (steps, palindromes) in CASES.items():
        turns = _take(settings, arm, steps, palindromes)
        rows += [
            Row(f"{arm}: A/A", turns.ratio("again", "bare")),
            Row(f"{arm}: reported step time", turns.ratio("reported", "bare"), at_most(1.01)),
            Row(f"{arm}: whole training", turns.ratio("whole", "bare"), at_most(1.01)),
        ]
        conditions.append(f"{arm}: {turns.conditions}")
    return Section("The cost of measuring", TEXT, rows, conditions)


def _take(settings, arm, steps, palindromes):
    def start(folder, number):
        arguments = (settings.raw, folder, number, arm, "mlp", steps, palindromes)
        launches.start_ranks("measuring", arguments, arm=arm, ranks=RANKS)

    return take_palindromes(start, settings.pick(LAUNCHES, 2), ranks=RANKS)
