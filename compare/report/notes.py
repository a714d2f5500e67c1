"""Write the notes below the tables of a run: lines that explain its figures."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from compare.analysis import Analysis
from compare.analysis.looks import ALPHA, FIRST_LOOK
from compare.analysis.noise import POWER
from compare.analysis.summary import WAITING_CORES_LIMIT, Summary, TurnsSummary
from compare.report.columns import describe_factor, describe_verdict
from compare.schema.results import Launch, Run
from compare.text import counted, duration, listed

_WRONG_AT_MOST = f"in at most {ALPHA * 100:g} of 100 runs"
VERDICTS_TOGETHER = (
    f"All verdicts together, at every look, find a difference where there is none {_WRONG_AT_MOST}. "
    "That is why each interval is as wide as a 95 % interval or wider. All intervals together may miss more "
    "often."
)
_FASTEST_NOTE = (
    "Fastest is judged apart, with the quickest arm as the baseline: every other arm must be slower. "
    f"It is wrong {_WRONG_AT_MOST}, too."
)


def notes(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield the lines that explain the figures of a run, or one line if no launch has finished."""
    summary = analysis.summary
    if not summary.arms:
        yield "No launch has finished."
        return
    if names := [one.item.partition(" in ")[0] for one in analysis.conditions if one.by_library]:
        yield f"The libraries differ in: {', '.join(names)} (--detail)."
    if aa := analysis.aa:
        length = counted(aa.rounds_each, "round")
        comparisons = f"{aa.false_differences} of {counted(len(aa.verdicts), 'comparison')} of {length}"
        rate = f"{aa.rate * 100:.1f} % (95 % interval {aa.low * 100:.1f}–{aa.high * 100:.1f} %)"
        yield f"A/A test of {aa.arm}: {comparisons} found a difference, {rate}."
    yield _meaning_of_figures(run, summary)
    yield from _no_sync_cost(run)
    if analysis.turns:
        yield from _turn_notes(run, analysis.turns)
    yield from _why_ended(run, analysis)
    if not summary.noise_hides_all and any(
        arm.verdict and arm.verdict.low is not None for arm in summary.arms
    ):
        yield VERDICTS_TOGETHER
        if any(arm.fastest for arm in summary.arms):
            yield _FASTEST_NOTE
    yield from _unresolved(summary)
    yield from detectable_differences(summary)
    yield from _buffers(run)


def _meaning_of_figures(run: Run, summary: Summary) -> str:
    """Return the note on how step times are averaged, and on how the sync cost is computed."""
    rounds = max(arm.step_seconds.n for arm in summary.arms)
    method = next(arm.step_seconds.method for arm in summary.arms if arm.step_seconds.n == rounds)
    brackets = {"t": "Student's 95 % interval of the mean", "range": "smallest–largest"}[method]
    sync = (
        "Sync cost: step time minus that of none, which does not communicate. Its interval is that of its "
        "share, at the mean step time."
        if run.config.control
        else "No sync cost: the control none did not run."
    )
    return f"Geometric means over {counted(rounds, 'round')} ({brackets}). {sync}"


def _no_sync_cost(run: Run) -> Iterator[str]:
    """Yield a line for each arm that has an efficiency but no sync cost, with the reason."""
    batch = run.config.global_batch_size // run.config.accumulate
    for arm in run.config.arms:
        if arm.traits.one_process and run.of(arm):
            yield (
                f"{arm.label}: one process with all threads of a host and the global batch of {batch}. "
                "It exchanges nothing, so it has an efficiency and no sync cost."
            )
        elif arm.traits.in_layers and run.of(arm):
            yield (
                f"{arm.label}: its ranks hold different layers, and share the global batch of {batch}. "
                f"So it has an efficiency and no sync cost.{_pipeline_waits(run.of(arm))}"
            )


def _pipeline_waits(launches: list[Launch]) -> str:
    """Return a sentence with the share of a pass that a pipeline's ranks wait, in theory and as measured."""
    facts = [launch.ranks[0].attestation["replica"] for launch in launches]
    theory = f" With equal stages, ranks would wait {facts[0]['bubble_in_theory']:.0%} of a pass"
    measured = [replica["waiting_share"] for replica in facts if "waiting_share" in replica]
    return f"{theory}; they waited {fmean(measured):.0%}, with messages." if measured else f"{theory}."


def _turn_notes(run: Run, turns: TurnsSummary) -> Iterator[str]:
    """Yield notes on arms that were timed beyond their training, and on arms that used CPU while waiting."""
    if arms := turns.trained_on:
        every = "every arm" if len(arms) == len(run.config.arms) else ", ".join(arms)
        steps = f"{run.config.total_steps:,} steps"
        yield f"Every arm trained {steps}. For timing only, {every} went on after them."
    if turns.awake:
        each = ", ".join(f"{arm} {cores * 100:.1f} %" for arm, cores in turns.awake.items())
        yield f"While they waited, arms took more than {WAITING_CORES_LIMIT * 100:g} % of a core: {each}."


def _why_ended(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield a line on why a run ended; nothing for a fixed number of rounds or an incomplete run."""
    config, summary = run.config, analysis.summary
    if config.limit_seconds is None or not run.complete:
        return
    rounds = max(arm.step_seconds.n for arm in summary.arms)
    verdicts = [arm.verdict for arm in summary.arms if arm.verdict]
    settled = (
        not analysis.gate
        and rounds >= FIRST_LOOK
        and all(verdict.kind != "unresolved" for verdict in verdicts)
    )
    if analysis.gate and analysis.gate.outcome in {"passed", "slower"}:
        why = {"passed": "every arm passed", "slower": "an arm is slower"}[analysis.gate.outcome]
    elif not settled and rounds == config.rounds:
        why = "--repeats allows no more"
    elif not settled and config.budget_seconds is not None:
        why = f"--budget {config.budget_seconds:g} leaves no time for another"
    elif not settled:
        why = f"{duration(config.limit_seconds)} leave no time for another"
    elif summary.oversubscribed:
        why = "more would not help, because oversubscribed arms are not ranked"
    else:
        why = "every verdict is settled" if verdicts else "there is no verdict to settle"
    yield f"Ended after {counted(rounds, 'round')}: {why}."


def _unresolved(summary: Summary) -> Iterator[str]:
    for arm in summary.arms:
        if arm.verdict and arm.verdict.kind == "unresolved" and arm.verdict.n >= FIRST_LOOK:
            yield f"{arm.arm} is {describe_verdict(arm.verdict)}."


def detectable_differences(summary: Summary) -> Iterator[str]:
    """Yield a line with the difference in each unresolved arm that 80 of 100 such runs would find."""
    each = listed(
        f"{describe_factor(1 + arm.would_have_seen)} in {arm.arm}"
        for arm in summary.arms
        if arm.verdict and arm.verdict.kind == "unresolved" and arm.would_have_seen is not None
    )
    if each and not summary.noise_hides_all:
        yield f"Open: {POWER * 100:g} of 100 such runs would have seen a difference of {each}."


def _buffers(run: Run) -> Iterator[str]:
    """Yield a line with the arms whose ranks ended with different buffers, and do not broadcast them."""
    different = [
        arm.label
        for arm in run.config.arms
        if arm.traits.synchronises
        and any(
            len({rank.buffer_hash for rank in launch.ranks}) > 1
            and not launch.ranks[0].attestation.get("replica", {}).get("broadcasts_buffers")
            for launch in run.of(arm)
        )
    ]
    if different:
        yield (
            f"Buffers, such as BatchNorm's statistics, differ between the ranks of {', '.join(different)}. "
            "The test used rank 0's on every rank."
        )
