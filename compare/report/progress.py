"""Show the progress of a command and the time left: live in a terminal, otherwise as plain lines."""

from __future__ import annotations

import shlex
import time
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from backends.launchers.request import Command
from compare.analysis.budget import (
    FIRST_LOOK,
    START_SECONDS,
    TURN_SECONDS,
    least_seconds,
    planned_rounds,
    rounds_done,
)
from compare.report.cells import printable_line
from compare.report.of_verification import verdict_of
from compare.report.outlook import budget_warning, cores_warning, first_rounds, most_rounds, outlook, standing
from compare.schema.collectives import SweepConfig, SweepLaunch
from compare.schema.config import RunConfig
from compare.schema.job import Planned, Stage
from compare.schema.job import Progress as RankProgress
from compare.schema.results import ArmVerification, Launch, Run
from compare.text import duration, percent, printable

_STAGE_TEXTS: dict[Stage, str] = {
    "start": "loading torch",
    "load": "loading its libraries",
    "data": "loading the data",
    "join": "joining its group",
    "parity": "proving",
    "replica": "building the model",
    "warm-up": "warming up",
    "reference": "training, and timing single ranks",
    "turn": "ready for its turns",
    "train": "training",
    "test": "testing the model",
    "collectives": "timing collectives",
    "end": "ending",
}
_TIMED_STAGES: set[Stage] = {"reference", "turn", "train", "collectives"}
"""Stages in which ranks are timed, so that redrawing would take a core from what is measured."""


_BAR_CELLS = 16
_LINE_SECONDS = 10.0
"""Minimum time between two lines on what a launch does, in the first round and without a terminal."""
_LATER_LINE_SECONDS = 30.0


class LaunchPace:
    """The pace of a command's launches, from which the time left is estimated.

    A round launches ``arms`` arms (or groups). With several numbers of ranks, ``counts`` is how many there
    are. ``now`` is always a reading of the same monotonic clock, in seconds.
    """

    def __init__(self, config: RunConfig | SweepConfig, arms: int, counts: int) -> None:
        self.knows_total = bool(config.total_launches)
        """Whether the number of all launches is known in advance; if not, it depends on time or verdicts."""
        self.expected = (config.total_launches or 0) * counts or FIRST_LOOK * arms
        """Expected number of launches, with those of repeated rounds and without skipped ones."""
        self.done = 0
        """Number of launches that have ended."""
        self.began_at: float | None = None
        """When the first launch began; None before that."""
        self.least_seconds = 0.0
        """Minimum time of the expected launches in seconds; 0 if it is not known."""
        self._arms = arms
        self._begun = self._ready = 0
        """Number of launches that have ended or are ready for their turns."""
        self._ready_at = 0.0
        self._turns_share = 0.0
        """Share of the current round's turns that are over."""
        self._turns_over = 0
        self._ended_at = 0.0
        self._limit_seconds = config.limit_seconds if isinstance(config, RunConfig) else None
        self._limit_is_hard = isinstance(config, RunConfig) and config.budget_seconds is not None

    @property
    def completed(self) -> float:
        """Return how many launches are done; those that are ready for their turns count as half."""
        return self.done + (max(0, self._ready - self.done) + self._arms * self._turns_share) / 2

    def begin_launch(self, now: float) -> None:
        """Note that a launch begins, so the one before it has ended or is ready for its turns."""
        self.began_at = self.began_at or now
        self._ready, self._ready_at = self._begun, now
        self._begun += 1

    def begin_turn(self, turn: int, turns: int) -> None:
        """Note that a turn begins, so all launches of the round are ready."""
        self._ready = self._begun
        self._turns_over, self._turns_share = turn - 1, (turn - 1) / turns

    def begin_again(self) -> None:
        """Note that the launches of the current round start again."""
        self._begun, self._turns_over, self._turns_share = self.done, 0, 0.0

    def count(self, now: float) -> None:
        """Count a launch that ended."""
        self.done += 1
        self._ended_at = now
        self._turns_over, self._turns_share = 0, 0.0

    def time_left(self, now: float) -> str:
        """Return the time left as text; empty as long as there is nothing to estimate it from.

        With --budget, or once the expected launches are done, it is the rest of the time limit. Otherwise it
        is estimated from the mean time of a launch. Before the first has ended, it is a minimum.
        """
        if self.began_at is None:
            return ""
        if self._limit_seconds is not None and (self._limit_is_hard or self.done >= self.expected):
            return f"at most {duration(max(0.0, self.began_at + self._limit_seconds - now))} left"
        of = "left" if self.knows_total else f"left of {FIRST_LOOK} rounds"
        if not self.done:
            least = self._least_left(now)
            return f"at least {duration(least)} {of}" if least > 0 else ""
        launch_seconds = (self._ended_at - self.began_at) / self.done
        seconds = launch_seconds * (self.expected - self.done) - (now - self._ended_at)
        if seconds <= 0:
            return "any moment"
        return f"about {duration(seconds)} {of}"

    def _least_left(self, now: float) -> float:
        """Return the minimum time left in the first round and later ones; 0 if it is not known.

        Arms that are still to start take as long as the others did on average, but their minimum at least.
        """
        if not self.least_seconds:
            return 0.0
        took = (self._ready_at - (self.began_at or now)) / self._ready if self._ready else 0.0
        start = max(START_SECONDS, took)
        waiting = self._arms - self._ready
        starts = waiting * start - min(now - self._ready_at, start) if waiting else 0.0
        turns = self._turns_over * TURN_SECONDS
        return self.least_seconds - self._arms * START_SECONDS + starts - turns


class LiveProgress:
    """Shows live what a launch does and how much time is left.

    Each round leaves a line with the step times so far; a proof or a sweep leaves one for each launch.
    Without a terminal there are only lines: also one for each launch that starts in the first round, and
    every half minute one on what is done. With ``quiet`` there are none. While an arm trains in its turn,
    nothing is drawn. At other times the display changes with each event, but in timed stages only if the
    progress of rank 0 is new.
    """

    def __init__(
        self,
        console: Console,
        config: RunConfig | SweepConfig,
        *,
        verbose: bool = False,
        quiet: bool = False,
        counts: int = 1,
    ) -> None:
        self._console = console
        self._config = config
        self._verbose = verbose
        self._quiet = quiet
        self._ranks = ""
        self._arms = len(config.arms) if isinstance(config, RunConfig) else len(config.groups)
        is_sweep = isinstance(config, SweepConfig)
        self._stages_with_steps: set[Stage] = {"collectives"} if is_sweep else {"reference", "train"}
        self._begun_launches = 0
        self._in_turn = False
        self._last_progress: RankProgress | None = None
        self._done_when_printed = 0
        self._printed_at = time.monotonic()
        self._most_rounds = f" of {config.rounds}" if config.total_launches else ""
        """How many rounds there will be, as text that follows the number of the current one."""
        self._pace = LaunchPace(config, self._arms, counts)
        self._bar = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=_BAR_CELLS),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            auto_refresh=False,
        )
        self._launches = self._bar.add_task("", total=self._pace.expected, left="")
        drawn = console.is_terminal and not console.is_dumb_terminal and not quiet
        # Without a thread that redraws: only events do.
        self._live = Live(console=console, auto_refresh=False, transient=True) if drawn else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    # ---- drawing ----

    def _round_text(self, planned: Planned) -> str:
        return f"{self._ranks}round {planned.round}{self._most_rounds}"

    def _print(self, line: str, style: str = "dim") -> None:
        if not self._quiet:
            self._printed_at = time.monotonic()
            self._console.print(printable_line(line, style), soft_wrap=True)

    def _draw(self, planned: Planned, doing: str, *, is_first: bool = False) -> None:
        """Draw what a launch does, or print it unless a line was printed shortly before.

        It is printed in any case if ``is_first`` says that it is the first news of a launch.
        """
        now, pace = time.monotonic(), self._pace
        left, round_ = pace.time_left(now), self._round_text(planned)
        if self._live:
            done, total = pace.completed, max(pace.expected, pace.done)
            self._bar.update(self._launches, description=round_, left=left, completed=done, total=total)
            line = Text(printable(doing), style="dim", no_wrap=True, overflow="ellipsis")
            self._live.update(Group(self._bar, line), refresh=True)
            return
        seconds = _LINE_SECONDS if planned.round == 1 else _LATER_LINE_SECONDS
        if is_first or now - self._printed_at >= seconds:
            self._print(" · ".join(filter(None, [round_, doing, left])))

    # ---- a launch ----

    def launch_begins(self, planned: Planned) -> None:
        """Show that a launch starts, and which one of its round it is."""
        self._pace.begin_launch(time.monotonic())
        self._begun_launches += 1
        self._in_turn, self._last_progress = False, None
        self._draw(planned, self._launch_text(planned, "starting"), is_first=planned.round == 1)

    def _launch_text(self, planned: Planned, doing: str) -> str:
        number = "" if self._in_turn else f" ({(self._begun_launches - 1) % self._arms + 1} of {self._arms})"
        return f"{planned.label}{number}: {doing}"

    def launch_starts(self, planned: Planned, commands: list[Command]) -> None:
        """Print the command lines that are about to start, if ``--verbose`` is given."""
        del planned
        for command in commands if self._verbose else ():
            self._print(f"$ {shlex.join(command.argv)}")

    def rank_progressed(self, planned: Planned, progress: RankProgress | None) -> None:
        """Show the stage and the step of rank 0 from its latest record; without a record, do nothing."""
        if progress is None:
            return
        news, self._last_progress = progress != self._last_progress, progress
        stage = progress.stage
        if stage in _TIMED_STAGES and (self._in_turn or not news):
            return
        steps = f", {progress.step} of {self._config.total_steps}" if stage in self._stages_with_steps else ""
        self._draw(planned, self._launch_text(planned, _STAGE_TEXTS[stage] + steps))

    def turn_begins(self, planned: Planned, turn: int, turns: int) -> None:
        """Show the turn that is about to begin; until it ends, nothing else is drawn."""
        self._in_turn = True
        self._pace.begin_turn(turn, turns)
        self._draw(planned, f"turn {turn} of {turns}: {planned.arm.label} trains")

    def not_in_turns(self, why: str) -> None:
        """Print why the arms do not take turns, and number the launches from the first arm again."""
        self._begin_round_again()
        self._pace.least_seconds = 0.0
        self._print(f"One launch after another: {why}", "yellow")

    def arm_left_out(self, planned: Planned, why: str) -> None:
        """Print that the run goes on without an arm, and number the launches from the first arm again."""
        self._begin_round_again()
        self._print(f"{planned.label} does not fit, so the run goes on without it: {why}", "yellow")

    def arm_goes_bare(self, planned: Planned, why: str) -> None:
        """Print that an arm goes on without a proof, and number the launches from the first arm again."""
        self._begin_round_again()
        self._print(
            f"{planned.label} does not fit with its proof, so it goes on without one: {why}", "yellow"
        )

    def cohort_restarts(self, round_: int) -> None:
        """Print that a round begins again, because this program was suspended."""
        self._begin_round_again()
        self._print(f"round {round_} begins again: this program was suspended (Ctrl-Z)", "yellow")

    def _begin_round_again(self) -> None:
        self._begun_launches = 0
        self._pace.begin_again()

    def launch_restarts(self, planned: Planned, reason: str) -> None:
        """Print that a launch starts a second time."""
        self._print(f"{self._round_text(planned)}: {planned.label} starts again: {reason}", "yellow")

    def launch_ended(self, planned: Planned, launch: Launch) -> None:
        """Count a launch that ended; ``rounds_done`` prints its step time later."""
        del planned, launch
        self._count()

    def _count(self) -> None:
        self._in_turn = False
        self._pace.count(time.monotonic())

    # ---- a round ----

    def round_repeats(self, round_: int, other_load: float) -> None:
        """Print that a noisy round is repeated, and expect its launches once more.

        ``other_load`` is the share of the CPUs that other processes used.
        """
        self._pace.expected += self._arms
        self._done_when_printed = self._pace.done
        used = f"other processes used {percent(other_load)} of the CPUs"
        self._print(f"round {round_} is repeated: {used}", "yellow")

    def count_begins(self, ranks: int) -> None:
        """Note that the next launches have this number of ranks, which their lines then name."""
        self._ranks = f"np {ranks}, "
        self._begun_launches = 0

    def rounds_done(self, run: Run) -> None:
        """Print the step times so far if launches have ended since the last call, and then the outlook.

        A scaling series has several runs at once, so it has no outlook.
        """
        self._most_rounds = most_rounds(run)
        if self._pace.done > self._done_when_printed:
            self._done_when_printed = self._pace.done
            is_over = planned_rounds(run) <= rounds_done(run)
            is_shown = self._live or is_over or (outlook(run) and not self._ranks)
            left = "" if is_shown else self._pace.time_left(time.monotonic())
            self._print("; ".join(filter(None, [f"{self._ranks}{standing(run)}", left])))
        if line := cores_warning(run):
            self._print(f"{self._ranks}{line}", "yellow")
        if self._ranks:
            return
        if not self._pace.done:
            self._pace.least_seconds = least_seconds(run, first_rounds(run.config))
        if line := outlook(run):
            self._print(line)
        if line := budget_warning(run):
            self._print(line, "yellow")

    def arm_verified(self, arm: ArmVerification) -> None:
        """Count the launch of an arm, and print its verdict in the table's words."""
        self._count()
        line = f"{arm.arm:<28} {verdict_of(arm):<21} {arm.seconds:5.1f} s"
        self._print(line, "red" if arm.refuted else "dim")

    def sweep_skipped(self) -> None:
        """Expect one launch less, because a group is skipped; its number in the round stays unused."""
        self._begun_launches += 1
        self._pace.expected -= 1

    def sweep_ended(self, planned: Planned, launch: SweepLaunch | None) -> None:
        """Count a launch of ``ringside collectives`` and print how long it took; None is a failed one."""
        self._count()
        outcome = f"{launch.seconds:5.1f} s" if launch else "failed"
        self._print(f"{self._round_text(planned)}: {planned.label:<14} {outcome}", "dim" if launch else "red")
