"""Judge how arms changed between two environments or two runs.

``gate`` compares two interpreters within one run, and has a limit. Every arm is compared with its twin under
the other interpreter, round by round. So a gate shows a slower computation as well as slower synchronising.
An arm passes if a one-sided test shows that it is not slower by the limit. It fails if its two-sided interval
excludes no change and its estimate exceeds the limit. An arm that does neither is unresolved, and never
passes. ``diff`` describes how two runs differ, and has no limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from compare.analysis.attested import ABSENT, spell, transport_of
from compare.analysis.budget import is_oversubscribed, looks, rounds_done
from compare.analysis.estimate import Estimate
from compare.analysis.figures import Figures
from compare.analysis.looks import ALPHA, FIRST_LOOK
from compare.analysis.noise import withhold
from compare.analysis.ranking import log_ratios
from compare.analysis.verdict import Sample, Settled, Verdict, decide, judge, ratio_of, ratios_of
from compare.errors import ConditionsError
from compare.schema.arms import Arm, Interpreter
from compare.schema.results import RankResult, Run

Outcome = Literal["slower", "too noisy", "passed"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """How one arm changed, in ratios of the new figure over the old: above 1 is slower."""

    arm: str
    kind: Literal["slower", "faster", "not slower", "unresolved"]
    """Kind of the change, by the look that settled it.

    - *slower* or *faster*: the interval excludes 1, and in a gate the estimate exceeds the limit
    - *not slower*: ``at_most`` is within the limit of a gate
    - *unresolved*: anything else
    """
    ratio: float | None
    """Geometric mean over the rounds; None if a run has no round of the arm."""
    low: float | None
    """Lower end of the interval; None if a side has a single round."""
    high: float | None
    """Upper end of the same interval."""
    level: float
    """Confidence level of this one interval, after Holm's correction and the shares of the looks."""
    rounds: tuple[int, int]
    """Numbers of rounds of the old and of the new side."""
    at_most: float | None = None
    """Upper end of the one-sided interval by which an arm of a gate passes; None for ``diff``."""
    old: Estimate | None = None
    """Old figure: seconds per step in a gate, step time over the reference arm's in ``diff``."""
    new: Estimate | None = None
    """New figure, in the same unit."""

    @property
    def passed(self) -> bool:
        """Return whether the arm is shown not to be slower than the gate's limit allows."""
        return self.kind in {"faster", "not slower"}


class Differing(msgspec.Struct, frozen=True):
    """A fact that differs between the two sides."""

    what: str
    old: str
    new: str


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """All changes between two sides, as every output format shows them."""

    command: Literal["diff", "gate"]
    old: str
    """Name of the old side."""
    new: str
    """Name of the new side."""
    reference: str
    """Label of the arm whose step times divide those of ``diff``; empty for ``gate``."""
    changes: list[Change]
    limit: float | None = None
    """Largest slowdown that passes, as a fraction; None for ``diff``."""
    outcome: Outcome | None = None
    """What a gate concludes; None for ``diff``."""
    unlike: list[Differing] = []
    """Settings and hosts that should be equal and differ; ``--force`` allowed the comparison."""
    changed: list[Differing] = []
    """Versions and transports that differ, and that may be the reason for a change."""
    notes: list[str] = []
    """Warnings: noisy rounds, stopped runs, arms that only one side has."""


# ---- what differs, and what weakens a judgement ----


def differing(sides: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Differing]:
    """Return the facts that differ, each once.

    ``sides`` has pairs of facts by their names, old and new. A fact that one of a pair lacks is None there.
    """
    found = [
        Differing(what, spell(old.get(what)) or ABSENT, spell(new.get(what)) or ABSENT)
        for old, new in sides
        for what in {**old, **new}
        if old.get(what) != new.get(what)
    ]
    return list(dict.fromkeys(found))


def versions_of(arm: str, rank: RankResult, *more: str) -> dict[str, Any]:
    """Return the versions of all that a rank loaded, its transport, and the facts named ``more``.

    They are what the rank attests. The transport's name has the label of the arm, because arms differ in it.
    """
    libraries = rank.attestation.get("group", {}).get("versions") or {}
    own = {name: rank.attestation.get(name) for name in ("python", "torch", *more)}
    return libraries | own | {f"transport of {arm}": transport_of(rank)}


def weaknesses(figures: Figures) -> Iterator[str]:
    """Yield a phrase for each fact that weakens what is judged of a run."""
    run, noisy = figures.run, figures.noisy_rounds
    if noisy:
        yield f"other programs ran in {len(noisy)} of {rounds_done(run)} rounds"
    if not run.complete:
        yield "the run was stopped, or failed"
    if is_oversubscribed(run):
        yield "ranks and threads outnumber the cores, so no change is named"


# ---- what is judged ----


def outcome_of(changes: Sequence[Change]) -> Outcome:
    """Return a gate's outcome: *slower* if any arm is slower, *passed* if all arms pass, else *too noisy*.

    A gate without any arm is *too noisy*.
    """
    if any(change.kind == "slower" for change in changes):
        return "slower"
    return "passed" if changes and all(change.passed for change in changes) else "too noisy"


def judge_between(
    old: Mapping[str, Sequence[float]], new: Mapping[str, Sequence[float]], *, alpha: float = ALPHA
) -> dict[str, Change]:
    """Judge how each arm changed between two independent runs, and return the changes by arm.

    ``old`` and ``new`` have the same arms, each with ln(step time / the reference arm's) of every round. An
    arm with fewer rounds than `FIRST_LOOK` in either run is unresolved.
    """
    arms = list(old)
    if not arms:
        return {}
    sample = Sample.between([old[arm] for arm in arms], [new[arm] for arm in arms])
    decision = decide(sample, alpha, 0.0, Settled.none((len(arms),)))
    changes = {}
    for index, arm in enumerate(arms):
        mean, half_width = float(-sample.mean[index]), float(decision.half_width[index])
        rounds = (len(old[arm]), len(new[arm]))
        kind: Literal["slower", "faster", "unresolved"] = "unresolved"
        if min(rounds) >= FIRST_LOOK and decision.settled.different[index]:
            kind = "slower" if mean > 0 else "faster"
        low, high = ratios_of(mean, half_width)
        changes[arm] = Change(
            arm=arm,
            kind=kind,
            ratio=ratio_of(mean),
            low=low,
            high=high,
            level=1 - float(decision.alpha[index]),
            rounds=rounds,
        )
    return changes


def from_verdict(arm: str, verdict: Verdict) -> Change:
    """Return a gate's verdict on the speed of an arm as a change of its step time."""
    low, high = verdict.low, verdict.high
    return Change(
        arm=arm,
        kind="not slower" if verdict.kind == "equivalent" else verdict.kind,
        ratio=1 / verdict.speed_ratio,
        low=1 / high if high else None,
        high=1 / low if low else None,
        level=verdict.level,
        rounds=(verdict.n, verdict.n),
        at_most=1 / verdict.least if verdict.least else None,
    )


# ---- gates ----


def doubled(arms: Sequence[Arm], other: Interpreter) -> tuple[Arm, ...]:
    """Return each arm followed by its twin, which runs under the ``other`` interpreter."""
    return tuple(twin for arm in arms for twin in (arm, msgspec.structs.replace(arm, against=other)))


def judge_gate(figures: Figures) -> Changes | None:
    """Compare the step times of every arm with those of its twin; None if the run is no gate.

    Each ratio is the step time in this environment over that in the other one. If an arm has no common round,
    it is left out, and the outcome is *too noisy*. If threads outnumber cores, every change is unresolved.
    """
    run, limit = figures.run, figures.run.config.slower_limit
    other = next((arm.against for arm in run.config.arms if arm.against), None)
    if limit is None or other is None:
        return None
    twin = {new.label: old.label for new, old in pairs_of(run.config.arms)}
    ratios = {new: own for new, old in twin.items() if (own := log_ratios(figures, new, old))}
    found = judge(
        ratios,
        looks(run),
        margin=limit,
        fewest=FIRST_LOOK,
        one_sided=True,
        accept=lambda name, verdict: withhold(figures, twin[name], name, verdict),
    )
    changes = [
        msgspec.structs.replace(
            change,
            kind="unresolved" if is_oversubscribed(run) else change.kind,
            old=Estimate.geometric(figures.step_seconds(twin[change.arm]).values()),
            new=Estimate.geometric(figures.step_seconds(change.arm).values()),
        )
        for change in (from_verdict(arm, verdict) for arm, verdict in found.items())
    ]
    first = {arm.label: launches[0].ranks[0] for arm in run.config.arms if (launches := run.of(arm))}
    more = ("ringside", "sources", "prefix")
    code = "its own" if other.own_sources else "this package's, by PYTHONPATH"
    return Changes(
        command="gate",
        old=f"{other.executable} (torch {other.torch}; worker's code: {code})",
        new="this environment",
        limit=limit,
        reference="",
        changes=changes,
        outcome=outcome_of(changes) if len(changes) == len(run.config.arms) // 2 else "too noisy",
        changed=differing(
            (versions_of(new, first[twin[new]], *more), versions_of(new, first[new], *more)) for new in ratios
        ),
        notes=list(_notes(figures, uneven=any(verdict.uneven_load for verdict in found.values()))),
    )


def check_interpreter(run: Run, arm: Arm, ranks: Sequence[RankResult], *, here: str) -> None:
    """Require that the ranks of a gate ran in the environment of their arm; other runs pass.

    ``here`` is the ``sys.prefix`` of this process.

    Raises:
        ConditionsError: a rank attests another environment or other sources than its arm asks for.
    """
    if run.config.slower_limit is None:
        return
    other = arm.against
    asked_of = {"prefix": other.prefix, "sources": other.sources} if other else {"prefix": here}
    for rank in ranks:
        for name, asked in asked_of.items():
            found = rank.attestation.get(name)
            if found != asked:
                raise ConditionsError(
                    f"{arm.label}: rank {rank.rank} did not run in its arm's environment.",
                    found=f"Its {name} is {found}, but the arm asks for {asked}.",
                    remedy="Install torch and its launchers in that environment itself.",
                )


def pairs_of(arms: Sequence[Arm]) -> Iterator[tuple[Arm, Arm]]:
    """Yield each arm of this environment with its twin under the other interpreter, if there is one."""
    for new in arms:
        twin = next((a for a in arms if a.against and (a.backend, a.given) == (new.backend, new.given)), None)
        if new.against is None and twin:
            yield new, twin


def _notes(figures: Figures, *, uneven: bool) -> Iterator[str]:
    run = figures.run
    if uneven:
        yield (
            "Other programs ran beside one side more than beside the other. "
            "That may explain or hide a difference."
        )
    yield from (f"{phrase[0].upper()}{phrase[1:]}." for phrase in weaknesses(figures))
    if not is_oversubscribed(run) and rounds_done(run) < FIRST_LOOK:
        yield f"Nothing is judged before round {FIRST_LOOK}."
