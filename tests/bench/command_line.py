"""How long the command line lets one wait before it says anything."""

from __future__ import annotations

import sys
import time
from functools import partial

from compare.availability import environment_bin
from tests.bench import launches
from tests.bench.estimate import Row, Section, at_most
from tests.bench.machine import LoadMeter, family_seconds
from tests.bench.pairs import take_launches

TEXT = "`compare --help` over `python -c 'import typer'`, whole processes in turns."


def bench(settings) -> Section:
    members = {
        "help": partial(_time, [environment_bin() / "compare", "--help"]),
        "typer": partial(_time, [sys.executable, "-c", "import typer"]),
    }
    for warm_up in members.values():
        warm_up()
    turns = take_launches(members, settings.pick(20, 6))
    ours, typer = (f"{turns.median(name, 'seconds') * 1e3:.0f} ms" for name in members)
    note = f"{ours}, typer alone {typer}"
    rows = [Row("compare --help", turns.ratio("help", "typer", "seconds"), at_most(1.5), note)]
    return Section("The command line", TEXT, rows, [turns.conditions])


def _time(argv):
    meter = LoadMeter(family_seconds)
    begun = time.perf_counter()
    launches.execute(argv)
    return launches.Outcome({"seconds": time.perf_counter() - begun}, meter.read())
