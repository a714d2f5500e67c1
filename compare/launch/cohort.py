"""Launch all arms of a round, and let them train in turns.

A cohort is one launch of every arm. Each waits when its ranks have joined their group. Then one arm after
another warms up, they take turns, and one after another ends its measurements. While one arm does any of
this, all others wait. The order of the turns is settled before the first. This module sends each turn to the
agents of all hosts, and the next one when all ranks wait again. So no turn overlaps another on any host.

Nothing is measured while launches start and exit, so they do both side by side. Only in a run's first cohort
do they start one after another, which shows how long a start takes and whether memory holds one more launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from compare.launch.alive import AliveLaunches
from compare.launch.arm import Observer, PreparedLaunch
from compare.launch.cluster import Cluster
from compare.schema.job import Job, Planned
from compare.schema.results import Launch, Run
from compare.schema.turns import GO_ON, PlannedTurn, Turn, turn_of


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
        self._cluster = cluster
        self._observer = observer
        self._launches = AliveLaunches(
            run.config,
            directory,
            cluster,
            observer,
            make_job=lambda one: partial(Job, dataset=run.dataset, proven=run.proven(one.arm)),
            in_turns=True,
            started_alone=not run.launches,
            budget_ends_at=budget_ends_at,
        )
        self.side_by_side = False
        """Whether several launches were alive at the same time."""

    @property
    def current(self) -> Planned | None:
        """The launch that was last started or waited for, or the one that failed; None before the first."""
        return self._launches.current

    def carry_out(self, planned: Sequence[Planned], turns: Sequence[PlannedTurn]) -> list[Launch]:
        """Launch every arm, let them take their turns, and return the launches in the order of ``planned``.

        A launch that fails ends the cohort. Nothing is left on any host afterwards.

        Raises:
            BudgetError: the run's budget ended before the cohort did.
            HostError: a host was lost.
            InterleaveError: the arms do not fit into memory, or a rank cannot be stopped.
            LaunchError: a rank failed, died or stalled.
            OutputError: the run's folder cannot be written.
            UnavailableError: a launcher is not installed.
        """
        try:
            start = self._start_side_by_side if self._run.launches else self._start_one_by_one
            launches = start(planned)
            for number, turn in enumerate(turns, start=1):
                self._observer.turn_begins(planned[turn.arm], number, len(turns))
                self._take(launches[turn.arm], turn)
            for launch in launches:
                self._go(launch, GO_ON)
            for launch in launches:
                launch.place.go(GO_ON)
            return [launch.conclude(self._launches.finish(launch)) for launch in launches]
        finally:
            self._launches.end_all()

    def _start_one_by_one(self, planned: Sequence[Planned]) -> list[PreparedLaunch]:
        """Start and warm up one launch after another, as long as memory holds one more.

        Later cohorts need no such check, because they take as much memory as the first.
        """
        joined: list[PreparedLaunch] = []
        for one in planned:
            if joined:
                last, *others = (launch.place for launch in reversed(joined))
                last.require_room(others, len(planned))
            self._start(one)
            joined.append(self._joined(one))
            self._go(joined[-1], GO_ON)
        return joined

    def _start_side_by_side(self, planned: Sequence[Planned]) -> list[PreparedLaunch]:
        """Start launches, as many at a time as the cores allow, then warm up one after another."""
        at_once = self._cluster.launches_at_once()
        for number, one in enumerate(planned):
            if number >= at_once:
                self._joined(planned[number - at_once])
            self._start(one)
        joined = [self._joined(one) for one in planned]
        for launch in joined:
            self._go(launch, GO_ON)
        return joined

    def _joined(self, planned: Planned) -> PreparedLaunch:
        """Return a launch as soon as all its ranks have joined their group."""
        return self._launches.after_its_port(planned, self._launches.wait_for_turn)

    def _start(self, planned: Planned) -> None:
        self._observer.launch_begins(planned)
        self._launches.start(planned)
        self.side_by_side = len(self._launches.alive) > 1

    def _take(self, launch: PreparedLaunch, turn: PlannedTurn) -> None:
        """Let one arm train for its turn, and wait until all its ranks wait again."""
        steps = turn_of(
            turn.number,
            lead_seconds=turn.lead_seconds,
            seconds=turn.seconds,
            step_seconds=launch.place.step_seconds(),
        )
        self._go(launch, steps)

    def _go(self, launch: PreparedLaunch, turn: Turn) -> None:
        """Let one arm go on, and wait until all its ranks wait again."""
        launch.place.go(turn)
        self._launches.wait_for_turn(launch)
