"""What tables say of causes and of conditions that differ, in words and units that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compare.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from compare.analysis import Analysis
    from compare.analysis.summary import Summary

FAIRNESS_TITLE = "What was not alike"
ALL_ALIKE = "Nothing that was compared differed."


def reasons(analysis: Analysis) -> list[str]:
    """Say why synchronising costs what it costs: a sentence a cause, with the evidence from every arm."""
    of_cause: dict[str, list[str]] = {}
    for found in analysis.causes:
        of_cause.setdefault(found.key, []).append(_EVIDENCE[found.key](found.arm, found.evidence))
    return [
        f"Why: {_caveat(cause, analysis.summary)}{name}: {'; '.join(of_cause[cause])}. {advice}"
        for cause, (name, advice) in _CAUSES.items()
        if cause in of_cause
    ]


def _caveat(cause: str, summary: Summary) -> str:
    """Say where the evidence is that of disturbed rounds; that ranks outnumber cores is not measured."""
    if cause == "oversubscription" or not summary.disturbed_rounds:
        return ""
    return "measured while others used the machine: "


def differences(analysis: Analysis) -> list[list[str]]:
    """List what differed between arms, ranks or rounds, under a heading: item, values, what it is, why."""
    rows = [
        [
            finding.item,
            "; ".join(f"{arm}: {value}" for arm, value in finding.values.items()),
            "NOT ALIKE" if finding.kind == "different" else finding.role,
            finding.why,
        ]
        for finding in analysis.conditions
        if finding.kind != "same"
    ]
    return [["item", "in each arm", "what it is", "why"], *rows]


_CAUSES = {
    "oversubscription": ("oversubscription", "Use fewer ranks or threads than cores."),
    "little_compute": (
        "too little compute per step",
        "A larger --batch-size gives more to hide communication behind.",
    ),
    "latency": ("latency of each call", "Fewer, larger messages would help."),
    "bandwidth": ("bandwidth", "Fewer bytes, or a faster way for them, would help."),
    "background": (
        "background tax",
        "The library's own threads take the core from the computation, or its memory the caches.",
    ),
    "straggler": ("straggler", "The others wait for it, whatever the library."),
    "transport": ("transport", "Part of the difference is the way of the bytes, not the library."),
}
"""What each cause is called, and what follows from it; in the order in which they are told."""


def _oversubscription(_: str, seen: dict[str, Any]) -> str:
    return (
        f"{counted(seen['ranks'], 'rank')} × {counted(seen['threads_per_rank'], 'thread')} on "
        f"{counted(seen['cores'], 'core')} wait for each other"
    )


def _little_compute(arm: str, seen: dict[str, Any]) -> str:
    return (
        f"{arm} computes for {_milliseconds(seen['compute_seconds'])}, and its collectives alone take "
        f"{_milliseconds(seen['collective_seconds'])}"
    )


def _latency(arm: str, seen: dict[str, Any]) -> str:
    return f"{_calls(arm, seen)}, of which {_milliseconds(seen['fixed_seconds'])} do not depend on their size"


def _bandwidth(arm: str, seen: dict[str, Any]) -> str:
    return f"{_calls(arm, seen)}, of which {_milliseconds(seen['growing_seconds'])} grow with their size"


def _calls(arm: str, seen: dict[str, Any]) -> str:
    each = seen["message_bytes"] / seen["calls"] / 1e6
    size = f"{each:.2g} MB" if seen["calls"] == 1 else f"{each:.2g} MB on average"
    verb = "takes" if seen["calls"] == 1 else "take"
    took = _milliseconds(seen["collective_seconds"])
    return f"{arm}'s {counted(seen['calls'], 'call')} of {size} {verb} {took}"


def _background(arm: str, seen: dict[str, Any]) -> str:
    without = seen["reference_seconds"] - seen["background_seconds"]
    return (
        f"computing alone takes {_milliseconds(seen['reference_seconds'])} beside {arm}, "
        f"{_milliseconds(without)} beside nothing"
    )


def _straggler(arm: str, seen: dict[str, Any]) -> str:
    return (
        f"rank {seen['rank']} on {seen['host']} computes for {_milliseconds(seen['compute_seconds'])}, "
        f"{_milliseconds(seen['excess_seconds'])} longer than the mean of all ranks ({arm})"
    )


def _transport(arm: str, seen: dict[str, Any]) -> str:
    return (
        f"{arm} moves {_gigabytes(seen['algorithm_bandwidth'])} by {seen['transport']}, "
        f"{seen['other_arm']} {_gigabytes(seen['other_algorithm_bandwidth'])} by {seen['other_transport']} "
        "(algbw)"
    )


_EVIDENCE: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "oversubscription": _oversubscription,
    "little_compute": _little_compute,
    "latency": _latency,
    "bandwidth": _bandwidth,
    "background": _background,
    "straggler": _straggler,
    "transport": _transport,
}


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _gigabytes(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s"
