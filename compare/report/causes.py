"""Write the causes of a sync cost as sentences, and the conditions that differ as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from compare.analysis import Analysis
from compare.analysis.causes import Cause
from compare.analysis.summary import ArmSummary
from compare.report.document import Column, Row, Table
from compare.text import counted, in_form, listed

_CALLS_TAKE = "{arm}'s {calls} of {size} {take} {collective_seconds}"


class Advice(NamedTuple):
    """What a user may do about a cause, or what the cause means."""

    text: str
    holds: Callable[[Mapping[str, Any]], bool] = lambda _: True
    """Returns whether it can be followed, given the evidence of a cause; it is printed only then."""


class _Words(NamedTuple):
    """How one kind of cause is written."""

    name: str
    evidence: str
    """Template of the evidence."""
    advice: tuple[Advice, ...]
    short: str = ""
    """Template of what follows "Why ARM costs X ms a step:"; without one it is never the main cause."""


CAUSES: Mapping[str, _Words] = {
    "oversubscription": _Words(
        "oversubscription",
        "{ranks} × {threads_per_rank} wait for {cores}",
        (Advice("Use fewer ranks or threads than cores."),),
    ),
    "lone_rank": _Words(
        "one rank sends nothing",
        "{arm} costs {exposed_seconds}",
        (Advice("So this is the library's own work. More ranks add what they send."),),
        "one rank sends nothing, so {exposed_seconds} of it are the library's own work",
    ),
    "little_compute": _Words(
        "too little computation per step",
        "{arm}'s own computing takes {compute_seconds}; its collectives alone take {collective_seconds}",
        (
            Advice(
                "A larger batch gives communication more to overlap with.",
                lambda evidence: evidence["overlaps"],
            ),
            Advice(
                "A larger batch computes longer for the same communication.",
                lambda evidence: not evidence["overlaps"],
            ),
        ),
        "its own computing of {compute_seconds} cannot hide {collective_seconds} of communication "
        "({transport})",
    ),
    "latency": _Words(
        "latency of each call",
        _CALLS_TAKE + ", {fixed_seconds} of it independent of size",
        (Advice("Fewer, larger messages would help.", lambda evidence: evidence["calls"] > 1),),
        "{fixed_seconds} of its communication ({transport}) does not depend on the size",
    ),
    "bandwidth": _Words(
        "bandwidth",
        _CALLS_TAKE + ", {growing_seconds} of it proportional to size",
        (
            Advice("Fewer bytes would help."),
            Advice("A faster transport would help.", lambda evidence: "memory" not in evidence["transport"]),
        ),
        "moving {megabytes} takes {collective_seconds} ({transport})",
    ),
    "background": _Words(
        "background tax",
        "{arm}'s own computing takes {reference_seconds}, and a bare step of none {control_seconds}",
        (Advice("The library's threads use the cores, or its memory fills the caches."),),
        "{background_seconds} of it are slower computing, {reference_seconds} in place of {control_seconds}",
    ),
    "straggler": _Words(
        "straggler",
        "rank {rank} on {host} computes for {compute_seconds}, "
        "{excess_seconds} longer than the mean of all ranks ({arm})",
        (Advice("With any library, the other ranks wait for it."),),
        "{excess_seconds} of it are the wait for rank {rank} on {host}",
    ),
    "transport": _Words(
        "transport",
        "{arm} moves {algorithm_bandwidth} by {transport}, "
        "{other_arm} {other_algorithm_bandwidth} by {other_transport} (algbw)",
        (Advice("It explains part of the difference, and the library does not."),),
    ),
}
"""The words of each kind of cause, in the order of printing."""
_EXPLAINED_TIMES = ("background_seconds", "excess_seconds", "collective_seconds", "exposed_seconds")
"""Names of evidence that tells how much time a cause explains; the first that a cause has is used."""
_NOUNS = {"ranks": "rank", "threads_per_rank": "thread", "cores": "core", "calls": "call"}


def explain(causes: Sequence[Cause], *, noisy: bool = False) -> Iterator[str]:
    """Yield a line for each kind of cause, with the evidence of every arm that has it, and advice.

    With ``noisy``, each line says that it was measured in noisy rounds. Only oversubscription is counted and
    not measured, so its line does not.
    """
    for key, words in CAUSES.items():
        alike = [cause for cause in causes if cause.key == key]
        caveat = " (measured in noisy rounds)" if noisy and key != "oversubscription" else ""
        if alike:
            evidences = "; ".join(words.evidence.format_map(_figures(cause)) for cause in alike)
            yield " ".join([f"Why: {words.name}{caveat}: {evidences}.", *_advice(words.advice, alike)])


def _advice(every: Sequence[Advice], causes: Sequence[Cause]) -> Iterator[str]:
    """Yield each advice that holds for any of these causes, with their arms if it does not for the others."""
    for advice in every:
        arms = [cause.arm for cause in causes if advice.holds(cause.evidence)]
        if arms:
            yield advice.text if len(arms) == len(causes) else f"For {listed(arms)}: {advice.text}"


def main_cause(analysis: Analysis, baseline: str) -> str:
    """Return one sentence that names the main cause of the sync cost; empty if no cause is known.

    An arm that costs less than half as much as the costliest one is left out. Of the others, the baseline
    comes first and then the costliest arm with a cause. The cause of that arm that explains the most time is
    named. Oversubscription and the transport are never the main cause.
    """
    costly = {arm.arm: arm for arm in analysis.summary.arms if arm.sync_seconds and not arm.below_noise}
    half = max(map(_sync_seconds, costly.values()), default=0.0) / 2
    arms = {label: arm for label, arm in costly.items() if _sync_seconds(arm) >= half}
    causes = [cause for cause in analysis.causes if cause.arm in arms and CAUSES[cause.key].short]
    if not causes:
        return ""

    def priority(cause: Cause) -> tuple[bool, float, float]:
        explained = next(cause.evidence[name] for name in _EXPLAINED_TIMES if name in cause.evidence)
        return cause.arm == baseline, _sync_seconds(arms[cause.arm]), float(explained)

    cause = max(causes, key=priority)
    arm = arms[cause.arm]
    figures = _figures(cause) | {"transport": arm.transport}
    figures["megabytes"] = f"{sum(arm.detail.message_bytes) / 1e6:.2g} MB"
    reason = CAUSES[cause.key].short.format_map(figures)
    noisy = " (in noisy rounds)" if analysis.summary.noisy_rounds else ""
    return f"Why {arm.arm} costs {_sync_seconds(arm) * 1e3:.2f} ms a step{noisy}: {reason}."


def _sync_seconds(arm: ArmSummary) -> float:
    return arm.sync_seconds.mean if arm.sync_seconds else 0.0


def _figures(cause: Cause) -> dict[str, str]:
    """Return the evidence of a cause as text with units, by the names in the templates of ``CAUSES``."""
    evidence = {"arm": cause.arm, **cause.evidence}
    if "calls" in evidence:
        is_single = evidence["calls"] == 1
        size = f"{evidence['message_bytes'] / evidence['calls'] / 1e6:.2g} MB"
        evidence["size"] = size if is_single else f"{size} on average"
        evidence["take"] = "takes" if is_single else "take"
    if "background_seconds" in evidence:
        evidence["control_seconds"] = evidence["reference_seconds"] - evidence["background_seconds"]
    return {name: _with_unit(name, value) for name, value in evidence.items()}


def _with_unit(name: str, value: Any) -> str:
    if name in _NOUNS:
        return counted(value, _NOUNS[name])
    if name.endswith("_seconds"):
        return f"{in_form(value * 1e3, '.2f')} ms"
    return f"{value / 1e9:.2f} GB/s" if name.endswith("_bandwidth") else str(value)


def conditions_table(analysis: Analysis) -> Table:
    """Return a table with a row for each condition that differs between arms; one row says if none does."""
    rows = [
        Row(
            (
                condition.item,
                "; ".join(f"{arm}: {value}" for arm, value in condition.values.items()),
                "DIFFERENT" if condition.kind == "different" else condition.role,
                condition.why,
            )
        )
        for condition in analysis.conditions
        if condition.kind != "same"
    ]
    headings = ["condition", "value in each arm", "role", "why"] if rows else ["condition"]
    return Table(
        columns=[Column(heading, str, is_text=True) for heading in headings],
        rows=rows or [Row(("All conditions are the same.",))],
        title="Conditions that differ",
        is_prose=True,
    )
