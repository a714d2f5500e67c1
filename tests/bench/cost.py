"""How the cost of synchronising grows with the size of the gradients and the number of ranks."""

from __future__ import annotations

import os
from typing import NamedTuple

from backends import BACKENDS
from compare.stats import step_seconds, summarise
from tests.bench import launches
from tests.bench.estimate import Section
from tests.bench.machine import FOREIGN_LIMIT, LoadMeter, family_seconds
from tests.bench.pairs import await_quiet

ARMS = ("ddp", launches.SHARED_MEMORY, "horovod", "mpi")
RANKS = (1, 2, 4)
# Steps in all, and those that warm up.
MODELS = {"mlp": (330, 30), "convnet": (40, 10), "wide": (15, 5)}
TEXT = """\
`compare run`, one thread a rank, batch 64 a rank, one launch of every arm: read the growth, not small
differences. Gradients of 0.8 MB are the MLP's, of 4.8 MB the ConvNet's, of 80 MB the wide MLP's. Sync cost
is the step time minus that of the control `none` in the same run. Below zero it is noise: no arm
does less than the control."""


class Point(NamedTuple):
    arm: str
    ranks: int
    megabytes: float
    step_seconds: float
    sync_seconds: float | None
    """None for the control, which has none."""


def bench(settings) -> Section:
    points, conditions = [], []
    for model in list(MODELS)[: settings.pick(3, 1)]:
        for ranks in RANKS[: settings.pick(3, 2)]:
            found, foreign = _measure(settings, model, ranks)
            points += found
            conditions.append(f"{model} on {ranks}: others used {foreign:.0%}")
    if settings.figure:
        from tests.bench.plot import draw

        draw(points, settings.figure, cores=_cores())
    return Section("How the cost grows", TEXT, [], conditions, _table(points, settings.figure))


def _measure(settings, model, ranks):
    """Run all arms once; a second time if others used the machine, and keep the quieter of the two."""
    taken = []
    while len(taken) < 2 and not any(foreign <= FOREIGN_LIMIT for _, foreign in taken):
        await_quiet()
        meter = LoadMeter(family_seconds)
        steps, warm_up = MODELS[model]
        run = launches.compare_run(
            *("--backend", ",".join(arm for arm in ARMS if launches.is_known(arm)), "-np", str(ranks)),
            *("--model", model, "--steps", str(steps), "--warmup", str(warm_up), "--repeats", "1"),
            data_dir=settings.data_dir,
            folder=settings.folder,
        )
        taken.append((_points(run), meter.read().foreign))
    return min(taken, key=lambda entry: entry[1])


def _points(run):
    megabytes = run.launches[0].ranks[0].gradient_bytes / 1e6
    synced = {arm.arm: arm.sync_seconds and arm.sync_seconds.mean for arm in summarise(run).arms}
    return [
        Point(launch.arm, run.config.ranks, megabytes, step_seconds(launch), synced[launch.arm])
        for launch in run.launches
    ]


def _table(points, figure):
    columns = sorted({(point.ranks, point.megabytes) for point in points})
    heads = [f"{ranks} × {megabytes:.3g} MB{_mark(ranks)}" for ranks, megabytes in columns]
    lines = [_line(["ms a step, of it sync", *heads]), _line(["---"] + ["---:"] * len(heads))]
    for arm in dict.fromkeys(sorted((p.arm for p in points), key=_order)):
        cells = [
            next(p for p in points if (p.arm, p.ranks, p.megabytes) == (arm, *column)) for column in columns
        ]
        lines.append(_line([f"`{arm}`", *map(_cell, cells)]))
    notes = "\n\\* more ranks than cores: they wait for each other's core, so arms are not to be ranked.\n"
    picture = f"![Step time and sync cost]({figure.name})\n\n" if figure else ""
    return picture + "\n".join(lines) + "\n" + notes


def _cell(point):
    step = f"{point.step_seconds * 1e3:.3g}"
    return step if point.sync_seconds is None else f"{step}, {point.sync_seconds * 1e3:.2g}"


def _line(cells):
    return f"| {' | '.join(cells)} |"


def _mark(ranks):
    return "\\*" if ranks > _cores() else ""


def _order(arm):
    return list(BACKENDS).index(arm.partition(":")[0])


def _cores():
    return len(os.sched_getaffinity(0))
