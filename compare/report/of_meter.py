"""Make the document of ``ringside meter``."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from compare.analysis.causes import LEAST_SHARE
from compare.analysis.figures import Estimate
from compare.analysis.metered import FEWEST_PAIRS, MeterFigures, PhaseTime, measure, pairs_of
from compare.report.axes import SECONDS_FROM_ZERO, Axis, axis_from_zero
from compare.report.causes import explain
from compare.report.cells import format_estimate, format_ratio, format_size
from compare.report.columns import BELOW_NOISE
from compare.report.document import Column, Document, Table
from compare.report.origin import noisy_rounds_warning
from compare.report.pictures import Chart, Picture, Point, draw_lines
from compare.schema.metered import Metered
from compare.text import counted, listed

_DATE_CHARACTERS = len("2026-11-28")
_PAIR_AXIS = Axis("number of the pair of blocks", axis_from_zero, lambda number: f"{number:g}")
_ARMS_TO_TRY = {
    "ddp": ("'ddp:bucket_cap_mb={1,25,100},ddp:comm_hook=fp16'", "horovod,manual:mode=overlap"),
    "horovod": ("horovod,horovod:compression=fp16", "ddp,manual:mode=overlap"),
    "by_hand": ("manual:mode=flat,manual:mode=overlap", "ddp,horovod"),
}
"""Arms that a script's way of synchronising may be compared with, as two ``--backend`` take them."""
_PHASES = {
    "between": "loss",
    "waiting": "waiting for gradients",
    "clipping": "until the optimizer",
    "outside": "data and all else",
}
"""Names of phases where those of the record would not be understood."""
_MOST_RANKS = 8
"""Most ranks that the table shows, the slowest of all."""
_milliseconds = partial(format_estimate, form="z.2f", factor=1e3)


class _Part(NamedTuple):
    """A part of a step, as the first table shows it."""

    name: str
    seconds: Estimate | None
    share: str = ""


def document_of(metered: Metered) -> Document:
    """Return the document of a metered script: the parts of its step, its ranks, phases and causes."""
    figures = measure(metered)
    title = _headline(metered)
    return Document(
        title=title,
        name=f"{_script(metered)}: what synchronising costs",
        source=[title, _origin(metered)],
        tables=list(_tables(figures)),
        warnings=list(_warnings(metered, figures)),
        statements=[*explain(figures.causes), *_next(metered, figures)],
        notes=list(_notes(metered, figures)),
        conclusion=_conclusion(metered, figures),
        draw=lambda: _draw(metered),
        facts=list(_facts(metered)),
        records=lambda: list(_records(figures)),
        content=lambda: {"figures": figures, "record": metered},
    )


# ---- what was metered ----


def _script(metered: Metered) -> str:
    """Return the name of the script, without its folder."""
    return Path(metered.command[0]).name if metered.command else "script"


def _headline(metered: Metered) -> str:
    """Return one line with the script, its ranks, and how it synchronises."""
    parts = [_script(metered)]
    if metered.ranks:
        first, hosts = metered.ranks[0], {rank.host for rank in metered.ranks}
        parts.append(f"{counted(len(metered.ranks), 'rank')} × {counted(first.threads, 'thread')}")
        parts += [counted(len(hosts), "host")] if len(hosts) > 1 else []
        parts.append(first.device_name or first.device)
    parts += [
        f"{one.name}, {counted(one.tensors, 'gradient')}, {format_size(one.gradient_bytes)}"
        for one in metered.synchronised
    ]
    return " · ".join([*parts, *filter(None, [metered.backend])])


def _origin(metered: Metered) -> str:
    """Return the line below a picture that says where and when the script ran."""
    hosts = listed(dict.fromkeys(rank.host for rank in metered.ranks))
    parts = [hosts, metered.started_at[:_DATE_CHARACTERS], f"Ringside {metered.ringside_version}"]
    return " · ".join(filter(None, parts))


def _facts(metered: Metered) -> Iterator[tuple[str, str]]:
    """Yield what tells how the script was metered, as names with values."""
    settings = metered.settings
    yield "command", shlex.join(metered.command)
    yield "started", metered.started_at
    yield "Ringside", metered.ringside_version
    yield "torch", metered.torch_version
    yield "blocks", f"{settings.pairs} pairs of {settings.block} steps, after {settings.warmup} steps"
    yield "optimizers", ", ".join(metered.optimizers)
    for one in metered.synchronised:
        sent = [format_size(size) for size in one.messages]
        yield one.name, ", ".join(f"{name}={value}" for name, value in one.settings.items())
        yield f"each all-reduce of {one.name}", ", ".join(sent) or "not known"


# ---- tables ----


def _tables(figures: MeterFigures) -> Iterator[Table]:
    """Yield the tables of a step's parts, of the ranks if there are several, and of the phases."""
    if figures.step_seconds is not None:
        columns: list[Column[_Part]] = [
            Column("part of a step", lambda part: part.name, is_text=True),
            Column("ms", lambda part: _milliseconds(part.seconds)),
            Column("share", lambda part: part.share),
        ]
        yield Table.of(columns, list(_parts(figures)))
    if len(figures.ranks) > 1:
        slow = {cause.evidence["rank"] for cause in figures.causes if cause.key == "straggler"}
        slowest = sorted(figures.ranks, key=lambda one: -one.local_seconds.mean)[:_MOST_RANKS]
        some = f"the {len(slowest)} slowest ranks" if len(figures.ranks) > _MOST_RANKS else "each rank"
        yield Table.of(
            [
                Column("rank", lambda one: f"{one.rank}{' ◀ straggler' if one.rank in slow else ''}"),
                Column("host", lambda one: one.host, is_text=True),
                Column("computing ms", lambda one: _milliseconds(one.local_seconds)),
                Column("beyond the mean", lambda one: _milliseconds(one.excess_seconds)),
            ],
            sorted(slowest, key=lambda one: one.rank),
            title=f"Computing of {some}, without synchronising",
            style=lambda one: "doubtful" if one.rank in slow else "",
        )
    if figures.phases:
        whole = sum(phase.seconds for phase in figures.phases)
        yield Table.of(_phase_columns(whole), figures.phases, title="Phases of a step that synchronises")


def _parts(figures: MeterFigures) -> Iterator[_Part]:
    """Yield the step with its two parts, the wait in one of them, and what its all-reduces take alone."""
    yield _Part("step", figures.step_seconds)
    share = figures.exposed_share
    if figures.has_interval and share is not None and share.low <= 0 <= share.high:
        yield _Part("exposed sync", figures.exposed_seconds, BELOW_NOISE)
    else:
        yield _Part("exposed sync", figures.exposed_seconds, _percent(share))
    yield _Part("computing", figures.local_seconds)
    if len(figures.ranks) > 1:
        yield _Part("wait for slowest", figures.imbalance_seconds)
    if figures.isolated_seconds is not None:
        yield _Part("all-reduces alone", figures.isolated_seconds)
        overlap = figures.overlap
        is_shown = overlap is not None and figures.has_interval and overlap.low > 0
        hidden = overlap.scaled(figures.isolated_seconds.mean) if overlap and is_shown else None
        yield _Part("of these hidden", hidden, _hidden(figures))


def _hidden(figures: MeterFigures) -> str:
    """Return the share of the all-reduces' time that computing hides, as text."""
    overlap = figures.overlap
    if overlap is None or not figures.has_interval or overlap.low <= 0 <= overlap.high:
        return BELOW_NOISE
    return "none" if overlap.high < 0 else f"{min(overlap.mean, 1) * 100:.0f} %"


def _percent(share: Estimate | None) -> str:
    """Return a share in percent with its interval, such as ``37 % (30–44)``; – for None."""
    figures = format_estimate(share, ".0f", 100)
    number, space, interval = figures.partition(" ")
    return number if number == "–" else f"{number} %{space}{interval}"


def _phase_columns(whole: float) -> list[Column[PhaseTime]]:
    return [
        Column("phase", lambda one: _PHASES.get(one.phase, one.phase), is_text=True),
        Column("ms", lambda one: f"{one.seconds * 1e3:.2f}"),
        Column("share", lambda one: f"{one.seconds / whole * 100:.0f} %"),
        Column("longest on a rank", lambda one: f"{max(one.rank_seconds) * 1e3:.2f}"),
    ]


# ---- sentences ----


def _warnings(metered: Metered, figures: MeterFigures) -> Iterator[str]:
    """Yield a line for each thing that was not measured, and why."""
    for one in metered.unswitched:
        arm = f" On the same model `ringside run --backend {one.arm}` measures it." if one.arm else ""
        yield f"Not measured: {one.name}. {one.why}{arm}"
    if not metered.ended:
        part = "all phases were measured" if metered.measured else "the last pair"
        yield f"INCOMPLETE: the script ended without a word, or was killed, before {part}."
    elif not metered.measured and metered.settings.pairs and not metered.unswitched:
        yield f"{figures.pairs} of {counted(metered.settings.pairs, 'pair')} were measured. {metered.ended}"
    yield from _crowded(metered)
    if figures.is_noisy:
        yield noisy_rounds_warning("the blocks")
    if figures.pairs and not figures.has_interval:
        yield f"{counted(figures.pairs, 'pair')} cannot tell a cost from noise; {FEWEST_PAIRS} can."


def _crowded(metered: Metered) -> Iterator[str]:
    """Yield lines on hosts whose ranks have more threads than there are CPUs for them."""
    hosts_by_line: dict[str, list[str]] = {}
    for host in dict.fromkeys(rank.host for rank in metered.ranks):
        ranks = [rank for rank in metered.ranks if rank.host == host and not rank.device_name]
        threads, cpus = sum(rank.threads for rank in ranks), {cpu for rank in ranks for cpu in rank.cpus}
        if cpus and threads > len(cpus):
            fewer = len(cpus) // len(ranks)
            line = (
                f"{counted(len(ranks), 'rank')} with {counted(threads, 'thread')} together share "
                f"{counted(len(cpus), 'CPU')}, so they wait for each other."
                + (f" Set OMP_NUM_THREADS={fewer}, as torchrun does with 1." if fewer else "")
            )
            hosts_by_line.setdefault(line, []).append(host)
    for line, hosts in hosts_by_line.items():
        yield f"{listed(hosts)}: {line}"


def _notes(metered: Metered, figures: MeterFigures) -> Iterator[str]:
    """Yield the lines that explain the figures, and what the meter did to the script."""
    if figures.step_seconds is not None:
        yield (
            "exposed sync: step time minus computing, which is a step without synchronising; so the wait for "
            f"slower ranks is included. In brackets: 95 % intervals over {counted(figures.pairs, 'pair')} of "
            "blocks."
        )
    if figures.isolated_seconds is None and figures.step_seconds is not None:
        yield "How much overlap hides is not known, because the all-reduces were not timed alone."
    if figures.phases:
        yield "phases: timed in blocks of their own, whose hooks take time too. They explain no cost."
    if metered.undone_steps:
        kept = max((rank.kept_bytes for rank in metered.ranks), default=0)
        room = f" It kept {format_size(kept)} on a rank for that." if kept else ""
        yield (
            f"Of {counted(metered.steps, 'step')} {metered.undone_steps} were measured"
            f"{'' if metered.settings.aa else ' without synchronising'} and put back.{room}"
        )
    reasons = Counter(block.discarded for block in metered.blocks if block.discarded)
    for reason, count in reasons.items():
        yield f"{counted(count, 'block')} {'does' if count == 1 else 'do'} not count. {reason}"
    yield from metered.notes


def _next(metered: Metered, figures: MeterFigures) -> Iterator[str]:
    """Yield what to try next, if synchronising costs anything: equal work, or other arms on the model."""
    ways = [one.way for one in metered.synchronised]
    exposed, wait = figures.exposed_seconds, figures.imbalance_seconds
    if not figures.shows_cost or not ways or exposed is None:
        return
    if wait and any(cause.key == "straggler" for cause in figures.causes) and wait.mean >= exposed.mean / 2:
        yield "Next: give the ranks equal work first, because the wait is most of the cost."
    yield "Next: put the model into a file that `ringside setup workload own.py` writes:"
    yield "  ringside run --workload own.py:make --batch-size N \\"
    same, other = _ARMS_TO_TRY[ways[0]]
    yield f"    --backend {same} \\"
    yield f"    --backend {other}"


def _conclusion(metered: Metered, figures: MeterFigures) -> str:
    """Return what synchronising costs in one sentence."""
    step, exposed, share = figures.step_seconds, figures.exposed_seconds, figures.exposed_share
    if figures.aa_ratio is not None:
        ratio = figures.aa_ratio
        found = "a difference" if not ratio.low <= 1 <= ratio.high else "no difference"
        return f"A/A test: {found} between equal blocks, {format_ratio(ratio.mean, ratio.low, ratio.high)}."
    if step is None or exposed is None or share is None:
        why = " It only counted steps." if not metered.settings.pairs else ""
        return f"Nothing was measured of {_script(metered)}.{why}"
    of = f"of a step of {step.mean * 1e3:.2f} ms"
    if not figures.has_interval:
        return f"Synchronising: {exposed.mean * 1e3:.2f} ms {of}, but that is open."
    if not figures.shows_cost and share.high > LEAST_SHARE:
        return (
            f"What synchronising costs is open: from nothing to {share.high * 100:.0f} % {of}. Four times "
            f"the pairs would halve the interval: --pairs {4 * figures.pairs}."
        )
    if not figures.shows_cost:
        return f"Synchronising costs nothing that shows: at most {max(share.high, 0) * 100:.1f} % {of}."
    return f"Synchronising costs {exposed.mean * 1e3:.2f} ms {of}: {_percent(share)}."


# ---- for pages and programs ----


def _draw(metered: Metered) -> Iterator[Picture]:
    """Yield a picture of every pair's step times."""
    names = ("synchronised", "A/A" if metered.settings.aa else "without")
    chart = Chart.of(
        (
            (name, Point(number, seconds))
            for number, pair in enumerate(pairs_of(metered), start=1)
            for name, seconds in zip(names, (pair.step_seconds, pair.other_seconds), strict=True)
        ),
        key="pairs",
        heading="Step time in each pair of blocks",
        caption="Mean over ranks. Each pair has a block with synchronising and one without.",
        x_axis=_PAIR_AXIS,
        y_axis=SECONDS_FROM_ZERO,
    )
    yield from draw_lines(chart)


def _records(figures: MeterFigures) -> Iterator[dict[str, object]]:
    """Yield a record for every figure of the script, of each rank and of each phase."""
    for field in msgspec.structs.fields(figures):
        if "Estimate" in str(field.type):
            yield _record(field.name, None, getattr(figures, field.name))
    for one in figures.ranks:
        yield _record("local_seconds", one.rank, one.local_seconds)
        yield _record("excess_seconds", one.rank, one.excess_seconds)
    for phase in figures.phases:
        for rank, seconds in enumerate(phase.rank_seconds):
            estimate = Estimate(seconds, seconds, seconds, 1, "range")
            yield _record(f"{phase.phase}_seconds", rank, estimate)


def _record(name: str, rank: int | None, estimate: Estimate | None) -> dict[str, object]:
    ends = {part: getattr(estimate, part, None) for part in ("mean", "low", "high", "n")}
    return {"figure": name, "rank": rank} | ends
