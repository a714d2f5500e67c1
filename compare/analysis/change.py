"""Judge how arms changed between two environments or two runs.

``gate`` compares two interpreters within one run, and has a limit. Every arm is compared with its twin, the
same arm under the other interpreter, round by round. So a gate shows a slower computation as well as slower
synchronising. An arm passes if a one-sided test shows that it is not slower by the limit. It fails if its
estimate exceeds the limit and its two-sided interval excludes 1. Otherwise it is open.

``diff`` compares two runs. Machines change between them, so milliseconds say little. The figure of an arm is
its speed over that of the control in the same round: T_0 / T_S. Without a control in both runs, the
baseline takes its place. That describes changes and decides nothing, because no interval covers the state of
the machine between two runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from compare.analysis.attested import ABSENT, spell, transport_of
from compare.analysis.budget import ALPHA, FIRST_LOOK, cores_of, is_oversubscribed, looks, rounds_done
from compare.analysis.figures import Estimate, Figures
from compare.analysis.fitting import rounds_needed
from compare.analysis.noise import withhold
from compare.analysis.ranking import log_ratios
from compare.analysis.verdict import Sample, Settled, Verdict, decide, judge, ratio_of, ratios_of
from compare.errors import OutputError
from compare.schema.arms import CONTROL, Arm, Interpreter
from compare.schema.environment import library_settings
from compare.schema.results import RankResult, Run

Outcome = Literal["slower", "too noisy", "passed"]
FREE_SETTINGS = {
    *("arms", "baseline", "rounds", "interleave", "budget_seconds", "settle_seconds", "comparisons"),
    *("max_reruns", "seed", "launch_timeout_seconds", "stall_seconds", "against", "slower_limit"),
}
"""Settings that may differ between the runs, because they do not influence a step time."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """How one arm changed, in ratios of the new speed over the old one: above 1 is faster."""

    arm: str
    kind: Literal["slower", "faster", "not slower", "open"]
    """Kind of the change, by the look that settled it.

    - *slower* or *faster*: the interval excludes 1, and in a gate the estimate exceeds the limit
    - *not slower*: ``least`` is within the limit of a gate
    - *open*: anything else
    """
    speed_ratio: float | None
    """Geometric mean over the rounds; None without rounds, or if JSON cannot hold it."""
    low: float | None
    """Lower end of the ratio's interval; None if a side has a single round, or if JSON cannot hold it."""
    high: float | None
    """Upper end of the same interval."""
    level: float
    """Confidence level of this interval, which is higher the more arms and looks a run has."""
    rounds: tuple[int, int]
    """Numbers of rounds of the old and of the new side."""
    least: float | None = None
    """Lower end of the ratio's one-sided interval, by which an arm of a gate passes; None for ``diff``."""
    uneven_load: tuple[float, float] | None = None
    """Cores that other programs used beside the new and the old side of a gate, as in `Verdict`."""
    old: Estimate | None = None
    """Old figure: seconds per step in a gate, speed over the reference arm's in ``diff``."""
    new: Estimate | None = None
    """New figure, in the same unit."""

    @property
    def passed(self) -> bool:
        """Return whether the arm is shown not to be slower than the gate's limit allows."""
        return self.kind in {"faster", "not slower"}


class Difference(msgspec.Struct, frozen=True):
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
    """Label of the arm over whose speed the speeds of ``diff`` are; empty for ``gate``."""
    changes: list[Change]
    limit: float | None = None
    """A slowdown of less than this fraction passes; None for ``diff``."""
    outcome: Outcome | None = None
    """Result of a gate over all of its arms; None for ``diff``."""
    unlike: list[Difference] = []
    """Settings and hosts that should be equal but differ, so every format warns."""
    changed: list[Difference] = []
    """Versions and transports that differ, which may be the reason for a change."""
    rounds: int | None = None
    """Number of rounds that a gate had; None for ``diff``."""
    needed_rounds: int | None = None
    """About how many rounds decide a gate that is open, by its spread; None if that is not known.

    Before `FIRST_LOOK` rounds it is this number, because nothing is judged earlier.
    """
    needed_seconds: float | None = None
    """How long these rounds take, at the measured pace."""
    beyond_cores: bool = False
    """Whether threads outnumber the cores in a gate, so that every change is open."""
    notes: list[str] = []
    """Warnings: noisy rounds, stopped runs, arms that only one side has."""


# ---- what differs, and what weakens a judgement ----


def differences_of(sides: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Difference]:
    """Return the facts that differ between two sides, each once.

    ``sides`` has pairs of mappings, old and new, from a fact's name to its value, which may be missing.
    """
    differences = [
        Difference(what, spell(old.get(what)) or ABSENT, spell(new.get(what)) or ABSENT)
        for old, new in sides
        for what in {**old, **new}
        if old.get(what) != new.get(what)
    ]
    return list(dict.fromkeys(differences))


def versions_of(arm: str, rank: RankResult, *more: str) -> dict[str, Any]:
    """Return, by name, what a rank attests of its software: versions, transport, and the facts in ``more``.

    The name of the transport contains the arm's label, because arms differ in it.
    """
    libraries = rank.attestation.get("group", {}).get("versions") or {}
    facts = {name: rank.attestation.get(name) for name in ("python", "torch", *more)}
    return libraries | facts | {f"transport of {arm}": transport_of(rank)}


def weaknesses(figures: Figures) -> Iterator[str]:
    """Yield a phrase for each fact that makes the judgements of a run less certain, such as noise."""
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

    So *too noisy* covers every gate that is open, for whichever reason, and a gate without any arm.
    """
    if any(change.kind == "slower" for change in changes):
        return "slower"
    return "passed" if changes and all(change.passed for change in changes) else "too noisy"


def judge_between(
    old: Mapping[str, Sequence[float]], new: Mapping[str, Sequence[float]], *, alpha: float = ALPHA
) -> dict[str, Change]:
    """Judge how each arm changed between two independent runs, and return the changes by label of the arm.

    ``old`` and ``new`` have the same labels, each with ln(speed / the reference arm's) of every round. An
    arm with fewer rounds than `FIRST_LOOK` in either run is open.
    """
    arms = list(old)
    if not arms:
        return {}
    sample = Sample.between([new[arm] for arm in arms], [old[arm] for arm in arms])
    decision = decide(sample, alpha, 0.0, Settled.none((len(arms),)))
    changes = {}
    for index, arm in enumerate(arms):
        mean, half_width = float(sample.mean[index]), float(decision.half_width[index])
        rounds = (len(old[arm]), len(new[arm]))
        kind: Literal["slower", "faster", "open"] = "open"
        if min(rounds) >= FIRST_LOOK and decision.settled.different[index]:
            kind = "faster" if mean > 0 else "slower"
        low, high = ratios_of(mean, half_width)
        changes[arm] = Change(
            arm=arm,
            kind=kind,
            speed_ratio=ratio_of(mean),
            low=low,
            high=high,
            level=1 - float(decision.alpha[index]),
            rounds=rounds,
        )
    return changes


def from_verdict(arm: str, verdict: Verdict) -> Change:
    """Return a gate's verdict on an arm as a change."""
    return Change(
        arm=arm,
        kind="not slower" if verdict.kind == "same" else verdict.kind,
        speed_ratio=verdict.speed_ratio,
        low=verdict.low,
        high=verdict.high,
        level=verdict.level,
        rounds=(verdict.n, verdict.n),
        least=verdict.least,
        uneven_load=verdict.uneven_load,
    )


# ---- gates ----


def with_twins(arms: Sequence[Arm], other: Interpreter) -> tuple[Arm, ...]:
    """Return each arm followed by its twin, which is the same arm under the ``other`` interpreter."""
    return tuple(twin for arm in arms for twin in (arm, msgspec.structs.replace(arm, against=other)))


def judge_gate(figures: Figures) -> Changes | None:
    """Compare the step times of every arm with those of its twin; None if the run is not a gate.

    Each ratio is the speed in this environment over that in the other one. An arm that shares no round
    with its twin is left out, so the gate does not pass. If threads outnumber the cores, every change is
    open.
    """
    run, limit = figures.run, figures.run.config.slower_limit
    other = next((arm.against for arm in run.config.arms if arm.against), None)
    if limit is None or other is None:
        return None
    twin = {new.label: old.label for new, old in pairs_of(run.config.arms)}
    ratios = {new: logs for new, old in twin.items() if (logs := log_ratios(figures, new, old))}
    verdicts = judge(
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
            kind="open" if is_oversubscribed(run) else change.kind,
            old=Estimate.geometric(figures.step_seconds(twin[change.arm]).values()),
            new=Estimate.geometric(figures.step_seconds(change.arm).values()),
        )
        for change in (from_verdict(arm, verdict) for arm, verdict in verdicts.items())
    ]
    first = {arm.label: launches[0].ranks[0] for arm in run.config.arms if (launches := run.of(arm))}
    more = ("ringside", "sources", "prefix")
    code = "its own" if other.own_sources else "this package's, by PYTHONPATH"
    outcome = outcome_of(changes) if len(changes) == len(run.config.arms) // 2 else "too noisy"
    needed, seconds = rounds_needed(run, verdicts.values()) if outcome == "too noisy" else (None, None)
    return Changes(
        command="gate",
        old=f"{other.executable} (torch {other.torch}; worker's code: {code})",
        new="this environment",
        limit=limit,
        reference="",
        changes=changes,
        outcome=outcome,
        rounds=rounds_done(run),
        needed_rounds=needed,
        needed_seconds=seconds,
        beyond_cores=is_oversubscribed(run),
        changed=differences_of(
            (versions_of(new, first[twin[new]], *more), versions_of(new, first[new], *more)) for new in ratios
        ),
        notes=[f"{phrase[0].upper()}{phrase[1:]}." for phrase in weaknesses(figures)],
    )


def pairs_of(arms: Sequence[Arm]) -> Iterator[tuple[Arm, Arm]]:
    """Yield each arm of this environment that has a twin under the other interpreter, with the twin."""
    for new in arms:
        twin = next((a for a in arms if a.against and (a.backend, a.given) == (new.backend, new.given)), None)
        if new.against is None and twin:
            yield new, twin


# ---- two runs ----


def diff(old: Run, new: Run, names: tuple[str, str]) -> Changes:
    """Compare what synchronising costs in two runs, whose ``names`` appear in the result and in messages.

    Runs whose settings or hosts differ are compared too, and the result lists the differences.
    Every change is open if threads outnumber the cores in either run.

    Raises:
        OutputError: the runs share no arm to compare, or neither the control nor the baseline.
    """
    figures = Figures(old), Figures(new)
    reference, arms = _common_arms(*figures)
    both = [reference, *arms]
    unlike = differences_of(zip(_conditions_of(old, both), _conditions_of(new, both), strict=True))
    speeds = [{arm.label: log_ratios(side, arm.label, reference.label) for arm in arms} for side in figures]
    ranked = not is_oversubscribed(old) and not is_oversubscribed(new)
    changes = [
        msgspec.structs.replace(
            change,
            kind=change.kind if ranked else "open",
            old=Estimate.of(speeds[0][arm]).exponential(),
            new=Estimate.of(speeds[1][arm]).exponential(),
        )
        for arm, change in judge_between(*speeds).items()
    ]
    return Changes(
        command="diff",
        old=names[0],
        new=names[1],
        reference=reference.label,
        changes=changes,
        unlike=unlike,
        changed=differences_of(zip(_software_of(old, both), _software_of(new, both), strict=True)),
        notes=list(_diff_notes(*figures, names, changes)),
    )


def _common_arms(old: Figures, new: Figures) -> tuple[Arm, list[Arm]]:
    """Return the reference arm, over whose speed the others' are, and the arms to compare.

    Raises:
        OutputError: the runs share no reference arm, or no other arm that synchronises.
    """
    common = {arm.label: arm for arm in old.run.config.arms if old.run.of(arm) and new.run.of(arm)}
    baseline = old.run.config.baseline if old.run.config.baseline == new.run.config.baseline else ""
    reference = common.get(CONTROL) or common.get(baseline)
    arms = [
        arm
        for arm in common.values()
        if reference
        and arm != reference
        and arm.traits.synchronises
        and all(log_ratios(side, arm.label, reference.label) for side in (old, new))
    ]
    if reference is None or not arms:
        finished = (", ".join(arm for arm, rounds in side.by_arm.items() if rounds) for side in (old, new))
        one, other = (labels or "no finished launch" for labels in finished)
        raise OutputError(
            "The two runs have no arm in common that can be compared.",
            found=f"{one} in one, {other} in the other.",
            remedy="Run the same arm in both, together with the control `none` or the same baseline.",
        )
    return reference, arms


def _conditions_of(run: Run, arms: Sequence[Arm]) -> Iterator[dict[str, Any]]:
    """Yield what must be equal in both runs: settings and hosts, then for each arm what its rank 0 attests.

    A rank attests its device and the settings of its libraries and of its memory allocator.
    """
    settings = {name: getattr(run.config, name) for name in run.config.__struct_fields__}
    yield {name: value for name, value in settings.items() if name not in FREE_SETTINGS} | {
        "data set": run.dataset.name,
        "ranks of each host": [host.slots for host in run.hosts],
        "cores of each host": cores_of(run),
        "rehearsed link": run.network.rehearsed,
        "interleaved": run.interleaved.mode,
    }
    for arm in arms:
        attested = run.of(arm)[0].ranks[0].attestation
        variables = {**(attested.get("malloc") or {}), **(attested.get("environment") or {})}
        yield {"name of the device": attested.get("device")} | library_settings(variables)


def _software_of(run: Run, arms: Sequence[Arm]) -> Iterator[dict[str, Any]]:
    """Yield Ringside's version and the workload's hash, then the software that rank 0 of each arm attests."""
    yield {"ringside": run.ringside_version, "sources of the workload": run.dataset.sha256}
    for arm in arms:
        yield versions_of(arm.label, run.of(arm)[0].ranks[0])


def _diff_notes(old: Figures, new: Figures, names: tuple[str, str], changes: list[Change]) -> Iterator[str]:
    """Yield one sentence for each fact that makes the comparison less certain."""
    for side, name in ((old, names[0]), (new, names[1])):
        yield from (f"{name}: {phrase}." for phrase in weaknesses(side))
    few = [change.arm for change in changes if min(change.rounds) < FIRST_LOOK]
    if few:
        yield f"No change is named before {FIRST_LOOK} rounds in both runs: {', '.join(few)}."
    for run, other, name in ((old.run, new.run, names[0]), (new.run, old.run, names[1])):
        only = [arm.label for arm in run.config.arms if run.of(arm) and not other.of(arm)]
        if only:
            yield f"Only in {name}: {', '.join(only)}."
