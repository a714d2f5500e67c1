"""Launch all arms of a round, and let them train in turns.

A cohort is one launch of every arm. They start one after another, and each waits when it has warmed up. So
no start-up has a neighbour that trains. Then they take turns: one arm trains, and all others wait. The
order of the turns is settled before the first. This module sends each turn to the agents of all hosts, and
the next one when all ranks wait again. So no turn overlaps another, on any host.
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
from compare.schema.clock import unix_time
from compare.schema.job import Job, Planned
from compare.schema.launch_files import LaunchFiles
from compare.schema.results import Launch, Run
from compare.schema.turns import FINISH, PlannedTurn, turn_of


class Cohort:
    """The launches of one round, alive side by side.

    ``clusters`` has one for each arm, because an agent carries out one launch at a time.
    """

    def __init__(
        self,
        run: Run,
        directory: Path,
        clusters: Sequence[Cluster],
        observer: Observer,
        *,
        budget_ends_at: float = math.inf,
    ) -> None:
        self._run = run
        self._directory = directory
        self._clusters = clusters
        self._observer = observer
        self._budget_ends_at = budget_ends_at
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
            for one, cluster in zip(planned, self._clusters, strict=True):
                if self._alive and not self._run.launches:  # what fitted once fits again
                    last, *others = (launch.place for launch in reversed(self._alive))
                    last.require_room(others, len(planned))
                self._start(one, cluster)
            launches = list(self._alive)
            for number, turn in enumerate(turns, start=1):
                self._observer.turn_begins(planned[turn.arm], number, len(turns))
                self._take(launches[turn.arm], turn)
            return [self._finish(launch) for launch in launches]
        finally:
            self._end_all()

    def _start(self, planned: Planned, cluster: Cluster) -> None:
        """Start a launch, and once more if another process took its port."""
        self.current = planned
        files = launch_files(self._directory, planned)
        self._observer.launch_begins(planned)
        try:
            self._start_once(planned, cluster, files)
        except LaunchError:
            if not port_was_taken(files, self._run.config):
                raise
            self._observer.launch_restarts(planned, PORT_TAKEN)
            self._start_once(planned, cluster, files_again(files), restarted_because=PORT_TAKEN)

    def _start_once(
        self,
        planned: Planned,
        cluster: Cluster,
        files: LaunchFiles,
        *,
        restarted_because: str = "",
    ) -> None:
        launch = PreparedLaunch(
            self._run.config,
            planned,
            cluster,
            files,
            partial(Job, dataset=self._run.dataset, proven=self._run.proven(planned.arm)),
            in_turns=True,
            restarted_because=restarted_because,
        )
        self._observer.launch_starts(planned, launch.commands)
        self._alive.append(launch)
        self.side_by_side = len(self._alive) > 1
        # The agents end only what hangs for ever: this module knows how long each part may take.
        launch.place.begin(launch.commands, launch.job, deadline_seconds=math.inf)
        self._wait_until_waiting(launch)

    def _take(self, launch: PreparedLaunch, turn: PlannedTurn) -> None:
        """Let one arm train, and wait until all its ranks wait again."""
        self.current, place = launch.planned, launch.place
        place.go(
            turn_of(
                turn.number,
                lead_seconds=turn.lead_seconds,
                seconds=turn.seconds,
                step_seconds=place.step_seconds(),
            )
        )
        self._wait_until_waiting(launch)

    def _finish(self, launch: PreparedLaunch) -> Launch:
        self.current = launch.planned
        launch.place.go(FINISH)
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
            How the launch ended; None if its ranks wait for a turn.
        """
        place, began = launch.place, time.monotonic() - self._seconds.get(launch, 0.0)
        timeout = self._run.config.launch_timeout_seconds

        def has_come() -> bool:
            return place.ending() is not None or (until_waiting and place.is_waiting())

        while True:
            place.cluster.attend(has_come, TICK_SECONDS)
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
                if ending := other.place.ending():
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
