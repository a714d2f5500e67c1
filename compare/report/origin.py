"""State what was measured, and warn of everything that limits what its figures mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from compare.analysis import Analysis
from compare.analysis.budget import FIRST_LOOK, cores_of, fullest_host
from compare.analysis.causes import Condition
from compare.analysis.figures import OTHER_LOAD_LIMIT
from compare.analysis.noise import budget_to_rank, narrowest_half_width
from compare.analysis.summary import Summary
from compare.report.cells import format_ratio
from compare.report.document import Attested
from compare.schema.arms import Arm
from compare.schema.collectives import CollectivesRun
from compare.schema.hosts import rehearsal_headline
from compare.schema.results import Run
from compare.schema.scale import Series
from compare.text import counted, listed, numbered, percent

DATASETS = {"mnist": "MNIST", "digits": "scikit-learn's digits (NOT MNIST)"}
"""The names of the built-in data sets, as users read them."""
_DATE_CHARACTERS = len("2026-11-28")
_LONGEST_CONDITION = 300
_MOST_WARNINGS = 3
_STALL_SHARE = 0.05
"""An arm has stalls if the mean over its blocks exceeds the median by more than this share."""
_OPEN_MPI_SETTING = "OMPI_MCA_btl_vader_single_copy_mechanism", "none"
_MPICH_SETTING = "MPIR_CVAR_CH4_CMA_ENABLE", "0"
"""Environment variables and their values that make Open MPI and MPICH copy twice, through shared memory."""
_EFFECTS_OF_REFUSAL = {
    "CMA": "large messages fail at first, and are then copied in parts",
    "none": "large messages are copied twice and not once",
    "unknown": "large messages may fail at first, and be copied twice",
}
"""What happens to large messages if reads are refused, by the copy mechanism that the library reports."""


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
        "RANKS SHARE GPUS" if config.shares_gpus else "",
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


def source_of(result: Run | CollectivesRun | Series, run: Run | CollectivesRun, title: str) -> list[str]:
    """Return the lines below a picture that stands alone: the settings, and where and when they ran."""
    ranks = [rank for launch in run.launches for rank in launch.ranks]
    attested = ranks[0].attestation if ranks else {}
    device = attested.get("device", "cpu")
    parts = [
        f"{attested.get('processor') or run.hosts[0].name}, {counted(min(cores_of(run)), 'core')}",
        counted(len(run.hosts), "host") if len(run.hosts) > 1 else "",
        device if device != "cpu" else "",
        result.started_at[:_DATE_CHARACTERS],
        f"Ringside {result.ringside_version}",
    ]
    return [title, " · ".join(filter(None, parts))]


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
    return config.model if config.is_own else f"{config.model} on {DATASETS[run.dataset.name]}"


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


# ---- warnings ----


def warnings(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield a line for each thing that limits the figures of a run.

    If noise hides every difference, a single line says so. It takes the place of the lines about noisy
    rounds, uneven load and stalls.
    """
    summary = analysis.summary
    yield from _incomplete(run)
    yield from _machine_warnings(run, summary)
    attested = {
        arm.label: [rank.attestation for launch in run.of(arm) for rank in launch.ranks]
        for arm in run.config.arms
    }
    yield from refused_copies(attested)
    yield from attested_notes(run)
    if summary.rounds_repeated:
        repeated = counted(summary.rounds_repeated, "noisy round")
        yield f"{repeated} {'was' if summary.rounds_repeated == 1 else 'were'} repeated."
    yield from noise_warnings(run, summary)
    yield from _load_warnings(run, analysis)
    for condition in analysis.unexplained_differences:
        yield f"CONDITIONS DIFFER: {_shortened(condition)}"
    for arm in summary.arms:
        if arm.test_loss is None:
            yield f"{arm.arm} diverged: its loss is no longer a number. Try a smaller learning rate."
    yield from _unused(run)
    yield from _not_compiled(run)
    for launch in run.launches:
        if launch.restarted_because:
            yield f"{launch.arm}, round {launch.round}: launched twice, because {launch.restarted_because}."
    if run.interleaved.why:
        yield f"Not in turns: {run.interleaved.why}"
    yield from (f"{name} did not run: {reason}." for name, reason in run.left_out.items())


def describe_condition(condition: Condition) -> str:
    """Return a sentence with a condition, its value in every arm, and why it differs or what that causes."""
    values = "; ".join(f"{arm} {value}" for arm, value in condition.values.items())
    return f"{condition.item} ({values}): {condition.why}."


def _shortened(condition: Condition) -> str:
    """Return the description of a condition, without its values if they would make it too long."""
    described = describe_condition(condition)
    if len(described) <= _LONGEST_CONDITION:
        return described
    return f"{condition.item} (values: --detail): {condition.why}."


def _incomplete(run: Run) -> Iterator[str]:
    """Yield a line if the run did not finish, and the note on its data set if there is one."""
    if run.failure and not run.complete:
        yield f"INCOMPLETE: {run.failure.what}"
    elif not run.complete:
        yield "INCOMPLETE: the run is still going on, or was stopped."
    if run.dataset.note:
        yield f"{run.dataset.note}."


def _unused(run: Run) -> Iterator[str]:
    """Yield a line with the parameters that get no gradient, and the arms that still change them."""
    parities = [parity for launch in run.launches for parity in launch.ranks[0].parity]
    if names := next((parity.unused for parity in parities if parity.unused), []):
        moving = ", ".join(arm.label for arm in run.config.arms if arm.zeros_for_unused)
        moved = f" {moving} gives them zero gradients, so weight decay moves them." if moving else ""
        yield f"Parameters that take no part in the loss: {', '.join(names)}.{moved}"


def _not_compiled(run: Run) -> Iterator[str]:
    """Yield a line with the arms that compiled nothing in a run with --compile."""
    names = [
        arm.label
        for arm in run.config.arms
        if run.config.compile
        and any(la.ranks[0].attestation.get("compiled_graphs") == 0 for la in run.of(arm))
    ]
    if names:
        why = "--compile compiles calls of the model, and its loss or strategy calls parts of it"
        yield f"Not compiled: {', '.join(names)}. {why}."


# ---- noise ----


def noise_warnings(run: Run, summary: Summary) -> list[str]:
    """Return the warnings about noise and uneven load, which documents show before all others."""
    if summary.noise_hides_all:
        return [_nothing_ranked(run, summary)]
    loads = {arm.arm: arm.verdict.uneven_load for arm in summary.arms if arm.verdict}
    return [
        *([noisy_rounds_warning(numbered("round", rounds))] if (rounds := summary.noisy_rounds) else []),
        *(
            f"Uneven load: other processes used {load[0]:.2f} cores beside {arm}, and {load[1]:.2f} beside "
            f"{run.config.baseline}. That may explain or hide a difference between them. "
            "Run again on a quieter machine."
            for arm, load in loads.items()
            if load
        ),
    ]


def noisy_rounds_warning(which: str) -> str:
    """Return the warning that rounds are noisy, with the remedy; ``which`` names them, as ``rounds 1–3``."""
    load = f"other processes used more than {percent(OTHER_LOAD_LIMIT, 'g')} of the CPUs in {which}"
    return f"Noisy: {load}. Distrust small differences, or measure again on a quieter machine."


def _nothing_ranked(run: Run, summary: Summary) -> str:
    """Return the alert that noise hides every difference, with the reason and the remedy."""
    width = narrowest_half_width([arm.verdict for arm in summary.arms if arm.verdict])
    if width is None:
        return (
            f"NOTHING CAN BE RANKED: other processes used more than {percent(OTHER_LOAD_LIMIT, 'g')} of the "
            f"CPUs in every round. Stop other programs, and take {FIRST_LOOK} rounds or more."
        )
    remedy = "Stop other programs" if summary.noisy_rounds else "Measure on a quieter machine"
    return (
        "NOTHING CAN BE RANKED: every verdict is open, and the narrowest interval reaches "
        f"{format_ratio(width)} either way. {remedy}, or measure longer: "
        f"--budget {budget_to_rank(run, width)}."
    )


def _load_warnings(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield a line for each arm whose ratio to the baseline depends on the load, and one about stalls."""
    baseline, summary = run.config.baseline, analysis.summary
    for ratio in analysis.load_dependence:
        yield (
            f"The ratio of {ratio.arm} to {baseline} depends on the load. On a quiet machine {ratio.arm} has "
            f"{format_ratio(ratio.quiet_ratio)} the speed (a rank of none gets {ratio.quiet_cores:.2f} "
            f"cores). On a busy one it has {format_ratio(ratio.busy_ratio)} ({ratio.busy_cores:.2f} cores). "
            "The mean ratio describes neither."
        )
    above = {arm.arm: arm.mean_over_median.mean for arm in summary.arms if arm.mean_over_median}
    each = listed(f"{format_ratio(mean)} for {arm}" for arm, mean in above.items() if mean > 1 + _STALL_SHARE)
    if each and not summary.noise_hides_all:
        yield (
            f"Stalls: some blocks took so long that their mean is above the median: {each}. "
            "The step times contain them."
        )


# ---- what ranks attest ----


def _attested(run: Run, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the fact ``name`` of each rank, after the label of its arm; empty facts are left out."""
    for launch in run.launches:
        for rank in launch.ranks:
            if fact := rank.attestation.get(name):
                yield launch.arm, fact


def _machine_warnings(run: Run, summary: Summary) -> Iterator[str]:
    """Yield the warnings about the ranks' priority, CPU quotas, and too few cores."""
    highest = max((nice for _, nice in _attested(run, "nice")), default=0)
    if highest > 0:
        yield f"Nice {highest:g}: the ranks wait for programs of higher priority, so load slows them more."
    ranks = [rank for launch in run.launches for rank in launch.ranks]
    quotas = [(rank.attestation.get("core_quota"), rank.machine.cpus) for rank in ranks if rank.machine]
    if exceeded := [(quota, cpus) for quota, cpus in quotas if quota and quota < cpus]:
        least, cpus = min(exceeded)
        allowed = f"a control group allows {counted(least, 'core')} of the {cpus} that a host has"
        yield f"CPU quota: {allowed}. Ranks that use it up are paused, and step times include the pauses."
    if summary.oversubscribed:
        count, cores = fullest_host(run)
        threads = f"{counted(count, 'rank')} × {counted(run.config.threads_per_rank, 'thread')}"
        yield f"Oversubscribed: {threads} wait for {counted(cores, 'core')} of a host, so no arm is ranked."


def attested_notes(run: Run) -> Iterator[str]:
    """Yield notes on what the ranks attest: data loaders, the user's file, and warnings of libraries."""
    most = max((batch.get("loader_workers") or 0 for _, batch in _attested(run, "batch")), default=0)
    if most:
        yield f"Each rank's loader has {counted(most, 'worker')}, which are processes beside its threads."
    for _, dtype in list(_attested(run, "default_dtype"))[:1]:
        yield f"Your file sets the default dtype: {dtype}."
    if any(_attested(run, "function_called_once")):
        yield (
            "Your function takes too long to be called for each part of the proof. It was called once, so "
            "its models are copies, and they share what its closures remember."
        )
    arms_by_warning: dict[str, dict[str, None]] = {}
    for arm, texts in _attested(run, "warnings"):
        for text in texts:
            arms_by_warning.setdefault(text, {})[arm] = None
    for text, arms in list(arms_by_warning.items())[:_MOST_WARNINGS]:
        yield f"A library warns in {listed(arms)}: {text}."
    if len(arms_by_warning) > _MOST_WARNINGS:
        more = counted(len(arms_by_warning) - _MOST_WARNINGS, "more warning")
        yield f"The logs of the ranks have {more} of libraries."


def refused_copies(attested: Mapping[str, Iterable[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield a warning for each reason why ranks cannot read each other's memory, with their arms or groups.

    ``attested`` has what each rank attests, by the label of its arm or the name of its group. Ranks whose
    settings ask for two copies are left out, because they need no such read.
    """
    labels_by_refusal: dict[tuple[str, str, tuple[str, str]], list[str]] = {}
    for label, ranks in attested.items():
        for refusal in dict.fromkeys(filter(None, map(_refusal, ranks))):
            labels_by_refusal.setdefault(refusal, []).append(label)
    for (reason, effect, setting), labels in labels_by_refusal.items():
        yield (
            f"{', '.join(labels)}: {effect}, because this host refuses process_vm_readv ({reason}). So these "
            "times are not those of MPI where the call is allowed. Allow it: --cap-add=SYS_PTRACE for a "
            f"container, kernel.yama.ptrace_scope=0 for a host. Or ask for copies: {'='.join(setting)}"
        )


def _refusal(attestation: Mapping[str, Any]) -> tuple[str, str, tuple[str, str]] | None:
    """Return why a rank's reads are refused, the effect on messages, and the setting that avoids it.

    None if nothing is refused, if the setting is chosen already, or if the copy mechanism is not known.
    """
    group = attestation.get("group", {})
    reason, effect = group.get("memory_reads_refused"), _EFFECTS_OF_REFUSAL.get(group.get("single_copy"))
    name, value = setting = _MPICH_SETTING if "MPICH" in str(group.get("library")) else _OPEN_MPI_SETTING
    chosen = attestation.get("environment", {}).get(name) == value
    return None if chosen or not reason or effect is None else (reason, effect, setting)
