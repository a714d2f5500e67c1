"""Write how a run stands, how long it is, and how much time it takes."""

from __future__ import annotations

import statistics

from compare.analysis.budget import expected_seconds, is_oversubscribed, planned_rounds, rounds_done
from compare.analysis.looks import FIRST_LOOK, next_look
from compare.analysis.ranking import verdicts
from compare.analysis.step_times import step_seconds
from compare.schema.collectives import SweepConfig
from compare.schema.config import MOST_ROUNDS, RunConfig
from compare.schema.results import Run
from compare.text import counted, duration


class Pace:
    """The pace of a command's launches, from which the time left is estimated.

    ``now`` is always a reading of the same monotonic clock, in seconds.
    """

    def __init__(self, config: RunConfig | SweepConfig, arms: int, counts: int) -> None:
        total = config.total_launches
        self.launches = total * counts if total else None
        """Number of all launches, with those of repeated rounds; None where time decides it."""
        self.done = 0
        self._arms = arms
        self._expected = self.launches or FIRST_LOOK * arms
        self._limit_seconds = config.limit_seconds if isinstance(config, RunConfig) else None
        self._is_hard = isinstance(config, RunConfig) and config.budget_seconds is not None
        self._began_at: float | None = None
        self._ended_at = 0.0

    def start(self, now: float) -> None:
        """Start the clock at the first launch; later calls have no effect."""
        if self._began_at is None:
            self._began_at = now

    def count(self, now: float) -> None:
        """Count a launch that ended."""
        self.done += 1
        self._ended_at = now

    def repeat(self) -> None:
        """Expect the launches of one round more, because a round is repeated."""
        self._expected += self._arms
        self.launches = self.launches and self.launches + self._arms

    def skip(self) -> None:
        """Expect one launch less."""
        self._expected -= 1
        self.launches = self.launches and self.launches - 1

    def left(self, now: float) -> str:
        """Return the time left as text; empty before the pace is known.

        Under a --budget, or once the expected launches are done, it is the rest of the time limit. Otherwise
        it is estimated from the mean time of a launch.
        """
        if self._began_at is None:
            return ""
        if self._limit_seconds is not None and (self._is_hard or self.done >= self._expected):
            return f"at most {duration(max(0.0, self._began_at + self._limit_seconds - now))} left"
        if not self.done:
            return ""
        of_one = (self._ended_at - self._began_at) / self.done
        left = of_one * (self._expected - self.done) - (now - self._ended_at)
        if left <= 0:
            return "any moment"
        whole = "left" if self.launches else f"for {FIRST_LOOK} rounds"
        return f"about {duration(left)} {whole}"


def standing(run: Run) -> str:
    """Return a line with each arm's mean step time in ms over all rounds so far, the shortest first.

    Once verdicts are judged, it also states how many are settled.
    """
    rounds, config = rounds_done(run), run.config
    last = run.launches[-len(config.arms) :]
    took = max(one.started_at + one.seconds for one in last) - min(one.started_at for one in last)
    means = {arm.label: statistics.geometric_mean(map(step_seconds, run.of(arm))) for arm in config.arms}
    figures = ", ".join(f"{label} {means[label] * 1e3:.2f}" for label in sorted(means, key=means.__getitem__))
    of = f" of {config.rounds}" if config.limit_seconds is None else ""
    return f"round {rounds}{of} ({duration(took)}): {figures} ms a step{_settled(run, rounds)}"


def _settled(run: Run, rounds: int) -> str:
    config = run.config
    of_another_kind = config.comparisons is not None or config.slower_limit is not None
    is_before_its_look = config.limit_seconds is None and rounds < config.rounds
    if rounds < FIRST_LOOK or of_another_kind or is_before_its_look or is_oversubscribed(run):
        return ""
    found = [verdict.kind for verdict in verdicts(run, config.baseline).values()]
    settled = sum(kind != "unresolved" for kind in found)
    goes_on = config.limit_seconds is not None and settled < len(found)
    look = f", next look after round {next_look(rounds)} or at the end" if goes_on else ""
    return f"; {settled} of {counted(len(found), 'verdict')} settled{look}" if found else ""


def outlook(run: Run) -> list[str]:
    """Return the length of a run before its first round, and an estimate of its time after the first.

    Empty after later rounds, for an A/A test, and for a run that is over.
    """
    done = rounds_done(run)
    if run.config.comparisons is not None or planned_rounds(run) <= done:
        return []
    lines = {0: lambda run: length(run.config), 1: time_to_take}
    return [lines[done](run)] if done in lines else []


def length(config: RunConfig) -> str:
    """Return a sentence with the number of rounds of a run, or with what decides it."""
    arms = counted(len(config.arms), "arm")
    until = (
        "until every verdict is settled"
        if config.slower_limit is None
        else "until every arm is settled, or one is slower"
    )
    if config.limit_seconds is None:
        return f"Exactly {counted(config.rounds, 'round')} of {arms}."
    if config.budget_seconds is None:
        time = duration(config.limit_seconds)
        return f"{counted(FIRST_LOOK, 'round')} of {arms}, then more {until} or {time} are over."
    rounds = "Rounds" if config.rounds >= MOST_ROUNDS else f"At most {counted(config.rounds, 'round')}"
    return f"{rounds} of {arms} {until}, for at most {config.budget_seconds:g} s."


def planned_time(config: RunConfig, round_seconds: float, *, in_turns: bool) -> str:
    """Return the length of a planned run, and an estimate of its time.

    ``round_seconds`` is the least time of a round: that of its starts, and of its turns if the arms take
    turns. Otherwise the training comes on top, for a time that is not known.
    """
    rounds = config.rounds if config.limit_seconds is None else FIRST_LOOK
    what, seconds = f"{counted(rounds, 'round')} take", round_seconds * rounds
    if config.budget_seconds is not None:
        what, seconds = "a round takes", round_seconds
    if in_turns:
        return f"{length(config)} By the starts and turns alone, {what} about {duration(seconds)}."
    return f"{length(config)} For the starts, {what} at least {duration(seconds)}, and the training."


def time_to_take(run: Run) -> str:
    """Return a sentence with the time of the run, or with the rounds that fit, at the pace so far."""
    config, most = run.config, planned_rounds(run)
    rivals = len(config.rivals)
    unsettled = f" A verdict takes {FIRST_LOOK}." if rivals > 0 and most < FIRST_LOOK else ""
    if config.budget_seconds is not None:
        return f"{config.budget_seconds:g} s allow about {counted(most, 'round')}.{unsettled}"
    sure = most if config.limit_seconds is None else FIRST_LOOK
    line = f"About {duration(expected_seconds(run, sure))} for {counted(sure, 'round')}"
    if config.limit_seconds is None or most == sure:
        return f"{line}.{unsettled}"
    return f"{line}; {duration(config.limit_seconds)} allow {most}."
