"""Carry out launches: one by itself, or all arms of a round in turns.

A cohort consists of one launch of every arm. Each launch waits when its ranks have joined their group. Then
one arm after another warms up, the arms take turns, and one after another ends its measurements. While one
arm does any of this, all others wait. The order of the turns is settled before the first. This module sends
each turn to the agents of all hosts, and the next one when all ranks wait again. So no turn overlaps another
on any host.

Nothing is measured while launches start and exit, so they do both side by side. Only in a run's first cohort
do they start one after another, which shows how long a start takes and whether memory holds one more launch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from compare.errors import BudgetError, HostError
from compare.launch.agent.exchange import exchange_until
from compare.launch.arm import Observer, forget_launches
from compare.launch.cluster import Cluster
from compare.launch.monitor import Ending
from compare.launch.running import LaunchSettings, RunningLaunch
from compare.launch.signals import Suspended, stop_until_continued, suspendable
from compare.schema.arms import Arm
from compare.schema.collectives import SweepConfig, SweepLaunch
from compare.schema.job import Job, Planned, Proof, SweepJob
from compare.schema.results import Launch, Run
from compare.schema.turns import GO_ON, PlannedTurn, Turn, turn_of
from compare.system.clock import unix_time

PORT_TAKEN = "another process took its port before it could"
"""Why a launch started a second time, as a clause; no other failure leads to a second start."""
_SUSPENDED = "this program was suspended (Ctrl-Z)"
_TICK_SECONDS = 0.5
"""Time between two checks of the files of launches, because each takes a core from a rank for a moment."""


@dataclass(eq=False)
class AliveLaunches(LaunchSettings):
    """Launches that are alive side by side.

    A wait for one launch ends with an error if any of them fails or stalls. The launch that failed is ended,
    and its root cause is raised, except that it starts once more if another process took its port. The other
    launches stay alive until ``end_all``, which the caller must call in any case.
    """

    current: Planned | None = field(default=None, init=False)
    """The launch that failed, or else the last one started or waited for; None before the first start."""
    alive: list[RunningLaunch] = field(default_factory=list, init=False)
    """Launches that were started and not yet ended, in the order of their starts."""
    side_by_side: bool = field(default=False, init=False)
    """Whether several launches have been alive at the same time."""

    def start(self, planned: Planned) -> RunningLaunch:
        """Start a launch, and return it without waiting for its ranks.

        Raises:
            BudgetError: the run's budget is over.
            HostError: a host was lost.
            OutputError: the run's folder cannot be written.
            UnavailableError: the launcher is not installed.
        """
        if unix_time() >= self.budget_ends_at:
            raise BudgetError("The time limit of this run has passed.")
        self.current = planned
        launch = RunningLaunch(self, planned)
        self._begin(launch)
        self.side_by_side = len(self.alive) > 1
        return launch

    def wait(self, launch: RunningLaunch, until: Literal["turn", "end"]) -> None:
        """Wait until all ranks of a launch wait for a turn, or, with ``until="end"``, until it has succeeded.

        After a launch has succeeded, nothing of it is left on the hosts. If any launch fails or stalls
        meanwhile, its root cause is raised. All waits for one launch together may take as long as
        ``--timeout`` allows a launch. The turns of other arms do not count towards this limit.

        Raises:
            BudgetError: the run's budget ended first.
            HostError: a host was lost.
            LaunchError: a rank of any launch failed, died or stalled, or this launch took too long.
        """

        def is_reached() -> bool:
            return launch.ending() is not None or (until == "turn" and launch.is_waiting())

        looked_at = time.monotonic()
        while True:
            self.current = launch.planned
            exchange_until(self.cluster.all_agents, is_reached, _TICK_SECONDS)
            now = time.monotonic()
            launch.waited_seconds += now - looked_at
            looked_at = now
            too_long = launch.waited_seconds > self.config.launch_timeout_seconds
            if is_reached() and launch.ending() is None and not too_long:
                return  # a turn must begin without further checks
            if unix_time() > self.budget_ends_at:
                raise BudgetError("The time limit of this run has passed.")
            for other in list(self.alive):
                # Results from other hosts may still be under way, so the end of the launch decides.
                goes_on, ending = other.monitor.tick(), other.ending()
                ending = ending or (None if goes_on else Ending(None))
                if ending and (until == "turn" or ending.status != 0):
                    self._fail(other, ending)
            if (ending := launch.ending()) and ending.status == 0 and until == "end":
                self._end(launch)
                return
            if too_long:
                self._fail(launch, Ending(None, launch.waited_seconds, timed_out=True))
            self.observer.rank_progressed(launch.planned, launch.monitor.progress.get(0))

    def end_all(self) -> None:
        """End every launch that is still alive, on all hosts."""
        for launch in self.alive:
            launch.ask_to_end()  # all at once; each may take seconds
        try:
            while self.alive:
                self._end(self.alive[0])
        finally:  # a second Ctrl-C ends the wait for one of them
            if self.alive:
                self.end_all()

    def _begin(self, launch: RunningLaunch) -> None:
        """Report a launch to the observer, and start it on all hosts."""
        self.observer.launch_starts(launch.planned, launch.commands)
        self.alive.append(launch)
        launch.begin()

    def _fail(self, launch: RunningLaunch, ending: Ending) -> None:
        """End a launch that failed, and raise the error of a lost host, or else the root cause.

        If another process took the launch's port, it starts once more instead, and nothing is raised.
        """
        self.current = launch.planned
        # Ranks report the peer whose host is lost: the host is the cause.
        if lost := self._end(launch):
            raise lost
        if launch.restarted_because or not launch.port_was_taken():
            launch.conclude(Launch, ending)
            raise AssertionError("unreachable: a launch that failed has no results")
        self.observer.launch_restarts(launch.planned, PORT_TAKEN)
        launch.prepare(restarted_because=PORT_TAKEN)
        self._begin(launch)

    def _end(self, launch: RunningLaunch) -> HostError | None:
        """End a launch on all hosts, and return the error of a host that was lost; None if none was."""
        self.alive.remove(launch)
        return launch.end()


# ---- one launch by itself ----


def launch_arm(
    run: Run,
    planned: Planned,
    directory: Path,
    cluster: Cluster,
    observer: Observer,
    *,
    proof: Proof = "brief",
    budget_ends_at: float = math.inf,
) -> Launch:
    """Launch an arm by itself, and return the record of the launch with one result from every rank.

    It starts a second time if another process took its port, and again after every Ctrl-Z and ``fg``.
    ``proof`` is the parity check that every rank makes, unless its training repeats a proven one, or the
    arm's launches are bare. The outcome is part of the result, because a failed check raises no error.
    ``budget_ends_at`` is a Unix time.

    Raises:
        BudgetError: the run's budget ended before the launch did.
        HostError: a host was lost.
        LaunchError: the launch failed, stalled or took too long.
        OutputError: the run's folder cannot be written.
        UnavailableError: the launcher is not installed.
    """
    make_job = partial(_training_job, run, proof)
    alone = AliveLaunches(run.config, directory, cluster, observer, make_job, budget_ends_at)
    return _launch_until_success(alone, planned).conclude(Launch)


def launch_sweep(
    config: SweepConfig,
    planned: Planned,
    directory: Path,
    cluster: Cluster,
    observer: Observer,
    *,
    budget_ends_at: float = math.inf,
) -> SweepLaunch:
    """Launch a group to time its collectives, and return the record with one result from every rank.

    It starts again in the same cases as in ``launch_arm``. ``budget_ends_at`` is a Unix time.

    Raises:
        RingsideError: the same errors as in ``launch_arm``.
    """
    interface = cluster.network.interface if len(cluster.hosts) > 1 else ""
    make_job = partial(SweepJob, group=planned.group, interface=interface)
    alone = AliveLaunches(config, directory, cluster, observer, make_job, budget_ends_at)
    return _launch_until_success(alone, planned).conclude(SweepLaunch)


def _training_job(run: Run, proof: Proof, *, arm: Arm, **fields: Any) -> Job:
    proof = "none" if run.is_bare(arm) else proof
    proven = dict(enumerate(run.proven(arm)))
    return Job(dataset=run.dataset, proof=proof, proven=proven, arm=arm, **fields)


def _launch_until_success(alone: AliveLaunches, planned: Planned) -> RunningLaunch:
    """Carry out one launch, and return it when it has succeeded.

    After Ctrl-Z the launch is ended, this program stops until ``fg``, and then launches again.
    """
    alone.observer.launch_begins(planned)
    while True:
        try:
            with suspendable():
                try:
                    launch = alone.start(planned)
                    alone.wait(launch, "end")
                    return launch
                finally:
                    alone.end_all()
        except Suspended:
            forget_launches(alone.directory, [planned])
            stop_until_continued()
            alone.observer.launch_restarts(planned, _SUSPENDED)


# ---- all arms of a round ----


class Cohort(AliveLaunches):
    """The launches of one round, one of every arm, which are alive side by side and train in turns."""

    def __init__(
        self,
        run: Run,
        directory: Path,
        cluster: Cluster,
        observer: Observer,
        *,
        budget_ends_at: float = math.inf,
    ) -> None:
        make_job = partial(_training_job, run, "brief")
        super().__init__(run.config, directory, cluster, observer, make_job, budget_ends_at)
        self.in_turns = True
        self.started_alone = not run.launches

    def carry_out(self, planned: Sequence[Planned], turns: Sequence[PlannedTurn]) -> list[Launch]:
        """Launch every arm, let them take ``turns`` in order, and return the records in ``planned``'s order.

        A launch that fails ends all others. No process of any launch is left on a host afterwards.

        Raises:
            BudgetError: the run's budget ended before the cohort did.
            HostError: a host was lost.
            InterleaveError: the arms do not fit into memory, or a rank cannot be stopped.
            LaunchError: a launch failed, stalled or took too long.
            OutputError: the run's folder cannot be written.
            UnavailableError: a launcher is not installed.
        """
        try:
            launches = self._start_one_by_one(planned) if self.started_alone else self._start_many(planned)
            for number, turn in enumerate(turns, start=1):
                self.observer.turn_begins(planned[turn.arm], number, len(turns))
                launch = launches[turn.arm]
                steps = turn_of(
                    turn.number,
                    lead_seconds=turn.lead_seconds,
                    seconds=turn.seconds,
                    step_seconds=launch.step_seconds(),
                )
                self._go_and_wait(launch, steps)
            for launch in launches:
                self._go_and_wait(launch, GO_ON)
            for launch in launches:
                launch.go(GO_ON)
            for launch in launches:
                self.wait(launch, "end")
        finally:
            self.end_all()
        # No rank is left that would miss messages while thousands of results are read.
        return list(map(self._concluded, launches))

    def _concluded(self, launch: RunningLaunch) -> Launch:
        self.current = launch.planned
        return launch.conclude(Launch)

    def _start_one_by_one(self, planned: Sequence[Planned]) -> list[RunningLaunch]:
        """Start and warm up one launch after another, each only if memory is left for it.

        Later cohorts need no such check, because they take as much memory as the first.
        """
        launches: list[RunningLaunch] = []
        for each in planned:
            if launches:
                last, *earlier = reversed(launches)
                last.require_memory_left(earlier, len(planned))
            self.observer.launch_begins(each)
            launches.append(self.start(each))
            self.wait(launches[-1], "turn")
            self._go_and_wait(launches[-1], GO_ON)
        return launches

    def _start_many(self, planned: Sequence[Planned]) -> list[RunningLaunch]:
        """Start the launches, as many at a time as the cores allow, and then warm up one after another."""
        at_once = self.cluster.launches_at_once()
        launches: list[RunningLaunch] = []
        for number, each in enumerate(planned):
            if number >= at_once:
                self.wait(launches[number - at_once], "turn")
            self.observer.launch_begins(each)
            launches.append(self.start(each))
        for launch in launches:
            self.wait(launch, "turn")
        for launch in launches:
            self._go_and_wait(launch, GO_ON)
        return launches

    def _go_and_wait(self, launch: RunningLaunch, turn: Turn) -> None:
        """Send the ranks of one launch their turn, and wait until all of them wait again."""
        launch.go(turn)
        self.wait(launch, "turn")
