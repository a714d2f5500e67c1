"""Write causes and different conditions as sentences and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compare.analysis import Analysis
from compare.text import counted

CONDITIONS_TITLE = "Conditions that differ"
NO_DIFFERENCE = "All conditions are the same."


def causes(analysis: Analysis) -> list[str]:
    """Write a sentence for each cause, with the evidence of every arm."""
    return [
        f"Why: {name}{_caveat(key, analysis)}: {'; '.join(found)}. {advice}"
        for key, (name, evidence, advice) in _CAUSES.items()
        if (found := [evidence(cause.arm, cause.evidence) for cause in analysis.causes if cause.key == key])
    ]


def _caveat(key: str, analysis: Analysis) -> str:
    """Mark evidence of noisy rounds; oversubscription is not measured."""
    noisy = key != "oversubscription" and analysis.summary.noisy_rounds
    return " (measured in noisy rounds)" if noisy else ""


def differences(analysis: Analysis) -> list[list[str]]:
    """List the conditions that differ, one row each, under a heading."""
    rows = [
        [
            condition.item,
            "; ".join(f"{arm}: {value}" for arm, value in condition.values.items()),
            "DIFFERENT" if condition.kind == "different" else condition.role,
            condition.why,
        ]
        for condition in analysis.conditions
        if condition.kind != "same"
    ]
    return [["condition", "value in each arm", "role", "why"], *rows]


# ---- one cause ----


def _oversubscription(_: str, seen: dict[str, Any]) -> str:
    return (
        f"{counted(seen['ranks'], 'rank')} × {counted(seen['threads_per_rank'], 'thread')} wait for "
        f"{counted(seen['cores'], 'core')}"
    )


def _little_compute(arm: str, seen: dict[str, Any]) -> str:
    return (
        f"{arm} computes for {_milliseconds(seen['compute_seconds'])}; its collectives alone take "
        f"{_milliseconds(seen['collective_seconds'])}"
    )


def _latency(arm: str, seen: dict[str, Any]) -> str:
    return f"{_calls(arm, seen)}, {_milliseconds(seen['fixed_seconds'])} of it independent of size"


def _bandwidth(arm: str, seen: dict[str, Any]) -> str:
    return f"{_calls(arm, seen)}, {_milliseconds(seen['growing_seconds'])} of it proportional to size"


def _calls(arm: str, seen: dict[str, Any]) -> str:
    each = seen["message_bytes"] / seen["calls"] / 1e6
    size = f"{each:.2g} MB" if seen["calls"] == 1 else f"{each:.2g} MB on average"
    verb = "takes" if seen["calls"] == 1 else "take"
    took = _milliseconds(seen["collective_seconds"])
    return f"{arm}'s {counted(seen['calls'], 'call')} of {size} {verb} {took}"


def _background(arm: str, seen: dict[str, Any]) -> str:
    without = seen["reference_seconds"] - seen["background_seconds"]
    return (
        f"computation alone takes {_milliseconds(seen['reference_seconds'])} with {arm} loaded, "
        f"{_milliseconds(without)} without"
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


_CAUSES: dict[str, tuple[str, Callable[[str, dict[str, Any]], str], str]] = {
    "oversubscription": ("oversubscription", _oversubscription, "Use fewer ranks or threads than cores."),
    "little_compute": (
        "too little computation per step",
        _little_compute,
        "A larger --batch-size gives communication more to overlap with.",
    ),
    "latency": ("latency of each call", _latency, "Fewer, larger messages would help."),
    "bandwidth": ("bandwidth", _bandwidth, "Fewer bytes or a faster transport would help."),
    "background": (
        "background tax",
        _background,
        "The library's threads use the cores, or its memory fills the caches.",
    ),
    "straggler": ("straggler", _straggler, "With any library, the other ranks wait for it."),
    "transport": (
        "transport",
        _transport,
        "It explains part of the difference, and the library does not.",
    ),
}
"""Name, evidence and advice of each cause, in the report's order."""


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _gigabytes(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s"
