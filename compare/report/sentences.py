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
from compare.report.columns import describe
from compare.schema.arms import Arm
from compare.schema.results import Run
from compare.text import counted, listed

MARK = "*"
"""Mark of an arm that by design does not train exactly the same."""
_BUDGET_STEP_SECONDS = 60
_HARDLY = 50
"""Number of further rounds above which none are advised."""
_FEW_NAMES = 3
_UNPROVEN = {
    "nothing": "NOTHING TO PROVE",
    "incomparable": "NOT COMPARABLE with one process, so its time is not proven",
}
"""What is written of arms for which nothing failed, and nothing is proven, by the outcome of their gates."""


# ---- what was trained ----


def why_marked(arm: Arm) -> str:
    """Return how an arm by design does not train exactly the same; empty for an exact arm."""
    if arm.traits.another_training:
        return "another training by declaration"
    if not arm.same_training:
        return "the same training at period 1 alone"
    return "" if arm.exact else "rounds or compresses by design"


def marks(run: Run, summary: Summary) -> Iterator[str]:
    """Yield a line for each reason of a mark, with the test losses of its arms and of the baseline."""
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
    """Yield lines on what is proven of the arms' training, and what is not.

    There is at most one line, unless a proof is missing, open or failed.
    """
    asked = {arm.label: arm for arm in run.config.synchronising}
    arms = [arm for arm in summary.arms if arm.arm in asked]
    exact = [arm for arm in arms if not why_marked(asked[arm.arm])]
    passed = [arm for arm in exact if arm.parity.outcome == "passed"]
    if failed := [arm.arm for arm in arms if arm.parity.outcome == "failed"]:
        yield f"✗ PROOF FAILED: {listed(failed)} did not train what one process trains."
    if missing := [arm.arm for arm in arms if arm.parity.outcome == "none"]:
        yield f"NOT PROVEN: a launch of {listed(missing)} has no proof of its training."
    for outcome, title in _UNPROVEN.items():
        unproven = [arm for arm in arms if arm.parity.outcome == outcome]
        yield from _by_reason(title, {arm.arm: [arm.parity.why] for arm in unproven})
    if len(passed) == 1:
        yield f"✓ {passed[0].arm} trained what one process trains: proven for {_steps(passed, 'its hash')}."
    elif passed:
        every = "All arms" if len(exact) == len(arms) else f"All but {MARK}"
        are_all = len(passed) == len(exact) and len(arms) == len(asked)
        names = every if are_all else listed(arm.arm for arm in passed)
        apart = distance_of_ends(run, [arm.arm for arm in passed])
        steps = f"{_steps(passed, 'their hashes')}{_bits(asked, passed, apart)}"
        yield f"✓ {names} trained the same model: proven for {steps}."
        yield from _ended_apart(passed, apart)
    yield from _by_reason("Open in that proof", {arm.arm: arm.parity.open for arm in passed})


def _steps(passed: Sequence[ArmSummary], hashes: str) -> str:
    """Return how many steps are proven for every arm that passed, and if one at the end is proven too.

    ``hashes`` is added if a launch is proven because it repeats a proven one.
    """
    later = f", in later rounds by {hashes}" if any(arm.parity.by_hash for arm in passed) else ""
    if any(line.startswith(AT_THE_END) for arm in passed for line in arm.parity.open):
        return f"one step at the end alone{later}"
    end = " and one at the end" if all(arm.parity.at_end for arm in passed) else ""
    return f"{counted(min(arm.parity.steps or 0 for arm in passed), 'step')}{end}{later}"


def _by_reason(title: str, reasons: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a line for each reason, with the arms that have it; ``reasons`` maps arms to their reasons."""
    arms: dict[str, list[str]] = {}
    for arm, its in reasons.items():
        for reason in its:
            arms.setdefault(reason, []).append(arm)
    for reason, names in arms.items():
        yield f"{title}: {listed(names)}: {reason.removesuffix('.')}."


def _bits(asked: Mapping[str, Arm], passed: Sequence[ArmSummary], apart: float | None) -> str:
    """Return a phrase on whether the arms ended equal: bit for bit, except for rounding, or not known.

    Arms that hold their parameters in shards are left out, because they have no hash to compare. A larger
    distance is left to ``_ended_apart``.
    """
    whole = [arm for arm in passed if not asked[arm.arm].traits.in_shards]
    hashes = {arm.final_hash for arm in whole}
    if whole and len(hashes) == 1 and None not in hashes:
        if len(whole) == len(passed):
            return ", equal bit for bit"
        return f"; {listed(arm.arm for arm in whole)} equal bit for bit" if len(whole) > 1 else ""
    if whole and apart is not None and apart <= ROUNDING_MAKES:
        return f", apart from rounding ({apart:.0e} of their way)"
    return ", but how far apart they ended is not recorded" if whole and apart is None else ""


def _ended_apart(passed: Sequence[ArmSummary], apart: float | None) -> Iterator[str]:
    """Yield a line on how far apart the arms ended, if that is known and rounding does not explain it."""
    if apart is not None and apart > ROUNDING_MAKES:
        losses = [arm.test_loss for arm in passed if arm.test_loss is not None]
        shown = f", with a test loss of {min(losses):.4g} to {max(losses):.4g}" if losses else ""
        yield (
            f"BUT THEY ENDED {apart:.2g} of their way apart{shown}. Something differs between the proven "
            "steps, or the training makes rounding grow that far."
        )


# ---- what was found ----


def conclusion(run: Run, analysis: Analysis) -> str:
    """Return the conclusion of a run: the fastest arm, or why it is open."""
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
        return so_far + _of_one(run, summary)
    settled = _settled(run, summary, summary.lead)
    where = ["in noisy rounds"] if summary.noisy_rounds else []
    where += ["on average over loads"] if analysis.load_dependence else []
    if settled and where:
        settled = f"{settled.removesuffix('.')} ({', '.join(where)})."
    return so_far + (settled or _open(run, summary, summary.lead))


def _of_one(run: Run, summary: Summary) -> str:
    """Return the conclusion if fewer than two synchronising arms have finished, so that none are compared."""
    asked = {arm.label for arm in run.config.synchronising}
    found = [arm for arm in summary.arms if arm.arm in asked]
    if len(asked) > 1:
        finished = listed(arm.arm for arm in found) or "no arm that communicates"
        return f"only {finished} has finished, so there is nothing to compare."
    own = found[0] if found else summary.arms[0]
    step = f"{own.step_seconds.mean * 1e3:.2f} ms"
    if own.sync_share is None or own.sync_seconds is None:
        return f"A step of {own.arm} takes {step}."
    if own.below_noise:
        return f"A step of {own.arm} takes {step}; its sync cost is below the noise."
    sync = f"{own.sync_seconds.mean * 1e3:.2f} ms"
    return f"A step of {own.arm} takes {step}; {sync} of it, {own.sync_share.mean:.0%}, is sync cost."


def _settled(run: Run, summary: Summary, lead: Lead) -> str:
    if lead.equivalent:
        equal = listed(marked(run, [lead.first, *lead.rivals]))
        return f"Fastest here: {equal}, equivalent within {MARGIN * 100:g} %."
    if lead.fastest is None:
        return ""
    own = next(arm for arm in summary.arms if arm.arm == lead.first)
    return f"Fastest here: {', '.join([lead.first, *_against_baseline(run, own)])}."


def _against_baseline(run: Run, own: ArmSummary) -> Iterator[str]:
    """Yield how the fastest arm compares with the baseline, and the reason for its mark if it has one."""
    if own.arm == run.config.baseline:
        yield "the baseline"
    elif own.verdict and own.verdict.kind == "faster":
        ratio, _, interval = describe(own.verdict).partition(" [")
        yield f"{ratio} than {run.config.baseline} [{interval}"
    if why := why_marked(next(arm for arm in run.config.arms if arm.label == own.arm)):
        yield f"{MARK} {why}"


def marked(run: Run, labels: Sequence[str]) -> list[str]:
    """Return the labels, with a mark on each arm that by design does not train exactly the same."""
    of = {arm.label: arm for arm in run.config.arms}
    return [f"{label} {MARK}" if why_marked(of[label]) else label for label in labels]


def _open(run: Run, summary: Summary, lead: Lead) -> str:
    rounds = max(arm.step_seconds.n for arm in summary.arms)
    if rounds < FIRST_LOOK:
        remedy = ""
        if run.complete and run.config.budget_seconds is not None:
            remedy = " Give it a longer --budget."
        elif run.complete and run.config.settle_seconds is None:
            remedy = " Leave --repeats out."
        return f"Fastest here: open until round {FIRST_LOOK}; this is round {rounds}.{remedy}"
    names = marked(run, [lead.first, *lead.rivals])
    whose = " or ".join(names) if len(names) <= _FEW_NAMES else f"{names[0]} or {len(names) - 1} others"
    more = lead.rounds_to_settle
    if any(
        arm.verdict and arm.verdict.uneven_load and arm.verdict.kind == "unresolved" for arm in summary.arms
    ):
        return f"Fastest here: {whose}. The load was uneven, so that is open."
    if more is None or more > _HARDLY:
        return f"Fastest here: {whose}. More rounds would hardly tell them apart."
    seconds = expected_seconds(run, rounds + more)
    budget = math.ceil(seconds / _BUDGET_STEP_SECONDS) * _BUDGET_STEP_SECONDS
    return f"Fastest here: {whose}. About {counted(more, 'more round')} would tell: --budget {budget}."
