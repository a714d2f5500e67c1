"""Test what is printed while a run goes on."""

import io
import re
import time
from typing import get_args

import msgspec
import pytest
from rich.console import Console

from compare.report.outlook import cores_warning, planned_time
from compare.report.progress import LaunchPace, LiveProgress
from compare.schema.arms import parse_arm
from compare.schema.job import Planned, Progress, Stage
from compare.schema.results import ArmVerification, Gate, Interleaved
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
        (1, DEFAULT, "In all, about 2 min 30 s for 5 rounds; 5 min allow 10."),
        (1, {"rounds": 7}, "In all, about 3 min 30 s for 7 rounds."),
        (1, BUDGET, "600 s allow about 20 rounds."),
        (1, DEFAULT | {"settle_seconds": 100.0}, "In all, about 2 min 30 s for 5 rounds."),
        (1, {"rounds": 3}, "In all, about 1 min 30 s for 3 rounds. A verdict takes 5."),
        (1, BUDGET | {"budget_seconds": 160.0}, "160 s allow about 5 rounds."),
        (1, {"rounds": 1}, ""),
        (0, {"comparisons": 2}, ""),
        (2, DEFAULT, ""),
    ],
)
def test_progress_announces_length_then_time_of_what_is_to_come(rounds, config, lines):
    assert printed(a_start(rounds, config)) == lines.splitlines()


CANNOT = "cannot hold the 5 rounds of a verdict, which take"
DOES_NOT = "does not hold the 5 rounds of a verdict, which take"


@pytest.mark.parametrize(
    ("mode", "rounds", "config", "line"),
    [
        ("blocks", 0, {"budget_seconds": 70.0}, f"{CANNOT} 1 min 15 s for their starts and turns alone."),
        ("blocks", 0, {"budget_seconds": 80.0}, None),
        ("launches", 0, {"budget_seconds": 40.0}, f"{CANNOT} 45 s for their starts alone."),
        ("blocks", 1, {"budget_seconds": 100.0}, f"{DOES_NOT} 2 min 30 s at this pace."),
        ("blocks", 2, {"budget_seconds": 100.0}, None),
        ("blocks", 0, {"budget_seconds": 10.0, "rounds": 4}, None),
        ("blocks", 0, {"settle_seconds": 1.0, "rounds": 1000}, None),
    ],
)
def test_budget_that_is_too_short_is_named_as_soon_as_it_is_known(mode, rounds, config, line):
    run = a_start(rounds, {"rounds": 1000} | config)
    run = msgspec.structs.replace(run, interleaved=Interleaved(mode=mode), cores_by_host=[2])
    found = [line for line in printed(run) if line.startswith("--budget")]
    assert len(found) == (line is not None)
    assert not found or line in found[0]


def test_budget_that_is_too_short_comes_with_what_would_fit():
    run = a_run({"none": [], "ddp": [], "mpi": [], "manual": []}, config=BUDGET | {"budget_seconds": 10.0})
    assert printed(run)[-1].endswith(" alone. Use a longer one or fewer arms.")
    *_, line = printed(a_start(1, {"rounds": 1000, "budget_seconds": 100.0}))
    assert line.endswith(" at this pace. Use --budget 150.")
    *_, line = printed(a_start(1, {"rounds": 1000, "budget_seconds": 145.0, "steps": 1000}))
    assert line.endswith(" Use --budget 150 or --steps 930.")


def test_run_that_can_rank_nothing_says_so_before_its_first_round():
    crowded = a_run({"none": [], "ddp": []}, config={"ranks": 4}, cores=2)
    assert cores_warning(crowded).startswith(
        "4 ranks × 1 thread outnumber the 2 cores of a host, so no arm can be ranked."
    )
    assert "`ringside predict` tells from a run of two hosts with one rank each" in cores_warning(crowded)
    assert cores_warning(a_run({"none": [], "ddp": []}, config={"ranks": 2}, cores=2)) == ""


@pytest.mark.parametrize(
    ("config", "mode", "end"),
    [
        ({"rounds": 7}, "blocks", "By the starts and turns alone, 7 rounds take at least 1 min 44 s."),
        (BUDGET, "blocks", "By the starts and turns alone, a round takes at least 17 s."),
        ({"rounds": 7}, "launches", "For the starts, 7 rounds take at least 1 min 3 s, and the training."),
        (BUDGET, "launches", "For the starts, a round takes at least 9 s, and the training."),
    ],
)
def test_planned_time_is_a_least_time(config, mode, end):
    run = msgspec.structs.replace(a_start(0, config), interleaved=Interleaved(mode=mode))
    assert planned_time(run).endswith(f" {end}")


def in_turns(run):
    return msgspec.structs.replace(run, interleaved=Interleaved(mode="blocks"), cores_by_host=[2])


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
    (line,) = after_a_round(run)
    assert re.sub(r"\d+ s left$", "", line) == (
        "round 3 of 7 (30 s): none 5.00, ddp 5.10, mpi 5.10 ms a step; about "
    )
    assert after_a_round(run, quiet=True) == []


def test_progress_after_the_first_round_estimates_once():
    lines = after_a_round(a_start(1, {"rounds": 7}))
    (standing,) = (line for line in lines if line.startswith("round 1 of 7 (30 s): "))
    assert standing.endswith(" ms a step")
    assert "In all, about 3 min 30 s for 7 rounds." in lines


def test_standing_counts_the_verdicts_that_are_settled():
    assert after_a_round(a_start(5, {"rounds": 5}))[0].endswith(" ms a step; 0 of 1 verdict settled")
    assert " ms a step; about " in after_a_round(a_start(5, {"rounds": 7}))[0], "its look is the end"
    (line,) = after_a_round(a_start(6, {"rounds": 99, "settle_seconds": 1e4}))
    assert line.startswith("round 6 of at most 99 (30 s): ")
    assert "; 0 of 1 verdict settled, next look after round 8 or at the end; " in line


@pytest.mark.parametrize(
    ("config", "done", "left"),
    [
        ({"rounds": 7}, 0, ""),
        ({"rounds": 7}, 3, "about 58 s left"),
        ({"rounds": 7}, 21, "any moment"),
        (DEFAULT, 3, "about 38 s left of 5 rounds"),
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


def test_pace_is_a_minimum_until_the_first_launch_has_ended():
    pace = LaunchPace(a_start(0, {"rounds": 2}).config, 3, 1)
    pace.least_seconds = 2 * 3 * 5.8
    pace.begin_launch(100.0)
    assert pace.time_left(101.0) == "at least 34 s left"
    assert pace.time_left(109.0) == "at least 32 s left", "an arm that is late leaves the others' minimum"
    pace.begin_launch(110.0)  # the first took 10 s, so the others are expected to
    assert pace.time_left(112.0) == "at least 44 s left"
    pace.begin_launch(120.0)
    pace.begin_turn(7, 12)
    assert pace.time_left(140.0) == "at least 22 s left"
    assert pace.completed == 3 / 2 + 3 / 2 * 6 / 12
    for _ in range(3):
        pace.count(150.0)
    pace.begin_launch(150.0)
    assert pace.completed == 3


def test_pipe_gets_a_line_for_each_start_and_then_every_half_minute(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("compare.report.progress.time.monotonic", lambda: now[0])
    console, run = Console(file=io.StringIO(), width=80), in_turns(a_start(0, {"rounds": 2}))

    def printed_at(seconds, event, *arguments):
        now[0] = seconds
        before = len(console.file.getvalue())
        event(*arguments)
        return console.file.getvalue()[before:]

    with LiveProgress(console, run.config) as progress:
        progress.rounds_done(run)
        begins, stage = progress.launch_begins, progress.rank_progressed
        assert printed_at(100, begins, a_planned("none")).startswith(
            "round 1 of 2 · none (1 of 3): starting · "
        )
        assert printed_at(109, stage, a_planned("none"), a_record("start")) == ""
        shown = printed_at(111, stage, a_planned("none"), a_record("parity"))
        assert shown == "round 1 of 2 · none (1 of 3): proving · at least 29 s left\n"
        assert "ddp (2 of 3): starting" in printed_at(112, begins, a_planned("ddp"))
        assert "turn 1 of 12: ddp trains" in printed_at(130, progress.turn_begins, a_planned("ddp"), 1, 12)
        second = a_planned("ddp", 2)
        assert printed_at(140, begins, second) == ""
        assert "round 2 of 2 · " in printed_at(160, stage, second, a_record("start"))


def test_a_proof_is_called_in_a_line_what_the_table_calls_it():
    console = Console(file=io.StringIO(), width=200)
    lossy = [Gate(name="ranks", outcome="passed"), Gate(name="float32", outcome="exempt", figure=1e-3)]
    with LiveProgress(console, a_start(0, {"rounds": 1}).config) as progress:
        for arm, gates in {"ddp": [Gate(name="float32", outcome="passed")], "powersgd": lossy}.items():
            progress.arm_verified(ArmVerification(arm=arm, gates=gates, seconds=5.0))
    first, second = console.file.getvalue().splitlines()
    assert re.split("  +", first) == ["ddp", "the same training", "5.0 s"]
    assert re.split("  +", second) == ["powersgd", "lossy by design", "5.0 s"]


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
    assert re.search(r"round 1 of 2 .*\nddp \(2 of 3\): starting", written())
    for stage in get_args(Stage):
        if stage not in {"turn", "reference", "train", "collectives"}:
            progress.rank_progressed(a_planned(), a_record(stage))
            assert "ddp (2 of 3): " in written()
    progress.rank_progressed(a_planned(), a_record("start"))
    assert "loading torch" in written()
    progress.not_in_turns("memory")
    written()
    progress.launch_begins(a_planned("none"))
    assert "none (1 of 3): starting" in written(), "launches count anew where turns are given up"


def test_terminal_shows_progress_and_time_left_within_the_first_round():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, legacy_windows=False, _environ={})
    run = in_turns(a_start(0, DEFAULT))
    with LiveProgress(console, run.config) as progress:
        progress.rounds_done(run)
        progress.launch_begins(a_planned("none"))
        progress.launch_begins(a_planned("ddp"))
        progress.turn_begins(a_planned(), 7, 12)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    starting, second, turn, *_ = [line for line in re.split(r"[\r\n]+", text) if line.startswith("round 1 ")]
    assert starting.rstrip().endswith("0:00:00 at least 1 min 15 s left of 5 rounds")
    assert starting.split()[2] != second.split()[2] != turn.split()[2], "the bar grows"


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
