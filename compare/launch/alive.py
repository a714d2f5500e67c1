"""Start launches, watch those that are alive, and end them.

Every launch takes this road, one by itself as well as all arms of a round. While one of them is waited for,
all others are looked after.
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

    ``make_job`` returns how the job of a launch is made. With ``in_turns`` ranks wait for their turns. With
    ``started_alone`` no other launch starts meanwhile. ``budget_ends_at`` is a Unix time. A launch that fails
    is ended, and its root cause raised. Call ``end_all`` in any case.
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
        """The launch that starts, trains or ends, or that failed."""
        self.alive: list[PreparedLaunch] = []
        """In the order of their starts."""
        self._config = config
        self._directory = directory
        self._cluster = cluster
        self._observer = observer
        self._make_job = make_job
        self._in_turns = in_turns
        self._started_alone = started_alone
        self._budget_ends_at = budget_ends_at
        self._started: dict[int, PreparedLaunch] = {}
        """By their numbers."""
        self._seconds: dict[PreparedLaunch, float] = {}
        """What each launch has taken, without its waits for others."""

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
        """Wait for a launch, and return what ``wait`` does.

        A launch that is starting begins once more if another process took its port.

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
        """Wait until all ranks of a launch wait for a turn.

        Raises:
            BudgetError: the run's budget was over before.
            HostError: a host was lost.
            LaunchError: a rank of any launch failed, died or stalled.
        """
        ending = self._watch(launch, until_waiting=True)
        if ending:
            self._fail(launch, ending)
        return launch

    def finish(self, launch: PreparedLaunch) -> Ending:
        """Wait until a launch has ended by itself.

        Raises:
            RingsideError: as ``wait_for_turn``.
        """
        ending = self._watch(launch, until_waiting=False)
        assert ending is not None  # noqa: S101 -- it ends in no other way
        lost = self._end(launch)
        if lost and ending.status != 0:
            # Ranks report the peer whose host is lost: the host is the cause.
            raise lost
        return ending

    def end_all(self) -> None:
        """End what is alive, on all hosts."""
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
        """Wait for one launch, and look after all others meanwhile.

        All waits for a launch together take no longer than a launch may. The time of other arms, which it
        spends waiting for its turn, does not count.

        Returns:
            How the launch ended; None if its ranks wait.
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
            LaunchError: one has; the error names it.
        """
        goes_on, ending = launch.monitor.tick(), launch.place.ending()
        if not goes_on and not ending:
            self._fail(launch, Ending(None))

    def _fail(self, launch: PreparedLaunch, ending: Ending) -> NoReturn:
        """End a launch, and raise the root cause."""
        self.current = launch.planned
        lost = self._end(launch)
        if lost:
            raise lost
        launch.conclude(ending)
        raise AssertionError("unreachable: a launch that failed has no results")

    def _end(self, launch: PreparedLaunch) -> HostError | None:
        self.alive.remove(launch)
        return launch.place.end()
