"""Write the proof and the conclusion of a run as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from compare.analysis import Analysis
from compare.analysis.budget import expected_seconds
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.parity import AT_THE_END, ROUNDING_MAKES, distance_of_ends
from compare.analysis.ranking import Lead
from compare.analysis.summary import ArmSummary, Summary
from compare.analysis.verdict import MARGIN
from compare.report.columns import describe_verdict
from compare.schema.arms import Arm
from compare.schema.results import Run
from compare.text import counted, listed

MARK = "*"
"""Mark of an arm that by design does not train exactly what a single process trains."""
_BUDGET_STEP_SECONDS = 60
_MOST_ADVISED_ROUNDS = 50
"""Largest number of further rounds that is advised; more would hardly be worth their time."""
_FEW_NAMES = 3
_UNPROVEN_TEXTS = {
    "nothing": "NOTHING TO PROVE",
    "incomparable": "NOT COMPARABLE with one process, so its time is not proven",
}
"""Text about arms that are not proven although no gate failed, by the outcome of their proof."""


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
        yield from _ended_apart(passed, apart)
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
    empty for a larger distance, which ``_ended_apart`` reports.
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


def _ended_apart(passed: Sequence[ArmSummary], apart: float | None) -> Iterator[str]:
    """Yield a line on the distance ``apart`` between the arms' ends, if rounding does not explain it."""
    if apart is not None and apart > ROUNDING_MAKES:
        losses = [arm.test_loss for arm in passed if arm.test_loss is not None]
        shown = f", with a test loss of {min(losses):.4g} to {max(losses):.4g}" if losses else ""
        yield (
            f"BUT THEY ENDED {apart:.2g} of their way apart{shown}. Something differs between the proven "
            "steps, or the training makes rounding grow that far."
        )


# ---- what was found ----


def conclusion(run: Run, analysis: Analysis) -> str:
    """Return the conclusion of a run: which arm is fastest, or why that is not known."""
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
    return f"A step of {arm.arm} takes {step}; {sync} of it, {arm.sync_share.mean:.0%}, is sync cost."


def _settled_conclusion(run: Run, summary: Summary, lead: Lead) -> str:
    """Return the fastest arm, or the arms that are equivalently fast; empty while that is open."""
    if lead.equivalent:
        equal = listed(marked_labels(run, [lead.first, *lead.rivals]))
        return f"Fastest here: {equal}, equivalent within {MARGIN * 100:g} %."
    if lead.fastest is None:
        return ""
    fastest = next(arm for arm in summary.arms if arm.arm == lead.first)
    return f"Fastest here: {', '.join([lead.first, *_against_baseline(run, fastest)])}."


def _against_baseline(run: Run, fastest: ArmSummary) -> Iterator[str]:
    """Yield how the fastest arm compares with the baseline, and the reason for its mark if it has one."""
    if fastest.arm == run.config.baseline:
        yield "the baseline"
    elif fastest.verdict and fastest.verdict.kind == "faster":
        ratio, _, interval = describe_verdict(fastest.verdict).partition(" [")
        yield f"{ratio} than {run.config.baseline} [{interval}"
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
    if any(
        arm.verdict and arm.verdict.uneven_load and arm.verdict.kind == "unresolved" for arm in summary.arms
    ):
        return f"Fastest here: {candidates}. The load was uneven, so that is open."
    if further_rounds is None or further_rounds > _MOST_ADVISED_ROUNDS:
        return f"Fastest here: {candidates}. More rounds would hardly tell them apart."
    seconds = expected_seconds(run, rounds + further_rounds)
    budget = math.ceil(seconds / _BUDGET_STEP_SECONDS) * _BUDGET_STEP_SECONDS
    rounds_text = counted(further_rounds, "more round")
    return f"Fastest here: {candidates}. About {rounds_text} would tell: --budget {budget}."
