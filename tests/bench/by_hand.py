"""Compare arms with hand-written scripts and with the published loop."""

from __future__ import annotations

from functools import partial

from tests.bench import launches
from tests.bench.estimate import Row, Section, at_least, at_most, reaches
from tests.bench.pairs import take_launches

# What a competent person would write instead of an arm: a mode of the script `by_hand`. Nothing is
# comparable to shared memory. The modes of Horovod and MPI average as those of `manual` do.
SCRIPTS = {
    "ddp": "ddp",
    "manual": "flat",
    "manual:mode=per_parameter": "per_parameter",
    "manual:mode=overlap": "overlap",
    "horovod": "horovod",
    "horovod:controller=mpi": "horovod",
    "mpi": "mpi",
}
COSTS = (
    ("time to the first step over the script's", "first_step_seconds", at_most(1.02), 1, "s"),
    ("the same, with the proof of parity before it", "with_proof_seconds", None, 1, "s"),
    ("peak memory of a rank over the script's", "peak_bytes", at_most(1.05), 1 / 2**20, "MiB"),
)
RANKS, STEPS, PUBLISHED_STEPS = 2, 330, 180
TEXT = f"""\
Ringside's figures are divided by those of the scripts in `tests/bench/scripts`, for {RANKS} ranks of one
thread (MLP, batch 64). Each script uses one library directly, under the same launcher, flags and
environment. The time to the first step counts from the start of the launcher."""
PUBLISHED_TEXT = f"""\
The published loop uses DistributedDataParallel, a DataLoader and torchrun, with {RANKS} ranks of one
thread (MLP, batch 64) as Ringside does."""


def bench(settings) -> Section:
    taken = {
        arm: take_launches(
            {"product": _product(settings, arm), "script": _script(settings, arm, "by_hand", mode)},
            settings.pick(6, 2),
        )
        for arm, mode in SCRIPTS.items()
    }
    rows = [row for arm, turns in taken.items() for row in _rows(arm, turns)]
    conditions = [f"{arm}: {turns.conditions}" for arm, turns in taken.items()]
    return Section("By hand", TEXT, rows, conditions)


def bench_published(settings) -> Section:
    arms = ["mpi", launches.SHARED_MEMORY]
    members = {arm: _product(settings, arm) for arm in [*arms, "ddp"]}
    members["published"] = _script(settings, "ddp", "published_ddp", steps=PUBLISHED_STEPS)
    turns = take_launches(members, settings.pick(10, 2))
    best = min(arms, key=turns.median)
    rows = [
        Row(
            f"{arm}: speed over {other if other == 'ddp' else 'the published loop'}'s",
            turns.ratio(other, arm),
            target if arm == judged else None,
            f"{turns.median(arm) * 1e3:.2f} ms a step instead of {turns.median(other) * 1e3:.2f} ms",
        )
        for other, judged, target in (
            ("published", best, at_least(7.0)),
            ("ddp", launches.SHARED_MEMORY, at_least(3.0)),
        )
        for arm in arms
    ]
    return Section("Two ranks against the published loop", PUBLISHED_TEXT, rows, [turns.conditions])


def _product(settings, arm):
    return partial(launches.launch_product, arm, **_given(settings, STEPS))


def _script(settings, arm, *script, steps=STEPS):
    return partial(launches.launch_script, arm, *script, **_given(settings, steps))


def _given(settings, steps):
    return {"ranks": RANKS, "steps": steps, "data_dir": settings.data_dir, "folder": settings.folder}


def _rows(arm, turns):
    def both(figure, scale, unit):
        product, script = (f"{turns.median(who, figure) * scale:.3g}" for who in ("product", "script"))
        return f"{product} {unit}, script {script} {unit}"

    step = Row(
        f"{arm}: speed of a step over the script's",
        turns.ratio("script", "product"),
        reaches(1.0),
        both("step_seconds", 1e3, "ms"),
    )
    return [
        step,
        *(
            Row(f"{arm}: {what}", turns.ratio("product", "script", figure), limit, both(figure, scale, unit))
            for what, figure, limit, scale, unit in COSTS
        ),
    ]
