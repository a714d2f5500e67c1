"""State what was measured: the first line of a report, the command, and what the libraries attest."""

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
    """Return one line with the model, ranks, device, batch and order of a run.

    With its ``summary``, the line also states the rounds, whether they were noisy, and options that all arms
    share. Without it, the line states the optimizer, and the length of the training.
    """
    config = run.config
    passes = f" × {config.accumulate} passes" if config.accumulate > 1 else ""
    parts = [
        trained(run),
        f"{counted(config.ranks, 'rank')} × {counted(config.threads_per_rank, 'thread')}, {config.device}",
        config.precision if config.precision != "float32" else "",
        "compiled" if config.compile else "",
        f"batch {config.batch_size_per_rank}{'' if summary else ' per rank'}{passes}",
        rehearsal_headline(run.network, run.hosts),
        *(_rounds(run, summary) if summary else _length(run)),
    ]
    return " · ".join(filter(None, parts))


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


def facts_of(made: Run | CollectivesRun | Series) -> list[tuple[str, str]]:
    """Return pairs of a name and a value: the command, when it started, and the version of Ringside."""
    return [
        ("command", " ".join(made.command)),
        ("started", made.started_at),
        ("Ringside", made.ringside_version),
    ]


def attested_by(run: Run) -> list[Attested]:
    """Return what the first rank of each arm's last launch attests; arms without a launch are left out."""
    return [
        Attested(arm.label, launches[-1].launcher, launches[-1].ranks[0].attestation)
        for arm in run.config.arms
        if (launches := run.of(arm))
    ]


# ---- the parts ----


def trained(run: Run) -> str:
    """Return the model and what it is trained on."""
    config = run.config
    return config.model if config.is_own else f"{config.model} on {_DATASETS[run.dataset.name]}"


def _length(run: Run) -> Iterator[str]:
    """Yield the optimizer, the length of the training, and the order of the arms."""
    config = run.config
    yield "" if config.is_own else f"{config.optimizer} lr {config.learning_rate:g}"
    yield f"{config.steps} steps" if config.steps else counted(config.epochs, "epoch")
    yield _order(run)


def _rounds(run: Run, summary: Summary) -> Iterator[str]:
    """Yield the number of rounds, the order of the arms, how quiet it was, and what all arms share."""
    if summary.arms:
        yield counted(max(arm.step_seconds.n for arm in summary.arms), "round")
    yield _order(run)
    if summary.arms:
        noisy = summary.noisy_rounds or summary.noise_hides_all
        yield "noisy" if noisy else "oversubscribed" if summary.oversubscribed else "quiet"
    shared = shared_options(run)
    yield f"all arms: {shared.label.partition(':')[2]}" if shared else ""


def _order(run: Run) -> str:
    """Return whether several arms ran in turns or one after another; empty for a single arm."""
    if len(run.config.arms) == 1:
        return ""
    return "in turns" if run.interleaved.mode == "blocks" else "one launch after another"
