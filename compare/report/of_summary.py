"""Make the summary of a run: half a page for readers who do not know what an arm is.

It tells in sentences what was compared, what is known, what is not, and what to do. An arm is called a way of
synchronising here, and a rank a process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backends.code import summary_of
from compare.analysis import Analysis
from compare.analysis.budget import FIRST_LOOK, budget_for
from compare.analysis.figures import OTHER_LOAD_LIMIT
from compare.analysis.noise import POWER, budget_to_rank, narrowest_half_width
from compare.analysis.parity import distance_of_ends
from compare.analysis.ranking import Lead
from compare.analysis.summary import ArmSummary, Summary
from compare.analysis.verdict import MARGIN
from compare.report.cells import format_ratio, format_size
from compare.report.columns import describe_verdict
from compare.report.document import Column, Document, Row, Table
from compare.report.memory import memory_sentences, unfit_sentences
from compare.report.of_run import arrange, time_for_an_hour
from compare.report.origin import model_and_data, source_of
from compare.report.sentences import MOST_ADVISED_ROUNDS, ended_apart, why_marked
from compare.schema.arms import CONTROL
from compare.schema.results import Run
from compare.text import counted, duration, listed, numbered, percent


def document_of(run: Run, analysis: Analysis) -> Document:
    """Return the summary of a run as a table of sentences, with a row for each question of its readers."""
    shown = arrange(analysis)
    questions = {
        "In short": _answer,
        "What was compared": _compared,
        "What is known": _known,
        "What is not known": _unknown,
        "What to do": _advice,
    }
    texts = {question: " ".join(filter(None, answer(run, shown))) for question, answer in questions.items()}
    rows = [Row((question, text)) for question, text in texts.items() if text]
    return Document(
        title=f"{model_and_data(run)}: which way of synchronising?",
        tables=[Table(columns=[Column("", str, is_text=True)] * 2, rows=rows, is_prose=True)],
        notes=source_of(run, run, "")[1:],
    )


def _ways(run: Run, analysis: Analysis) -> list[ArmSummary]:
    """Return the figures of the arms that synchronise and have a launch, in the order of display."""
    labels = {arm.label for arm in run.config.synchronising}
    return [arm for arm in analysis.summary.arms if arm.arm in labels]


def _joined(names: Sequence[str], word: str = "and") -> str:
    """Join names as in a sentence: ``a, b and c``."""
    *first, last = names or [""]
    return f"{', '.join(first)} {word} {last}" if first else last


# ---- the answer ----


def _answer(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield which way is the fastest, or why that is not known."""
    summary, ways, lead = analysis.summary, _ways(run, analysis), analysis.summary.lead
    if reason := _why_no_answer(run, analysis, ways):
        yield reason
    elif lead is None:
        yield "There is no answer yet, because the other ways have not finished."
    elif lead.same:
        names = _joined([lead.first, *lead.rivals])
        yield f"{names} are the fastest of {len(ways)} ways here, and equal within {percent(MARGIN)}."
    elif lead.fastest is None:
        yield f"It is open which way is the fastest: {_joined([lead.first, *lead.rivals], 'or')}."
    else:
        yield from _fastest(run, ways, lead.fastest)
    if summary.unfit and ways:
        unfit = [unfit.arm for unfit in summary.unfit if unfit.arm != CONTROL]
        yield f"Memory ran out in the processes of {_joined(unfit)}." if unfit else ""
    if summary.noisy_rounds and not summary.noise_hides_all:
        yield "Other programs took CPU time from this run, so small differences may not be real."


def _why_no_answer(run: Run, analysis: Analysis, ways: list[ArmSummary]) -> str:
    """Return why a run cannot tell which way is the fastest; empty if its rounds can."""
    summary, wrong = analysis.summary, _wrong(ways)
    reasons = {
        f"There is no answer, because {_joined(wrong)} trained a wrong model.": bool(wrong),
        "None of these ways fits into memory, so there is no answer.": not ways
        and summary.unfit
        and run.failure,
        "Nothing was measured, so there is no answer yet.": not ways,
        "This run compared one way with itself, to learn how often equal ways seem different.": analysis.aa,
        "One way alone was measured, so this run tells its cost and compares no speeds.": (
            len(run.config.synchronising) == 1
        ),
        "There is no answer: noise on the machine may explain every difference that was seen.": (
            summary.noise_hides_all
        ),
        "There is no answer, because the processes outnumbered the cores and took time from each other.": (
            summary.oversubscribed
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _fastest(run: Run, ways: list[ArmSummary], fastest: str) -> Iterator[str]:
    """Yield which way is the fastest, what an hour with the baseline becomes, and what it trains."""
    yield f"{fastest} is the fastest of {len(ways)} ways here."
    takes = time_for_an_hour(next(arm.verdict for arm in ways if arm.arm == fastest))
    if takes:
        yield f"Steps that take 1 h with {run.config.baseline} take {takes} with it."
    if fastest in _inexact(run, ways):
        yield "By design it does not train exactly what the others train."


# ---- what was compared ----


def _compared(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield what the processes do, which ways there are, and how they were timed."""
    config, summary = run.config, analysis.summary
    where = f"on {counted(len(run.hosts), 'machine')}"
    if run.network.rehearsed:
        where = f"on one machine that stands in for {len(run.hosts)}"
    processes = "1 process" if config.ranks == 1 else f"{config.ranks} processes"
    computers = "CPUs" if config.device == "cpu" else "GPUs"
    yield (
        f"{processes} (ranks) {where} train one model together on {computers}, each with "
        f"{config.batch_size_per_rank} samples of its own in every step. They must then agree on one change "
        "of the model (synchronising)."
    )
    arms = [*config.synchronising, *(unfit.arm for unfit in run.unfit)]
    yield f"The ways: {_joined([f'{arm.label} ({summary_of(arm.backend, arm.options)})' for arm in arms])}."
    if _ways(run, analysis):
        rounds = counted(max(arm.step_seconds.n for arm in summary.arms), "time")
        in_turns = run.interleaved.mode == "blocks" and len(config.arms) > 1
        turns = ", in turns, so that they share slow moments" if in_turns else ""
        started = "started, and each that fits was" if run.unfit else "started and"
        yield f"Each was {started} timed {rounds}{turns}."


# ---- what is known ----


def _known(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield what is proven about the training, what fits into memory, and what speed and memory cost."""
    ways, baseline = _ways(run, analysis), run.config.baseline
    yield from _trained(run, ways)
    if analysis.summary.noise_hides_all and analysis.summary.noisy_rounds:
        noisy = numbered("round", analysis.summary.noisy_rounds)
        yield f"Other programs took more than {percent(OTHER_LOAD_LIMIT)} of the CPUs in {noisy}."
    passed = [arm for arm in ways if arm.parity.outcome == "passed" and arm.arm not in _inexact(run, ways)]
    yield from ended_apart(passed, distance_of_ends(run, [arm.arm for arm in passed]))
    yield from unfit_sentences(analysis.summary.unfit)
    settled = [arm for arm in ways if arm.verdict and arm.verdict.kind in {"faster", "slower"}]
    if settled and not analysis.summary.ranks_nothing:
        ratios = ", ".join(f"{arm.arm} {describe_verdict(arm.verdict)}" for arm in settled if arm.verdict)
        yield f"Speed in relation to {baseline}, where 1× is equal: {ratios}."
    same = [arm.arm for arm in ways if arm.verdict and arm.verdict.kind == "same"]
    if same and not analysis.summary.ranks_nothing:
        yield f"{_joined(same)}: as fast as {baseline}, within {percent(MARGIN)}."
    for arm in ways:
        if arm.arm in {baseline, analysis.summary.lead and analysis.summary.lead.fastest}:
            yield from _cost(arm, analysis)
    yield from _memory(run, analysis.summary, ways)
    if (
        any(arm.verdict and arm.verdict.low is not None for arm in ways)
        and not analysis.summary.ranks_nothing
    ):
        rounds = max(arm.step_seconds.n for arm in ways)
        yield f"Brackets hold ranges over {counted(rounds, 'start')}, with a confidence of 95 % or more."


def _memory(run: Run, summary: Summary, ways: list[ArmSummary]) -> Iterator[str]:
    """Yield what ranks hold where ways shard or only one fits, and what is counted."""
    held = list(memory_sentences(run, summary))
    if len(ways) == 1 and ways[0].memory and ways[0].memory.held_bytes is not None:
        held = [f"{ways[0].arm} holds {format_size(ways[0].memory.held_bytes)} a rank."]
    yield from held
    if held:
        yield "That is the model, its gradients, the optimizer's state and the library's buffers alone."


def _cost(arm: ArmSummary, analysis: Analysis) -> Iterator[str]:
    """Yield how long a step takes with an arm, and how much of that is synchronising, if it is known."""
    if analysis.summary.ranks_nothing:
        return
    share = ""
    if arm.sync_share and not arm.below_noise:
        share = f"; {percent(arm.sync_share.mean)} of it is synchronising ({arm.transport})"
    yield f"With {arm.arm}, a step takes {arm.step_seconds.mean * 1e3:.2f} ms{share}."


def _trained(run: Run, ways: list[ArmSummary]) -> Iterator[str]:
    """Yield which ways are proven to train the right model, which are not, and which train something else."""
    marked = _inexact(run, ways)
    exact = [arm for arm in ways if arm.arm not in marked]
    right = [arm.arm for arm in exact if arm.parity.outcome == "passed"]
    if right:
        who = "All" if len(right) == len(ways) > 1 else _joined(right)
        steps = min(arm.parity.steps or 0 for arm in exact if arm.arm in right)
        checked = f"{steps} steps that were checked" if steps else "one step that was checked"
        yield f"{who} trained what a single process trains, in {checked}."
    if wrong := _wrong(ways):
        yield f"{_joined(wrong)} TRAINED A WRONG MODEL, so this speed is worth nothing."
    if marked:
        yield f"By design, {_joined(marked)} did not train exactly the same: {_losses(ways)}."


def _wrong(ways: list[ArmSummary]) -> list[str]:
    """Return the labels of the ways whose proof failed."""
    return [arm.arm for arm in ways if arm.parity.outcome == "failed"]


def _inexact(run: Run, ways: list[ArmSummary]) -> list[str]:
    """Return the labels of the ways that by design do not train exactly what one process trains."""
    arms = {arm.label: arm for arm in run.config.synchronising}
    return [arm.arm for arm in ways if why_marked(arms[arm.arm])]


def _diverged(ways: list[ArmSummary]) -> list[str]:
    """Return the labels of the ways whose loss is no longer a number."""
    return [arm.arm for arm in ways if arm.test_loss is None]


def _losses(ways: list[ArmSummary]) -> str:
    """Return the loss of each way on the test set, as text."""
    each = (f"{arm.arm} {'diverged' if arm.test_loss is None else f'{arm.test_loss:.4g}'}" for arm in ways)
    return f"the loss on the test set is {listed(each)}"


# ---- what is not known ----


def _unknown(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield what is open, what is missing, and what a run says nothing about."""
    summary, ways = analysis.summary, _ways(run, analysis)
    if summary.noise_hides_all and len(ways) > 1:
        width = _narrowest(analysis)
        reaches = f"even the narrowest range reaches {format_ratio(width)} either way" if width else ""
        starts = counted(max(arm.step_seconds.n for arm in ways), "start")
        yield f"Which way is faster: {reaches or f'{starts} give no range'}."
    yield from _what_went_wrong(run, analysis, ways)
    missing = [arm.label for arm in run.config.synchronising if arm.label not in {way.arm for way in ways}]
    if missing:
        yield f"{_joined(missing)}: not measured."
    yield from (f"{name}: did not run, because {reason}." for name, reason in run.left_out.items())
    unproven = [arm.arm for arm in ways if arm.parity.outcome not in {"passed", "failed"}]
    if unproven:
        bare = {bare.arm for bare in summary.bare}.issuperset(unproven)
        why = ", because a launch that checks it does not fit into memory" if bare else ""
        yield f"Whether {_joined(unproven)} trained the right model{why}."
    opened = [arm for arm in ways if arm.verdict and arm.verdict.kind == "open"]
    if opened and not summary.ranks_nothing:
        yield f"Whether {_joined([arm.arm for arm in opened])} differ in speed from {run.config.baseline}."
        seen = [arm.would_have_seen for arm in opened if arm.would_have_seen is not None]
        if seen:
            ratio, found = format_ratio(1 + max(seen)), f"{POWER * 100:g} of 100 such runs"
            yield f"A difference of {ratio} would have been found by {found}, and smaller ones less often."
    elif ways and max(arm.step_seconds.n for arm in ways) == 1:
        yield "How much these times vary, because one start gives no range."
    unknown = [arm.arm for arm in ways if arm.memory and arm.memory.held_bytes is None]
    if unknown and any(memory_sentences(run, summary)):
        yield f"How much memory {_joined(unknown)} holds."
    if run.config.ranks > 1 and not any(arm.traits.one_process for arm in run.config.arms):
        yield "Whether one process alone would train faster (the way `single`)."
    machine = "this machine" if len(run.hosts) == 1 else "these machines"
    yield f"Anything about another model or batch, or about more than these processes and {machine}."


def _what_went_wrong(run: Run, analysis: Analysis, ways: list[ArmSummary]) -> Iterator[str]:
    """Yield that a run ended early, that conditions differed, and that a training diverged."""
    if run.failure:
        yield f"The run failed: {run.failure.what}"
    elif not run.complete:
        yield "The run was stopped before its end."
    if analysis.summary.noisy_rounds and not analysis.summary.noise_hides_all:
        noisy = numbered("round", analysis.summary.noisy_rounds)
        yield f"How much of these times is due to other programs, which took much CPU time in {noisy}."
    if different := analysis.unexplained_differences:
        items = listed(condition.item for condition in different)
        yield f"Why the ways differ, because they ran under different conditions: {items}."
    if diverged := _diverged(ways):
        yield f"What {_joined(diverged)} would train, because the loss is no longer a number."


# ---- what to do ----


def _advice(run: Run, analysis: Analysis) -> Iterator[str]:
    """Yield what to do next, or that nothing needs to be done."""
    summary, lead, ways = analysis.summary, analysis.summary.lead, _ways(run, analysis)
    if _wrong(ways):
        yield "Find out why a way trains a wrong model: `ringside verify` tells where it differs."
    elif _diverged(ways):
        yield "Measure again with a smaller learning rate, because a training that diverges is of no use."
    elif summary.unfit and len(ways) < 2:  # noqa: PLR2004 -- a comparison takes two
        yield _what_fits(run, ways)
    elif lead is None and run.failure:
        yield "Fix what failed, or leave out that way, and measure again."
    elif len(run.config.synchronising) == 1:
        yield "To compare, name several ways. `ringside backends` lists those that a machine can run."
    elif analysis.aa:
        yield "Nothing: such a run tests the tool."
    elif summary.noise_hides_all:
        width = _narrowest(analysis)
        budget = budget_to_rank(run, width) if width else 0
        longer = f", or measure longer: --budget {budget}, which is {duration(budget)}" if budget else ""
        more = "" if width else f", with {FIRST_LOOK} starts or more"
        yield f"Change nothing yet. Measure on a quieter machine{more}{longer}."
    elif summary.oversubscribed:
        yield "Measure again with no more processes and threads than cores."
    elif lead is None:
        yield "Measure again, and let the run finish."
    else:
        yield from _choice(run, summary, ways, lead)


def _narrowest(analysis: Analysis) -> float | None:
    """Return how far the narrowest range of a ratio reaches, as a factor; None if there is no range."""
    return narrowest_half_width([arm.verdict for arm in analysis.summary.arms if arm.verdict])


def _what_fits(run: Run, ways: list[ArmSummary]) -> str:
    """Return what to do if no more than one way fits into memory."""
    if not ways:
        return "Give the processes more memory, or divide the model among more of them (sharding)."
    condition = _condition(run, ways, ways[0].arm)
    if_so = f" if it is fast enough{condition}" if condition else ""
    return f"Give the processes more memory and measure again, or use {ways[0].arm}{if_so}."


def _choice(run: Run, summary: Summary, ways: list[ArmSummary], lead: Lead) -> Iterator[str]:
    """Yield which way to use, or how to find out."""
    if lead.rivals and not lead.same:
        yield _how_to_settle(run, lead.rounds_to_settle, max(arm.step_seconds.n for arm in ways))
        return
    if lead.same:
        yield "Choose between them by what else matters, such as memory or what your people know."
    else:
        yield f"Use {lead.first}, if speed decides{_condition(run, ways, lead.first)}."
    if summary.noisy_rounds:
        yield "To be sure, measure again with nothing else running."
    yield from _if_memory_decides(run, ways, lead.first)
    yield "If this is not your own model on your own machines, measure those."


def _condition(run: Run, ways: list[ArmSummary], label: str) -> str:
    """Return clauses with what else must hold for an arm to be used; empty if nothing must."""
    arm = next(arm for arm in run.config.synchronising if arm.label == label)
    in_memory = arm.traits.on_one_host and arm.traits.on_one_host.items() <= arm.options.items()
    clauses = {
        "its loss is good enough": label in _inexact(run, ways),
        "a smaller model of the same kind passes `ringside verify`": run.is_bare(arm),
        "all processes are on the CPUs of one machine": in_memory,
    }
    return "".join(f" and {clause}" for clause, must_hold in clauses.items() if must_hold)


def _if_memory_decides(run: Run, ways: list[ArmSummary], fastest: str) -> Iterator[str]:
    """Yield which way holds the least memory, if one shards and it is not the fastest."""
    shards = {arm.label for arm in run.config.synchronising if arm.traits.shards != "nothing"}
    known = ((arm.arm, arm.memory.held_bytes) for arm in ways if arm.memory)
    held = {label: size for label, size in known if size is not None}
    least = min(held, key=held.__getitem__, default=fastest)
    if least in shards and least != fastest:
        size = format_size(held[least])
        condition = _condition(run, ways, least)
        yield f"Use {least}, if memory decides{condition}: a rank then holds {size}, the least that is known."


def _how_to_settle(run: Run, further_rounds: int | None, rounds: int) -> str:
    """Return what would settle which way is the fastest."""
    if rounds < FIRST_LOOK:
        return f"Let it run longer: {FIRST_LOOK} rounds are the least for a verdict."
    if further_rounds is None or further_rounds > MOST_ADVISED_ROUNDS:
        return "Choose by what else matters, because a longer run would hardly tell them apart."
    budget = budget_for(run, rounds + further_rounds)
    return f"Measure longer, if the difference matters to you: --budget {budget}."
