"""Start launches, watch those that are alive, and end them.

A launch by itself is handled in the same way as all arms of a round. While this module waits for one launch,
it also checks that no other one fails or stalls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from compare.errors import BudgetError, HostError, LaunchError
from compare.launch.arm import (
    PORT_TAKEN,
    MakeJob,
    Observer,
    PreparedLaunch,
    files_again,
    launch_files,
    port_was_taken,
)
from compare.launch.cluster import Cluster
from compare.launch.place import TICK_SECONDS
from compare.launch.processes import Ending
from compare.schema.config import LaunchConfig
from compare.schema.job import Planned
from compare.schema.launch_files import LaunchFiles
from compare.system.clock import unix_time

T = TypeVar("T")


class AliveLaunches:
    """Launches that are alive side by side.

    For each launch, ``make_job`` returns the function that makes its job. With ``in_turns``, ranks wait for
    their turns. ``started_alone`` notes that no other launch starts at the same time. ``budget_ends_at`` is a
    Unix time. A launch that fails is ended, and its root cause is raised. The others stay alive until
    ``end_all``, which must be called in any case.
    """

    def __init__(
        self,
        config: LaunchConfig,
        directory: Path,
        cluster: Cluster,
        observer: Observer,
        *,
        make_job: Callable[[Planned], MakeJob],
        in_turns: bool = False,
        started_alone: bool = True,
        budget_ends_at: float = math.inf,
    ) -> None:
        self.current: Planned | None = None
        """The launch that was last started or waited for, or the one that failed; None before the first."""
        self.alive: list[PreparedLaunch] = []
        """Launches that were started and not yet ended, in the order of their starts."""
        self._config = config
        self._directory = directory
        self._cluster = cluster
        self._observer = observer
        self._make_job = make_job
        self._in_turns = in_turns
        self._started_alone = started_alone
        self._budget_ends_at = budget_ends_at
        self._started: dict[int, PreparedLaunch] = {}
        """Every launch by its number; if it started twice, the second one."""
        self._seconds: dict[PreparedLaunch, float] = {}
        """Seconds spent in waiting for each launch, summed over all waits."""

    def start(self, planned: Planned) -> None:
        """Start a launch, without waiting for its ranks.

        Raises:
            BudgetError: the run's budget is over.
            HostError: a host was lost.
            OutputError: the run's folder cannot be written.
            UnavailableError: the launcher is not installed.
        """
        if unix_time() >= self._budget_ends_at:
            raise BudgetError("The budget is over.")
        self._start(planned, launch_files(self._directory, planned))

    def after_its_port(self, planned: Planned, wait: Callable[[PreparedLaunch], T]) -> T:
        """Return what ``wait`` returns for a launch, and restart a launch whose port was taken.

        If ``wait`` fails because another process took a launch's port, that launch starts once more, and
        ``wait`` is called again. The failed launch may be another one than ``planned``.

        Raises:
            RingsideError: see ``wait_for_turn`` and ``finish``.
        """
        while True:
            try:
                return wait(self._started[planned.number])
            except LaunchError:
                failed = self.current
                assert failed  # noqa: S101 -- something was waited for
                files = launch_files(self._directory, failed)
                again = self._started[failed.number].restarted_because
                if again or not port_was_taken(files, self._config):
                    raise
                self._observer.launch_restarts(failed, PORT_TAKEN)
                self._start(failed, files_again(files), restarted_because=PORT_TAKEN)

    def wait_for_turn(self, launch: PreparedLaunch) -> PreparedLaunch:
        """Return ``launch`` as soon as all its ranks wait for a turn.

        Raises:
            BudgetError: the run's budget ended first.
            HostError: a host was lost.
            LaunchError: a rank of any launch failed, died or stalled.
        """
        ending = self._watch(launch, until_waiting=True)
        if ending:
            self._fail(launch, ending)
        return launch

    def finish(self, launch: PreparedLaunch) -> Ending:
        """Wait until a launch has ended, and return how.

        If it takes too long, it is ended, and ``timed_out`` is set. Nothing of it is left on the hosts.

        Raises:
            RingsideError: the same errors as ``wait_for_turn``.
        """
        ending = self._watch(launch, until_waiting=False)
        assert ending is not None  # noqa: S101 -- it ends in no other way
        lost = self._end(launch)
        if lost and ending.status != 0:
            # Ranks report the peer whose host is lost: the host is the cause.
            raise lost
        return ending

    def end_all(self) -> None:
        """End every launch that is still alive, on all hosts."""
        for launch in self.alive:
            launch.place.ask_to_end()  # all at once; each may take seconds
        try:
            while self.alive:
                self._end(self.alive[0])
        finally:  # a second Ctrl-C ends the wait for one of them
            if self.alive:
                self.end_all()

    def _start(self, planned: Planned, files: LaunchFiles, *, restarted_because: str = "") -> None:
        self.current = planned
        launch = PreparedLaunch(
            self._config,
            planned,
            self._cluster,
            files,
            self._make_job(planned),
            in_turns=self._in_turns,
            started_alone=self._started_alone,
            restarted_because=restarted_because,
        )
        self._started[planned.number] = launch
        self._observer.launch_starts(planned, launch.commands)
        self.alive.append(launch)
        launch.place.begin(launch.commands, launch.job)

    def _watch(self, launch: PreparedLaunch, *, until_waiting: bool) -> Ending | None:
        """Wait for one launch, and raise the root cause if any launch fails or stalls meanwhile.

        All waits for one launch together are limited by the time that a launch may take. The turns of other
        arms do not count towards this limit.

        Returns:
            How the launch ended; None if all its ranks wait for a turn.
        """
        self.current = launch.planned
        place, began = launch.place, time.monotonic() - self._seconds.get(launch, 0.0)
        timeout = self._config.launch_timeout_seconds

        def has_come() -> bool:
            return place.ending() is not None or (until_waiting and place.is_waiting())

        while True:
            self._cluster.attend(has_come, TICK_SECONDS)
            self._seconds[launch] = seconds = time.monotonic() - began
            if until_waiting and place.is_waiting() and place.ending() is None and seconds <= timeout:
                return None
            if unix_time() > self._budget_ends_at:
                raise BudgetError("The budget is over.")
            for other in self.alive:
                self._require_progress(other)
            # Results from other hosts may still be under way, so the end of the launch decides.
            if (ending := place.ending()) and ending.status == 0 and not until_waiting:
                return ending._replace(seconds=seconds)
            for other in self.alive:
                ending = other.place.ending()
                if ending and (until_waiting or ending.status != 0):
                    self._fail(other, ending)
            if seconds > timeout:
                return Ending(None, seconds, timed_out=True)
            self._observer.rank_progressed(launch.planned, launch.monitor.progress())

    def _require_progress(self, launch: PreparedLaunch) -> None:
        """Require that no rank of a launch has failed or stalled.

        Raises:
            LaunchError: a rank has; the error names it.
        """
        goes_on, ending = launch.monitor.tick(), launch.place.ending()
        if not goes_on and not ending:
            self._fail(launch, Ending(None))

    def _fail(self, launch: PreparedLaunch, ending: Ending) -> NoReturn:
        """End a launch that failed, and raise the loss of its host or else the root cause."""
        self.current = launch.planned
        lost = self._end(launch)
        if lost:
            raise lost
        launch.conclude(ending)
        raise AssertionError("unreachable: a launch that failed has no results")

    def _end(self, launch: PreparedLaunch) -> HostError | None:
        self.alive.remove(launch)
        return launch.place.end()
