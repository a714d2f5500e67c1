"""Test what is printed while a run goes on."""

import io
import re
import time
from typing import get_args

import msgspec
import pytest
from rich.console import Console

from compare.report.progress import LaunchPace, LiveProgress, planned_time
from compare.schema.arms import parse_arm
from compare.schema.job import Planned, Progress, Stage
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
    ("rounds", "config", "lines"),
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
        (1, {"rounds": 3}, "About 1 min 30 s for 3 rounds. A verdict takes 5."),
        (1, BUDGET | {"budget_seconds": 100.0}, "100 s allow about 3 rounds. A verdict takes 5."),
        (1, {"rounds": 1}, ""),
        (0, {"comparisons": 2}, ""),
        (2, DEFAULT, ""),
    ],
)
def test_progress_announces_length_then_time_of_what_is_to_come(rounds, config, lines):
    assert printed(a_start(rounds, config)) == lines.splitlines()


@pytest.mark.parametrize(
    ("config", "in_turns", "end"),
    [
        ({"rounds": 7}, True, "By the starts and turns alone, 7 rounds take about 3 min 30 s."),
        (BUDGET, True, "By the starts and turns alone, a round takes about 30 s."),
        ({"rounds": 7}, False, "For the starts, 7 rounds take at least 3 min 30 s, and the training."),
        (BUDGET, False, "For the starts, a round takes at least 30 s, and the training."),
    ],
)
def test_planned_time_without_turns_is_a_least_time(config, in_turns, end):
    assert planned_time(a_start(0, config).config, 30.0, in_turns=in_turns).endswith(f" {end}")


# ---- the standing ----


def a_planned(arm="ddp", round_=1, number=1):
    return Planned(number, round_, parse_arm(arm))


def after_a_round(run, **options):
    """Return what is printed after the launches of a run's last round."""
    console = Console(file=io.StringIO(), width=80)
    with LiveProgress(console, run.config, **options) as progress:
        for number, launch in enumerate(run.launches[-3:], start=1):
            progress.launch_begins(a_planned(launch.arm, launch.round, number))
            progress.launch_ended(a_planned(launch.arm, launch.round, number), launch)
        progress.rounds_done(run)
        progress.rounds_done(run)  # a scaling series begins with one that is known
    return console.file.getvalue().splitlines()


def test_progress_without_a_terminal_prints_a_line_a_round():
    run = a_start(3, {"rounds": 7})
    assert after_a_round(run) == ["round 3 of 7 (30 s): none 5.00, mpi 5.10, ddp 5.13 ms a step"]
    assert after_a_round(run, quiet=True) == []


def test_standing_counts_the_verdicts_that_are_settled():
    assert after_a_round(a_start(5, {"rounds": 5}))[0].endswith(" ms a step; 0 of 1 verdict settled")
    assert after_a_round(a_start(5, {"rounds": 7}))[0].endswith(" ms a step"), "its look is the end"
    (line,) = after_a_round(a_start(6, {"rounds": 99, "settle_seconds": 1e4}))
    assert line.endswith("0 of 1 verdict settled, next look after round 8 or at the end")


@pytest.mark.parametrize(
    ("config", "done", "left"),
    [
        ({"rounds": 7}, 0, ""),
        ({"rounds": 7}, 3, "about 58 s left"),
        ({"rounds": 7}, 21, "any moment"),
        (DEFAULT, 3, "about 38 s for 5 rounds"),
        (DEFAULT, 15, "at most 4 min 8 s left"),
        (BUDGET, 0, "at most 9 min 58 s left"),
    ],
)
def test_pace_tells_the_time_left(config, done, left):
    pace = LaunchPace(a_start(0, config).config, 3, 1)
    pace.began_at = 100.0
    for _ in range(done):
        pace.count(100.0 + done / 3 * 10)
    assert pace.time_left(100.0 + done / 3 * 10 + 2) == left


# ---- in a terminal ----


@pytest.fixture
def live():
    """A display, and what it has written since the last look."""
    console = Console(file=io.StringIO(), width=100, force_terminal=True, legacy_windows=False, _environ={})
    with LiveProgress(console, a_start(0, {"rounds": 2}).config) as progress:

        def written():
            text = console.file.getvalue()
            console.file.seek(0)
            console.file.truncate()
            return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)

        yield progress, written


def a_record(stage, step=0):
    return Progress(stage=stage, step=step, at=0.0, limit_seconds=1.0)


def test_terminal_shows_the_number_and_the_stage_of_a_launch(live):
    progress, written = live
    progress.launch_begins(a_planned("none"))
    progress.launch_begins(a_planned("ddp"))
    assert "round 1 of 2 · ddp (2 of 3): starting" in written()
    for stage in get_args(Stage):
        if stage not in {"turn", "reference", "train", "collectives"}:
            progress.rank_progressed(a_planned(), a_record(stage))
            assert "round 1 of 2 · ddp (2 of 3): " in written()
    progress.rank_progressed(a_planned(), a_record("start"))
    assert "loading torch" in written()
    progress.not_in_turns("memory")
    written()
    progress.launch_begins(a_planned("none"))
    assert "none (1 of 3): starting" in written(), "launches count anew where turns are given up"


def test_terminal_counts_towards_five_rounds_if_their_number_is_open():
    console = Console(file=io.StringIO(), width=100, force_terminal=True, legacy_windows=False, _environ={})
    with LiveProgress(console, a_start(0, DEFAULT).config) as progress:
        progress.launch_begins(a_planned())
    assert "0/15" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_terminal_draws_nothing_while_an_arm_trains(live):
    progress, written = live
    progress.launch_begins(a_planned())
    progress.turn_begins(a_planned(), 2, 12)
    assert "turn 2 of 12: ddp trains" in written()
    for step in range(5):
        progress.rank_progressed(a_planned(), a_record("turn", step))
        progress.rank_progressed(a_planned(), a_record("train", step))
    time.sleep(0.3)  # a thread that redraws would have
    assert written() == ""
    progress.rank_progressed(a_planned(), a_record("test"))
    assert "ddp: testing" in written()


def test_terminal_draws_news_alone_where_launches_train(live):
    progress, written = live
    progress.launch_begins(a_planned())
    progress.rank_progressed(a_planned(), a_record("train", 30))
    assert "training, 30 of" in written()
    progress.rank_progressed(a_planned(), a_record("train", 30))
    assert written() == ""
