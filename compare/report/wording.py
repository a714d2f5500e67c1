"""What tables say, in words and units that people read: the one place where units are converted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from compare.results import Run
    from compare.stats import ArmSummary, Estimate, Summary

MIB = 1 << 20
_HASH_DIGITS = 12
_LONG_LABEL = 16


class Column(NamedTuple):
    """One column of every table for people."""

    heading: str
    cell: Callable[[ArmSummary], str]
    is_text: bool = False
    """Text stands to the left, figures to the right."""


def arm_column() -> Column:
    """Name the arm of a row."""
    return Column("arm", lambda arm: arm.arm + (" ◀ fastest" if arm.fastest else ""), is_text=True)


def speed_columns(run: Run) -> list[Column]:
    """Say how fast the arms are, and what synchronising costs them."""
    baseline = run.config.baseline if len(run.config.baseline) <= _LONG_LABEL else "baseline"
    return [
        Column("samples/s", lambda arm: f"{arm.samples_per_second.median:,.0f}"),
        Column("step ms", lambda arm: _milliseconds(arm.step_seconds)),
        Column("sync ms", lambda arm: _milliseconds(arm.sync_seconds)),
        Column("share", lambda arm: _percent(arm.sync_share)),
        Column("efficiency", lambda arm: _percent(arm.efficiency)),
        Column(f"vs {baseline}", lambda arm: _factor(arm.speed_against_baseline)),
    ]


def outcome_columns() -> list[Column]:
    """Say what the arms reached, what it took, and over what they spoke."""
    return [
        Column("accuracy", lambda arm: f"{arm.accuracy:.2%}"),
        Column("peak MiB", lambda arm: f"{arm.peak_memory_bytes / MIB:,.0f}"),
        Column("start-up s", lambda arm: f"{arm.start_up_seconds.median:.1f}"),
        Column("transport", lambda arm: arm.transport, is_text=True),
    ]


def headline(run: Run) -> str:
    """Say in one line what was measured."""
    config = run.config
    length = f"{config.steps} steps" if config.steps else _count(config.epochs, "epoch")
    return " · ".join(
        [
            f"{config.model} on {dataset_name(run)}",
            f"{_count(config.ranks, 'rank')} × {_count(config.threads_per_rank, 'thread')}",
            config.device,
            f"batch {config.batch_size_per_rank} per rank"
            + (f" × {config.accumulate} passes" if config.accumulate > 1 else ""),
            f"{config.optimizer} lr {config.learning_rate:g}",
            length,
        ]
    )


def dataset_name(run: Run) -> str:
    """Name the data that the arms really trained on."""
    return {"mnist": "MNIST", "digits": "scikit-learn's digits (NOT MNIST)"}[run.dataset.name]


def warnings(run: Run, summary: Summary) -> list[str]:
    """Say what a reader must know before believing the figures, the gravest first."""
    said = [] if run.complete else [f"INCOMPLETE: {_why_incomplete(run)}"]
    if run.dataset.note:
        said.append(f"{run.dataset.note}.")
    if summary.oversubscribed:
        said.append(
            f"Oversubscribed: {run.config.ranks} ranks × {_count(run.config.threads_per_rank, 'thread')} on "
            f"{_count(run.cores, 'core')} wait for each other, so no arm is called fastest."
        )
    said += [
        f"{arm.arm} diverged: its loss is not a number any more; try a smaller --lr."
        for arm in summary.arms
        if arm.test_loss is None
    ]
    said += [
        f"{launch.arm}, round {launch.round}, was launched twice: {launch.restarted_because}."
        for launch in run.launches
        if launch.restarted_because
    ]
    return said + [f"{name} did not run: {reason}." for name, reason in run.left_out.items()]


def notes(run: Run, summary: Summary) -> list[str]:
    """Say how to read the figures, and whether the arms trained the same thing."""
    if not summary.arms:
        return ["No launch has finished."]
    rounds = max(arm.step_seconds.n for arm in summary.arms)
    medians = f"Medians over {_count(rounds, 'round')} (smallest–largest)."
    sync = (
        "Sync cost is step time minus that of none: the same ranks without communication."
        if run.config.control
        else "Without the control there is no sync cost."
    )
    return [f"{medians} {sync}", *_same_training(run, summary)]


def _why_incomplete(run: Run) -> str:
    if run.failure is None:
        return "it is still going on, or was ended from outside."
    return f"in round {run.failure.round}, {run.failure.arm}: {run.failure.message.splitlines()[0]}"


def _same_training(run: Run, summary: Summary) -> list[str]:
    """Hold exact arms against each other; of the others say that they differ on purpose."""
    exact = {arm.label for arm in run.config.arms if arm.synchronises and arm.exact}
    lossy = {arm.label for arm in run.config.arms if not arm.exact}
    hashes = {arm.arm: arm.final_hash for arm in summary.arms if arm.arm in exact}
    everybody = "every arm" if len(hashes) > 1 else "the arm"
    said = _of_exact(hashes, ", ".join(hashes) if lossy else everybody)
    return said + [
        f"{arm.arm} changes the arithmetic by its own choice: its ranks ended bitwise alike, with parameters "
        f"of their own ({_short(arm.final_hash)})."
        for arm in summary.arms
        if arm.arm in lossy
    ]


def _of_exact(hashes: dict[str, str | None], whose: str) -> list[str]:
    first = next(iter(hashes.values()), None)
    if not hashes:
        return []
    if first is not None and set(hashes.values()) == {first}:
        return [f"All ranks of {whose} ended with bitwise the same parameters ({first[:_HASH_DIGITS]})."]
    return [
        "In every launch the ranks ended bitwise alike, but the arms did not: "
        + ", ".join(f"{arm} {_short(value)}" for arm, value in hashes.items())
        + "."
    ]


def _short(value: str | None) -> str:
    return "not the same in every round" if value is None else value[:_HASH_DIGITS]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _milliseconds(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    median, low, high = (f"{value * 1e3:.2f}" for value in (estimate.median, estimate.low, estimate.high))
    return median if estimate.n == 1 else f"{median} ({low}–{high})"


def _percent(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.median:.0%}"


def _factor(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.median:.2f}×"
