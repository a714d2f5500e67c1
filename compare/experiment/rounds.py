"""Carry out the rounds of a run, launch by launch or with the arms in turns."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import msgspec

from compare.analysis.budget import seconds_left
from compare.analysis.causes import check_interpreter
from compare.analysis.figures import LaunchFigures
from compare.analysis.parity import check_launches
from compare.errors import InterleaveError, LaunchError
from compare.experiment.allocation import end_of_job
from compare.experiment.schedule import discard_noisy, plan_turns
from compare.launch.arm import Observer, forget_launches
from compare.launch.cluster import Cluster
from compare.launch.launches import Cohort, launch_arm
from compare.launch.monitor import MemoryShortError
from compare.launch.signals import Suspended, stop_until_continued, suspendable
from compare.schema.config import RunConfig
from compare.schema.job import Planned
from compare.schema.memory import Unfit
from compare.schema.results import Interleaved, Launch, Run
from compare.schema.store import RESULTS_FILE
from compare.system.clock import unix_time
from compare.system.files import write_json

_SAVING_SHARE = 0.01
"""Maximum share of a run's time that saving its results may take.

The file grows with the run, so a long run is not saved after every launch.
"""
_QUICK_SECONDS = 0.1
"""If saving takes no longer than this, the run is saved after every launch."""
_BEFORE_THE_PROOF = {"", "start", "load", "data"}
"""The stages in which a bare launch holds as much memory as any other."""


def choose_interleaving(config: RunConfig) -> Interleaved:
    """Return whether the arms of a round take turns or run one after another.

    ``auto`` stands for turns if there are several arms.
    """
    if config.interleave == "auto":
        return Interleaved(mode="blocks" if len(config.arms) > 1 else "launches")
    return Interleaved(mode=config.interleave)


class Rounds:
    """Carries out the launches of a run, one by one or all arms of a round in turns.

    ``run`` is the record so far. It is saved after every launch, or after every round in turns, but less
    often if saving takes long. A noisy round is repeated only if the arms do not take turns.
    """

    def __init__(self, run: Run, directory: Path, cluster: Cluster, observer: Observer) -> None:
        self.run = run
        self.current: Planned | None = None
        """The launch that is carried out now, or the one that failed; None before the first."""
        self._beside_others = False
        """Whether the ``current`` launch had others at its side."""
        self._began_at = math.inf
        self._directory = directory
        self._observer = observer
        self._save_at = -math.inf
        self._cluster = cluster
        self._job_ends_at = end_of_job(cluster.job)

    def carry_out(self, planned: list[Planned]) -> None:
        """Carry out launches that are planned together, check their proofs, and add them to ``run``.

        Nothing is added after Ctrl-Z and ``fg`` in a round in turns, which then begins again at the next
        call. If turns are not possible, nothing is added either, and ``run`` changes to one launch after
        another. If an arm does not fit into memory, ``run`` goes on without it.

        Raises:
            RingsideError: the ``current`` launch failed, its results failed a check, or no arm fits.
        """
        self.current = planned[0]
        try:
            launches = self._launch(planned)
        except MemoryShortError as error:
            self._leave_out(planned, error)
            return
        if not launches:
            return
        pairs = list(zip(planned, launches, strict=True))
        for each, launch in pairs:
            self.current = each
            check_interpreter(self.run, each.arm, launch.ranks, here=sys.prefix)
        self.current = planned[0]
        check_launches([(each.arm, launch.ranks) for each, launch in pairs], self.run)
        discarded_before = len(self.run.discarded)
        self._keep(launches)
        for each, launch in pairs:
            self._observer.launch_ended(each, launch)
        if noisy := self.run.discarded[discarded_before:]:
            load = max(LaunchFigures(launch).other_cpu_load for launch in noisy)
            self._observer.round_repeats(planned[0].round, load)
        elif len(self.run.launches) % len(self.run.config.arms) == 0:
            self._observer.rounds_done(self.run)

    def _launch(self, planned: list[Planned]) -> list[Launch]:
        """Return the launches of a round in turns, or the first planned one; empty to begin again."""
        if self.run.interleaved.mode == "blocks":
            return self._launch_in_turns(planned)
        self._beside_others = False
        to_launch = (self.run, planned[0], self._directory, self._cluster, self._observer)
        return [launch_arm(*to_launch, budget_ends_at=self._ends_at())]

    def _leave_out(self, planned: list[Planned], error: MemoryShortError) -> None:
        """Go on with bare launches of the ``current`` arm, or without it if they do not fit either.

        Bare launches follow an arm's first launch, if what it added to the training may have been too much.
        The logs of an arm that is left out are kept.

        Raises:
            LaunchError: no arm that synchronises is left, or the run compares only two arms, as a gate does.
        """
        run, shortage, current = self.run, error.shortage, self.current
        assert current is not None  # noqa: S101 -- it has just failed
        unfit = Unfit(
            arm=current.arm,
            round=current.round,
            stage=error.stage,
            limit_bytes=shortage.limit_bytes,
            limit=shortage.limit,
            needed_bytes=shortage.needed_bytes,
            beside_others=self._beside_others and shortage.limit != "address space",
        )
        if run.config.comparisons or run.config.slower_limit is not None:
            raise error
        why = f"{error.what} {error.found.splitlines()[0]}"
        is_first = not run.of(current.arm) and not run.is_bare(current.arm)
        if is_first and current.arm.traits.synchronises and error.stage not in _BEFORE_THE_PROOF:
            self.run = msgspec.structs.replace(run, bare=[*run.bare, unfit])
            forget_launches(self._directory, planned)  # the bare launch takes the place of this one
            self._observer.arm_goes_bare(current, why)
            return
        arms = tuple(arm for arm in run.config.arms if arm.label != current.label)
        ways = [arm.label for arm in arms if arm.traits.synchronises]
        if not ways:
            error.what += " No arm fits into memory."
            raise error
        baseline = run.config.baseline if run.config.baseline in ways else ways[0]
        self.run = msgspec.structs.replace(
            run,
            config=msgspec.structs.replace(run.config, arms=arms, baseline=baseline),
            unfit=[*run.unfit, unfit],
            bare=[other for other in run.bare if other.arm.label != current.label],
            launches=[launch for launch in run.launches if launch.arm != current.label],
            discarded=[launch for launch in run.discarded if launch.arm != current.label],
        )
        forget_launches(self._directory, [each for each in planned if each is not current])
        self._observer.arm_left_out(current, why)

    def _launch_in_turns(self, planned: list[Planned]) -> list[Launch]:
        """Return the launches of a round in turns; an empty list if the round must begin again."""
        cohort = Cohort(
            self.run, self._directory, self._cluster, self._observer, budget_ends_at=self._ends_at()
        )
        try:
            with suspendable():
                return cohort.carry_out(planned, plan_turns(self.run, planned))
        except Suspended:
            forget_launches(self._directory, planned)
            stop_until_continued()
            self._observer.cohort_restarts(planned[0].round)
        except (InterleaveError, LaunchError) as error:
            if not self._may_run_alone(cohort, error):
                raise
            where = " on a GPU" if self.run.config.device == "cuda" else ""
            beside = f"Beside other arms{where}: " if isinstance(error, LaunchError) else ""
            why = f"{beside}{error.what} {error.found}"
            forget_launches(self._directory, planned)
            self._observer.not_in_turns(why)
            self.run = msgspec.structs.replace(self.run, interleaved=Interleaved(mode="launches", why=why))
        finally:
            self.current, self._beside_others = cohort.current or planned[0], cohort.side_by_side
        return []

    def _may_run_alone(self, cohort: Cohort, error: InterleaveError | LaunchError) -> bool:
        """Return whether the arms may run one after another, because turns failed in the first round.

        A launch that failed beside others may succeed alone, because memory may have been full, or its GPU
        may admit one process only. A limit on the memory of one process is the same alone.
        """
        config = self.run.config
        if config.interleave != "auto" or self.run.launches:
            return False
        if isinstance(error, MemoryShortError):
            return cohort.side_by_side and error.shortage.limit != "address space"
        return isinstance(error, InterleaveError) or (cohort.side_by_side and config.device == "cuda")

    def _keep(self, launches: list[Launch]) -> None:
        """Add launches to ``run``, discard a noisy round, and save unless saving takes too long."""
        # Keep the launches now: an interrupt may come before the run is saved.
        self.run = discard_noisy(msgspec.structs.replace(self.run, launches=[*self.run.launches, *launches]))
        began = time.monotonic()
        if began >= self._save_at:
            write_json(self._directory / RESULTS_FILE, self.run)
            took = time.monotonic() - began
            self._save_at = began + took / _SAVING_SHARE if took > _QUICK_SECONDS else began

    def _ends_at(self) -> float:
        """Return the Unix time at which the run's budget or the scheduler's job ends; infinity if neither."""
        now = unix_time()
        self._began_at = min(self._began_at, now)
        budget = self.run.config.budget_seconds
        budget_ends_at = min(now + seconds_left(self.run, now), self._began_at + (budget or math.inf))
        return min(budget_ends_at, self._job_ends_at)

    def limit(self) -> str:
        """Return the name of the limit that ends first: the time of a scheduler's job, or ``--budget``."""
        budget, job = self.run.config.budget_seconds, self._cluster.job
        if job and self._job_ends_at < self._began_at + (budget or math.inf):
            return f"The time of {job.name}"
        return f"--budget {budget:g}"
