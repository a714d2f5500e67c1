"""Write the lines below a table: warnings and notes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from compare.analysis import Analysis
from compare.analysis.budget import elapsed_seconds
from compare.analysis.conditions import Condition
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.step_times import OTHER_LOAD_LIMIT
from compare.analysis.summary import Summary
from compare.report.columns import describe
from compare.report.limits import limits
from compare.report.noise import intervals, nothing_ranked, stalls, would_have_seen
from compare.report.waiting import load_dependence, waiting
from compare.schema.arms import Arm
from compare.schema.results import Launch, Run
from compare.text import counted, duration, numbered

_HASH_DIGITS = 12
_LONGEST_CONDITION = 300
_LONGER = 3
"""Factor by which a longer budget is proposed where the time was too short."""


# ---- warnings ----


def warnings(run: Run, analysis: Analysis) -> list[str]:
    """Return a line for each thing that limits the figures of a run.

    If noise hides every difference, one line says so in place of those about noisy rounds, uneven load and
    stalls.
    """
    summary = analysis.summary
    return [
        *_incomplete(run),
        *([f"{run.dataset.note}."] if run.dataset.note else []),
        *limits(run, summary),
        *_repeated(summary),
        *noise_first(run, summary),
        *load_dependence(run, analysis.load_dependence),
        *stalls(summary),
        *(f"CONDITIONS DIFFER: {_in_short(condition)}" for condition in analysis.different),
        *(
            f"{arm.arm} diverged: its loss is no longer a number. Try a smaller --lr."
            for arm in summary.arms
            if arm.test_loss is None
        ),
        *_unused(run),
        *_not_compiled(run),
        *(
            f"{launch.arm}, round {launch.round}: launched twice, because {launch.restarted_because}."
            for launch in run.launches
            if launch.restarted_because
        ),
        *([f"Not in turns: {run.interleaved.why}"] if run.interleaved.why else []),
        *(f"{name} did not run: {reason}." for name, reason in run.left_out.items()),
    ]


def describe_condition(condition: Condition) -> str:
    """Return a condition with its value in every arm, and the reason or the effect of the difference."""
    values = "; ".join(f"{arm} {value}" for arm, value in condition.values.items())
    return f"{condition.item} ({values}): {condition.why}."


def _in_short(condition: Condition) -> str:
    """Describe a condition, without its values if they would make the line too long."""
    described = describe_condition(condition)
    if len(described) <= _LONGEST_CONDITION:
        return described
    return f"{condition.item} (values: --detail): {condition.why}."


def _unused(run: Run) -> list[str]:
    """Return a line with the parameters that get no gradient, and the arms that still move them."""
    passes = [taken for launch in run.launches for taken in launch.ranks[0].parity]
    names = next((taken.unused for taken in passes if taken.unused), [])
    if not names:
        return []
    moving = [arm.label for arm in run.config.arms if arm.zeros_for_unused]
    moved = f" {', '.join(moving)} gives them zero gradients, so weight decay moves them." if moving else ""
    return [f"Parameters that take no part in the loss: {', '.join(names)}.{moved}"]


def _not_compiled(run: Run) -> list[str]:
    """Return a line with the arms that compiled nothing in a run with --compile."""
    names = [
        arm.label
        for arm in run.config.arms
        if run.config.compile
        and any(la.ranks[0].attestation.get("compiled_graphs") == 0 for la in run.of(arm))
    ]
    why = "--compile compiles calls of the model, and its loss or strategy calls parts of it"
    return [f"Not compiled: {', '.join(names)}. {why}."] if names else []


def _incomplete(run: Run) -> list[str]:
    if run.complete:
        return []
    if run.failure is None:
        return ["INCOMPLETE: the run is still going on, or was stopped."]
    return [
        f"INCOMPLETE: round {run.failure.round}, {run.failure.arm}: {run.failure.message.splitlines()[0]}"
    ]


def _repeated(summary: Summary) -> list[str]:
    if not summary.rounds_repeated:
        return []
    repeated = counted(summary.rounds_repeated, "noisy round")
    return [f"{repeated} {'was' if summary.rounds_repeated == 1 else 'were'} repeated."]


def noisy_rounds(summary: Summary) -> list[str]:
    """Return a warning with the noisy rounds that count, and the remedy; empty if there are none."""
    return [noisy_in(summary.noisy_rounds)] if summary.noisy_rounds else []


def uneven_loads(baseline: str, summary: Summary) -> list[str]:
    """Return a warning for each arm whose difference from the baseline may come from uneven load."""
    loads = {arm.arm: arm.verdict.uneven_load for arm in summary.arms if arm.verdict}
    return [
        f"Uneven load: other processes used {load[0]:.2f} cores beside {arm}, and {load[1]:.2f} beside "
        f"{baseline}. That may explain their difference. Run again on a quieter machine."
        for arm, load in loads.items()
        if load
    ]


def noise_first(run: Run, summary: Summary) -> list[str]:
    """Return the warnings about noise, which stand before all others."""
    if summary.noise_hides_all:
        return [nothing_ranked(run, summary)]
    return [*noisy_rounds(summary), *uneven_loads(run.config.baseline, summary)]


def noisy_in(rounds: Sequence[int]) -> str:
    """Return the warning that these rounds are noisy, with the remedy."""
    share, which = f"{OTHER_LOAD_LIMIT * 100:g} %", numbered("round", rounds)
    found = f"other processes used more than {share} of the CPUs in {which}"
    return f"Noisy: {found}. Distrust small differences, or measure again on a quieter machine."


# ---- notes ----


def notes(run: Run, analysis: Analysis) -> list[str]:
    """Return lines that explain the figures, and that compare what the arms trained."""
    summary = analysis.summary
    if not summary.arms:
        return ["No launch has finished."]
    return [
        *_by_library(analysis),
        *_aa_test(analysis),
        *_meaning(run, summary),
        *_no_sync_cost(run),
        *waiting(run, analysis.turns),
        *_end(run, analysis),
        *intervals(summary),
        *_unresolved(run, summary),
        *would_have_seen(summary),
        *_trained_model(run, summary),
        *_parity(run, summary),
        *_buffers(run),
        *_compiled(run),
    ]


def _by_library(analysis: Analysis) -> list[str]:
    names = [found.item.partition(" in ")[0] for found in analysis.conditions if found.by_library]
    return [f"The libraries differ in: {', '.join(names)} (--detail)."] if names else []


def _aa_test(analysis: Analysis) -> list[str]:
    found = analysis.aa
    if found is None:
        return []
    length = counted(found.rounds_each, "round")
    comparisons = f"{found.false_differences} of {counted(len(found.verdicts), 'comparison')} of {length}"
    rate = f"{found.rate * 100:.1f} % (95 % interval {found.low * 100:.1f}–{found.high * 100:.1f} %)"
    return [f"A/A test of {found.arm}: {comparisons} found a difference, {rate}."]


def _meaning(run: Run, summary: Summary) -> list[str]:
    rounds = max(arm.step_seconds.n for arm in summary.arms)
    method = next(arm.step_seconds.method for arm in summary.arms if arm.step_seconds.n == rounds)
    brackets = {"t": "Student's 95 % interval of the mean", "range": "smallest–largest"}[method]
    sync = (
        "Sync cost: step time minus that of none, which does not communicate. Its interval is that of its "
        "share, at the mean step time."
        if run.config.control
        else "No sync cost: the control none did not run."
    )
    return [f"Geometric means over {counted(rounds, 'round')} ({brackets}). {sync}"]


def _no_sync_cost(run: Run) -> list[str]:
    """Return a line for each arm that has an efficiency but no sync cost, with the reason."""
    batch = run.config.global_batch_size // run.config.accumulate
    lines = []
    for arm in run.config.arms:
        if arm.traits.one_process and run.of(arm):
            lines.append(
                f"{arm.label}: one process with all threads of a host and the global batch of {batch}. "
                "It exchanges nothing, so it has an efficiency and no sync cost."
            )
        elif arm.traits.in_layers and run.of(arm):
            lines.append(
                f"{arm.label}: its ranks hold different layers, and share the global batch of {batch}. "
                f"So it has an efficiency and no sync cost.{_waits(run.of(arm))}"
            )
    return lines


def _waits(launches: list[Launch]) -> str:
    """Return a sentence with a pipeline's waiting share in theory, and the mean that was measured."""
    facts = [launch.ranks[0].attestation["replica"] for launch in launches]
    theory = f" With equal stages, ranks would wait {facts[0]['bubble_in_theory']:.0%} of a pass"
    measured = [own["waiting_share"] for own in facts if "waiting_share" in own]
    return f"{theory}; they waited {fmean(measured):.0%}, with messages." if measured else f"{theory}."


def _end(run: Run, analysis: Analysis) -> list[str]:
    """Return a line on why a run ended; empty if its number of rounds was fixed, or it is incomplete."""
    config, summary = run.config, analysis.summary
    if config.limit_seconds is None or not run.complete:
        return []
    rounds = max(arm.step_seconds.n for arm in summary.arms)
    if analysis.gate and analysis.gate.outcome in {"passed", "slower"}:
        ended = {"passed": "every arm passed", "slower": "an arm is slower"}[analysis.gate.outcome]
        return [f"Ended after {counted(rounds, 'round')}: {ended}."]
    judged = [arm.verdict for arm in summary.arms if arm.verdict]
    settled = rounds >= FIRST_LOOK and all(verdict.kind != "unresolved" for verdict in judged)
    if not settled and rounds == config.rounds:
        why = "--repeats allows no more"
    elif not settled and config.budget_seconds is not None:
        why = f"--budget {config.budget_seconds:g} has no time for another"
    elif not settled:
        minutes = max(1, round(max(config.limit_seconds, elapsed_seconds(run)) * _LONGER / 60))
        time = duration(config.limit_seconds)
        uneven = any(verdict.uneven_load for verdict in judged)
        remedy = "" if uneven else f". Give it longer: --budget {minutes * 60}"  # uneven_loads has its own
        why = f"{time} have no time for another{remedy}"
    elif summary.oversubscribed:
        why = "more would not help, because oversubscribed arms are not ranked"
    else:
        why = "every verdict is settled" if judged else "there is no verdict to settle"
    return [f"Ended after {counted(rounds, 'round')}: {why}."]


def _unresolved(run: Run, summary: Summary) -> list[str]:
    found = {arm.arm: arm.verdict for arm in summary.arms if arm.verdict and arm.verdict.kind == "unresolved"}
    early = any(verdict.n < FIRST_LOOK for verdict in found.values())
    few = f"No verdict before round {FIRST_LOOK}"
    if run.config.settle_seconds is None:
        longer = " or a longer --budget" if run.config.budget_seconds else ", or leave it out"
        few += f": use --repeats {FIRST_LOOK}{longer}"
    lines = [f"{arm} is {describe(verdict)}." for arm, verdict in found.items() if verdict.n >= FIRST_LOOK]
    return [f"{few}.", *lines] if early else lines


# ---- the same training ----


def _trained_model(run: Run, summary: Summary) -> list[str]:
    """Return lines that compare the final parameters of exact arms, and say why other arms differ."""
    arms = {arm.label: arm for arm in run.config.synchronising}
    ends = {arm.arm: arm.final_hash for arm in summary.arms if arm.arm in arms}
    hashes = {label: end for label, end in ends.items() if not _why_other(arms[label])}
    all_arms = "every arm" if len(hashes) > 1 else "the arm"
    return _of_exact(hashes, all_arms if len(hashes) == len(ends) else ", ".join(hashes)) + [
        f"{label} {_why_other(arms[label])} ({_short(end)})."
        for label, end in ends.items()
        if label not in hashes
    ]


def _why_other(arm: Arm) -> str:
    """Return why an arm may end with another hash than exact arms; empty if it may not."""
    if arm.traits.one_process:
        return "adds up the samples of a step in one process, in another order"
    if arm.traits.another_training:
        return "is another training by declaration: read its accuracy and loss beside its speed"
    if not arm.same_training:
        return "is the same training at period 1 alone: read its accuracy and loss beside its speed"
    if arm.traits.in_shards:
        return "holds its parameters in shards, so only the reference proves its training"
    if not arm.exact:
        return "rounds or compresses by design: its ranks agree, on other parameters than exact arms"
    return ""


def _of_exact(hashes: dict[str, str | None], whose: str) -> list[str]:
    first = next(iter(hashes.values()), None)
    if not hashes:
        return []
    if first is not None and set(hashes.values()) == {first}:
        return [f"All ranks of {whose} ended with the same parameters, bit for bit ({first[:_HASH_DIGITS]})."]
    each = ", ".join(f"{arm} {_short(value)}" for arm, value in hashes.items())
    return [f"The ranks of every launch ended with the same parameters, but the arms differ: {each}."]


def _parity(run: Run, summary: Summary) -> list[str]:
    """Return lines with the difference of each arm from a single process, as rank 0 found it."""
    proven = {arm.arm: arm.parity for arm in summary.arms if arm.parity.steps is not None}
    if not proven:
        return []
    steps = min(parity.steps or 0 for parity in proven.values())
    exact = {arm: parity for arm, parity in proven.items() if parity.outcome != "exempt"}
    lossy = {arm: parity for arm, parity in proven.items() if parity.outcome == "exempt"}
    near = _near([parity.difference for parity in exact.values()])
    at_period_1 = {
        arm.label for arm in run.config.arms if not arm.same_training and not arm.traits.another_training
    }
    names = [f"{arm} at period 1" if arm in at_period_1 else arm for arm in exact]
    whose = ", ".join(names) if lossy or at_period_1 else _who(run, summary, list(proven))
    found = [f"{whose} {near}"] if exact else []
    other = {arm.label for arm in run.config.arms if arm.traits.another_training}
    found += [
        f"{arm} ({'another training' if arm in other else 'lossy'}) {_away(parity.difference)}"
        for arm, parity in lossy.items()
    ]
    lines = [f"Parity with a single process, in each of {steps} float64 steps: {'; '.join(found)}."]
    repeating = {arm: parity.by_hash for arm, parity in proven.items() if parity.by_hash}
    each = ", ".join(f"{counted(count, 'round')} of {arm}" for arm, count in repeating.items())
    return [
        *lines,
        *([f"Proven by their hashes, equal to those of a proven launch: {each}."] if each else []),
    ]


def _buffers(run: Run) -> list[str]:
    """Return a line with the arms whose ranks ended with different buffers, and do not broadcast them."""
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
    if not different:
        return []
    found = f"Buffers, such as BatchNorm's statistics, differ between the ranks of {', '.join(different)}."
    return [f"{found} The test used rank 0's on every rank."]


def _compiled(run: Run) -> list[str]:
    """Return a line with the number of compiled graphs of each arm, and of the breaks between them."""
    arms: dict[tuple[int, int], list[str]] = {}
    for arm in run.config.arms if run.config.compile else ():
        for launch in run.of(arm)[:1]:
            found = launch.ranks[0].attestation
            if found.get("compiled_graphs"):
                arms.setdefault((found["compiled_graphs"], found["graph_breaks"]), []).append(arm.label)
    each = [
        f"{counted(graphs, 'graph')} with {counted(breaks, 'break')}"
        + (f" in {', '.join(labels)}" if len(arms) > 1 else "")
        for (graphs, breaks), labels in arms.items()
    ]
    return [f"Compiled: {'; '.join(each)}. What lies at a break runs as it was written."] if each else []


def _who(run: Run, summary: Summary, proven: list[str]) -> str:
    """Name the arms that have a parity pass: one by one, or as every arm or every arm that synchronises."""
    if len(proven) == len(summary.arms):
        return "every arm"
    asked = [arm.label for arm in run.config.synchronising if run.of(arm)]
    return "every arm that synchronises" if set(proven) == set(asked) else ", ".join(proven)


def _near(differences: list[float | None]) -> str:
    numbers = [difference for difference in differences if difference is not None]
    if len(numbers) < len(differences) or not numbers:
        return "without a number"
    return f"within {max(numbers):.0e}" if max(numbers) > 0 else "exactly"


def _away(difference: float | None) -> str:
    return "without a number" if difference is None else f"{difference:.0e} away"


def _short(value: str | None) -> str:
    return "not the same in every round" if value is None else value[:_HASH_DIGITS]
