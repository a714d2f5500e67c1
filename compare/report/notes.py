"""Notes under a table: warnings first, then how to read the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compare.analysis.budget import fullest_host
from compare.analysis.step_times import FOREIGN_LIMIT
from compare.analysis.verdict import FIRST_LOOK
from compare.report.columns import describe
from compare.text import counted, numbered

if TYPE_CHECKING:
    from compare.analysis import Analysis
    from compare.analysis.conditions import Condition
    from compare.analysis.summary import Summary
    from compare.schema.results import Run

_HASH_DIGITS = 12


def headline(run: Run) -> str:
    """Say in one line what was measured."""
    config = run.config
    length = f"{config.steps} steps" if config.steps else counted(config.epochs, "epoch")
    return " · ".join(
        [
            f"{config.model} on {dataset_name(run)}",
            f"{counted(config.ranks, 'rank')} × {counted(config.threads_per_rank, 'thread')}",
            config.device,
            f"batch {config.batch_size_per_rank} per rank"
            + (f" × {config.accumulate} passes" if config.accumulate > 1 else ""),
            f"{config.optimizer} lr {config.learning_rate:g}",
            length,
        ]
    )


def dataset_name(run: Run) -> str:
    """Name the data that the arms really trained on."""
    return {"mnist": "MNIST", "digits": "scikit-learn's digits (NOT MNIST)"}[run.dataset.name]


def warnings(run: Run, analysis: Analysis) -> list[str]:
    """Say what a reader must know before believing the figures, the gravest first."""
    summary = analysis.summary
    said = [] if run.complete else [f"INCOMPLETE: {_why_incomplete(run)}"]
    if run.dataset.note:
        said.append(f"{run.dataset.note}.")
    if summary.oversubscribed:
        ranks, cores = fullest_host(run)
        said.append(
            f"Oversubscribed: {counted(ranks, 'rank')} × {counted(run.config.threads_per_rank, 'thread')} on "
            f"a host's {counted(cores, 'core')} wait for each other, so no arm is called fastest."
        )
    said += _disturbances(summary)
    said += [f"NOT ALIKE: {said_of(finding)}" for finding in analysis.different]
    said += [
        f"{arm.arm} diverged: its loss is not a number any more; try a smaller --lr."
        for arm in summary.arms
        if arm.test_loss is None
    ]
    said += [
        f"{launch.arm}, round {launch.round}, was launched twice: {launch.restarted_because}."
        for launch in run.launches
        if launch.restarted_because
    ]
    return said + [f"{name} did not run: {reason}." for name, reason in run.left_out.items()]


def said_of(finding: Condition) -> str:
    """Say what an item is in every arm, and what that means."""
    values = "; ".join(f"{arm} {value}" for arm, value in finding.values.items())
    return f"{finding.item} ({values}): {finding.why}."


def notes(run: Run, analysis: Analysis) -> list[str]:
    """Say how to read the figures, and whether the arms trained the same thing."""
    summary = analysis.summary
    if not summary.arms:
        return ["No launch has finished."]
    rounds = max(arm.step_seconds.n for arm in summary.arms)
    method = next(arm.step_seconds.method for arm in summary.arms if arm.step_seconds.n == rounds)
    brackets = {"t": "95 % interval by t", "range": "smallest–largest"}[method]
    means = f"Means over {counted(rounds, 'round')} ({brackets})."
    sync = (
        "Sync cost is step time minus that of none: the same ranks without communication."
        if run.config.control
        else "Without the control there is no sync cost."
    )
    return [
        *_own_ways(analysis),
        *_against_itself(analysis),
        f"{means} {sync}",
        *_why_ended(run, summary, rounds),
        *_noise(summary),
        *_unresolved(summary),
        *_same_training(run, summary),
        *_as_in_one_process(run, summary),
    ]


def _own_ways(analysis: Analysis) -> list[str]:
    """Name what backends do differently of themselves, so that nobody takes them for alike in it."""
    names = [finding.item.partition(" in ")[0] for finding in analysis.conditions if finding.by_library]
    return [f"Not alike by the arms' own ways: {', '.join(names)} (--detail)."] if names else []


def _against_itself(analysis: Analysis) -> list[str]:
    found = analysis.aa
    if found is None:
        return []
    comparisons = f"{counted(len(found.verdicts), 'comparison')} of {counted(found.rounds_each, 'round')}"
    share = f"{found.rate:.1%} (95 % interval {found.low:.1%}–{found.high:.1%})"
    saw = f"{found.false_differences} of {comparisons} saw a difference"
    said = [f"{found.arm} against itself: {saw}, {share}."]
    for rate, how in (
        (found.fixed, "of that length"),
        (found.sequential, "looked at after every round, ended as soon as settled"),
    ):
        if rate:
            said.append(
                f"Resampled from the {found.recorded} recorded rounds, {rate.rate:.1%} of "
                f"{rate.experiments:,} comparisons {how} saw one."
            )
    return said


def _unresolved(summary: Summary) -> list[str]:
    found = {arm.arm: arm.verdict for arm in summary.arms if arm.verdict and arm.verdict.kind == "unresolved"}
    early = any(verdict.n < FIRST_LOOK for verdict in found.values())
    few = f"Fewer than {FIRST_LOOK} rounds settle no verdict: take --repeats {FIRST_LOOK}, or a --budget."
    said = [f"{arm} is {describe(verdict)}." for arm, verdict in found.items() if verdict.n >= FIRST_LOOK]
    return [few, *said] if early else said


def _why_ended(run: Run, summary: Summary, rounds: int) -> list[str]:
    """Say why a run under a budget took no more rounds."""
    if run.config.budget_seconds is None or not run.complete:
        return []
    judged = [arm.verdict for arm in summary.arms if arm.verdict]
    settled = rounds >= FIRST_LOOK and all(verdict.kind != "unresolved" for verdict in judged)
    if not settled and rounds == run.config.rounds:
        why = "--repeats allows no more"
    elif not settled:
        why = f"no other fitted into --budget {run.config.budget_seconds:g}"
    elif summary.oversubscribed:
        why = "more would not help, because arms whose ranks wait for each other's cores are not judged"
    else:
        why = "every verdict was settled" if judged else "there is no verdict to settle"
    return [f"Ended after {counted(rounds, 'round')}: {why}."]


def _noise(summary: Summary) -> list[str]:
    if summary.noise is None:
        return []
    return [
        f"Noise floor: in this run two arms that do not differ would seem to by up to {summary.noise:.1%}."
    ]


def _disturbances(summary: Summary) -> list[str]:
    """Say what others have disturbed, and what was done about it."""
    said = []
    if summary.rounds_taken_again:
        again = counted(summary.rounds_taken_again, "round")
        said.append(f"{again} had to be taken again, because others used the machine meanwhile.")
    if summary.disturbed_rounds:
        rounds = numbered("round", summary.disturbed_rounds)
        said.append(
            f"Others used more than {FOREIGN_LIMIT:.0%} of the CPUs during {rounds}: read small "
            "differences with doubt, or measure again on a quieter machine."
        )
    return said


def _why_incomplete(run: Run) -> str:
    if run.failure is None:
        return "it is still going on, or was ended from outside."
    return f"in round {run.failure.round}, {run.failure.arm}: {run.failure.message.splitlines()[0]}"


def _same_training(run: Run, summary: Summary) -> list[str]:
    """Hold exact arms against each other; of the others say that they differ on purpose."""
    exact = {arm.label for arm in run.config.arms if arm.synchronises and arm.exact}
    lossy = {arm.label for arm in run.config.arms if not arm.exact}
    hashes = {arm.arm: arm.final_hash for arm in summary.arms if arm.arm in exact}
    everybody = "every arm" if len(hashes) > 1 else "the arm"
    said = _of_exact(hashes, ", ".join(hashes) if lossy else everybody)
    return said + [
        f"{arm.arm} changes the arithmetic by its own choice: its ranks ended bitwise alike, with parameters "
        f"of their own ({_short(arm.final_hash)})."
        for arm in summary.arms
        if arm.arm in lossy
    ]


def _of_exact(hashes: dict[str, str | None], whose: str) -> list[str]:
    first = next(iter(hashes.values()), None)
    if not hashes:
        return []
    if first is not None and set(hashes.values()) == {first}:
        return [f"All ranks of {whose} ended with bitwise the same parameters ({first[:_HASH_DIGITS]})."]
    return [
        "In every launch the ranks ended bitwise alike, but the arms did not: "
        + ", ".join(f"{arm} {_short(value)}" for arm, value in hashes.items())
        + "."
    ]


def _as_in_one_process(run: Run, summary: Summary) -> list[str]:
    """Say how near to a single process the launches were, as rank 0 found; the others had its very hash."""
    proven = {arm.arm: arm.parity for arm in summary.arms if arm.parity.steps is not None}
    if not proven:
        return []
    steps = min(parity.steps or 0 for parity in proven.values())
    begin = (
        f"Before training, {_who(run, summary, list(proven))} took {steps} float64 steps beside a single "
        "process that saw all ranks' samples"
    )
    exact = {arm: parity for arm, parity in proven.items() if parity.outcome != "exempt"}
    lossy = {arm: parity for arm, parity in proven.items() if parity.outcome == "exempt"}
    near = _near([parity.difference for parity in exact.values()])
    if not lossy:
        return [f"{begin}, and ended {near}."]
    said = [f"{', '.join(exact)} ended {near}"] if exact else []
    said += [
        f"{arm}, which changes the arithmetic, {_away(parity.difference)} away"
        for arm, parity in lossy.items()
    ]
    return [f"{begin}: {'; '.join(said)}."]


def _who(run: Run, summary: Summary, proven: list[str]) -> str:
    """Name the arms that brought a pass, but for where all did of which one could be asked."""
    if len(proven) == len(summary.arms):
        return "every arm"
    asked = [arm.label for arm in run.config.arms if arm.synchronises and run.of(arm)]
    return "every arm that synchronises" if proven == asked else ", ".join(proven)


def _near(differences: list[float | None]) -> str:
    numbers = [difference for difference in differences if difference is not None]
    return f"within {max(numbers):.0e} of it" if len(numbers) == len(differences) and numbers else "elsewhere"


def _away(difference: float | None) -> str:
    return "no number" if difference is None else f"{difference:.0e}"


def _short(value: str | None) -> str:
    return "not the same in every round" if value is None else value[:_HASH_DIGITS]
