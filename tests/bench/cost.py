"""Measure how the sync cost grows with gradient size and ranks."""

from __future__ import annotations

import os
from typing import NamedTuple

from backends import BACKENDS
from compare.analysis import analyse
from compare.analysis.figures import Estimate
from tests.bench import launches
from tests.bench.estimate import Section
from tests.bench.machine import OTHER_LOAD_LIMIT, LoadMeter, family_seconds
from tests.bench.pairs import await_quiet
from tests.bench.report import line

ARMS = ("ddp", launches.SHARED_MEMORY, "horovod", "mpi")
# Steps in all, and those that warm up.
MODELS = {"mlp": (330, 30), "convnet": (40, 10), "wide": (15, 5)}
# Rounds for each number of ranks. Four ranks mostly wait for a core, so one round is enough.
ROUNDS = {1: 3, 2: 3, 4: 1}
TEXT = """\
`ringside run`, one thread a rank, batch 64 a rank. One and two ranks had three launches of every arm. The
table shows means, and the 95 % interval (by t) of the sync cost. Four ranks had a single launch: read the
growth, not small differences. The MLP has gradients of 0.8 MB, the ConvNet 4.8 MB, the wide MLP 80 MB. Sync
cost is the step time minus that of the control `none`, both geometric means. Below zero it is noise: no arm
does less than the control."""


class Point(NamedTuple):
    arm: str
    ranks: int
    megabytes: float
    step_seconds: Estimate
    sync_seconds: Estimate | None
    """None for the control, which has none."""


def bench(settings) -> Section:
    points, conditions = [], []
    for model in list(MODELS)[: settings.pick(3, 1)]:
        for ranks in list(ROUNDS)[: settings.pick(3, 2)]:
            found, others = _measure(settings, model, ranks)
            points += found
            conditions.append(f"{model} on {ranks}: others used {others:.0%}")
    return Section("How the cost grows", TEXT, [], conditions, _table(points))


def _measure(settings, model, ranks):
    """Run all arms, twice if there is noise; keep the better run."""
    taken = []
    while len(taken) < 2 and not any(others <= OTHER_LOAD_LIMIT for _, others in taken):
        await_quiet()
        meter = LoadMeter(family_seconds)
        steps, warm_up = MODELS[model]
        run = launches.compare_run(
            *("--backend", ",".join(ARMS), "-np", str(ranks)),
            *("--model", model, "--steps", f"{steps}:warmup={warm_up}"),
            data_dir=settings.data_dir,
            folder=settings.folder,
            rounds=settings.pick(ROUNDS[ranks], 1),
        )
        taken.append((_points(run), meter.read().others))
    return min(taken, key=lambda entry: entry[1])


def _points(run):
    megabytes = run.launches[0].ranks[0].gradient_bytes / 1e6
    return [
        Point(found.arm, run.config.ranks, megabytes, found.step_seconds, found.sync_seconds)
        for found in analyse(run).summary.arms
    ]


def _table(points):
    arms = list(dict.fromkeys(point.arm for point in sorted(points, key=_place_in_table)))
    cells = {(point.ranks, point.megabytes, point.arm): _cell(point) for point in points}
    lines = [line(["ms a step, of it sync", *(f"`{arm}`" for arm in arms)])]
    lines.append(line(["---"] + ["---:"] * len(arms)))
    for ranks, megabytes in sorted({(point.ranks, point.megabytes) for point in points}):
        head = f"{ranks} × {megabytes:.3g} MB{_mark(ranks)}"
        lines.append(line([head, *(cells[ranks, megabytes, arm] for arm in arms)]))
    notes = "\n\\* More ranks than cores: they wait for each other's core, so do not rank these arms.\n"
    return "\n".join(lines) + "\n" + notes


def _cell(point):
    step, sync = f"{point.step_seconds.mean * 1e3:.4g}", point.sync_seconds
    if sync is None:
        return step
    interval = f" [{_short(sync.low)}, {_short(sync.high)}]" if sync.n > 1 else ""
    return f"{step}, {_short(sync.mean)}{interval}"


def _short(seconds):
    milliseconds = seconds * 1e3
    return f"{milliseconds:.2g}" if abs(milliseconds) < 99.5 else f"{milliseconds:.0f}"


def _mark(ranks):
    return "\\*" if ranks > _cores() else ""


def _place_in_table(point):
    return list(BACKENDS).index(point.arm.partition(":")[0])


def _cores():
    return len(os.sched_getaffinity(0))
