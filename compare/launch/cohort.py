"""Launch all arms of a round, and let them train in turns.

A cohort is one launch of every arm. Each waits when its ranks have joined their group. Then one arm after
another warms up, they take turns, and one after another ends its measurements. While an arm does so, all
others wait. The order of the turns is settled before the first. This module sends each turn to the agents of
all hosts, and the next one when all ranks wait again. So no turn overlaps another, on any host.

Nothing is measured while launches start and leave, so they do that side by side. Only in a run's first cohort
they start one after another. That shows how long a start takes, and whether memory holds another launch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from compare.errors import BudgetError, HostError, LaunchError
from compare.launch.arm import (
    PORT_TAKEN,
    Observer,
    PreparedLaunch,
    files_again,
    launch_files,
    port_was_taken,
)
from compare.launch.cluster import Cluster
from compare.launch.place import TICK_SECONDS
from compare.launch.processes import Ending
from compare.schema.job import Job, Planned
from compare.schema.launch_files import LaunchFiles
from compare.schema.results import Launch, Run
from compare.schema.turns import GO_ON, PlannedTurn, Turn, turn_of
from compare.system.clock import unix_time


class Cohort:
    """The launches of one round, alive side by side."""

    def __init__(
        self,
        run: Run,
        directory: Path,
        cluster: Cluster,
        observer: Observer,
        *,
        budget_ends_at: float = math.inf,
    ) -> None:
        self._run = run
        self._directory = directory
        self._cluster = cluster
        self._observer = observer
        self._budget_ends_at = budget_ends_at
        self._launches: dict[int, PreparedLaunch] = {}
        """By their numbers."""
        self._alive: list[PreparedLaunch] = []
        self._seconds: dict[PreparedLaunch, float] = {}
        """What each launch has taken, without its waits for others."""
        self.current: Planned | None = None
        """The launch that starts, trains or ends, or that failed."""
        self.side_by_side = False
        """Whether several launches were alive."""

    def carry_out(self, planned: Sequence[Planned], turns: Sequence[PlannedTurn]) -> list[Launch]:
        """Launch every arm, let them take their turns, and return all launches.

        A launch that fails ends the cohort. Nothing is left on any host afterwards.

        Raises:
            BudgetError: the run's budget was over before the cohort was.
            HostError: a host was lost.
            InterleaveError: the arms do not fit into memory, or a rank cannot be stopped.
            LaunchError: a rank failed, died or stalled.
            OutputError: the run's folder cannot be written.
            UnavailableError: a launcher is not installed.
        """
        try:
            if self._run.launches:
                self._start_side_by_side(planned)
            else:
                self._start_one_by_one(planned)
            launches = [self._launches[one.number] for one in planned]
            for number, turn in enumerate(turns, start=1):
                self._observer.turn_begins(planned[turn.arm], number, len(turns))
                self._take(launches[turn.arm], turn)
            for launch in launches:
                self._go(launch, GO_ON)
            for launch in launches:
                launch.place.go(GO_ON)
            return [self._finish(launch) for launch in launches]
        finally:
            self._end_all()

    def _start_one_by_one(self, planned: Sequence[Planned]) -> None:
        """Start and warm up one launch after another; what fits once fits again."""
        for one in planned:
            if self._alive:
                last, *others = (launch.place for launch in reversed(self._alive))
                last.require_room(others, len(planned))
            self._start(one)
            self._go(self._joined(one), GO_ON)

    def _start_side_by_side(self, planned: Sequence[Planned]) -> None:
        """Start launches, some at a time, and let them warm up one after another."""
        at_once = self._cluster.launches_at_once()
        for number, one in enumerate(planned):
            if number >= at_once:
                self._joined(planned[number - at_once])
            self._start(one)
        for one in planned:
            self._joined(one)
        for one in planned:
            self._go(self._launches[one.number], GO_ON)

    def _joined(self, planned: Planned) -> PreparedLaunch:
        """Return a launch when its ranks have joined their group.

        A launch that starts meanwhile is started once more if another process took its port.
        """
        while True:
            self.current = planned
            try:
                self._wait_until_waiting(self._launches[planned.number])
                return self._launches[planned.number]
            except LaunchError:
                assert self.current  # noqa: S101 -- the launch that failed
                failed = self._launches[self.current.number]
                files = launch_files(self._directory, self.current)
                if failed.restarted_because or not port_was_taken(files, self._run.config):
                    raise
                self._observer.launch_restarts(self.current, PORT_TAKEN)
                self._start_once(self.current, files_again(files), restarted_because=PORT_TAKEN)

    def _start(self, planned: Planned) -> None:
        self._observer.launch_begins(planned)
        self._start_once(planned, launch_files(self._directory, planned))

    def _start_once(self, planned: Planned, files: LaunchFiles, *, restarted_because: str = "") -> None:
        self.current = planned
        launch = PreparedLaunch(
            self._run.config,
            planned,
            self._cluster,
            files,
            partial(Job, dataset=self._run.dataset, proven=self._run.proven(planned.arm)),
            in_turns=True,
            started_alone=not self._run.launches,
            restarted_because=restarted_because,
        )
        self._launches[planned.number] = launch
        self._observer.launch_starts(planned, launch.commands)
        self._alive.append(launch)
        self.side_by_side = len(self._alive) > 1
        # The agents end only what hangs for ever: this module knows how long each part may take.
        launch.place.begin(launch.commands, launch.job, deadline_seconds=math.inf)

    def _take(self, launch: PreparedLaunch, turn: PlannedTurn) -> None:
        """Let one arm train for its turn."""
        steps = turn_of(
            turn.number,
            lead_seconds=turn.lead_seconds,
            seconds=turn.seconds,
            step_seconds=launch.place.step_seconds(),
        )
        self._go(launch, steps)

    def _go(self, launch: PreparedLaunch, turn: Turn) -> None:
        """Let one arm go on, and wait until all its ranks wait again."""
        self.current = launch.planned
        launch.place.go(turn)
        self._wait_until_waiting(launch)

    def _finish(self, launch: PreparedLaunch) -> Launch:
        """Wait until a launch that leaves has ended."""
        self.current = launch.planned
        ending = self._watch(launch, until_waiting=False)
        assert ending is not None  # noqa: S101 -- it ends in no other way
        lost = self._end(launch)
        if lost and ending.status != 0:
            raise lost
        return launch.conclude(ending)

    def _wait_until_waiting(self, launch: PreparedLaunch) -> None:
        """Wait for the ranks of a launch.

        Raises:
            LaunchError: the launch ended before.
        """
        ending = self._watch(launch, until_waiting=True)
        if ending:
            self._fail(launch, ending)

    def _watch(self, launch: PreparedLaunch, *, until_waiting: bool) -> Ending | None:
        """Wait for one launch, and look after all others meanwhile.

        All waits for a launch together take no longer than a launch may. The time of other arms, which it
        spends waiting for its turn, does not count.

        Returns:
            How the launch ended; None if its ranks wait.
        """
        place, began = launch.place, time.monotonic() - self._seconds.get(launch, 0.0)
        timeout = self._run.config.launch_timeout_seconds

        def has_come() -> bool:
            return place.ending() is not None or (until_waiting and place.is_waiting())

        while True:
            self._cluster.attend(has_come, TICK_SECONDS)
            self._seconds[launch] = seconds = time.monotonic() - began
            if until_waiting and place.is_waiting() and place.ending() is None and seconds <= timeout:
                return None
            if unix_time() > self._budget_ends_at:
                raise BudgetError("The budget is over.")
            for other in self._alive:
                self._require_progress(other)
            # Results from other hosts may still be under way, so the end of the launch decides.
            if (ending := place.ending()) and ending.status == 0 and not until_waiting:
                return ending._replace(seconds=seconds)
            for other in self._alive:
                ending = other.place.ending()
                if ending and (until_waiting or ending.status != 0):
                    self._fail(other, ending)
            if seconds > timeout:
                return Ending(None, seconds, timed_out=True)
            self._observer.rank_progressed(launch.planned, launch.monitor.progress())

    def _require_progress(self, launch: PreparedLaunch) -> None:
        """Require that no rank of a launch has failed or stalled.

        Raises:
            LaunchError: one has; the error names it.
        """
        goes_on, ending = launch.monitor.tick(), launch.place.ending()
        if not goes_on and not ending:
            self._fail(launch, Ending(None))

    def _fail(self, launch: PreparedLaunch, ending: Ending) -> None:
        """End a launch, and raise the root cause."""
        self.current = launch.planned
        lost = self._end(launch)
        if lost:
            raise lost
        launch.conclude(ending)
        raise AssertionError("unreachable: a launch that failed has no results")

    def _end(self, launch: PreparedLaunch) -> HostError | None:
        self._alive.remove(launch)
        return launch.place.end()

    def _end_all(self) -> None:
        for launch in self._alive:
            launch.place.ask_to_end()  # all at once; each may take seconds
        try:
            while self._alive:
                self._end(self._alive[0])
        finally:  # a second Ctrl-C ends the wait for one of them
            if self._alive:
                self._end_all()
