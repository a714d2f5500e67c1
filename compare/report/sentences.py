"""Write the proof, the conclusion and the notes of a run as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from compare.analysis import Analysis
from compare.analysis.budget import ALPHA, FIRST_LOOK, budget_for
from compare.analysis.noise import POWER
from compare.analysis.parity import AT_THE_END, ROUNDING_MAKES, distance_of_ends
from compare.analysis.ranking import Lead
from compare.analysis.summary import WAITING_CORES_LIMIT, ArmSummary, Summary, TurnsSummary
from compare.analysis.verdict import MARGIN
from compare.report.cells import format_ratio
from compare.report.columns import describe_verdict, why_open
from compare.report.memory import bare_sentences, memory_sentences
from compare.schema.arms import Arm
from compare.schema.results import Launch, Run
from compare.text import counted, duration, listed, percent

MARK = "*"
"""Mark of an arm that by design does not train exactly what a single process trains."""
MOST_ADVISED_ROUNDS = 50
"""Largest number of further rounds that is advised; more would hardly be worth their time."""
_FEW_NAMES = 3
_UNPROVEN_TEXTS = {
    "nothing": "NOTHING TO PROVE",
    "incomparable": "NOT COMPARABLE with one process, so its time is not proven",
}
"""Text about arms that are not proven although no gate failed, by the outcome of their proof."""
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


# ---- what was trained ----


def why_marked(arm: Arm) -> str:
    """Return why an arm has a mark: how its training differs by design; empty for an exact arm."""
    if arm.traits.another_training:
        return "another training by declaration"
    if not arm.same_training:
        return "the same training at period 1 alone"
    return "" if arm.exact else "rounds or compresses by design"


def mark_notes(run: Run, summary: Summary) -> Iterator[str]:
    """Yield a line for each reason why arms have a mark, with their test losses and the baseline's."""
    losses = {
        arm.arm: "not a number" if arm.test_loss is None else f"{arm.test_loss:.4g}" for arm in summary.arms
    }
    reasons: dict[str, list[str]] = {}
    for arm in run.config.arms:
        if arm.label in losses and (why := why_marked(arm)):
            reasons.setdefault(why, []).append(arm.label)
    for why, names in reasons.items():
        shown = [name for name in dict.fromkeys([*names, run.config.baseline]) if name in losses]
        yield f"{MARK} {why}. Test loss: {', '.join(f'{name} {losses[name]}' for name in shown)}."


def proof(run: Run, summary: Summary) -> Iterator[str]:
    """Yield lines on which arms are proven to train what one process trains, and which are not.

    There is a single line if all proofs passed and left nothing open, and the arms ended alike.
    """
    synchronising = {arm.label: arm for arm in run.config.synchronising}
    arms = [arm for arm in summary.arms if arm.arm in synchronising]
    exact = [arm for arm in arms if not why_marked(synchronising[arm.arm])]
    passed = [arm for arm in exact if arm.parity.outcome == "passed"]
    if failed := [arm.arm for arm in arms if arm.parity.outcome == "failed"]:
        yield f"✗ PROOF FAILED: {listed(failed)} did not train what one process trains."
    if missing := [arm.arm for arm in arms if arm.parity.outcome == "none"]:
        yield f"NOT PROVEN: a launch of {listed(missing)} has no proof of its training."
    yield from bare_sentences(summary.bare)
    for outcome, title in _UNPROVEN_TEXTS.items():
        unproven = [arm for arm in arms if arm.parity.outcome == outcome]
        yield from _by_reason(title, {arm.arm: [arm.parity.why] for arm in unproven})
    if len(passed) == 1:
        steps = _proven_steps(passed, "its hash")
        yield f"✓ {passed[0].arm} trained what one process trains: proven for {steps}."
    elif passed:
        every = "All arms" if len(exact) == len(arms) else f"All but {MARK}"
        are_all = len(passed) == len(exact) and len(arms) == len(synchronising)
        names = every if are_all else listed(arm.arm for arm in passed)
        apart = distance_of_ends(run, [arm.arm for arm in passed])
        steps = f"{_proven_steps(passed, 'their hashes')}{_how_equal(synchronising, passed, apart)}"
        yield f"✓ {names} trained the same model: proven for {steps}."
        yield from ended_apart(passed, apart)
    yield from _by_reason("Open in that proof", {arm.arm: arm.parity.open for arm in passed})


def _proven_steps(passed: Sequence[ArmSummary], hashes: str) -> str:
    """Return how many steps are proven for every arm that passed, and whether one at the end is as well.

    ``hashes`` names what proves later launches, which repeat a proven one; it is added if there are any.
    """
    later = f", in later rounds by {hashes}" if any(arm.parity.by_hash for arm in passed) else ""
    if any(line.startswith(AT_THE_END) for arm in passed for line in arm.parity.open):
        return f"one step at the end alone{later}"
    end = " and one at the end" if all(arm.parity.at_end for arm in passed) else ""
    return f"{counted(min(arm.parity.steps or 0 for arm in passed), 'step')}{end}{later}"


def _by_reason(title: str, reasons: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a line for each reason, with the arms that have it; ``reasons`` maps arms to their reasons."""
    arms_by_reason: dict[str, list[str]] = {}
    for arm, arm_reasons in reasons.items():
        for reason in arm_reasons:
            arms_by_reason.setdefault(reason, []).append(arm)
    for reason, names in arms_by_reason.items():
        yield f"{title}: {listed(names)}: {reason.removesuffix('.')}."


def _how_equal(synchronising: Mapping[str, Arm], passed: Sequence[ArmSummary], apart: float | None) -> str:
    """Return a phrase on whether the arms ended equal: bit for bit, except for rounding, or not known.

    ``apart`` is the distance between their final parameters, as a share of the way that they moved; None if
    it is not known. Arms that hold parameters in shards have no hash, so they are left out. The phrase is
    empty for a larger distance, which ``ended_apart`` reports.
    """
    whole = [arm for arm in passed if not synchronising[arm.arm].traits.in_shards]
    hashes = {arm.final_hash for arm in whole}
    if whole and len(hashes) == 1 and None not in hashes:
        if len(whole) == len(passed):
            return ", equal bit for bit"
        return f"; {listed(arm.arm for arm in whole)} equal bit for bit" if len(whole) > 1 else ""
    if whole and apart is not None and apart <= ROUNDING_MAKES:
        return f", apart from rounding ({apart:.0e} of their way)"
    return ", but how far apart they ended is not recorded" if whole and apart is None else ""


def ended_apart(passed: Sequence[ArmSummary], apart: float | None) -> Iterator[str]:
    """Yield a warning if the final parameters of arms differ by more than rounding explains.

    ``apart`` is their distance as a share of the way that the parameters moved.
    """
    if apart is not None and apart > ROUNDING_MAKES:
        losses = [arm.test_loss for arm in passed if arm.test_loss is not None]
        shown = f", with a test loss of {min(losses):.4g} to {max(losses):.4g}" if losses else ""
        yield (
            f"BUT THEY ENDED {apart:.2g} of their way apart{shown}. Something differs between the proven "
            "steps, or the training makes rounding grow that far."
        )


# ---- what was found ----


def conclusion(run: Run, analysis: Analysis) -> str:
    """Return the conclusion of a run: the fastest arm, or why that is not known, and what shards save."""
    saved = [] if analysis.aa else list(memory_sentences(run, analysis.summary))
    return " ".join([_conclusion_on_time(run, analysis), *saved[:_FEW_NAMES]])


def _conclusion_on_time(run: Run, analysis: Analysis) -> str:
    summary = analysis.summary
    if not summary.arms:
        return "No launch has finished, so there is nothing to compare."
    if analysis.aa:
        compared = counted(len(analysis.aa.verdicts), "comparison")
        return f"{analysis.aa.false_differences} of {compared} found a difference where none exists."
    if summary.noise_hides_all:
        return "No arm is ranked: the noise of this run hides every difference."
    if summary.oversubscribed:
        return "No arm is ranked: ranks and threads outnumber the cores."
    so_far = "" if run.complete else "So far: "
    if summary.lead is None:
        return so_far + _single_arm_conclusion(run, summary)
    settled = _settled_conclusion(run, summary, summary.lead)
    where = ["in noisy rounds"] if summary.noisy_rounds else []
    where += ["on average over loads"] if analysis.load_dependence else []
    if settled and where:
        settled = f"{settled.removesuffix('.')} ({', '.join(where)})."
    return so_far + (settled or _open_conclusion(run, summary, summary.lead))


def _single_arm_conclusion(run: Run, summary: Summary) -> str:
    """Return the conclusion if fewer than two synchronising arms have finished, so that none are compared."""
    synchronising = {arm.label for arm in run.config.synchronising}
    arms = [arm for arm in summary.arms if arm.arm in synchronising]
    if len(synchronising) > 1:
        finished = listed(arm.arm for arm in arms) or "no arm that communicates"
        return f"only {finished} has finished, so there is nothing to compare."
    arm = arms[0] if arms else summary.arms[0]
    step = f"{arm.step_seconds.mean * 1e3:.2f} ms"
    if arm.sync_share is None or arm.sync_seconds is None:
        return f"A step of {arm.arm} takes {step}."
    if arm.below_noise:
        return f"A step of {arm.arm} takes {step}; its sync cost is below the noise."
    sync = f"{arm.sync_seconds.mean * 1e3:.2f} ms"
    return f"A step of {arm.arm} takes {step}; {sync} of it, {percent(arm.sync_share.mean)}, is sync cost."


def _settled_conclusion(run: Run, summary: Summary, lead: Lead) -> str:
    """Return the fastest arm, or the arms that are equally fast; empty while that is open."""
    if lead.same:
        equal = listed(marked_labels(run, [lead.first, *lead.rivals]))
        return f"Fastest here: {equal}, the same within {MARGIN * 100:g} %."
    if lead.fastest is None:
        return ""
    fastest = next(arm for arm in summary.arms if arm.arm == lead.first)
    return f"Fastest here: {', '.join([lead.first, *_against_baseline(run, fastest)])}."


def _against_baseline(run: Run, fastest: ArmSummary) -> Iterator[str]:
    """Yield how the fastest arm compares with the baseline, and the reason for its mark if it has one."""
    if fastest.arm == run.config.baseline:
        yield "the baseline"
    elif fastest.verdict and fastest.verdict.kind == "faster":
        yield f"{describe_verdict(fastest.verdict)} the speed of {run.config.baseline}"
    if why := why_marked(next(arm for arm in run.config.arms if arm.label == fastest.arm)):
        yield f"{MARK} {why}"


def marked_labels(run: Run, labels: Sequence[str]) -> list[str]:
    """Return the labels, with ``MARK`` after each that names an arm which is not exact by design."""
    arms = {arm.label: arm for arm in run.config.arms}
    return [f"{label} {MARK}" if why_marked(arms[label]) else label for label in labels]


def _open_conclusion(run: Run, summary: Summary, lead: Lead) -> str:
    """Return which arms may be the fastest, and what would settle it."""
    rounds = max(arm.step_seconds.n for arm in summary.arms)
    if rounds < FIRST_LOOK:
        remedy = ""
        if run.complete and run.config.budget_seconds is not None:
            remedy = " Give it a longer --budget."
        elif run.complete and run.config.settle_seconds is None:
            remedy = " Leave --repeats out."
        return f"Fastest here: open until round {FIRST_LOOK}; this is round {rounds}.{remedy}"
    names = marked_labels(run, [lead.first, *lead.rivals])
    candidates = " or ".join(names) if len(names) <= _FEW_NAMES else f"{names[0]} or {len(names) - 1} others"
    further_rounds = lead.rounds_to_settle
    if any(arm.verdict and arm.verdict.uneven_load and arm.verdict.kind == "open" for arm in summary.arms):
        return f"Fastest here: {candidates}. The load was uneven, so that is open."
    if further_rounds is None or further_rounds > MOST_ADVISED_ROUNDS:
        return f"Fastest here: {candidates}. More rounds would hardly tell them apart."
    rounds_text, budget = counted(further_rounds, "more round"), budget_for(run, rounds + further_rounds)
    return f"Fastest here: {candidates}. About {rounds_text} would tell: --budget {budget}."


# ---- what explains the figures ----


def notes(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield the lines that explain the figures of a run; nothing if no launch has finished."""
    summary = analysis.summary
    if not summary.arms:
        return
    if names := [one.item.partition(" in ")[0] for one in analysis.conditions if one.by_library]:
        yield f"The libraries differ in: {', '.join(names)}."
    if aa := analysis.aa:
        length = counted(aa.rounds_each, "round")
        comparisons = f"{aa.false_differences} of {counted(len(aa.verdicts), 'comparison')} of {length}"
        rate = f"{percent(aa.rate, '.1f')} (95 % interval {aa.low * 100:.1f}–{percent(aa.high, '.1f')})"
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
    yield from (
        f"{arm.arm} is open, {describe_verdict(arm.verdict).removesuffix(' open')}: {why_open(arm.verdict)}."
        for arm in summary.arms
        if arm.verdict and arm.verdict.kind == "open" and arm.verdict.n >= FIRST_LOOK
    )
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
        + (
            " A bare step is one of none (T_0). An arm's own computing is its step without "
            "synchronising, beside its library (T_R)."
            if any(arm.detail.reference_seconds for arm in summary.arms)
            else ""
        )
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
    theory = f" With equal stages, ranks would wait {percent(facts[0]['bubble_in_theory'])} of a pass"
    measured = [replica["waiting_share"] for replica in facts if "waiting_share" in replica]
    return f"{theory}; they waited {percent(fmean(measured))}, with messages." if measured else f"{theory}."


def _turn_notes(run: Run, turns: TurnsSummary) -> Iterator[str]:
    """Yield notes on arms that were timed beyond their training, and on arms that used CPU while waiting."""
    if arms := turns.trained_on:
        every = "every arm" if len(arms) == len(run.config.arms) else ", ".join(arms)
        steps = f"{run.config.total_steps:,} steps"
        yield f"Every arm trained {steps}. For timing only, {every} went on after them."
    if turns.awake:
        each = ", ".join(f"{arm} {percent(cores, '.1f')}" for arm, cores in turns.awake.items())
        yield f"While they waited, arms took more than {percent(WAITING_CORES_LIMIT, 'g')} of a core: {each}."


def _why_ended(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield a line on why a run ended; nothing for a fixed number of rounds or an incomplete run."""
    config, summary = run.config, analysis.summary
    if config.limit_seconds is None or not run.complete:
        return
    rounds = max(arm.step_seconds.n for arm in summary.arms)
    verdicts = [arm.verdict for arm in summary.arms if arm.verdict]
    settled = (
        not analysis.gate and rounds >= FIRST_LOOK and all(verdict.kind != "open" for verdict in verdicts)
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


def detectable_differences(summary: Summary) -> Iterator[str]:
    """Yield a line with the ratio of each open arm that 80 of 100 such runs would find."""
    each = listed(
        f"{format_ratio(1 + arm.would_have_seen)} in {arm.arm}"
        for arm in summary.arms
        if arm.verdict and arm.verdict.kind == "open" and arm.would_have_seen is not None
    )
    if each and not summary.noise_hides_all:
        yield f"Open: {POWER * 100:g} of 100 such runs would have seen a ratio of {each}."


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
