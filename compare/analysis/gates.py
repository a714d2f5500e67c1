"""Judge the samples and the last step of a proof, and state why one fails.

A user's own loader must give every rank samples of its own. After its training, each replica takes one more
step, which is checked.

A step updates the parameters by a sum of the gradients of all shards, and each rank usually has one shard.
The share of a gradient is its factor in that sum, times the number of shards. In the mean, every share is 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from compare.schema.arms import Arm
from compare.schema.parity import EndStep, ParityPass, PassKind, WrongStep
from compare.schema.results import Gate, RankResult
from compare.text import numbered, percent

GateName: TypeAlias = Literal["ranks", "samples", "float64", "float32", "end"]
_RATE_IN_PLACE_OF_ZERO = 1e9
"""Ratio of learning rates that the ranks record if the rate should be zero and is not."""
_RATE_TOLERANCE = 1e-4
"""A learning rate may differ by this share from the schedule's, or a gradient from a multiple of the mean."""
_MOST_SHARED = 0.5
"""If ranks share this part of their samples or more, duplicates in the data set cannot explain it."""
_SHARDING_ADVICE = "Use torch's DistributedSampler with num_replicas and rank."
_SHARE_TOLERANCE = 1e-3
"""A share counts as a value if it differs by no more than this.

An update counts as explained by its shares if no larger part of it remains.
"""
_LEAST_KEPT = 1e-9
"""If ``before_step`` keeps a smaller part of the mean, shares are not divided by that part."""
_ROUNDED_SHARE_ERROR = 0.01
"""Half precision explains an error of a share up to this one."""
_SHARDS_ADVICE = "Check that the shards are the parts of every global batch."
_PLAIN_MEAN = "It is the plain mean: the step leaves out what the workload's before_step does."
_SMALL_ADDITION = "It is nearly the mean: something small is added, such as weight decay or half precision."
_SAME_SAMPLES = f"Every rank trains on the same samples. {_SHARDS_ADVICE}"
_OTHER_SAMPLES = f"The ranks agree, on gradients of other samples or of another loss. {_SHARDS_ADVICE}"
_DIVERGES = (
    "The first update is right on every rank, and then the training diverges. SGD with a learning rate of "
    "0.01 is too much for this model. Scale its inputs, its targets or its loss."
)
_DIFFERENT_ENDS = "Every step is right on the ranks that compare it, but their models differ at the end."
_WORKLOAD_WITH_MEMORY = (
    "the workload remembers something that a new call of its function does not create anew",
    "Create such things inside the function, because a global or a file outlasts a call of it.",
)
_ROUNDING_STEP = (
    "each number is the mean except for half precision, so the step rounds on purpose",
    "Its test loss shows what the rounding costs in accuracy.",
)
_REFERENCE_ADVICE = "Give the workload a reference_step, which takes the batches of all ranks in one process."


def pass_of(rank: RankResult, kind: PassKind) -> ParityPass | None:
    """Return the rank's parity pass of this kind, which is a short training to prove it; None without one."""
    return next((parity_pass for parity_pass in rank.parity if parity_pass.kind == kind), None)


def failed_gate(
    arm: Arm, name: GateName, what: str, found: str, reason: str, **figures: float | None
) -> Gate:
    """Return a failed gate whose remedy is to fix the strategy or the user's own step, because of ``reason``.

    ``figures`` are the fields ``figure`` and ``limit`` of the gate.
    """
    remedy = f"Fix {'your step' if arm.traits.own_step else 'the strategy'}: {reason}"
    return Gate(name=name, outcome="failed", what=what, found=found, remedy=remedy, **figures)


def check_samples(arm: Arm, ranks: list[RankResult]) -> Gate | None:
    """Return the gate ``samples`` of one launch; None if no float64 pass used a loader of the user's own.

    A failed gate describes the first of these faults: the order of samples depends on the rank, ranks share
    samples, their epochs differ in length, or all epochs together miss or repeat samples.
    """
    passes = {r.rank: one for r in ranks if (one := pass_of(r, "float64")) and one.first_batches}
    if 0 not in passes or len(passes[0].first_batches) < len(ranks):
        return None
    expected = passes[0].first_batches
    what = f"{arm.label}: the ranks do not share the samples as one process would see them."
    batch = ranks[0].attestation["batch"]
    epoch_samples, all_samples = batch.get("samples_of_an_epoch"), batch["training_samples"]
    lengths = {rank.rank: rank.attestation["batch"].get("samples_of_an_epoch") for rank in ranks}
    known = {rank: length for rank, length in lengths.items() if length is not None}
    least, most = (choose(known, key=known.__getitem__, default=0) for choose in (min, max))
    other = [rank for rank, one in passes.items() if one.first_batches[rank] != expected[rank]]
    equal = [(expected.index(one), rank) for rank, one in enumerate(expected) if one in expected[:rank]]
    shared = passes[0].shared_samples
    margin = batch["samples"] * len(ranks)  # one step of all ranks
    repeats = len(ranks) > 1 and epoch_samples and epoch_samples * len(ranks) > all_samples + margin
    if other:
        found = (
            f"loader({other[0]}, {len(ranks)}, …) yields other samples on rank {other[0]} than on rank 0. "
            "Its order may depend only on its arguments and on torch's seed."
        )
    elif equal:
        found = f"Ranks {equal[0][0]} and {equal[0][1]} begin with the same batch. {_SHARDING_ADVICE}"
    elif shared >= _MOST_SHARED:
        found = f"{percent(shared)} of a rank's first samples are also another rank's. {_SHARDING_ADVICE}"
    elif known and known[most] - known[least] > batch["samples"]:
        found = (
            f"An epoch has {known[least]} samples on rank {least} and {known[most]} on rank {most}, so their "
            f"epochs drift apart. {_SHARDING_ADVICE}"
        )
    elif len(known) == len(ranks) and sum(known.values()) + margin < all_samples:
        found = (
            f"An epoch of all ranks has {sum(known.values())} samples, of {all_samples} in all, so the "
            "others never take part. Let the workload's data have only the samples that the loader yields."
        )
    elif repeats:
        of_all = f"{epoch_samples} samples, of {all_samples} in all"
        found = f"An epoch of every rank has {of_all}. {_SHARDING_ADVICE}"
    else:
        return Gate(name="samples", outcome="passed")
    return Gate(name="samples", outcome="failed", what=what, found=found, remedy="Fix your loader.")


def check_end(arm: Arm, ranks: list[RankResult]) -> Gate | None:
    """Return the gate ``end`` of one launch, which checks one step after the training.

    None if no rank took such a step. The gate is exempt, with the reason, if the ranks compared nothing, or
    if the gradients are too small to tell a wrong step. A failed gate describes the first rank that is wrong.
    """
    ends = {r.rank: r.end for r in ranks if r.end and not r.end.why_not}
    if not ends:
        first = ranks[0].end
        return Gate(name="end", outcome="exempt", what=first.why_not) if first else None
    for rank, end in ends.items():
        if cause := _wrong_end(end):
            return failed_gate(
                arm,
                "end",
                f"{arm.label} trains differently after {end.step} steps than in its proof.",
                f"Rank {rank} is wrong in one more step after the training: {cause}",
                "something begins or changes late, such as a hook, a schedule or a clip.",
                figure=end.error,
                limit=end.limit,
            )
    end = ends[min(ends)]
    if len(ranks) > 1 and end.alone <= end.limit:
        what = "at the end of the training the gradients are too small to tell a wrong step"
        return Gate(name="end", outcome="exempt", what=what)
    return Gate(name="end", outcome="passed", figure=end.error, limit=end.limit, what=describe_bend(end))


def describe_bend(end: EndStep) -> str:
    """Return a phrase for the first change of the schedule that no proven step shows; empty without one."""
    if not end.unseen_bend:
        return ""
    return f"the schedule bends at step {end.unseen_bend}, which no step of the proof takes"


def _wrong_end(end: EndStep) -> str:
    """Return a clause for what is wrong in the step after the training; empty if the step is right."""
    if end.optimizer_steps != 1:
        times = f"it calls optimizer.step() {end.optimizer_steps} times."
        return times if end.optimizer_steps else "its parameters do not move."
    if end.changes_outside:
        return "its parameters change outside the optimizer's step, too."
    if end.rate >= _RATE_IN_PLACE_OF_ZERO:
        return "its learning rate is not zero, although the schedule's is."
    if abs(end.rate - 1) > _RATE_TOLERANCE:
        return f"its learning rate is {end.rate:.3g} times what the schedule says."
    if end.error is None:
        return "a gradient is not a number."
    return _wrong_gradients(end, end.error) if end.error > end.limit else ""


def _wrong_gradients(end: EndStep, error: float) -> str:
    allowed = f"(rounding allows {end.limit:.0e})"
    found = f"its gradients differ from the mean by {error:.2g} of the mean's size {allowed}"
    across = math.sqrt(max(0.0, error**2 - (end.share - 1) ** 2))
    is_multiple = across <= max(end.limit, _RATE_TOLERANCE)
    times = f"{end.share:.3g} times the mean" if abs(end.share) > _RATE_TOLERANCE else "zero"
    return f"{found}. They are {times}." if is_multiple else f"{found}."


# ---- the likely cause of a wrong step ----


def diagnose(passes: Mapping[int, ParityPass], *, in_shards: bool = False) -> str:
    """Return sentences that state where a failed proof goes wrong first, and the likely cause.

    ``passes`` has the pass of each rank. If each rank holds a shard of one model (``in_shards``), all ranks
    gather the same parameters, so their agreement shows nothing.
    """
    first = _first_wrong(passes)
    # Every step calls optimizer.step() once.
    miscounted = sorted(
        (number, rank, count)
        for rank, parity_pass in passes.items()
        for number, count in enumerate(parity_pass.optimizer_steps, start=1)
        if count != 1
    )
    if miscounted and (first is None or miscounted[0][0] <= first[1].step):
        number, rank, count = miscounted[0]
        where = _place(*first) if first and first[1].step == number else f"Step {number} of rank {rank}."
        return f"{where} It calls optimizer.step() {count} times; one process calls it once."
    if first is None:
        diverges = any(None in parity_pass.differences for parity_pass in passes.values())
        return _DIVERGES if diverges else _DIFFERENT_ENDS
    rank, step = first
    agree = len({parity_pass.hash for parity_pass in passes.values()}) == 1 and not in_shards
    cause = _cause(step, passes[rank], agree=agree)
    if not cause and step.step > 1:
        cause = "Something is left over from the step before, or a rank leaves out a part."
    elif not cause and in_shards:
        cause = "A shard is not updated, or samples are left out. Check every rank's part of the work."
    elif not cause and any(parity_pass.wrong is None for parity_pass in passes.values()):
        cause = "Other ranks' first steps are right: gradients do not reach every rank in full."
    elif not cause:
        cause = _OTHER_SAMPLES if agree else "Gradients are not averaged over the ranks."
    return f"{_place(*first)} {cause}"


def why_incomparable(passes: Mapping[int, ParityPass], *, own_step: bool) -> tuple[str, str] | None:
    """Return why a wrong step cannot be compared with a single process, and the remedy; None if it can.

    It cannot if the workload remembers earlier calls. A user's own step cannot either if it rounds on
    purpose, or if it is not a plain step of one loss.
    """
    wrong = [parity_pass.wrong for parity_pass in passes.values() if parity_pass.wrong]
    first = _first_wrong(passes)
    if any(step.uncarried for step in wrong):
        return _WORKLOAD_WITH_MEMORY
    if first is None or not own_step:
        return None
    if all(step.rounded and _is_near(step.rate, 1) for step in wrong):
        return _ROUNDING_STEP
    rank, step = first
    if step.structure and not _cause(step, passes[rank], agree=True):
        return f"its step is not a plain step of one loss ({step.structure})", _REFERENCE_ADVICE
    return None


def _first_wrong(passes: Mapping[int, ParityPass]) -> tuple[int, WrongStep] | None:
    """Return the earliest wrong step and its rank, the lowest one; None if no step is wrong."""
    wrong = [(rank, parity_pass.wrong) for rank, parity_pass in passes.items() if parity_pass.wrong]
    return min(wrong, key=lambda pair: (pair[1].step, pair[0]), default=None)


def _with_shares(wrong: WrongStep, parity_pass: ParityPass) -> WrongStep:
    """Return the first step of a large model with the shares that follow from its whole update.

    A rank with a large model does not keep the gradient of each shard. But if its first update is a multiple
    of the right one, that multiple is the share of every shard. A step that has shares, or that is not the
    first, is returned as it is.
    """
    share, error = parity_pass.share_of_first_update, parity_pass.error_of_first_update
    if wrong.shares or wrong.step > 1 or share is None or error is None:
        return wrong
    across = math.sqrt(max(0.0, error**2 - (share - 1) ** 2))
    return msgspec.structs.replace(wrong, shares=[share] * parity_pass.shards, unexplained=across)


def _place(rank: int, wrong: WrongStep) -> str:
    size = "not a number" if wrong.difference is None else f"off by {wrong.difference:.1e}"
    only = ", and no other parameter," if wrong.only else ""
    return f"Rank {rank} is wrong from step {wrong.step}: {wrong.parameter}{only} is {size}."


def _cause(wrong: WrongStep, parity_pass: ParityPass, *, agree: bool) -> str:
    """Return a sentence with the likely cause of a wrong update; empty if its shares have no known meaning.

    ``agree`` is whether all ranks end with the same parameters.
    """
    wrong = _with_shares(wrong, parity_pass)
    if wrong.difference is None:
        return "The loss or a gradient is not a number."
    if not wrong.shares or wrong.unexplained is None or wrong.unexplained > _SHARE_TOLERANCE:
        return ""
    if abs(wrong.kept) < _LEAST_KEPT:
        return "The workload's before_step takes the whole update away, and this step does not."
    if not _is_near(wrong.left_over, 0):
        return f"It contains {wrong.left_over:.2g} times the update before, so gradients are not reset."
    shares = [share / wrong.kept for share in wrong.shares]
    if all(_is_near(share, shares[0]) for share in shares):
        return _cause_of_multiple(shares[0], wrong, len(parity_pass.shard_of_rank) or len(shares))
    incomplete = _incomplete_shards(shares, parity_pass) if parity_pass.shard_of_rank else ""
    return incomplete or _cause_of_unequal_shares(shares, agree=agree, is_first_step=wrong.step == 1)


def _incomplete_shards(shares: list[float], parity_pass: ParityPass) -> str:
    """Return that ranks are missing from a mean in which several took each shard; empty if none are.

    The share of a shard is the number of its gradients in the mean, over the number of its ranks.
    """
    each = parity_pass.summands // len(shares)
    counts = [round(share * each) for share in shares]
    if not all(_is_near(share, count / each) for share, count in zip(shares, counts, strict=True)):
        return ""
    few, many = (
        " and ".join(
            f"{abs(each - count)} of {numbered('rank', parity_pass.ranks_of(shard))}"
            for shard, count in enumerate(counts)
            if (count - each) * sign > 0
        )
        for sign in (-1, 1)
    )
    if not few or any(count < 0 for count in counts):
        return ""
    again = f", and others are in it again, of {many}" if many else ": these skip, or send zeros"
    return f"Gradients are missing from the mean, of {few}{again}."


def _cause_of_unequal_shares(shares: list[float], *, agree: bool, is_first_step: bool) -> str:
    """Return the likely cause of an update in which the gradients have unequal shares."""
    count = len(shares)
    if all(abs(share - 1) < _ROUNDED_SHARE_ERROR for share in shares):
        return _SMALL_ADDITION
    missing = [index for index, share in enumerate(shares) if _is_near(share, 0)]
    if len(missing) == count - 1 and _is_near(max(shares), count):
        return (
            _SAME_SAMPLES
            if agree and is_first_step
            else "It applies only one rank's gradient, in place of the mean."
        )
    if missing:
        names = ", ".join(map(str, missing))
        if not agree:
            return f"Gradients are not averaged over the ranks: this update leaves out that of rank {names}."
        return f"The gradient of rank {names} is missing from the mean: that rank skips, or sends zeros."
    each = ", ".join(f"{share:.3g}" for share in shares)
    return (
        f"The shares of the ranks' gradients are {each}, not 1 each: they are scaled or clipped before the "
        "average. Clip after it."
    )


def _cause_of_multiple(share: float, wrong: WrongStep, count: int) -> str:
    """Return the likely cause of an update of ``count`` gradients that is ``share`` times the right one."""
    rate = (
        f"The learning rate is {wrong.rate:.3g} times the right one. Is it scaled by the number of ranks, is "
        "its schedule stepped more than once, or does the workload lack the same schedule?"
    )
    meanings = (
        (not _is_near(wrong.kept, 1) and all(_is_near(each, 1) for each in wrong.shares), _PLAIN_MEAN),
        (_is_near(share, 1), _SMALL_ADDITION),
        (_is_near(share, 0), "The parameters do not change: the step does not reach them."),
        (not _is_near(wrong.rate, 1) and _is_near(share, wrong.rate), rate),
        (
            count > 1 and _is_near(share, count),
            f"It is {count} times the right one: a sum in place of the mean, or two steps in place of one.",
        ),
        (
            count > 1 and wrong.step == 1 and _is_near(share * count, 1),
            f"It is the right one divided by {count}: the mean is divided twice.",
        ),
    )
    scaled = f"It is {share:.3g} times the right one: gradients or the learning rate are scaled or clipped."
    return next((meaning for holds, meaning in meanings if holds), scaled)


def _is_near(share: float, value: float) -> bool:
    return abs(share - value) < _SHARE_TOLERANCE * max(1.0, abs(value))
