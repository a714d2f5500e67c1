"""Show the progress of a command and the time left: live in a terminal, otherwise as plain lines."""

from __future__ import annotations

import shlex
import statistics
import time
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from backends.launchers.request import Command
from compare.analysis.budget import (
    FIRST_LOOK,
    expected_seconds,
    is_oversubscribed,
    next_look,
    planned_rounds,
    rounds_done,
)
from compare.analysis.figures import Figures
from compare.analysis.ranking import verdicts
from compare.report.cells import printable_line
from compare.schema.collectives import SweepConfig, SweepLaunch
from compare.schema.config import MOST_ROUNDS, RunConfig
from compare.schema.job import Planned, Stage
from compare.schema.job import Progress as RankProgress
from compare.schema.results import ArmVerification, Launch, Run
from compare.text import counted, duration, printable

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
        self._ended_at = 0.0
        self._limit_seconds = config.limit_seconds if isinstance(config, RunConfig) else None
        self._limit_is_hard = isinstance(config, RunConfig) and config.budget_seconds is not None

    def count(self, now: float) -> None:
        """Count a launch that ended."""
        self.done += 1
        self._ended_at = now

    def time_left(self, now: float) -> str:
        """Return the time left as text; empty as long as there is nothing to estimate it from.

        With --budget, or once the expected launches are done, it is the rest of the time limit. Otherwise it
        is estimated from the mean time of a launch.
        """
        if self.began_at is None:
            return ""
        if self._limit_seconds is not None and (self._limit_is_hard or self.done >= self.expected):
            return f"at most {duration(max(0.0, self.began_at + self._limit_seconds - now))} left"
        if not self.done:
            return ""
        launch_seconds = (self._ended_at - self.began_at) / self.done
        seconds = launch_seconds * (self.expected - self.done) - (now - self._ended_at)
        if seconds <= 0:
            return "any moment"
        return f"about {duration(seconds)} {'left' if self.knows_total else f'for {FIRST_LOOK} rounds'}"


class LiveProgress:
    """Shows live what a launch does and how much time is left.

    Each round leaves a line with the step times so far; a proof or a sweep leaves one for each launch.
    Without a terminal there are only lines, and with ``quiet`` not even these. While an arm trains in its
    turn, nothing is drawn. At other times the display changes with each event, but in timed stages only if
    the progress of rank 0 is new.
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
        self._pace = LaunchPace(config, self._arms, counts)
        self._bar = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            auto_refresh=False,
        )
        self._launches = self._bar.add_task("launches", total=self._pace.expected, left="")
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
        of = f" of {self._config.rounds}" if self._config.total_launches else ""
        return f"{self._ranks}round {planned.round}{of}"

    def _print(self, line: str, style: str = "dim") -> None:
        if not self._quiet:
            self._console.print(printable_line(line, style), soft_wrap=True)

    def _draw(self, doing: str) -> None:
        if self._live:
            left = self._pace.time_left(time.monotonic())
            total = max(self._pace.expected, self._pace.done)
            self._bar.update(self._launches, left=left, completed=self._pace.done, total=total)
            line = Text(printable(doing), style="dim", no_wrap=True, overflow="ellipsis")
            self._live.update(Group(self._bar, line), refresh=True)

    # ---- a launch ----

    def launch_begins(self, planned: Planned) -> None:
        """Show that a launch starts, and which one of its round it is."""
        self._pace.began_at = self._pace.began_at or time.monotonic()
        self._begun_launches += 1
        self._in_turn, self._last_progress = False, None
        self._draw(self._launch_text(planned, "starting"))

    def _launch_text(self, planned: Planned, doing: str) -> str:
        number = "" if self._in_turn else f" ({(self._begun_launches - 1) % self._arms + 1} of {self._arms})"
        return f"{self._round_text(planned)} · {planned.label}{number}: {doing}"

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
        self._draw(self._launch_text(planned, _STAGE_TEXTS[stage] + steps))

    def turn_begins(self, planned: Planned, turn: int, turns: int) -> None:
        """Show the turn that is about to begin; until it ends, nothing else is drawn."""
        self._in_turn = True
        self._draw(f"{self._round_text(planned)} · turn {turn} of {turns}: {planned.arm.label} trains")

    def not_in_turns(self, why: str) -> None:
        """Print why the arms do not take turns, and number the launches from the first arm again."""
        self._begun_launches = 0
        self._print(f"One launch after another: {why}", "yellow")

    def cohort_restarts(self, round_: int) -> None:
        """Print that a round begins again, because this program was suspended."""
        self._begun_launches = 0
        self._print(f"round {round_} begins again: this program was suspended (Ctrl-Z)", "yellow")

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
        used = f"other processes used {other_load * 100:.0f} % of the CPUs"
        self._print(f"round {round_} is repeated: {used}", "yellow")

    def count_begins(self, ranks: int) -> None:
        """Note that the next launches have this number of ranks, which their lines then name."""
        self._ranks = f"np {ranks}, "
        self._begun_launches = 0

    def rounds_done(self, run: Run) -> None:
        """Print the step times so far if launches have ended since the last call, and then the outlook.

        A scaling series has several runs at once, so it has no outlook.
        """
        if self._pace.done > self._done_when_printed:
            self._done_when_printed = self._pace.done
            self._print(f"{self._ranks}{standing(run)}")
        if not self._ranks and (line := outlook(run)):
            self._print(line)

    def arm_verified(self, arm: ArmVerification) -> None:
        """Count the launch of an arm, and print whether the arm is proven."""
        self._count()
        refuted = "did not run" if arm.failure else "FAILED"
        outcome = refuted if arm.refuted else "not proven" if arm.unproven else "proven"
        self._print(f"{arm.arm:<28} {outcome:<12} {arm.seconds:5.1f} s", "red" if arm.refuted else "dim")

    def sweep_skipped(self) -> None:
        """Expect one launch less, because a group is skipped; its number in the round stays unused."""
        self._begun_launches += 1
        self._pace.expected -= 1

    def sweep_ended(self, planned: Planned, launch: SweepLaunch | None) -> None:
        """Count a launch of ``ringside collectives`` and print how long it took; None is a failed one."""
        self._count()
        outcome = f"{launch.seconds:5.1f} s" if launch else "failed"
        self._print(f"{self._round_text(planned)}: {planned.label:<14} {outcome}", "dim" if launch else "red")


# ---- words ----


def standing(run: Run) -> str:
    """Return a line with each arm's mean step time in ms over all rounds so far, the shortest first.

    Once verdicts can be judged, it also states how many are settled.
    """
    rounds, config, run_figures = rounds_done(run), run.config, Figures(run)
    last = run.launches[-len(config.arms) :]
    took = max(la.started_at + la.seconds for la in last) - min(la.started_at for la in last)
    means = {
        arm: statistics.geometric_mean(run_figures.step_seconds(arm).values()) for arm in run_figures.by_arm
    }
    figures = ", ".join(f"{label} {means[label] * 1e3:.2f}" for label in sorted(means, key=means.__getitem__))
    of = f" of {config.rounds}" if config.limit_seconds is None else ""
    settled = _settled_verdicts(run_figures, rounds)
    return f"round {rounds}{of} ({duration(took)}): {figures} ms a step{settled}"


def _settled_verdicts(figures: Figures, rounds: int) -> str:
    """Return how many verdicts are settled, after a semicolon; empty while none can be."""
    config = figures.run.config
    judges_otherwise = config.comparisons is not None or config.slower_limit is not None
    is_before_its_look = config.limit_seconds is None and rounds < config.rounds
    if rounds < FIRST_LOOK or judges_otherwise or is_before_its_look or is_oversubscribed(figures.run):
        return ""
    kinds = [verdict.kind for verdict in verdicts(figures, config.baseline).values()]
    settled = sum(kind != "open" for kind in kinds)
    goes_on = config.limit_seconds is not None and settled < len(kinds)
    look = f", next look after round {next_look(rounds)} or at the end" if goes_on else ""
    return f"; {settled} of {counted(len(kinds), 'verdict')} settled{look}" if kinds else ""


def outlook(run: Run) -> str:
    """Return a sentence on a run's length: its rounds at the start, its time after the first round.

    Empty after later rounds, for an A/A test, and for a run that is over.
    """
    done = rounds_done(run)
    if run.config.comparisons is not None or done > 1 or planned_rounds(run) <= done:
        return ""
    return _estimated_time(run) if done else _planned_length(run.config)


def _planned_length(config: RunConfig) -> str:
    """Return a sentence with the number of rounds of a run, or with what decides that number."""
    arms = counted(len(config.arms), "arm")
    until = (
        "until every verdict is settled"
        if config.slower_limit is None
        else "until every arm is settled, or one is slower"
    )
    if config.limit_seconds is None:
        return f"Exactly {counted(config.rounds, 'round')} of {arms}."
    if config.budget_seconds is None:
        time = duration(config.limit_seconds)
        return f"{counted(FIRST_LOOK, 'round')} of {arms}, then more {until} or {time} are over."
    rounds = "Rounds" if config.rounds >= MOST_ROUNDS else f"At most {counted(config.rounds, 'round')}"
    return f"{rounds} of {arms} {until}, for at most {config.budget_seconds:g} s."


def planned_time(config: RunConfig, round_seconds: float, *, in_turns: bool) -> str:
    """Return sentences with the planned number of rounds, and with an estimate of their time.

    ``round_seconds`` is the minimum time of a round: that of its starts, and with ``in_turns`` also that of
    its turns. If arms take no turns, their training needs additional time that is not known.
    """
    rounds = config.rounds if config.limit_seconds is None else FIRST_LOOK
    what, seconds = f"{counted(rounds, 'round')} take", round_seconds * rounds
    if config.budget_seconds is not None:
        what, seconds = "a round takes", round_seconds
    if in_turns:
        return f"{_planned_length(config)} By the starts and turns alone, {what} about {duration(seconds)}."
    return f"{_planned_length(config)} For the starts, {what} at least {duration(seconds)}, and the training."


def _estimated_time(run: Run) -> str:
    """Return a sentence with the time that a run takes at its pace so far, or the rounds that fit."""
    config, most = run.config, planned_rounds(run)
    rivals = len(config.rivals)
    unsettled = f" A verdict takes {FIRST_LOOK}." if rivals > 0 and most < FIRST_LOOK else ""
    if config.budget_seconds is not None:
        return f"{config.budget_seconds:g} s allow about {counted(most, 'round')}.{unsettled}"
    sure = most if config.limit_seconds is None else FIRST_LOOK
    line = f"About {duration(expected_seconds(run, sure))} for {counted(sure, 'round')}"
    if config.limit_seconds is None or most == sure:
        return f"{line}.{unsettled}"
    return f"{line}; {duration(config.limit_seconds)} allow {most}."
