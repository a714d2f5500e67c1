"""Compare averaging by hand with DDP, and shared memory with its floor."""

from __future__ import annotations

from operator import itemgetter

from tests.bench import launches
from tests.bench.estimate import Row, Section, at_least, at_most
from tests.bench.pairs import take_palindromes

RANKS = 2
LAUNCHES = 10
# Steps in a turn, which takes at least a quarter of a second, and palindromes in a launch.
STEPS = {"mlp": 80, "convnet": 4, "wide": 3}
PALINDROMES = {"mlp": 3, "convnet": 3, "wide": 2}
MODES = ("manual:mode=flat", "manual:mode=overlap")
# Shared memory has higher targets.
SHARED_TARGETS = {"mlp": at_least(3.0), "convnet": at_least(1.05), "wide": at_least(1.25)}
TEXT = f"""\
{RANKS} ranks, one thread each, batch 64. The product's replicas of all arms take turns in the same processes
over the same Gloo process group. The first step of a turn is not timed. The ratio is the speed over DDP's.
*none* does not average. *none, in step* does not average either, but its ranks wait for each other after
every backward pass. An arm that averages can only be faster than that by noise."""
CONTROL = "none"
IN_STEP = "none, in step"
FLOOR_MEGABYTES = (16, 64)
FLOOR_LAUNCHES, FLOOR_PALINDROMES = 5, 3
FLOOR_TEXT = """\
The time in which `manual:mode=shared_memory` sums so many bytes between two ranks. The ratio is over the time
of one rank that adds two tensors of that size while the other waits."""


def bench(settings) -> Section:
    rows, conditions = [], []
    arms = [arm for arm in ("ddp", *MODES, launches.SHARED_MEMORY) if launches.is_known(arm)]
    arms += [CONTROL, IN_STEP]
    for model in list(STEPS)[: settings.pick(3, 1)]:
        turns = _take(settings, model, arms)
        for arm in arms[1:]:
            target = _target(model, arm)
            note = f"{turns.median(arm) * 1e3:.3g} ms a step, DDP {turns.median('ddp') * 1e3:.3g} ms"
            rows.append(Row(f"{model}: {arm}", turns.ratio("ddp", arm), target, note))
        conditions.append(f"{model}: {turns.conditions}")
    return Section("Averaging against DDP over Gloo", TEXT, rows, conditions)


def _target(model, arm):
    if arm in (CONTROL, IN_STEP):
        return None
    return SHARED_TARGETS[model] if arm == launches.SHARED_MEMORY else at_least(1.0)


def _take(settings, model, arms):
    def start(folder, number):
        arguments = (settings.raw, folder, number, model, STEPS[model], PALINDROMES[model], *arms)
        launches.start_ranks("averaging", arguments, ranks=RANKS)

    return take_palindromes(start, settings.pick(LAUNCHES, 2), ranks=RANKS)


def bench_floor(settings) -> Section:
    rows, conditions = [], []
    if launches.is_known(launches.SHARED_MEMORY):
        for megabytes in FLOOR_MEGABYTES:
            turns = _take_floor(settings, megabytes)
            note = f"{turns.median('all_reduce') * 1e3:.3g} ms, one add {turns.median('add') * 1e3:.3g} ms"
            rows.append(Row(f"{megabytes} MB", turns.ratio("all_reduce", "add"), at_most(2.5), note))
            conditions.append(f"{megabytes} MB: {turns.conditions}")
    return Section("Shared memory against its floor", FLOOR_TEXT, rows, conditions)


def _take_floor(settings, megabytes):
    calls = 640 // megabytes

    def start(folder, number):
        launches.start_ranks("floor", (folder, number, megabytes, calls, FLOOR_PALINDROMES), ranks=RANKS)

    # Only rank 0 adds, so only its time counts.
    return take_palindromes(start, settings.pick(FLOOR_LAUNCHES, 2), ranks=RANKS, merge=itemgetter(0))
