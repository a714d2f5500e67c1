"""Show the progress of a run in a terminal."""

from __future__ import annotations

import shlex
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from backends.launchers.request import Command
from compare.analysis.step_times import step_seconds
from compare.report.outlook import outlook
from compare.schema.collectives import SweepConfig, SweepLaunch
from compare.schema.config import RunConfig
from compare.schema.job import Planned
from compare.schema.results import ArmVerification, Launch, Run


class LiveProgress:
    """Two bars, launches and steps, and a line per finished launch.

    Without a terminal there are only the lines.
    """

    def __init__(
        self, console: Console, config: RunConfig | SweepConfig, *, verbose: bool, counts: int = 1
    ) -> None:
        self._config = config
        self._ranks = ""
        self._arms = len(config.arms) if isinstance(config, RunConfig) else len(config.groups)
        self._verbose = verbose
        self._bars = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._console = console
        total = config.total_launches
        self._launches = self._bars.add_task("launches", total=total and total * counts)
        self._steps = self._bars.add_task("", total=config.total_steps)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def _place(self, planned: Planned) -> str:
        """Return the round, with their number if known, and the arm."""
        of = f"/{self._config.rounds}" if self._config.total_launches else ""
        return f"round {planned.round}{of}  {self._ranks}{planned.label:<28}"

    def _print(self, line: str, style: str = "dim") -> None:
        self._console.print(line, style=style, highlight=False, markup=False)

    def launch_begins(self, planned: Planned) -> None:
        """Reset the bar of steps."""
        self._bars.reset(self._steps, description=f"round {planned.round}: {escape(planned.label)}")

    def launch_starts(self, planned: Planned, commands: list[Command]) -> None:
        """Print every command before it starts, with ``--verbose``."""
        del planned
        for command in commands if self._verbose else ():
            self._console.print(f"$ {shlex.join(command.argv)}", style="dim", markup=False, soft_wrap=True)

    def steps_done(self, planned: Planned, steps: int) -> None:
        """Move the bar of steps."""
        del planned
        self._bars.update(self._steps, completed=steps)

    def not_in_turns(self, why: str) -> None:
        """Print why the arms run one after another."""
        self._print(f"One launch after another: {why}", "yellow")

    def cohort_restarts(self, round_: int) -> None:
        """Print that a round begins again."""
        self._print(f"round {round_} begins again: this program was suspended (Ctrl-Z)", "yellow")

    def turn_begins(self, planned: Planned, turn: int, turns: int) -> None:
        """Show the turns of a cohort in the bar of steps."""
        description = f"round {planned.round}: turn {turn} of {turns}, {escape(planned.arm.label)}"
        self._bars.reset(self._steps, description=description)

    def launch_restarts(self, planned: Planned, reason: str) -> None:
        """Print that a launch starts a second time."""
        self._print(f"{self._place(planned)} starts again: {reason}", "yellow")

    def launch_ended(self, planned: Planned, launch: Launch) -> None:
        """Print the step time of a launch."""
        self._bars.advance(self._launches)
        step = f"{step_seconds(launch) * 1e3:8.2f} ms/step"
        self._print(f"{self._place(planned)} {step}   {launch.seconds:5.1f} s in all")

    def round_repeats(self, round_: int, other_load: float) -> None:
        """Print that a round is repeated, and extend the bar."""
        total, arms = self._bars.tasks[self._launches].total, self._arms
        self._bars.update(self._launches, total=total and total + arms)
        used = f"other processes used {other_load * 100:.0f} % of the CPUs"
        self._print(f"round {round_} is repeated: {used}", "yellow")

    def count_begins(self, ranks: int) -> None:
        """Name the number of ranks in the lines that follow."""
        self._ranks = f"np {ranks:<4}"

    def rounds_done(self, run: Run) -> None:
        """Print how long the run will take, and what it will see.

        A scaling series has several runs at once, and no outlook.
        """
        for line in () if self._ranks else outlook(run):
            self._print(line)

    def arm_verified(self, arm: ArmVerification) -> None:
        """Print the outcome of an arm."""
        self._bars.advance(self._launches)
        outcome = "proven" if arm.proven else "did not run" if arm.failure else "FAILED"
        line = f"{arm.arm:<28} {outcome:<12} {arm.seconds:5.1f} s in all"
        self._print(line, "dim" if arm.proven else "red")

    def sweep_ended(self, planned: Planned, launch: SweepLaunch | None) -> None:
        """Print the outcome of a launch of ``compare collectives``."""
        self._bars.advance(self._launches)
        if launch is None:
            self._print(f"{self._place(planned)} failed", "red")
        else:
            self._print(f"{self._place(planned)} {launch.seconds:5.1f} s in all")
