"""State what was measured: the first line of a report, the command, and what the libraries attest."""

from __future__ import annotations

from compare.analysis.summary import Summary
from compare.report.document import Attested
from compare.schema.arms import Arm
from compare.schema.collectives import CollectivesRun
from compare.schema.hosts import rehearsed_on
from compare.schema.results import Run
from compare.schema.scale import Series
from compare.text import counted

_DATASETS = {"mnist": "MNIST", "digits": "scikit-learn's digits (NOT MNIST)"}


def headline(run: Run) -> str:
    """Return one line with the model, ranks, device, batch, optimizer and length of a run."""
    config = run.config
    parts = [
        *_size(run),
        f"batch {config.batch_size_per_rank} per rank{_passes(run)}",
        "" if config.is_own else f"{config.optimizer} lr {config.learning_rate:g}",
        f"{config.steps} steps" if config.steps else counted(config.epochs, "epoch"),
        rehearsed_on(run.network, run.hosts),
        *_order(run),
    ]
    return " · ".join(filter(None, parts))


def short_headline(run: Run, summary: Summary) -> str:
    """Return one line with the model, ranks and batch of a run, its rounds, and whether they were noisy."""
    model, ranks, device, *arithmetic = _size(run)
    shared = shared_options(run)
    parts = [
        model,
        f"{ranks}, {device}",
        *arithmetic,
        f"batch {run.config.batch_size_per_rank}{_passes(run)}",
        rehearsed_on(run.network, run.hosts),
        *_rounds(run, summary),
        f"all arms: {shared.label.partition(':')[2]}" if shared else "",
    ]
    return " · ".join(filter(None, parts))


def _passes(run: Run) -> str:
    return f" × {run.config.accumulate} passes" if run.config.accumulate > 1 else ""


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


def _size(run: Run) -> list[str]:
    """Return the model, the ranks with their device, and the arithmetic if it is not the usual one."""
    config = run.config
    ranks = f"{counted(config.ranks, 'rank')} × {counted(config.threads_per_rank, 'thread')}"
    precision = [config.precision] if config.precision != "float32" else []
    return [trained(run), ranks, config.device, *precision, *(["compiled"] if config.compile else [])]


def _order(run: Run) -> list[str]:
    """Return whether several arms ran in turns or one after another; nothing for a single arm."""
    if len(run.config.arms) == 1:
        return []
    return ["in turns" if run.interleaved.mode == "blocks" else "one launch after another"]


def _rounds(run: Run, summary: Summary) -> list[str]:
    if not summary.arms:
        return _order(run)
    noisy = summary.noisy_rounds or summary.noise_hides_all
    state = "noisy" if noisy else "oversubscribed" if summary.oversubscribed else "quiet"
    return [counted(max(arm.step_seconds.n for arm in summary.arms), "round"), *_order(run), state]
