"""Compare what takes turns within the processes of a launch: loops, averages, and the cost of measuring."""

from __future__ import annotations

import statistics
from operator import itemgetter
from typing import NamedTuple

from tests.bench import launches
from tests.bench.estimate import Row, Section, Target, at_least, at_most
from tests.bench.pairs import take_palindromes

RANKS = 2


def _take(settings, script, arguments, wanted, *, arm="ddp", ranks=RANKS, merge=statistics.fmean):
    """Launch a function of ``scripts.in_turns`` as often as wanted."""

    def start(folder, number):
        given = (script, settings.raw, folder, number, *arguments)
        launches.start_ranks("in_turns", given, arm=arm, ranks=ranks)

    return take_palindromes(start, settings.pick(wanted, 2), ranks=ranks, merge=merge)


# ---- the loop --------------------------------------------------------------------------------------------

LOOP_TEXT = """\
Each loop has one rank of one thread. The *published* loop is that of PyTorch's and Horovod's examples, whose
DataLoader converts and normalises every image anew in every epoch. The *floor* is Ringside's loop on one
batch, so it fetches no data."""


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


def bench_loop(settings) -> Section:
    rows, conditions = [], []
    for case in CASES[: settings.pick(3, 1)]:
        given = (case.model, case.batch_size, case.steps, case.published_steps, 2)
        turns = _take(settings, "loop", given, 10, arm="none", ranks=1)
        name = f"{case.model}, batch {case.batch_size}"
        published, resident, floor = (
            f"{turns.median(arm) * 1e3:.2f} ms" for arm in ("published", "resident", "floor")
        )
        by_cpu = {
            arm: f"by CPU time {turns.ratio(arm, 'resident', 'step_cpu_seconds').ratio:.3g}"
            for arm in ("published", "floor")
        }
        rows += [
            Row(
                f"{name}: speed over the published loop's",
                turns.ratio("published", "resident"),
                case.target,
                f"{resident} instead of {published}; {by_cpu['published']}",
            ),
            Row(
                f"{name}: speed over the floor's",
                turns.ratio("floor", "resident"),
                at_least(0.93),
                f"floor {floor}; {by_cpu['floor']}",
            ),
        ]
        conditions.append(f"{case.model} batch {case.batch_size}: {turns.conditions}")
    return Section("The loop", LOOP_TEXT, rows, conditions)


# ---- averaging -------------------------------------------------------------------------------------------

# Steps in a turn, which takes at least a quarter of a second, and palindromes in a launch.
STEPS = {"mlp": (80, 3), "convnet": (4, 3), "wide": (3, 2)}
# Shared memory has higher targets.
SHARED_TARGETS = {"mlp": at_least(3.0), "convnet": at_least(1.05), "wide": at_least(1.25)}
IN_STEP = "none, in step"
AVERAGING_TEXT = f"""\
The speed of each arm is divided by DDP's. The arms take turns in the same processes over the same Gloo
group, with {RANKS} ranks of one thread and batch 64. Neither *none* nor *{IN_STEP}* averages. In *{IN_STEP}*
the ranks wait for each other after every backward pass, so an arm can be faster than that only by noise."""


def bench_averaging(settings) -> Section:
    rows, conditions = [], []
    for model in list(STEPS)[: settings.pick(3, 1)]:
        targets = {
            "manual:mode=flat": at_least(1.0),
            "manual:mode=overlap": at_least(1.0),
            launches.SHARED_MEMORY: SHARED_TARGETS[model],
            "none": None,
            IN_STEP: None,
        }
        turns = _take(settings, "averaging", (model, *STEPS[model], "ddp", *targets), 10)
        for arm, target in targets.items():
            note = f"{turns.median(arm) * 1e3:.3g} ms a step, DDP {turns.median('ddp') * 1e3:.3g} ms"
            rows.append(Row(f"{model}: {arm}", turns.ratio("ddp", arm), target, note))
        conditions.append(f"{model}: {turns.conditions}")
    return Section("Averaging against DDP over Gloo", AVERAGING_TEXT, rows, conditions)


FLOOR_TEXT = """\
The time in which `manual:mode=shared_memory` sums the bytes of two ranks is divided by the time in
which one rank adds two tensors of that size."""


def bench_floor(settings) -> Section:
    rows, conditions = [], []
    for megabytes in (16, 64):
        # Only rank 0 adds, so only its time counts.
        turns = _take(settings, "floor", (megabytes, 640 // megabytes, 3), 5, merge=itemgetter(0))
        note = f"{turns.median('all_reduce') * 1e3:.3g} ms, one add {turns.median('add') * 1e3:.3g} ms"
        rows.append(Row(f"{megabytes} MB", turns.ratio("all_reduce", "add"), at_most(2.5), note))
        conditions.append(f"{megabytes} MB: {turns.conditions}")
    return Section("Shared memory against its floor", FLOOR_TEXT, rows, conditions)


# ---- measuring -------------------------------------------------------------------------------------------

MEASURED = {"mpi": (120, 10), "ddp": (80, 6)}
"""Steps in a turn and palindromes in a launch, by arm.

The arm with the shortest steps is the hardest case. Turns are short: the cost is smaller than the
machine's drift.
"""
MEASURING_TEXT = f"""\
{RANKS} ranks of one thread (MLP, batch 64) train with and without Ringside's measuring, and the table
divides the first time by the second. *Reported* is the step time that Ringside reports, and *whole* the
time of all training. *A/A* compares two trainings without measuring, so it shows noise."""


def bench_measuring(settings) -> Section:
    rows, conditions = [], []
    for arm, given in MEASURED.items():
        turns = _take(settings, "measuring", (arm, "mlp", *given), 12, arm=arm)
        rows += [
            Row(f"{arm}: A/A", turns.ratio("again", "bare")),
            Row(f"{arm}: reported step time", turns.ratio("reported", "bare"), at_most(1.01)),
            Row(f"{arm}: whole training", turns.ratio("whole", "bare"), at_most(1.01)),
        ]
        conditions.append(f"{arm}: {turns.conditions}")
    return Section("The cost of measuring", MEASURING_TEXT, rows, conditions)
