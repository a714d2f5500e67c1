"""What measuring costs what is measured."""

from __future__ import annotations

from tests.bench import launches
from tests.bench.estimate import Row, Section, at_most
from tests.bench.pairs import take_palindromes

RANKS = 2
LAUNCHES = 12
CASES = {"mpi": (120, 10), "ddp": (80, 6)}
"""The arm of the shortest steps, which is the hardest case, and the usual one: steps in a turn, and
palindromes in a launch. Turns are short: what is looked for is smaller than how much the machine drifts."""
TEXT = f"""\
{RANKS} ranks, one thread each, MLP, batch 64. *Reported*: the step time that the product's clock tells,
with the reference in turns, over that of the same training with no clock in it. *Whole*: what measuring adds
to the training itself (clock, notes of progress, watchdog), whether the clock counts it or not; the parent's
looks at a launch, two a second, are not in it. *A/A*: the training without a clock over itself; how far two
things that do not differ seem to."""


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
