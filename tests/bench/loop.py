"""Compare the product's loop with the published one and with its floor."""

from __future__ import annotations

from typing import NamedTuple

from tests.bench import launches
from tests.bench.estimate import Row, Section, Target, at_least
from tests.bench.pairs import take_palindromes

LAUNCHES, PALINDROMES = 10, 2
FLOOR = at_least(0.93)
TEXT = """\
One rank, one thread. *Published* is the loop of PyTorch's and Horovod's examples, with a DataLoader in the
same process. In every epoch it converts every image to a PIL image and a tensor, and normalises it.
*Floor* is the product's loop without fetching: the same model on the last batch. The ConvNet mostly computes,
so a loop can gain little, and there is no target."""


class Case(NamedTuple):
    model: str
    batch_size: int
    steps: int
    published_steps: int
    """Chosen so that all turns take about the same time."""
    target: Target | None


CASES = (
    Case("mlp", 64, 200, 40, at_least(6.5)),
    Case("mlp", 256, 80, 12, None),
    Case("convnet", 64, 8, 8, None),
)


def bench(settings) -> Section:
    rows, conditions = [], []
    for case in CASES[: settings.pick(3, 1)]:
        turns = _take(settings, case)
        rows += _rows(case, turns)
        conditions.append(f"{case.model} batch {case.batch_size}: {turns.conditions}")
    return Section("The loop", TEXT, rows, conditions)


def _take(settings, case):
    given = (case.model, case.batch_size, case.steps, case.published_steps, PALINDROMES)

    def start(folder, number):
        launches.start_alone("loop", (settings.raw, folder, number, *given))

    return take_palindromes(start, settings.pick(LAUNCHES, 2))


def _rows(case, turns):
    name = f"{case.model}, batch {case.batch_size}"
    milliseconds = {arm: f"{turns.median(arm) * 1e3:.2f} ms" for arm in ("published", "resident", "floor")}
    by_cpu = {
        arm: f"by CPU time {turns.ratio(arm, 'resident', 'step_cpu_seconds').ratio:.3g}"
        for arm in ("published", "floor")
    }
    return [
        Row(
            f"{name}: speed over the published loop's",
            turns.ratio("published", "resident"),
            case.target,
            f"{milliseconds['resident']} instead of {milliseconds['published']}; {by_cpu['published']}",
        ),
        Row(
            f"{name}: speed over the floor's",
            turns.ratio("floor", "resident"),
            FLOOR,
            f"floor {milliseconds['floor']}; {by_cpu['floor']}",
        ),
    ]
