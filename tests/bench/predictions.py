"""Validate ``ringside predict`` in rehearsals: ``python -m tests.bench.predictions``.

It measures two hosts at 200 Mbit/s, and predicts other hosts and rates from that alone. It writes the table
of docs/predictions.md, and docs/predictions.json with what the predictions use. It needs root.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from compare.analysis.cost_model import Schedule, predict_call
from compare.analysis.measured import (
    MeasuredLaunch,
    Target,
    measured_launches,
    network_of,
    predict_step,
    why_unpredictable,
)
from compare.schema.hosts import Link
from compare.schema.store import read_run
from tests.bench.report import line
from tests.comparing import ROOT

ARMS = "ddp,ddp:bucket_cap_mb=1,manual,mpi,horovod"
BASE = (2, "200mbit")
CELLS = [(3, "200mbit"), (4, "200mbit"), (2, "100mbit"), (4, "500mbit")]
OTHER_CAP = "ddp:bucket_cap_mb=4"
"""Measured in the cells alone, and predicted from ``ddp``."""
DOCUMENT = ROOT / "docs" / "predictions.md"
RECORD = ROOT / "docs" / "predictions.json"
BEGIN, END = "<!-- cells: begin -->", "<!-- cells: end -->"
_WORKLOAD = "tests/bench/workloads/sleeping.py:make"
_RUN = (
    "--no-control",
    "--repeats",
    1,
    "--interleave",
    "auto:reruns=0",
    "--steps",
    "12:warmup=2",
    "--threads",
    1,
)


class Record(msgspec.Struct, frozen=True):
    """What was measured: the base, and the other cells."""

    base: list[MeasuredLaunch]
    """Two launches of each arm, before the cells and after them."""
    cells: list[MeasuredLaunch]


class Cell(NamedTuple):
    """One arm in one cell, predicted and measured, in seconds."""

    arm: str
    library: str
    schedule: Schedule
    hosts: int
    link: Link
    predicted: float
    measured: float
    call_predicted: float
    call_measured: float

    @property
    def kind(self) -> tuple[str, Schedule]:
        """Return what cells must share to tell about each other."""
        return self.library, self.schedule

    @property
    def place(self) -> tuple[float, int]:
        """Return the rate of the link, and the number of hosts."""
        return self.link.bits_per_second, self.hosts

    @property
    def error(self) -> float:
        """Return the relative error of the step."""
        return self.predicted / self.measured - 1

    @property
    def log_error(self) -> float:
        """Return the logarithm of predicted over measured."""
        return math.log(self.predicted / self.measured)

    @property
    def call_error(self) -> float:
        """Return the relative error of the largest all-reduce alone."""
        return self.call_predicted / self.call_measured - 1


def judge(record: Record) -> list[Cell]:
    """Predict every cell from the base."""
    known = {measured.arm for measured in record.base}
    found = []
    for measured in record.cells:
        cap = None if measured.arm in known else _cap_of(measured.arm)
        base = [one for one in record.base if one.arm == ("ddp" if cap else measured.arm)]
        if base:
            found.append(_judge(base, measured, cap))
    return found


def _cap_of(arm: str) -> float | None:
    """Return the bucket cap of a DDP that the base has not."""
    name, _, cap = arm.partition("=")
    return float(cap) if name == "ddp:bucket_cap_mb" else None


def _judge(base: list[MeasuredLaunch], measured: MeasuredLaunch, cap: float | None) -> Cell:
    """Predict a cell from all launches, as ``ringside predict`` does."""
    link = Link(bits_per_second=measured.bits_per_second, latency_seconds=measured.latency_seconds)
    target = Target(hosts=measured.ranks, link=link, bucket_cap_mb=cap)
    nbytes, call_measured = measured.points[-1]
    return Cell(
        arm=measured.arm,
        library=measured.library,
        schedule=measured.schedule,
        hosts=measured.ranks,
        link=link,
        predicted=statistics.geometric_mean(predict_step(one, target).seconds for one in base),
        measured=measured.step_seconds,
        call_predicted=statistics.geometric_mean(
            predict_call(one.curve, one.all_reduce, one.ranks, nbytes, network_of(one, target)).seconds
            for one in base
        ),
        call_measured=call_measured,
    )


def interval_error(cells: Sequence[Cell]) -> float:
    """Return the relative error that intervals have at least.

    It is the larger of Student's interval of one more error, whose mean is zero, and the largest error.
    """
    from scipy.special import stdtrit

    spread = math.sqrt(statistics.fmean(cell.log_error**2 for cell in cells))
    return max(math.expm1(float(stdtrit(len(cells), 0.975)) * spread), largest_error(cells))


def largest_error(cells: Sequence[Cell]) -> float:
    """Return the largest error of cells.

    It is the larger of two times over the smaller, minus one.
    """
    return math.expm1(max(abs(cell.log_error) for cell in cells))


def is_covered(cell: Cell, cells: Sequence[Cell]) -> bool:
    """Return whether the interval from its kind's other cells holds a cell."""
    others = [one for one in cells if one is not cell and one.kind == cell.kind]
    return abs(cell.log_error) <= math.log1p(interval_error(others))


def model_errors(record: Record) -> dict[str, float]:
    """Return the mean error by the timeline and by its extremes.

    Only arms that overlap count. No model has a rest.
    """
    overlapping = [one for one in record.base if one.schedule == "overlap"]
    models = {"by our model": overlapping}
    models["if nothing overlapped"] = [_with_ready(one, math.inf) for one in overlapping]
    models["if all did"] = [_with_ready(one, 0.0) for one in overlapping]
    return {
        name: statistics.fmean(
            abs(cell.error) for cell in judge(Record([_without_rest(one) for one in base], record.cells))
        )
        for name, base in models.items()
    }


def _with_ready(one: MeasuredLaunch, seconds: float) -> MeasuredLaunch:
    return msgspec.structs.replace(one, gradients=[(nbytes, seconds) for nbytes, _ in one.gradients])


def _without_rest(one: MeasuredLaunch) -> MeasuredLaunch:
    rest = predict_step(one, Target(hosts=one.ranks)).parts["copies"]
    return msgspec.structs.replace(one, step_seconds=one.step_seconds - rest)


def read_base(folders: list[Path]) -> list[MeasuredLaunch]:
    """Read the launches that can predict."""
    runs = list(map(read_run, folders))
    return [
        one
        for run in runs
        for arm in run.config.arms
        if not why_unpredictable(run, arm)
        for one in measured_launches(run, arm)
    ]


def read_cells(folders: list[Path]) -> list[MeasuredLaunch]:
    """Read all launches that are predicted."""
    runs = list(map(read_run, folders))
    return [one for run in runs for arm in run.config.synchronising for one in measured_launches(run, arm)]


def table(record: Record) -> str:
    """Write all cells as Markdown, a line for each arm, and what their intervals hold."""
    cells = judge(record)
    found = {(cell.arm, cell.place): cell for cell in cells}
    places = sorted({cell.place for cell in cells})
    rows = [line(["arm", *(f"{hosts} hosts, {rate / 1e6:.0f} Mbit/s" for rate, hosts in places)])]
    rows += [f"|:--{'|--:' * len(places)}|"]
    for arm in sorted({cell.arm for cell in cells}):
        rows.append(line([arm, *(_of_cell(found[arm, place]) for place in places)]))
    return "\n".join([*rows, "", *_held(cells)])


def _of_cell(cell: Cell) -> str:
    return f"{cell.measured * 1e3:.0f} → {cell.predicted * 1e3:.0f}, {cell.error:+.1%}"


def _held(cells: Sequence[Cell]) -> Iterator[str]:
    """Write the largest errors of each kind, and how many of its cells the intervals of the others hold."""
    yield line(["library, calls", "largest error", "all-reduce alone", "interval", "cells held"])
    yield "|:--|--:|--:|--:|--:|"
    for kind in sorted({cell.kind for cell in cells}):
        group = [cell for cell in cells if cell.kind == kind]
        covered = sum(is_covered(cell, group) for cell in group)
        errors = [f"×÷ {1 + largest_error(group):.3f}", f"{max(abs(cell.call_error) for cell in group):.1%}"]
        interval = f"×÷ {1 + interval_error(group):.3f}"
        yield line([", ".join(kind), *errors, interval, f"{covered} of {len(group)}"])


def _measure(hosts: int, link: str, output: Path) -> Path:
    arms = ARMS if (hosts, link) == BASE else f"{ARMS},{OTHER_CAP}"
    rate, _, latency = link.partition(",")
    engine = f"rehearsal:hosts={hosts},rate={rate}" + (f",latency={latency}" if latency else "")
    command = [sys.executable, "-m", "compare", "run", "--engine", engine]
    command += ["--workload", _WORKLOAD, "--backend", arms, "--batch-size", 8, "--output", output, *_RUN]
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True)
    return output


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.predictions", description=__doc__)
    parser.add_argument("folder", type=Path, help="the runs; those that are there are not measured again")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {folder / f"{hosts}-{link}": (hosts, link) for hosts, link in [BASE, *CELLS]}
    wanted[folder / "base-again"] = BASE
    base, *cells, again = [path if path.exists() else _measure(*cell, path) for path, cell in wanted.items()]
    record = Record(read_base([base, again]), read_cells(cells))
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    models = ", ".join(f"{error:.1%} {name}" for name, error in model_errors(record).items())
    note = "Without *rest*, the mean error of the arms that overlap is"
    written = f"{table(record)}\n\n{note} {models}."
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{written}\n{END}{rest.partition(END)[2]}")
    print(written)


if __name__ == "__main__":
    main()
