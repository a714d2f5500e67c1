"""Show the progress of a run: live in a terminal, otherwise as plain lines."""

from __future__ import annotations

import shlex
import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from backends.launchers.request import Command
from compare.report.outlook import Pace, outlook, standing
from compare.report.rows import printable_line
from compare.schema.collectives import SweepConfig, SweepLaunch
from compare.schema.config import RunConfig
from compare.schema.job import Planned, Stage
from compare.schema.job import Progress as RankProgress
from compare.schema.results import ArmVerification, Launch, Run
from compare.text import printable

_WORDS: dict[Stage, str] = {
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
_TIMED: set[Stage] = {"reference", "turn", "train", "collectives"}
"""Stages in which code is timed, so that a redraw would take a core from it."""


class LiveProgress:
    """Shows live what a launch does and how long the run takes.

    Each round leaves one line with the standing of the run. Without a terminal there are only such lines, and
    ``quiet`` prints none. While an arm trains in its turn, nothing is drawn. At other times the display
    changes at most twice a second, and in timed stages only if there is something new.
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
        self._counted: set[Stage] = (
            {"collectives"} if isinstance(config, SweepConfig) else {"reference", "train"}
        )
        self._begun = 0
        self._in_turn = False
        self._seen: RankProgress | None = None
        self._ended_before = 0
        self._pace = Pace(config, self._arms, counts)
        self._bar = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            auto_refresh=False,
        )
        self._launches = self._bar.add_task("launches", total=self._pace.launches, left="")
        self._doing = Text()
        drawn = console.is_terminal and not console.is_dumb_terminal and not quiet
        # Without a thread that redraws: only events do.
        self._live = Live(console=console, auto_refresh=False, transient=True) if drawn else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    # ---- drawing ----

    def _place(self, planned: Planned) -> str:
        """Return the round as text, with the number of all rounds if it is known."""
        of = f" of {self._config.rounds}" if self._config.total_launches else ""
        return f"{self._ranks}round {planned.round}{of}"

    def _print(self, line: str, style: str = "dim") -> None:
        if not self._quiet:
            self._console.print(printable_line(line, style), soft_wrap=True)

    def _show(self, doing: str) -> None:
        self._doing = Text(printable(doing), style="dim", no_wrap=True, overflow="ellipsis")
        self._draw()

    def _draw(self) -> None:
        if self._live:
            left = self._pace.left(time.monotonic())
            self._bar.update(self._launches, left=left, completed=self._pace.done, total=self._pace.launches)
            self._live.update(Group(self._bar, self._doing), refresh=True)

    # ---- a launch ----

    def launch_begins(self, planned: Planned) -> None:
        """Show which launch of its round starts."""
        self._pace.start(time.monotonic())
        self._begun += 1
        self._in_turn, self._seen = False, None
        self._show(self._of_launch(planned, "starting"))

    def _of_launch(self, planned: Planned, doing: str) -> str:
        number = "" if self._in_turn else f" ({(self._begun - 1) % self._arms + 1} of {self._arms})"
        return f"{self._place(planned)} · {planned.label}{number}: {doing}"

    def launch_starts(self, planned: Planned, commands: list[Command]) -> None:
        """Print the command lines that are about to start, if ``--verbose`` is given."""
        del planned
        for command in commands if self._verbose else ():
            self._print(f"$ {shlex.join(command.argv)}")

    def rank_progressed(self, planned: Planned, progress: RankProgress | None) -> None:
        """Show the stage and the step of rank 0, from its latest record; None changes nothing."""
        if progress is None:
            return
        news, self._seen = progress != self._seen, progress
        stage = progress.stage
        if stage in _TIMED and (self._in_turn or not news):
            return
        steps = f", {progress.step} of {self._config.total_steps}" if stage in self._counted else ""
        self._show(self._of_launch(planned, _WORDS[stage] + steps))

    def turn_begins(self, planned: Planned, turn: int, turns: int) -> None:
        """Show the turn that is about to begin; nothing is drawn until it ends."""
        self._in_turn = True
        self._show(f"{self._place(planned)} · turn {turn} of {turns}: {planned.arm.label} trains")

    def not_in_turns(self, why: str) -> None:
        """Print why the arms run one after another, and count launches from the first arm again."""
        self._begun = 0
        self._print(f"One launch after another: {why}", "yellow")

    def cohort_restarts(self, round_: int) -> None:
        """Print that a round begins again, because this program was suspended."""
        self._begun = 0
        self._print(f"round {round_} begins again: this program was suspended (Ctrl-Z)", "yellow")

    def launch_restarts(self, planned: Planned, reason: str) -> None:
        """Print that a launch starts a second time."""
        self._print(f"{self._place(planned)}: {planned.label} starts again: {reason}", "yellow")

    def launch_ended(self, planned: Planned, launch: Launch) -> None:
        """Count a launch that ended; ``rounds_done`` prints its step time."""
        del planned, launch
        self._count()

    def _count(self) -> None:
        self._in_turn = False
        self._pace.count(time.monotonic())

    # ---- a round ----

    def round_repeats(self, round_: int, other_load: float) -> None:
        """Print that a noisy round is repeated, and expect its launches again."""
        self._pace.repeat()
        self._ended_before = self._pace.done
        used = f"other processes used {other_load * 100:.0f} % of the CPUs"
        self._print(f"round {round_} is repeated: {used}", "yellow")

    def count_begins(self, ranks: int) -> None:
        """Begin the launches with this number of ranks, which the next lines name."""
        self._ranks = f"np {ranks}, "
        self._begun = 0

    def rounds_done(self, run: Run) -> None:
        """Print the standing of a run if launches have ended since the last call, and then the outlook.

        A scaling series has several runs at once, so it prints no outlook.
        """
        if self._pace.done > self._ended_before:
            self._ended_before = self._pace.done
            self._print(f"{self._ranks}{standing(run)}")
        for line in () if self._ranks else outlook(run):
            self._print(line)

    def arm_verified(self, arm: ArmVerification) -> None:
        """Count the launch of an arm, and print whether the arm is proven."""
        self._count()
        refuted = "did not run" if arm.failure else "FAILED"
        outcome = refuted if arm.refuted else "not proven" if arm.unproven else "proven"
        self._print(f"{arm.arm:<28} {outcome:<12} {arm.seconds:5.1f} s", "red" if arm.refuted else "dim")

    def sweep_skipped(self) -> None:
        """Expect one launch less, because a group is skipped; the next launch keeps its number."""
        self._begun += 1
        self._pace.skip()

    def sweep_ended(self, planned: Planned, launch: SweepLaunch | None) -> None:
        """Count a launch of ``compare collectives``, and print its time; None is a launch that failed."""
        self._count()
        outcome = f"{launch.seconds:5.1f} s" if launch else "failed"
        self._print(f"{self._place(planned)}: {planned.label:<14} {outcome}", "dim" if launch else "red")
