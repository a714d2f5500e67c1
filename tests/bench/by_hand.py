"""Compare arms with hand-written scripts and with the published loop."""

from __future__ import annotations

from functools import partial

from tests.bench import launches
from tests.bench.estimate import Row, Section, at_least, at_most, reaches
from tests.bench.pairs import take_launches

# The script that a competent person would write instead of an arm. Nothing is comparable to shared memory.
# The modes of Horovod and MPI average as those of `manual` do.
SCRIPTS = {
    "ddp": "ddp",
    "manual": "manual",
    "manual:mode=per_parameter": "manual_per_parameter",
    "manual:mode=overlap": "manual_overlap",
    "horovod": "hvd",
    "horovod:controller=mpi": "hvd",
    "mpi": "mpi",
}
RANKS, STEPS, PUBLISHED_STEPS = 2, 330, 180
TEXT = f"""\
{RANKS} ranks, one thread each, MLP, batch 64. The scripts are in `tests/bench/scripts`. They use the
backend's library directly, under the same launcher with the same flags and environment. They hold the same
data in memory as floats, normalised once; the product holds bytes and normalises each batch. They test at the
end, as `compare run` does. A pair is one launch of each, and the order alternates. Start-up counts from the
start of the launcher on both sides. The script of `mode=overlap` starts an all_reduce for each of the four
tensors. The product makes buckets of 1 MB, and the MLP fills one."""
PUBLISHED_TEXT = f"""\
{RANKS} ranks, one thread each, MLP, batch 64. The published loop uses DistributedDataParallel, a
DistributedSampler, a DataLoader and torchrun. The product's fastest arms are compared with it, and with the
product's `ddp`. Launches take turns, each started as a user does."""


def bench(settings) -> Section:
    taken = {
        arm: take_launches(
            {"product": _product(settings, arm), "script": _script(settings, script, arm)},
            settings.pick(6, 2),
        )
        for arm, script in SCRIPTS.items()
    }
    rows = [row for arm, turns in taken.items() for row in _rows(arm, turns)]
    conditions = [f"{arm}: {turns.conditions}" for arm, turns in taken.items()]
    return Section("By hand", TEXT, rows, conditions)


def bench_published(settings) -> Section:
    arms = [arm for arm in ("mpi", launches.SHARED_MEMORY) if launches.is_known(arm)]
    members = {arm: _product(settings, arm) for arm in [*arms, "ddp"]}
    members["published"] = _script(settings, "published_ddp", "ddp", PUBLISHED_STEPS)
    turns = take_launches(members, settings.pick(10, 2))
    best = min(arms, key=turns.median)
    rows = [
        Row(
            f"{arm}: speed over the published loop's",
            turns.ratio("published", arm),
            at_least(7.0) if arm == best else None,
            f"{turns.median(arm) * 1e3:.2f} ms a step instead of {turns.median('published') * 1e3:.2f} ms",
        )
        for arm in arms
    ]
    rows += [
        Row(
            f"{arm}: speed over ddp's",
            turns.ratio("ddp", arm),
            at_least(3.0) if arm == launches.SHARED_MEMORY else None,
            f"{turns.median(arm) * 1e3:.2f} ms a step instead of {turns.median('ddp') * 1e3:.2f} ms",
        )
        for arm in arms
    ]
    return Section("Two ranks against the published loop", PUBLISHED_TEXT, rows, [turns.conditions])


def _product(settings, arm):
    return partial(launches.launch_product, arm, **_given(settings, STEPS))


def _script(settings, script, arm, steps=STEPS):
    return partial(launches.launch_script, script, arm, **_given(settings, steps))


def _given(settings, steps):
    return {"ranks": RANKS, "steps": steps, "data_dir": settings.data_dir, "folder": settings.folder}


def _rows(arm, turns):
    def both(figure, scale, unit):
        product, script = (f"{turns.median(who, figure) * scale:.3g}" for who in ("product", "script"))
        return f"{product} {unit}, script {script} {unit}"

    return [
        Row(
            f"{arm}: speed of a step over the script's",
            turns.ratio("script", "product"),
            reaches(1.0),
            both("step_seconds", 1e3, "ms"),
        ),
        Row(
            f"{arm}: time to the first step over the script's",
            turns.ratio("product", "script", "first_step_seconds"),
            at_most(1.02),
            both("first_step_seconds", 1, "s"),
        ),
        Row(
            f"{arm}: the same, with the proof of parity before it",
            turns.ratio("product", "script", "with_proof_seconds"),
            None,
            both("with_proof_seconds", 1, "s"),
        ),
        Row(
            f"{arm}: peak memory of a rank over the script's",
            turns.ratio("product", "script", "peak_bytes"),
            at_most(1.05),
            both("peak_bytes", 1 / 2**20, "MiB"),
        ),
    ]
