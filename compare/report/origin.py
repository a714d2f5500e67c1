"""State what was measured: the title of a report, the command, and what the libraries attest."""

from __future__ import annotations

from collections.abc import Iterator

from compare.analysis.summary import Summary
from compare.report.document import Attested
from compare.schema.arms import Arm
from compare.schema.collectives import CollectivesRun
from compare.schema.hosts import rehearsal_headline
from compare.schema.results import Run
from compare.schema.scale import Series
from compare.text import counted

_DATASETS = {"mnist": "MNIST", "digits": "scikit-learn's digits (NOT MNIST)"}


def headline(run: Run, summary: Summary | None = None) -> str:
    """Return a title with the model, ranks, device and batch of a run, and whether its arms took turns.

    With its ``summary``, the title also states the rounds, whether they were noisy, and the options that all
    arms share. Without it, it states the optimizer and the length of the training instead.
    """
    config = run.config
    passes = f" × {config.accumulate} passes" if config.accumulate > 1 else ""
    parts = [
        model_and_data(run),
        f"{counted(config.ranks, 'rank')} × {counted(config.threads_per_rank, 'thread')}, {config.device}",
        config.precision if config.precision != "float32" else "",
        "compiled" if config.compile else "",
        f"batch {config.batch_size_per_rank}{'' if summary else ' per rank'}{passes}",
        rehearsal_headline(run.network, run.hosts),
        *(_rounds(run, summary) if summary else _length(run)),
    ]
    return " · ".join(filter(None, parts))


def shared_options(run: Run) -> Arm | None:
    """Return an arm with only those options that all synchronising arms share.

    Its backend is that of the first such arm. None if fewer than two arms synchronise, or if they share no
    option.
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


def facts_of(result: Run | CollectivesRun | Series) -> list[tuple[str, str]]:
    """Return the command that made a result, when it started, and Ringside's version, each after its name."""
    return [
        ("command", " ".join(result.command)),
        ("started", result.started_at),
        ("Ringside", result.ringside_version),
    ]


def attested_by(run: Run) -> list[Attested]:
    """Return what the first rank of each arm's last launch attests; arms without a launch are left out."""
    return [
        Attested(arm.label, launches[-1].launcher, launches[-1].ranks[0].attestation)
        for arm in run.config.arms
        if (launches := run.of(arm))
    ]


# ---- the parts ----


def model_and_data(run: Run) -> str:
    """Return a run's model and data set as text, or only the model if it is the user's own workload."""
    config = run.config
    return config.model if config.is_own else f"{config.model} on {_DATASETS[run.dataset.name]}"


def _length(run: Run) -> Iterator[str]:
    """Yield the parts of the title without a summary: optimizer, length of the training, and turns."""
    config = run.config
    yield "" if config.is_own else f"{config.optimizer} lr {config.learning_rate:g}"
    yield f"{config.steps} steps" if config.steps else counted(config.epochs, "epoch")
    yield _order(run)


def _rounds(run: Run, summary: Summary) -> Iterator[str]:
    """Yield the parts of the title with a summary: rounds, turns, noise, and the options of all arms."""
    if summary.arms:
        yield counted(max(arm.step_seconds.n for arm in summary.arms), "round")
    yield _order(run)
    if summary.arms:
        noisy = summary.noisy_rounds or summary.noise_hides_all
        yield "noisy" if noisy else "oversubscribed" if summary.oversubscribed else "quiet"
    shared = shared_options(run)
    yield f"all arms: {shared.label.partition(':')[2]}" if shared else ""


def _order(run: Run) -> str:
    """Return as text whether the arms ran in turns or one after another; empty for a single arm."""
    if len(run.config.arms) == 1:
        return ""
    return "in turns" if run.interleaved.mode == "blocks" else "one launch after another"
