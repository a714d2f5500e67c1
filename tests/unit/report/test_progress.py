"""Test what is printed while a run goes on."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from compare.report.progress import LiveProgress
from tests.unit.factories import a_launch, a_rank, a_run

TIMES = (5.0, 5.1, 5.2, 5.1, 5.0)


def a_start(rounds, config):
    """Return a run of three arms after some rounds."""
    launches, clock = [], 0.0
    for round_ in range(1, rounds + 1):
        for place, arm in enumerate(("none", "ddp", "mpi")):
            ranks = [a_rank(rank, milliseconds=TIMES[(round_ * place) % 5]) for rank in range(2)]
            launches.append(a_launch(arm, round_, ranks=ranks, started_at=clock, seconds=10.0))
            clock += 10.0
    run = a_run({"none": [], "ddp": [], "mpi": []}, config=config, complete=False)
    return msgspec.structs.replace(run, launches=launches)


def printed(run):
    console = Console(file=io.StringIO(), width=200)
    with LiveProgress(console, run.config, verbose=False) as progress:
        progress.rounds_done(run)
    return console.file.getvalue().splitlines()


DEFAULT = {"rounds": 1000, "settle_seconds": 300.0}
BUDGET = {"rounds": 1000, "budget_seconds": 600.0}


@pytest.mark.parametrize(
    ("rounds", "config", "line"),
    [
        (0, DEFAULT, "5 rounds of 3 arms, then more until every verdict is settled or 5 min are over."),
        (0, {"rounds": 7}, "Exactly 7 rounds of 3 arms."),
        (0, BUDGET, "Rounds of 3 arms until every verdict is settled, for at most 600 s."),
        (
            0,
            {"rounds": 7, "budget_seconds": 600.0},
            "At most 7 rounds of 3 arms until every verdict is settled, for at most 600 s.",
        ),
        (1, DEFAULT, "About 2 min 30 s for 5 rounds; 5 min allow 10."),
        (1, {"rounds": 7}, "About 3 min 30 s for 7 rounds."),
        (1, BUDGET, "600 s allow about 20 rounds."),
        (1, DEFAULT | {"settle_seconds": 100.0}, "About 2 min 30 s for 5 rounds."),
        (2, {"rounds": 7}, "7 rounds will see differences of 5.4 % (80 % power)."),
        (2, {"rounds": 3}, "3 rounds settle no verdict; 5 would see differences of 7.2 % (80 % power)."),
        (2, DEFAULT, "10 rounds will see differences of 6.8 % (80 % power)."),
    ],
)
def test_progress_announces_length_then_time_then_power(rounds, config, line):
    assert printed(a_start(rounds, config)) == [line]


@pytest.mark.parametrize(
    ("rounds", "config"), [(1, {"rounds": 1}), (0, {"comparisons": 2}), (2, {"comparisons": 2}), (3, DEFAULT)]
)
def test_progress_announces_nothing_where_nothing_is_to_come(rounds, config):
    assert printed(a_start(rounds, config)) == []
