"""Measure how fast the command line starts and a rank exits."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

from tests.bench import launches
from tests.bench.estimate import Row, Section, at_most
from tests.bench.machine import LoadMeter, family_seconds
from tests.bench.pairs import take_launches

TEXT = """\
The first row divides the time of `ringside --help` by that of a Python that only imports typer. The
second divides the time of a process with a torch optimizer that exits at once, as ranks do, by that of
one that shuts Python down."""
OPTIMIZER = "import os, torch; torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)"


def bench(settings) -> Section:
    members = {
        "help": partial(_time, [Path(sys.executable).parent / "compare", "--help"]),
        "typer": partial(_time, [sys.executable, "-c", "import typer"]),
    }
    for warm_up in members.values():
        warm_up()
    turns = take_launches(members, settings.pick(20, 6))
    ours, typer = (f"{turns.median(name, 'seconds') * 1e3:.0f} ms" for name in members)
    note = f"{ours}, typer alone {typer}"
    help_ = Row("ringside --help", turns.ratio("help", "typer", "seconds"), at_most(1.5), note)
    ends = take_launches(
        {
            "at once": partial(_time, [sys.executable, "-c", f"{OPTIMIZER}; os._exit(0)"]),
            "torn down": partial(_time, [sys.executable, "-c", OPTIMIZER]),
        },
        settings.pick(8, 4),
    )
    saved = ends.median("torn down", "seconds") - ends.median("at once", "seconds")
    end = Row("ending at once", ends.ratio("at once", "torn down", "seconds"), None, f"saves {saved:.2f} s")
    return Section("The command line", TEXT, [help_, end], [turns.conditions, f"ends: {ends.conditions}"])


def _time(argv):
    # With this variable, Python would compile an editable install every time, and only that.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    meter = LoadMeter(family_seconds)
    started_at = time.perf_counter()
    launches.execute(argv, environment)
    return launches.Outcome({"seconds": time.perf_counter() - started_at}, meter.read())
