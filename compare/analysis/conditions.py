"""What could make arms unlike, compared over arms, ranks and rounds. Pure, like ``stats.py``.

Every item is read from what the ranks attest, never from what was asked for. Three roles:

- a **condition** must be the same everywhere, or the comparison is of something else;
- what is **compared** differs because the arms do: that is what they were named for;
- a **confounder** comes with a backend and cannot be taken from it, but is not what one meant to compare.

An item that no rank attests is not compared, and is not in the answer.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from compare.schema.arms import Arm
    from compare.schema.results import Launch, RankResult, Run

Role = Literal["condition", "compared", "confounder"]
ABSENT = "–"
"""Stands for what an arm does not have."""

_MEANS = {
    "mean",
    "average",
    "divided by the number of ranks in backward, then summed",
    # As runs say that were measured before backward divided.
    "sum, then divided by the number of ranks",
    "divided by the number of ranks, then summed",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One item, over the whole run."""

    item: str
    role: Role
    kind: Literal["alike", "declared", "unlike"]
    """``declared``: unlike, and the arms' own options or their backends say so."""
    values: dict[str, str]
    """What each arm attests, by its label; where its ranks or rounds differ, each of them."""
    why: str
    """What explains it, or what it does to the comparison; empty where there is nothing to explain."""
    own_way: bool = False
    """Unlike between arms by what their backends do of themselves: no option of the user's asked for it."""


def compare_conditions(run: Run) -> list[Finding]:
    """Compare the arms of a run, item by item.

    Returns:
        A finding for every item that any rank attests, the conditions first.
    """
    arms = [arm for arm in run.config.arms if run.of(arm)]
    names = [item.name for item in _ITEMS]
    looked_at = (*_ITEMS, _malloc(run), *_versions(run), *_environment(run))
    found = [_judge(run, arms, item) for item in looked_at]
    order = {"condition": 0, "confounder": 1, "compared": 2}
    kept = [finding for finding in found if finding is not None]
    return sorted(kept, key=lambda f: (order[f.role], names.index(f.item) if f.item in names else len(names)))


def unlike(findings: Iterable[Finding]) -> list[Finding]:
    """Return what nobody has declared."""
    return [finding for finding in findings if finding.kind == "unlike"]


def own_ways(findings: Iterable[Finding]) -> list[Finding]:
    """Return what backends do differently of themselves, and what nobody asked them to."""
    return [finding for finding in findings if finding.own_way]


# ---- what is looked at ----


class _Item(NamedTuple):
    """Something to compare."""

    name: str
    role: Role
    read: Callable[[RankResult], Any]
    """From one rank's result; None where it attests nothing of the kind."""
    why: str = ""
    """What a difference between arms means."""
    options: tuple[str, ...] = ()
    """Options of arms that declare a difference."""
    of_nature: bool = False
    """Whether backends differ in it by themselves, in a way that their names do not tell."""
    of_control: bool = True
    """Whether the control has it; it does not communicate."""
    of_rank: bool = False
    """Whether ranks differ by nature; they are then compared one by one between arms."""
    of_host: bool = False
    """Whether ranks of one arm on different hosts may differ: one alone on its host shares no memory."""
    of_some: bool = False
    """Whether arms that do not have it are none the less alike."""
    of_shell: bool = False
    """Whether it stood in the user's shell; it is then told even if nobody read it."""


def _attested(*path: str) -> Callable[[RankResult], Any]:
    def read(rank: RankResult) -> Any:
        found: Any = rank.attestation
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    return read


def _transport(rank: RankResult) -> Any:
    return _attested("replica", "transport")(rank) or _attested("group", "transport")(rank)


def _reduce_op(rank: RankResult) -> Any:
    found = _attested("replica", "reduce_op")(rank)
    return "mean" if found in _MEANS else found


def _compression(rank: RankResult) -> Any:
    return _attested("replica", "compression")(rank) or _attested("replica", "comm_hook")(rank) or "none"


def _compression_if_attested(rank: RankResult) -> Any:
    return _compression(rank) if _attested("replica")(rank) else None


def _switch(name: str) -> Callable[[RankResult], Any]:
    """Read a switch of one backend's: off in the others, which do nothing of the kind."""

    def read(rank: RankResult) -> Any:
        replica = _attested("replica")(rank)
        return bool(replica.get(name)) if replica else None

    return read


def _passes(rank: RankResult) -> Any:
    own = _attested("replica", "backward_passes_per_step")(rank)
    return own or _attested("replica", "passes_per_step")(rank)


def _trained_steps(rank: RankResult) -> int:
    return sum(block.steps for block in rank.blocks if block.mode == "training")


_OF_HOST = "their ranks reach each other in different ways, a rank alone on its host by no shared memory"
_WHAT_IS_COMPARED = "this is what is compared"
_COMPARED = f"belongs to the backend or its options: {_WHAT_IS_COMPARED}"
_ITEMS = (
    _Item("device", "condition", _attested("device")),
    _Item("host", "condition", lambda rank: rank.host, of_rank=True),
    _Item("threads", "condition", _attested("threads")),
    _Item("inter-op threads", "condition", _attested("interop_threads")),
    _Item("affinity", "condition", _attested("affinity")),
    _Item("matmul precision", "condition", _attested("matmul_precision")),
    _Item("parameter dtypes", "condition", _attested("parameter_dtypes")),
    _Item("input dtype", "condition", _attested("batch", "dtype")),
    _Item("batch size per rank", "condition", _attested("batch", "samples")),
    _Item("passes per step", "condition", _passes, of_some=True),
    _Item("training samples", "condition", _attested("batch", "training_samples")),
    _Item("shard", "condition", _attested("batch", "shard"), of_rank=True),
    _Item("optimizer", "condition", _attested("optimizer")),
    _Item("timed steps", "condition", _trained_steps),
    _Item("gradient bytes", "condition", lambda rank: rank.gradient_bytes),
    _Item("initial parameters", "condition", lambda rank: rank.initial_hash[:12]),
    _Item("reduce op", "condition", _reduce_op, "they do not compute the same gradient", of_control=False),
    _Item(
        *("compression", "condition", _compression_if_attested),
        "what travels is not what was computed",
        ("compression", "comm_hook"),
        of_control=False,
    ),
    _Item("python", "condition", _attested("python")),
    _Item("torch", "condition", _attested("torch")),
    _Item(
        *("transport", "confounder", _transport),
        "comes with the backend: part of a difference in speed may be the transport's, not the library's",
        ("process_group", "controller", "mode"),
        of_nature=True,
        of_control=False,
        of_host=True,
    ),
    _Item("library", "compared", _attested("group", "library"), _COMPARED, of_control=False),
    _Item("controller", "compared", _attested("group", "controller"), _COMPARED, of_control=False),
    _Item(
        *("buckets in bytes", "compared", _attested("replica", "bucket_bytes"), _COMPARED),
        ("bucket_cap_mb", "bucket_mb", "mode"),
        of_nature=True,
        of_control=False,
    ),
    _Item(
        *("fusion in bytes", "compared", _attested("group", "fusion_bytes"), _COMPARED),
        ("env.HOROVOD_FUSION_THRESHOLD",),
        of_nature=True,
        of_control=False,
    ),
    _Item(
        *("cycle time in ms", "compared", _attested("group", "cycle_milliseconds"), _COMPARED),
        ("env.HOROVOD_CYCLE_TIME",),
        of_nature=True,
        of_control=False,
    ),
    _Item("autotune", "compared", _attested("group", "autotune"), _COMPARED, of_control=False),
    _Item(
        *("messages in bytes", "compared", lambda rank: rank.message_bytes or None, _COMPARED),
        ("bucket_cap_mb", "bucket_mb", "mode", "compression", "comm_hook"),
        of_nature=True,
        of_control=False,
        of_some=True,  # what travels compressed cannot be told
    ),
    _Item(
        *("gradients as bucket views", "compared", _switch("gradient_as_bucket_view"), _COMPARED),
        ("gradient_as_bucket_view",),
        of_control=False,
    ),
    _Item(
        *("static graph", "compared", _switch("static_graph"), _COMPARED),
        ("static_graph",),
        of_control=False,
    ),
    _Item(
        *("PowerSGD rank", "compared", _attested("replica", "powersgd_rank"), _COMPARED),
        ("comm_hook", "powersgd_rank"),
        of_control=False,
    ),
    _Item(
        *("PowerSGD start", "compared", _attested("replica", "powersgd_start"), _COMPARED),
        ("comm_hook", "powersgd_start"),
        of_control=False,
    ),
)


def _malloc(run: Run) -> _Item:
    """Compare the allocator's settings, but for those that an arm sets: they have their own items."""
    own = _set_by_arms(run)

    def read(rank: RankResult) -> Any:
        found = _attested("malloc")(rank)
        return None if found is None else {name: held for name, held in found.items() if name not in own}

    return _Item("malloc settings", "condition", read)


def _versions(run: Run) -> list[_Item]:
    """Compare every library among the arms that load it."""
    names = {
        name
        for launch in run.launches
        for rank in launch.ranks
        for name in (_attested("group", "versions")(rank) or {})
    }
    return [
        _Item(
            f"version of {name}",
            "condition",
            _attested("group", "versions", name),
            of_control=False,
            of_some=True,
        )
        for name in sorted(names)
    ]


_ENV = "env."
"""Begins an arm's option that is a variable of its environment."""
_READ_BY = {
    "HOROVOD_": ("horovod",),
    "NCCL_": ("nccl",),
    "GLOO_": ("gloo",),
    "OMPI_MCA_": ("mpi",),
    "UCX_": ("mpi",),
    "FI_": ("mpi",),
}
"""Settings that reach one library alone, and what it is called where it is attested; the rest reach all."""


def _environment(run: Run) -> list[_Item]:
    """Compare what the ranks found of the user's own settings, which may reach some arms' libraries alone."""
    names = sorted(_set_by_arms(run) | {name for launch in run.launches for name in launch.inherited})
    return [
        _Item(
            *(name, "condition", _setting(name)),
            "stood in the shell, and not every arm reads it; unset it, or declare it as an arm's option",
            (f"{_ENV}{name}",),
            of_control=not _readers(name),
            of_shell=True,
        )
        for name in names
    ]


def _set_by_arms(run: Run) -> set[str]:
    return {name for arm in run.config.arms for name in arm.environment}


def _readers(name: str) -> tuple[str, ...]:
    return next((who for prefix, who in _READ_BY.items() if name.startswith(prefix)), ())


def _setting(name: str) -> Callable[[RankResult], Any]:
    """Read a variable as the rank found it, where the rank has a library that reads it."""
    readers = _readers(name)

    def read(rank: RankResult) -> Any:
        group = rank.attestation.get("group", {})
        known = f"{group.get('library')} {group.get('controller')} {group.get('transport')}".lower()
        concerned = not readers or any(reader in known for reader in readers)
        return _attested("environment", name)(rank) if concerned else None

    return read


# ---- judging ----


def _judge(run: Run, arms: list[Arm], item: _Item) -> Finding | None:
    asked = [arm for arm in arms if item.of_control or arm.synchronises]
    seen = {arm.label: [_per_rank(launch, item) for launch in run.of(arm)] for arm in asked}
    if all(value == ABSENT for rounds in seen.values() for ranks in rounds for value in ranks):
        return _unread(arms, item) if item.of_shell else None
    values = {arm.label: _describe(run.of(arm), seen[arm.label]) if arm in asked else ABSENT for arm in arms}
    hosts = {arm.label: [rank.host for rank in run.of(arm)[0].ranks] for arm in asked}
    kind, why = _classify(asked, seen, hosts, item)
    own = kind == "declared" and _is_own_way(asked, seen, item)
    return Finding(item=item.name, role=item.role, kind=kind, values=values, why=why, own_way=own)


def _unread(arms: list[Arm], item: _Item) -> Finding:
    values = {arm.label: ABSENT for arm in arms}
    return Finding(
        item=item.name, role=item.role, kind="alike", values=values, why="no arm of this run reads it"
    )


def _per_rank(launch: Launch, item: _Item) -> list[str]:
    return [_spell(item.read(rank)) for rank in launch.ranks]


def _classify(
    arms: list[Arm], seen: dict[str, list[list[str]]], hosts: dict[str, list[str]], item: _Item
) -> tuple[Literal["alike", "declared", "unlike"], str]:
    uneven = [arm.label for arm in arms if _differs_within(seen[arm.label], hosts[arm.label], item)]
    if uneven:
        return "unlike", f"ranks or rounds of {', '.join(uneven)} differ among themselves"
    first = {arm.label: seen[arm.label][0] for arm in arms}
    compared = [ranks for ranks in first.values() if not item.of_some or set(ranks) != {ABSENT}]
    if all(ranks == compared[0] for ranks in compared):
        apart = [arm.label for arm in arms if len(set(first[arm.label])) > 1] if item.of_host else []
        return ("declared", f"hosts of {', '.join(apart)} differ: {_OF_HOST}") if apart else ("alike", "")
    if item.role != "condition":
        return "declared", _why_compared(arms, seen, item)
    by_option = {arm.label: name for arm in arms if (name := _declaring(arm, first[arm.label], item))}
    # What no option explains must still agree, and be what those arms were asked for by default.
    rest = [arm for arm in arms if arm.label not in by_option]
    agree = all(first[arm.label] == first[rest[0].label] for arm in rest)
    if by_option and agree and not any(_astray(arm, first[arm.label], item) for arm in rest):
        names = [name for name in item.options if name in by_option.values()]
        return "declared", f"by the arms' option {', '.join(names)}: {item.why}"
    return "unlike", item.why or "the arms did not run under the same conditions"


def _why_compared(arms: list[Arm], seen: dict[str, list[list[str]]], item: _Item) -> str:
    """Name the options that ask for what is compared, where nothing but them makes arms unlike."""
    given = [name for name in item.options if any(name in arm.given for arm in arms)]
    if item.role != "compared" or not given or _is_own_way(arms, seen, item):
        return item.why
    return f"by the arms' option {', '.join(given)}: {_WHAT_IS_COMPARED}"


def _is_own_way(arms: list[Arm], seen: dict[str, list[list[str]]], item: _Item) -> bool:
    """Whether two arms are unlike that are of different backends, or neither of which asked for it."""

    def asked(arm: Arm) -> bool:
        return any(name in arm.given for name in item.options)

    first = {arm.label: seen[arm.label][0] for arm in arms}
    known = [arm for arm in arms if not item.of_some or set(first[arm.label]) != {ABSENT}]
    return item.of_nature and any(
        first[one.label] != first[other.label]
        and (one.backend != other.backend or not (asked(one) or asked(other)))
        for one, other in combinations(known, 2)
    )


def _declaring(arm: Arm, ranks: list[str], item: _Item) -> str | None:
    """Return the option that the arm was given for the item, if every rank attests the value asked for."""
    given = (name for name in item.options if name in arm.given)
    return next((name for name in given if set(ranks) == {_spell(arm.given[name])}), None)


def _astray(arm: Arm, ranks: list[str], item: _Item) -> bool:
    """Whether a rank attests other than its backend's option says, given or by default."""
    asked = [_spell(arm.options[name]) for name in item.options if name in arm.options]
    return bool(asked) and set(ranks) != set(asked)


def _differs_within(rounds: list[list[str]], hosts: list[str], item: _Item) -> bool:
    if any(ranks != rounds[0] for ranks in rounds):
        return True
    if item.of_host:
        on_hosts = set(zip(hosts, rounds[0], strict=True))
        return len(on_hosts) > len(set(hosts))
    return not item.of_rank and len(set(rounds[0])) > 1


# ---- saying it ----


def _spell(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_spell(held)}" for key, held in sorted(value.items())) or "none"
    if isinstance(value, (list, tuple)):
        return " ".join(map(_spell, value)) or "none"
    return str(value)


def _describe(launches: list[Launch], rounds: list[list[str]]) -> str:
    """Say what the launches of one arm attest: once where all agree, by rank and round where they do not."""
    if all(ranks == rounds[0] for ranks in rounds):
        return _describe_ranks(rounds[0])
    said = (f"round {la.round}: {_describe_ranks(ranks)}" for la, ranks in zip(launches, rounds, strict=True))
    return "; ".join(said)


def _describe_ranks(ranks: list[str]) -> str:
    if len(set(ranks)) == 1:
        return ranks[0]
    return ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(ranks))
