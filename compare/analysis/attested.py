"""What is compared between arms: every item that ranks attest, and its role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from compare.schema.results import RankResult, Run

Role = Literal["condition", "compared", "confounder"]
_MEANS = {
    "mean",
    "average",
    "divided by the number of ranks in backward, then summed",
    # As runs say that were measured before backward divided.
    "sum, then divided by the number of ranks",
    "divided by the number of ranks, then summed",
}


class Item(NamedTuple):
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


OF_HOST = "their ranks reach each other in different ways, a rank alone on its host by no shared memory"
WHAT_IS_COMPARED = "this is what is compared"
_COMPARED = f"belongs to the backend or its options: {WHAT_IS_COMPARED}"
_ITEMS = (
    Item("device", "condition", _attested("device")),
    Item("host", "condition", lambda rank: rank.host, of_rank=True),
    Item("threads", "condition", _attested("threads")),
    Item("inter-op threads", "condition", _attested("interop_threads")),
    Item("affinity", "condition", _attested("affinity")),
    Item("matmul precision", "condition", _attested("matmul_precision")),
    Item("parameter dtypes", "condition", _attested("parameter_dtypes")),
    Item("input dtype", "condition", _attested("batch", "dtype")),
    Item("batch size per rank", "condition", _attested("batch", "samples")),
    Item("passes per step", "condition", _passes, of_some=True),
    Item("training samples", "condition", _attested("batch", "training_samples")),
    Item("shard", "condition", _attested("batch", "shard"), of_rank=True),
    Item("optimizer", "condition", _attested("optimizer")),
    Item("timed steps", "condition", _trained_steps),
    Item("gradient bytes", "condition", lambda rank: rank.gradient_bytes),
    Item("initial parameters", "condition", lambda rank: rank.initial_hash[:12]),
    Item("reduce op", "condition", _reduce_op, "they do not compute the same gradient", of_control=False),
    Item(
        *("compression", "condition", _compression_if_attested),
        "what travels is not what was computed",
        ("compression", "comm_hook"),
        of_control=False,
    ),
    Item("python", "condition", _attested("python")),
    Item("torch", "condition", _attested("torch")),
    Item(
        *("transport", "confounder", _transport),
        "comes with the backend: part of a difference in speed may be the transport's, not the library's",
        ("process_group", "controller", "mode"),
        of_nature=True,
        of_control=False,
        of_host=True,
    ),
    Item("library", "compared", _attested("group", "library"), _COMPARED, of_control=False),
    Item("controller", "compared", _attested("group", "controller"), _COMPARED, of_control=False),
    Item(
        *("buckets in bytes", "compared", _attested("replica", "bucket_bytes"), _COMPARED),
        ("bucket_cap_mb", "bucket_mb", "mode"),
        of_nature=True,
        of_control=False,
    ),
    Item(
        *("fusion in bytes", "compared", _attested("group", "fusion_bytes"), _COMPARED),
        ("env.HOROVOD_FUSION_THRESHOLD",),
        of_nature=True,
        of_control=False,
    ),
    Item(
        *("cycle time in ms", "compared", _attested("group", "cycle_milliseconds"), _COMPARED),
        ("env.HOROVOD_CYCLE_TIME",),
        of_nature=True,
        of_control=False,
    ),
    Item("autotune", "compared", _attested("group", "autotune"), _COMPARED, of_control=False),
    Item(
        *("messages in bytes", "compared", lambda rank: rank.message_bytes or None, _COMPARED),
        ("bucket_cap_mb", "bucket_mb", "mode", "compression", "comm_hook"),
        of_nature=True,
        of_control=False,
        of_some=True,  # what travels compressed cannot be told
    ),
    Item(
        *("gradients as bucket views", "compared", _switch("gradient_as_bucket_view"), _COMPARED),
        ("gradient_as_bucket_view",),
        of_control=False,
    ),
    Item(
        *("static graph", "compared", _switch("static_graph"), _COMPARED),
        ("static_graph",),
        of_control=False,
    ),
    Item(
        *("PowerSGD rank", "compared", _attested("replica", "powersgd_rank"), _COMPARED),
        ("comm_hook", "powersgd_rank"),
        of_control=False,
    ),
    Item(
        *("PowerSGD start", "compared", _attested("replica", "powersgd_start"), _COMPARED),
        ("comm_hook", "powersgd_start"),
        of_control=False,
    ),
)


def _malloc(run: Run) -> Item:
    """Compare the allocator's settings, but for those that an arm sets: they have their own items."""
    own = _set_by_arms(run)

    def read(rank: RankResult) -> Any:
        found = _attested("malloc")(rank)
        return None if found is None else {name: held for name, held in found.items() if name not in own}

    return Item("malloc settings", "condition", read)


def _versions(run: Run) -> list[Item]:
    """Compare every library among the arms that load it."""
    names = {
        name
        for launch in run.launches
        for rank in launch.ranks
        for name in (_attested("group", "versions")(rank) or {})
    }
    return [
        Item(
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


def _environment(run: Run) -> list[Item]:
    """Compare what the ranks found of the user's own settings, which may reach some arms' libraries alone."""
    names = sorted(_set_by_arms(run) | {name for launch in run.launches for name in launch.inherited})
    return [
        Item(
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


def items_of(run: Run) -> list[Item]:
    """Return every item to compare in a run."""
    return [*_ITEMS, _malloc(run), *_versions(run), *_environment(run)]
