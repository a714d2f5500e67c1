"""What tables say, in words and units that people read: the one place where units are converted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from compare.results import Run
    from compare.stats import ArmSummary, Estimate, Summary

MIB = 1 << 20
_HASH_DIGITS = 12


def _milliseconds(estimate: Estimate | None) -> str:
    return _with_range(estimate, lambda value: f"{value * 1e3:.2f}")


def _percent(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.median:.0%}"


def _factor(estimate: Estimate | None) -> str:
    return _with_range(estimate, lambda value: f"{value:.2f}×")


def _with_range(estimate: Estimate | None, show: Callable[[float], str]) -> str:
    if estimate is None:
        return "–"
    median, low, high = show(estimate.median), show(estimate.low), show(estimate.high)
    return median if low == high else f"{median} ({low}–{high})"


COLUMNS: tuple[tuple[str, Callable[[ArmSummary], str]], ...] = (
    ("arm", lambda arm: arm.arm + (" ◀ fastest" if arm.fastest else "")),
    ("samples/s", lambda arm: f"{arm.samples_per_second.median:,.0f}"),
    ("step ms", lambda arm: _milliseconds(arm.step_seconds)),
    ("sync ms", lambda arm: _milliseconds(arm.sync_seconds)),
    ("share", lambda arm: _percent(arm.sync_share)),
    ("efficiency", lambda arm: _percent(arm.efficiency)),
    ("vs baseline", lambda arm: _factor(arm.speed_against_baseline)),
    ("accuracy", lambda arm: f"{arm.accuracy:.2%}"),
    ("peak MiB", lambda arm: f"{arm.peak_memory_bytes / MIB:,.0f}"),
    ("start-up s", lambda arm: f"{arm.start_up_seconds.median:.1f}"),
    ("transport", lambda arm: arm.transport),
)
"""Heading and cell of every column, shared by all formats for people."""


def headline(run: Run) -> str:
    """Say in one line what was measured."""
    config = run.config
    length = f"{config.steps} steps" if config.steps else f"{config.epochs} epoch{'s' * (config.epochs > 1)}"
    threads = f"{config.threads_per_rank} thread{'s' * (config.threads_per_rank > 1)}"
    return (
        f"{config.model} on {dataset_name(run)} · {config.ranks} ranks × {threads} · {config.device} · "
        f"batch {config.batch_size_per_rank} per rank · {config.optimizer} lr {config.learning_rate:g} · {length}"
    )


def dataset_name(run: Run) -> str:
    """Name the data that the arms really trained on."""
    return {"mnist": "MNIST", "digits": "scikit-learn's digits (NOT MNIST)"}[run.dataset.name]


def notes(run: Run, summary: Summary) -> list[str]:
    """Say what a reader must know beside the figures, the gravest first."""
    rounds = max((arm.step_seconds.n for arm in summary.arms), default=0)
    said = []
    if not run.complete:
        said.append(f"INCOMPLETE: {_why_incomplete(run)}")
    if run.dataset.note:
        said.append(f"{run.dataset.note}.")
    if summary.oversubscribed:
        said.append(
            f"Oversubscribed: {run.config.ranks} ranks × {run.config.threads_per_rank} threads on "
            f"{run.cores} cores wait for each other's core, so no arm is called fastest."
        )
    said += [f"{name} did not run: {reason}" for name, reason in run.left_out.items()]
    said.append(
        f"Medians over {rounds} round{'s' * (rounds != 1)} (smallest–largest). Sync cost is step time minus "
        "that of none, the same ranks without communication."
        if run.config.control
        else f"Medians over {rounds} round{'s' * (rounds != 1)} (smallest–largest). No control, so no sync cost."
    )
    said.append(_same_training(run, summary))
    return [note for note in said if note]


def _why_incomplete(run: Run) -> str:
    if run.failure is None:
        return "the run is still going on, or was ended from outside."
    return f"stopped in round {run.failure.round} at {run.failure.arm} ({run.failure.message.splitlines()[0]})"


def _same_training(run: Run, summary: Summary) -> str:
    synchronising = {arm.label for arm in run.config.arms if arm.synchronises}
    hashes = {arm.arm: arm.final_hash for arm in summary.arms if arm.arm in synchronising}
    if not hashes:
        return ""
    different = len(set(hashes.values())) > 1 or None in hashes.values()
    if not different:
        return f"All ranks of all arms ended with bitwise the same parameters ({_short(next(iter(hashes.values())))})."
    return "Within each launch all ranks agree bitwise; the arms ended with different parameters: " + ", ".join(
        f"{arm} {_short(value)}" for arm, value in hashes.items()
    )


def _short(value: str | None) -> str:
    return "not the same in every round" if value is None else value[:_HASH_DIGITS]
