"""Carry out the rounds of a run, launch by launch or with the arms in turns."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import msgspec

from compare.analysis.budget import seconds_left
from compare.analysis.change import check_interpreter
from compare.analysis.figures import LaunchFigures
from compare.analysis.parity import check_launches
from compare.errors import InterleaveError, LaunchError
from compare.experiment.schedule import discard_noisy, next_cohort, next_launch
from compare.experiment.turn_plan import plan_turns
from compare.launch.alone import launch_arm
from compare.launch.arm import Observer, forget_launch
from compare.launch.cluster import Cluster
from compare.launch.cohort import Cohort
from compare.launch.signals import Suspended, stop_until_continued, suspendable
from compare.schema.config import RunConfig
from compare.schema.job import Planned
from compare.schema.results import Interleaved, Launch, Run
from compare.schema.store import RESULTS_FILE
from compare.system.clock import unix_time
from compare.system.files import write_json

_SAVING_SHARE = 0.01
"""Maximum share of the time that saving may take.

The file grows with the run, so a long run is saved less often than after every launch.
"""
_QUICK_SECONDS = 0.1
"""If saving takes no longer than this, the run is saved after every launch."""


def choose_interleaving(config: RunConfig) -> Interleaved:
    """Return how the arms of a round run; ``auto`` stands for turns if there are several arms."""
    if config.interleave == "auto":
        return Interleaved(mode="blocks" if len(config.arms) > 1 else "launches")
    return Interleaved(mode=config.interleave)


class Launches:
    """Carries out one launch after another.

    ``run`` is the record so far. It is saved after every launch, or less often if saving takes long.
    """

    def __init__(self, run: Run, directory: Path, cluster: Cluster, observer: Observer) -> None:
        self.run = run
        self.failed: Planned | None = None
        """The launch that failed, if several were planned together; None otherwise."""
        self.began_at = math.inf
        """Unix time of the first launch; infinity before it."""
        self._directory = directory
        self._observer = observer
        self._save_at = -math.inf
        self._cluster = cluster
        self._job_ends_at = cluster.job.ends_at if cluster.job else math.inf

    def next(self) -> list[Planned]:
        """Return the next launch in a list, which is empty when the run is done."""
        planned = next_launch(self.run)
        return [planned] if planned else []

    def carry_out(self, planned: list[Planned]) -> Launches:
        """Carry out the one ``planned`` launch, check its proofs, and add it to ``run``.

        Returns:
            The object that carries out the next launch.

        Raises:
            RingsideError: the launch failed (see ``launch_arm``), or a check of its results did.
        """
        (one,) = planned
        self._observer.launch_begins(one)
        launch = launch_arm(
            self.run,
            one,
            self._directory,
            self._cluster,
            self._observer,
            budget_ends_at=self._ends_at(),
        )
        check_interpreter(self.run, one.arm, launch.ranks, here=sys.prefix)
        check_launches([(one.arm, launch.ranks)], self.run)
        discarded_before = len(self.run.discarded)
        self._keep([launch])
        self._observer.launch_ended(one, launch)
        if noisy := self.run.discarded[discarded_before:]:
            load = max(LaunchFigures(launch).other_cpu_load for launch in noisy)
            self._observer.round_repeats(one.round, load)
        elif len(self.run.launches) % len(self.run.config.arms) == 0:
            self._observer.rounds_done(self.run)
        return self

    def _keep(self, launches: list[Launch]) -> None:
        # Keep the launches now: an interrupt may come before the run is saved.
        self.run = discard_noisy(msgspec.structs.replace(self.run, launches=[*self.run.launches, *launches]))
        began = time.monotonic()
        if began >= self._save_at:
            write_json(self._directory / RESULTS_FILE, self.run)
            took = time.monotonic() - began
            self._save_at = began + took / _SAVING_SHARE if took > _QUICK_SECONDS else began

    def _ends_at(self) -> float:
        now = unix_time()
        self.began_at = min(self.began_at, now)
        budget = self.run.config.budget_seconds
        own = min(now + seconds_left(self.run, now), self.began_at + (budget or math.inf))
        return min(own, self._job_ends_at)

    def limit(self) -> str:
        """Return the name of what ended the budget: the time of a scheduler's job, or ``--budget``."""
        budget, job = self.run.config.budget_seconds, self._cluster.job
        if job and self._job_ends_at < self.began_at + (budget or math.inf):
            return f"The time of {job.name}"
        return f"--budget {budget:g}"


class Cohorts(Launches):
    """Carries out one round after another, with all its arms in turns.

    A noisy round counts and is not repeated, but the table of results names it.
    """

    def next(self) -> list[Planned]:
        """Return the launches of the next round in order; empty when the run is done."""
        return next_cohort(self.run)

    def carry_out(self, planned: list[Planned]) -> Launches:
        """Carry out a round in turns, check the proofs of its launches, and add them to ``run``.

        After Ctrl-Z and ``fg`` the round is not added, and begins again at the next call.

        Returns:
            The object that carries out the next round: a ``Launches`` if turns are not possible.

        Raises:
            RingsideError: a launch failed, or a check of its results did; ``failed`` is this launch.
        """
        self.failed = None
        cohort = Cohort(
            self.run, self._directory, self._cluster, self._observer, budget_ends_at=self._ends_at()
        )
        try:
            with suspendable():
                launches = cohort.carry_out(planned, plan_turns(self.run, planned))
        except Suspended:
            self._forget(planned)
            stop_until_continued()
            self._observer.cohort_restarts(planned[0].round)
            return self
        except InterleaveError as error:
            if self.run.config.interleave != "auto" or self.run.launches:
                self.failed = cohort.current
                raise
            return self._without_turns(planned, f"{error.what} {error.found}")
        except LaunchError as error:
            self.failed = cohort.current
            if not (cohort.side_by_side and self._may_lack_a_gpu()):
                raise
            return self._without_turns(planned, f"Beside other arms on a GPU: {error.what} {error.found}")
        except BaseException:
            self.failed = cohort.current
            raise
        for one, launch in zip(planned, launches, strict=True):
            self.failed = one
            check_interpreter(self.run, one.arm, launch.ranks, here=sys.prefix)
        self.failed = planned[0]
        pairs = [(one.arm, launch.ranks) for one, launch in zip(planned, launches, strict=True)]
        check_launches(pairs, self.run)
        self.failed = None
        self._keep(launches)
        for one, launch in zip(planned, launches, strict=True):
            self._observer.launch_ended(one, launch)
        self._observer.rounds_done(self.run)
        return self

    def _may_lack_a_gpu(self) -> bool:
        """Return whether an arm may have failed because it shared a GPU with other arms.

        The GPU's memory may be full, or the GPU may admit one process only. Then each arm is launched alone.
        """
        config = self.run.config
        return config.device == "cuda" and config.interleave == "auto" and not self.run.launches

    def _without_turns(self, planned: list[Planned], why: str) -> Launches:
        """Return a ``Launches`` that goes on launch by launch; its run records why."""
        self._forget(planned)
        self._observer.not_in_turns(why)
        run = msgspec.structs.replace(self.run, interleaved=Interleaved(mode="launches", why=why))
        launches = Launches(run, self._directory, self._cluster, self._observer)
        launches.began_at = self.began_at  # the budget has begun
        return launches

    def _forget(self, planned: list[Planned]) -> None:
        for one in planned:
            forget_launch(self._directory, one)
