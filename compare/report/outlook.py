"""Write the length, time and power that a run will have."""

from __future__ import annotations

from compare.analysis.budget import expected_seconds, planned_rounds, rounds_done
from compare.analysis.power import POWER, Power, plan_power
from compare.analysis.verdict import FIRST_LOOK
from compare.report.columns import in_percent
from compare.schema.config import MOST_ROUNDS, RunConfig
from compare.schema.results import Run
from compare.text import counted, duration


def outlook(run: Run) -> list[str]:
    """Announce the length, after one round the time, after two the power.

    An A/A test and a run that is over have nothing to announce.
    """
    done = rounds_done(run)
    if run.config.comparisons is not None or planned_rounds(run) <= done:
        return []
    lines = {0: lambda run: length(run.config), 1: time_to_take, 2: planned_power}
    return [line] if done in lines and (line := lines[done](run)) else []


def length(config: RunConfig) -> str:
    """Write how many rounds a run has, or what decides it."""
    arms = counted(len(config.arms), "arm")
    until = "until every verdict is settled"
    if config.limit_seconds is None:
        return f"Exactly {counted(config.rounds, 'round')} of {arms}."
    if config.budget_seconds is None:
        time = duration(config.limit_seconds)
        return f"{counted(FIRST_LOOK, 'round')} of {arms}, then more {until} or {time} are over."
    rounds = "Rounds" if config.rounds >= MOST_ROUNDS else f"At most {counted(config.rounds, 'round')}"
    return f"{rounds} of {arms} {until}, for at most {config.budget_seconds:g} s."


def planned_time(config: RunConfig, round_seconds: float) -> str:
    """Write the length of a planned run, and guess its time."""
    rounds = config.rounds if config.limit_seconds is None else FIRST_LOOK
    guess = duration(round_seconds * rounds)
    if config.budget_seconds is None:
        guess = f"{counted(rounds, 'round')} take about {guess}"
    else:
        guess = f"a round takes about {duration(round_seconds)}"
    return f"{length(config)} By the starts and turns alone, {guess}."


def time_to_take(run: Run) -> str:
    """Estimate the time of the whole run at the pace so far."""
    config, most = run.config, planned_rounds(run)
    if config.budget_seconds is not None:
        return f"{config.budget_seconds:g} s allow about {counted(most, 'round')}."
    sure = most if config.limit_seconds is None else FIRST_LOOK
    line = f"About {duration(expected_seconds(run, sure))} for {counted(sure, 'round')}"
    if config.limit_seconds is None or most == sure:
        return f"{line}."
    return f"{line}; {duration(config.limit_seconds)} allow {most}."


def planned_power(run: Run) -> str:
    """Write what the planned rounds will see; empty if nothing is judged."""
    power, planned = plan_power(run), planned_rounds(run)
    if power is None:
        return ""
    if planned < power.rounds:
        return f"{counted(planned, 'round')} settle no verdict; {power.rounds} would see {seen(power)}."
    return f"{counted(power.rounds, 'round')} will see {seen(power)}."


def seen(power: Power) -> str:
    """Write the smallest difference that a run is likely to find."""
    return f"differences of {in_percent(1 + power.difference)} % ({POWER * 100:g} % power)"
