"""Write the first line of a report: what was measured."""

from __future__ import annotations

from collections.abc import Iterator

from compare.analysis.summary import Summary
from compare.schema.arms import Arm
from compare.schema.hosts import rehearsed_on
from compare.schema.results import Run
from compare.text import counted

DATASET_NAMES = {"mnist": "MNIST", "digits": "scikit-learn's digits (NOT MNIST)"}


def headline(run: Run) -> str:
    """Return one line with the model, ranks, device, batch, optimizer and length of a run."""
    config = run.config
    length = f"{config.steps} steps" if config.steps else counted(config.epochs, "epoch")
    return " · ".join(
        [
            _trained(run),
            _ranks(run),
            config.device,
            *_arithmetic(run),
            f"batch {config.batch_size_per_rank} per rank{_passes(run)}",
            *([] if config.is_own else [f"{config.optimizer} lr {config.learning_rate:g}"]),
            length,
            *filter(None, [rehearsed_on(run.network, run.hosts)]),
            *_order(run),
        ]
    )


def short_headline(run: Run, summary: Summary) -> str:
    """Return one line with the model, ranks and batch of a run, its rounds, and whether they were noisy."""
    batch = f"batch {run.config.batch_size_per_rank}{_passes(run)}"
    parts = [_trained(run), f"{_ranks(run)}, {run.config.device}", *_arithmetic(run), batch]
    rehearsed = filter(None, [rehearsed_on(run.network, run.hosts)])
    return " · ".join([*parts, *rehearsed, *_rounds(run, summary), *_shared(run)])


def shared_options(run: Run) -> Arm | None:
    """Return an arm that has only the options which all synchronising arms share.

    Its backend is that of the first. None if fewer than two arms synchronise, or if they share no option.
    """
    arms = run.config.synchronising
    if len(arms) < 2:  # noqa: PLR2004 -- one arm shares nothing
        return None
    first, *others = arms
    shared = {
        name: value
        for name, value in first.given.items()
        if all(name in arm.given and arm.given[name] == value for arm in others)
    }
    return Arm(first.backend, shared) if shared else None


# ---- the parts ----


def _trained(run: Run) -> str:
    config = run.config
    return config.model if config.is_own else f"{config.model} on {DATASET_NAMES[run.dataset.name]}"


def _ranks(run: Run) -> str:
    return f"{counted(run.config.ranks, 'rank')} × {counted(run.config.threads_per_rank, 'thread')}"


def _arithmetic(run: Run) -> Iterator[str]:
    if run.config.precision != "float32":
        yield run.config.precision
    if run.config.compile:
        yield "compiled"


def _passes(run: Run) -> str:
    return f" × {run.config.accumulate} passes" if run.config.accumulate > 1 else ""


def _order(run: Run) -> Iterator[str]:
    """Yield whether several arms ran in turns or one after another; nothing for a single arm."""
    if len(run.config.arms) > 1:
        yield "in turns" if run.interleaved.mode == "blocks" else "one launch after another"


def _rounds(run: Run, summary: Summary) -> Iterator[str]:
    if summary.arms:
        yield counted(max(arm.step_seconds.n for arm in summary.arms), "round")
    yield from _order(run)
    if summary.arms:
        noisy = summary.noisy_rounds or summary.noise_hides_all
        yield "noisy" if noisy else "oversubscribed" if summary.oversubscribed else "quiet"


def _shared(run: Run) -> Iterator[str]:
    if shared := shared_options(run):
        yield f"all arms: {shared.label.partition(':')[2]}"
