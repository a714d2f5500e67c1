"""Write the proof and the conclusion of a run as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from compare.analysis import Analysis
from compare.analysis.budget import expected_seconds
from compare.analysis.ends import ROUNDING_MAKES, distance_of_ends
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.parity import AT_THE_END
from compare.analysis.ranking import Lead
from compare.analysis.summary import ArmSummary, Summary
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


# ---- what was trained ----


def why_marked(arm: Arm) -> str:
    """Return how an arm by design does not train exactly the same; empty for an exact arm."""
    if arm.traits.another_training:
        return "another training by declaration"
    if not arm.same_training:
        return "the same training at period 1 alone"
    return "" if arm.exact else "rounds or compresses by design"


def marks(run: Run, summary: Summary) -> list[str]:
    """Return a line for each reason of a mark, with the test losses of its arms and of the baseline."""
    of = {arm.arm: arm for arm in summary.arms}
    reasons: dict[str, list[str]] = {}
    for arm in run.config.arms:
        if arm.label in of and (why := why_marked(arm)):
            reasons.setdefault(why, []).append(arm.label)
    return [
        f"{MARK} {why}. Test loss: {', '.join(map(_loss, (of[name] for name in _with(names, run, of))))}."
        for why, names in reasons.items()
    ]


def _with(names: list[str], run: Run, of: dict[str, ArmSummary]) -> list[str]:
    baseline = run.config.baseline
    return [*names, *([baseline] if baseline in of and baseline not in names else [])]


def _loss(arm: ArmSummary) -> str:
    return f"{arm.arm} {'no number' if arm.test_loss is None else f'{arm.test_loss:.4g}'}"


def proof(run: Run, summary: Summary) -> list[str]:
    """Return lines on what is proven of the arms' training, and what is not.

    There is at most one line, unless a proof is missing, open or failed.
    """
    asked = {arm.label: arm for arm in run.config.synchronising}
    arms = [arm for arm in summary.arms if arm.arm in asked]
    passed = [arm for arm in arms if arm.parity.outcome == "passed" and not why_marked(asked[arm.arm])]
    missing = [arm.arm for arm in arms if arm.parity.outcome == "none"]
    failed = [arm.arm for arm in arms if arm.parity.outcome == "failed"]
    lines = [f"✗ PROOF FAILED: {listed(failed)} did not train what one process trains."] if failed else []
    lines += [f"NOT PROVEN: a launch of {listed(missing)} has no proof of its training."] if missing else []
    lines += [
        *_by_reason(
            "NOTHING TO PROVE", {a.arm: [a.parity.why] for a in arms if a.parity.outcome == "nothing"}
        ),
        *_by_reason(
            "NOT COMPARABLE with one process, so its time is not proven",
            {a.arm: [a.parity.why] for a in arms if a.parity.outcome == "incomparable"},
        ),
    ]
    if len(passed) == 1:
        steps = _proven_steps(passed)
        by_hash = _by_hash(passed, "its hash")
        lines.append(f"✓ {passed[0].arm} trained what one process trains: proven for {steps}{by_hash}.")
    elif passed:
        unmarked = [arm for arm in arms if not why_marked(asked[arm.arm])]
        every = "All arms" if len(unmarked) == len(arms) else f"All but {MARK}"
        are_all = len(passed) == len(unmarked) and len(arms) == len(asked)
        names = every if are_all else listed(arm.arm for arm in passed)
        apart = distance_of_ends(run, [arm.arm for arm in passed])
        bits = _bits(asked, passed, apart)
        steps = f"{_proven_steps(passed)}{_by_hash(passed, 'their hashes')}"
        lines.append(f"✓ {names} trained the same model: proven for {steps}{bits}.")
        lines += _ended_apart(passed, apart)
    return [*lines, *_by_reason("Open in that proof", {arm.arm: arm.parity.open for arm in passed})]


def _proven_steps(passed: Sequence[ArmSummary]) -> str:
    """Return how many steps are proven for every arm that passed, and if one at the end is proven too."""
    if any(line.startswith(AT_THE_END) for arm in passed for line in arm.parity.open):
        return "one step at the end alone"
    steps = min(arm.parity.steps or 0 for arm in passed)
    return counted(steps, "step") + (
        " and one at the end" if all(arm.parity.at_end for arm in passed) else ""
    )


def _by_hash(passed: Sequence[ArmSummary], hashes: str) -> str:
    """Return a phrase with ``hashes`` if a launch is proven because it repeats a proven one, or nothing."""
    return f", in later rounds by {hashes}" if any(arm.parity.by_hash for arm in passed) else ""


def _by_reason(title: str, reasons: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each reason, with the arms that have it; ``reasons`` maps arms to their reasons."""
    arms: dict[str, list[str]] = {}
    for arm, its in reasons.items():
        for reason in its:
            arms.setdefault(reason, []).append(arm)
    return [f"{title}: {listed(names)}: {reason.removesuffix('.')}." for reason, names in arms.items()]


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


def _ended_apart(passed: Sequence[ArmSummary], apart: float | None) -> list[str]:
    """Return a line on how far apart the arms ended; empty if that is not known or rounding explains it."""
    if apart is None or apart <= ROUNDING_MAKES:
        return []
    losses = [arm.test_loss for arm in passed if arm.test_loss is not None]
    shown = f", with a test loss of {min(losses):.4g} to {max(losses):.4g}" if losses else ""
    found = (
        f"BUT THEY ENDED {apart:.2g} of their way apart{shown}. Something differs between the proven steps, "
        "or the training makes rounding grow that far."
    )
    return [found]


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
    if lead.fastest is None and not lead.equivalent:
        return ""
    of = {arm.arm: arm for arm in summary.arms}
    if lead.equivalent:
        return f"Fastest here: {listed(_marked(run, [lead.first, *lead.rivals]))}, equivalent within 3 %."
    return f"Fastest here: {', '.join([lead.first, *_beside(run, of[lead.first])])}."


def _beside(run: Run, own: ArmSummary) -> Iterator[str]:
    """Yield how the fastest arm compares with the baseline, and the reason for its mark if it has one."""
    if own.arm == run.config.baseline:
        yield "the baseline"
    elif own.verdict and own.verdict.kind == "faster":
        ratio, _, interval = describe(own.verdict).partition(" [")
        yield f"{ratio} than {run.config.baseline} [{interval}"
    arm = next(arm for arm in run.config.arms if arm.label == own.arm)
    if why := why_marked(arm):
        yield f"{MARK} {why}"


def _marked(run: Run, labels: Sequence[str]) -> list[str]:
    """Return the labels, with a mark on each arm that by design does not train exactly the same."""
    of = {arm.label: arm for arm in run.config.arms}
    return [f"{label} {MARK}" if why_marked(of[label]) else label for label in labels]


def _remedy_for_few_rounds(run: Run) -> str:
    if run.config.budget_seconds is not None:
        return " Give it a longer --budget."
    return " Leave --repeats out." if run.config.settle_seconds is None else ""


def _open(run: Run, summary: Summary, lead: Lead) -> str:
    rounds = max(arm.step_seconds.n for arm in summary.arms)
    if rounds < FIRST_LOOK:
        remedy = _remedy_for_few_rounds(run) if run.complete else ""
        return f"Fastest here: open until round {FIRST_LOOK}; this is round {rounds}.{remedy}"
    names = _marked(run, [lead.first, *lead.rivals])
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
