"""State in sentences how far a run is, how many rounds it will have, and how long they take."""

from __future__ import annotations

from compare.analysis.budget import (
    FIRST_LOOK,
    expected_seconds,
    fullest_host,
    is_oversubscribed,
    least_seconds,
    next_look,
    planned_rounds,
    rounds_done,
)
from compare.analysis.figures import Figures
from compare.analysis.fitting import shortfall
from compare.analysis.ranking import verdicts
from compare.schema.config import MOST_ROUNDS, RunConfig
from compare.schema.results import Run
from compare.text import counted, duration


def standing(run: Run) -> str:
    """Return a line with each arm's step time in ms in the last round, the shortest first.

    Once verdicts can be judged, it also states how many are settled.
    """
    rounds, config, run_figures = rounds_done(run), run.config, Figures(run)
    last = run.launches[-len(config.arms) :]
    took = max(la.started_at + la.seconds for la in last) - min(la.started_at for la in last)
    times = {launch.arm: run_figures.step_seconds(launch.arm)[launch.round] for launch in last}
    figures = ", ".join(f"{label} {times[label] * 1e3:.2f}" for label in sorted(times, key=times.__getitem__))
    settled = _settled_verdicts(run_figures, rounds)
    return f"round {rounds}{most_rounds(run)} ({duration(took)}): {figures} ms a step{settled}"


def most_rounds(run: Run) -> str:
    """Return `` of 7`` for a run of seven rounds, and `` of at most 7`` if time allows seven at its pace.

    Empty until the pace is known.
    """
    if run.config.limit_seconds is None:
        return f" of {run.config.rounds}"
    return f" of at most {planned_rounds(run)}" if run.launches else ""


def first_rounds(config: RunConfig) -> int:
    """Return the number of rounds that a run will have, or that of its first look if time decides."""
    return config.rounds if config.limit_seconds is None else min(FIRST_LOOK, config.rounds)


def _settled_verdicts(figures: Figures, rounds: int) -> str:
    """Return how many verdicts are settled, after a semicolon; empty while none can be."""
    config = figures.run.config
    judges_otherwise = config.comparisons is not None or config.slower_limit is not None
    is_before_its_look = config.limit_seconds is None and rounds < config.rounds
    if rounds < FIRST_LOOK or judges_otherwise or is_before_its_look or is_oversubscribed(figures.run):
        return ""
    kinds = [verdict.kind for verdict in verdicts(figures, config.baseline).values()]
    settled = sum(kind != "open" for kind in kinds)
    goes_on = config.limit_seconds is not None and settled < len(kinds)
    look = f", next look after round {next_look(rounds)} or at the end" if goes_on else ""
    return f"; {settled} of {counted(len(kinds), 'verdict')} settled{look}" if kinds else ""


def outlook(run: Run) -> str:
    """Return a sentence on a run's length: its rounds at the start, its time after the first round.

    Empty after later rounds, for an A/A test, and for a run that is over.
    """
    done = rounds_done(run)
    if run.config.comparisons is not None or done > 1 or planned_rounds(run) <= done:
        return ""
    return _estimated_time(run) if done else _planned_length(run.config)


def budget_warning(run: Run) -> str:
    """Return sentences on what a budget lacks to hold the rounds of a verdict, and what would fit.

    They come as soon as this can be known: before the first round or after it. Otherwise they are empty.
    """
    lacking = shortfall(run) if rounds_done(run) <= 1 else None
    if lacking is None:
        return ""
    what = f"hold the {FIRST_LOOK} rounds of a verdict, which take {duration(lacking.needed_seconds)}"
    if lacking.budget_seconds is None:
        parts = "starts and turns" if run.interleaved.mode == "blocks" else "starts"
        what, remedies = f"cannot {what} for their {parts} alone", ["a longer one"]
        remedies += ["fewer arms"] if len(run.config.rivals) > 1 else []
    else:
        what, remedies = f"does not {what} at this pace", [f"--budget {lacking.budget_seconds}"]
    remedies += [f"--steps {lacking.steps}"] if lacking.steps else []
    remedies += [f"at most {counted(lacking.arms, 'arm')}"] if lacking.arms else []
    return f"--budget {run.config.budget_seconds:g} {what}. Use {' or '.join(remedies)}."


def cores_warning(run: Run) -> str:
    """Return sentences on ranks that outnumber the cores, before the first round; empty if they do not.

    Such a run can rank no arm, which its result says too, but then the time is spent.
    """
    if rounds_done(run) or not is_oversubscribed(run):
        return ""
    ranks, cores = fullest_host(run)
    threads = counted(run.config.threads_per_rank, "thread")
    return (
        f"{counted(ranks, 'rank')} × {threads} outnumber the {counted(cores, 'core')} {whose_cores(run)}, so "
        "no arm can be ranked. Use fewer ranks, hosts or threads. `ringside predict` tells from a run of two "
        "hosts with one rank each what more would do."
    )


def whose_cores(run: Run) -> str:
    """Return the words that follow ``cores`` where a run has more threads than these."""
    return "that all rehearsed hosts share" if run.network.rehearsed else "of a host"


def _planned_length(config: RunConfig) -> str:
    """Return a sentence with the number of rounds of a run, or with what decides that number."""
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


def planned_time(run: Run) -> str:
    """Return sentences with the planned number of rounds, and with an estimate of their time.

    If the arms take no turns, their training needs additional time that is not known.
    """
    config = run.config
    rounds = first_rounds(config)
    what = f"{counted(rounds, 'round')} take"
    if config.budget_seconds is not None:
        what, rounds = "a round takes", 1
    least = duration(least_seconds(run, rounds))
    if run.interleaved.mode == "blocks":
        return f"{_planned_length(config)} By the starts and turns alone, {what} at least {least}."
    return f"{_planned_length(config)} For the starts, {what} at least {least}, and the training."


def _estimated_time(run: Run) -> str:
    """Return a sentence with the time that a run takes at its pace so far, or the rounds that fit."""
    config, most = run.config, planned_rounds(run)
    rivals = len(config.rivals)
    if config.budget_seconds is not None:
        return f"{config.budget_seconds:g} s allow about {counted(most, 'round')}."
    unsettled = f" A verdict takes {FIRST_LOOK}." if rivals > 0 and most < FIRST_LOOK else ""
    sure = most if config.limit_seconds is None else FIRST_LOOK
    line = f"In all, about {duration(expected_seconds(run, sure))} for {counted(sure, 'round')}"
    if config.limit_seconds is None or most == sure:
        return f"{line}.{unsettled}"
    return f"{line}; {duration(config.limit_seconds)} allow {most}."
