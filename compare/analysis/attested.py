"""List the items that are compared between arms; every value is what a rank attests.

An item has one of three roles:

- ``controlled``: it must be the same everywhere, or the comparison is invalid
- ``compared``: it belongs to the arm, so the difference is part of the comparison
- ``confounder``: it comes with a backend and cannot be removed, but it is not what the user compares
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from compare.schema.arms import Arm
from compare.schema.environment import readers_of
from compare.schema.results import RankResult, Run

ABSENT = "–"
"""Text in place of a value that is not there."""
Role = Literal["controlled", "compared", "confounder"]
_MEANS = {
    "mean",
    "average",
    "divided by the number of ranks in backward, then summed",
    # in older runs, in which backward did not divide
    "sum, then divided by the number of ranks",
    "divided by the number of ranks, then summed",
}


Exemption: TypeAlias = tuple[Callable[[Arm], Any], str]
"""Whether an arm declares that it may differ in an item, and how it differs, as a phrase."""
_INTERPRETER: Exemption = (lambda arm: arm.against, "another interpreter")
_PROCESS: Exemption = (
    lambda arm: arm.traits.one_process,
    "one process has all threads and the global batch",
)
_LAYERS: Exemption = (
    lambda arm: arm.traits.in_layers,
    "its ranks hold different layers and share each batch",
)
_STEP: Exemption = (lambda arm: arm.traits.own_step, "its step is the user's own")
_TRAINING: Exemption = (lambda arm: not arm.same_training, "another training")


class Item(NamedTuple):
    """One item to compare between arms, and what may differ in it by declaration."""

    name: str
    role: Role
    read: Callable[[RankResult], Any]
    """Map a rank's result to the attested value; None if the rank attests none."""
    why: str = ""
    """What a difference between arms means; empty if there is nothing particular to say."""
    options: tuple[str, ...] = ()
    """Names of the arms' options that declare a difference."""
    by_library: bool = False
    """Whether backends differ in it by themselves, although their names do not show it."""
    in_control: bool = True
    """Whether arms that do not communicate, such as the control, are compared too."""
    by_rank: bool = False
    """Whether the ranks of an arm may differ, so that each is compared with the same rank of other arms."""
    by_host: str = ""
    """Why ranks on different hosts may differ in it; empty if they may not."""
    optional: bool = False
    """Whether arms that attest no value are left out of the comparison."""
    exempt: tuple[Exemption, ...] = ()
    """Declarations by which arms may differ in it."""
    from_shell: bool = False
    """Whether it is an environment variable, which is reported even if no arm reads it."""


def items_of(run: Run) -> list[Item]:
    """Return every item to compare in a run, the fixed ones before those that depend on the run."""
    return [*_ITEMS, _malloc(run), *_versions(run), *_environment(run)]


def spell(value: Any) -> str:
    """Return a value as text: None as ``ABSENT``, and a switch as ``on`` or ``off``."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{key}={spell(held)}" for key, held in sorted(value.items())) or "none"
    if isinstance(value, (list, tuple)):
        return " ".join(map(spell, value)) or "none"
    return str(value)


# ---- reading what a rank attests ----


def _attested(*path: str) -> Callable[[RankResult], Any]:
    def read(rank: RankResult) -> Any:
        found: Any = rank.attestation
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    return read


def transport_of(rank: RankResult) -> Any:
    """Return the transport of a rank's gradients, which its strategy attests, or else its group.

    It is None if neither attests one.
    """
    return _attested("replica", "transport")(rank) or _attested("group", "transport")(rank)


def _reduce_op(rank: RankResult) -> Any:
    found = _attested("replica", "reduce_op")(rank)
    return "mean" if found in _MEANS else found


def _compression(rank: RankResult) -> Any:
    if not _attested("replica")(rank):
        return None
    return _attested("replica", "compression")(rank) or _attested("replica", "comm_hook")(rank) or "none"


def _switch(name: str) -> Callable[[RankResult], Any]:
    """Return a reader of one backend's switch; it gives False for other backends, None without a replica."""

    def read(rank: RankResult) -> Any:
        replica = _attested("replica")(rank)
        return bool(replica.get(name)) if replica else None

    return read


def _is_compiled(rank: RankResult) -> bool | None:
    graphs = _attested("compiled_graphs")(rank)
    return None if graphs is None else graphs > 0


def _passes(rank: RankResult) -> Any:
    own = _attested("replica", "backward_passes_per_step")(rank)
    return own or _attested("replica", "passes_per_step")(rank)


def _trained_steps(rank: RankResult) -> int | None:
    """Return the timed training steps; None if arms may differ in their number.

    Turns have a length in seconds and not in steps. An arm that communicates in cycles is timed in whole
    cycles.
    """
    if (_attested("replica", "cycle")(rank) or 1) > 1 or any(block.turn for block in rank.blocks):
        return None
    return sum(block.steps for block in rank.blocks if block.mode == "training")


def _global_batch(rank: RankResult) -> Any:
    """Return the samples that all shards together take in one pass; None if the rank attests no batch."""
    samples, shard = _attested("batch", "samples")(rank), _attested("batch", "shard")(rank)
    return samples * shard[1] if samples and shard else samples


def _held(rank: RankResult) -> Any:
    found = _attested("held")(rank)
    return found and {name.removesuffix("_bytes"): size for name, size in found.items()}


_BY_LIMIT = "each host has limits of its own"
WHAT_IS_COMPARED = "this is what is compared"


def _compared(name: str, read: Callable[[RankResult], Any], *options: str, **kinds: Any) -> Item:
    """Return an item of the role ``compared``, for the arms that communicate."""
    why = f"part of the backend: {WHAT_IS_COMPARED}"
    return Item(name, "compared", read, why, options, in_control=False, **kinds)


_ITEMS = (
    Item("device", "controlled", _attested("device")),
    Item("GPU driver", "controlled", _attested("gpu", "driver")),
    Item("GPU power limit in watts", "controlled", _attested("gpu", "power_limit_watts")),
    Item("host", "controlled", lambda rank: rank.host, by_rank=True, exempt=(_PROCESS,)),
    Item("threads", "controlled", _attested("threads"), exempt=(_PROCESS,)),
    Item("inter-op threads", "controlled", _attested("interop_threads")),
    Item("affinity", "controlled", _attested("affinity")),
    Item("nice", "controlled", _attested("nice"), by_host=_BY_LIMIT),
    Item("CPU quota in cores", "controlled", _attested("core_quota"), by_host=_BY_LIMIT),
    Item("matmul precision", "controlled", _attested("matmul_precision")),
    Item("parameter dtypes", "controlled", _attested("parameter_dtypes")),
    Item("activation dtypes", "controlled", _attested("activation_dtypes"), exempt=(_LAYERS, _STEP)),
    Item("compiled", "controlled", _is_compiled),
    Item("input dtype", "controlled", _attested("batch", "dtype")),
    Item("global batch size", "controlled", _global_batch),
    Item("passes per step", "controlled", _passes, optional=True),
    Item("training samples", "controlled", _attested("batch", "training_samples")),
    Item("shard", "controlled", _attested("batch", "shard"), by_rank=True, exempt=(_PROCESS, _LAYERS)),
    Item("optimizer", "controlled", _attested("optimizer")),
    Item("timed steps", "controlled", _trained_steps, optional=True),
    Item("gradient bytes", "controlled", lambda rank: rank.gradient_bytes),
    Item("initial parameters", "controlled", lambda rank: rank.initial_hash[:12]),
    Item(
        *("reduce op", "controlled", _reduce_op, "the arms compute different gradients"),
        in_control=False,
        exempt=(_STEP, _TRAINING),
    ),
    Item(
        *("compression", "controlled", _compression),
        "compressed gradients differ from those that were computed",
        ("compression", "comm_hook"),
        in_control=False,
    ),
    Item("python", "controlled", _attested("python"), exempt=(_INTERPRETER,)),
    Item("torch", "controlled", _attested("torch"), exempt=(_INTERPRETER,)),
    Item(
        *("transport", "confounder", transport_of),
        "comes with the backend: it may explain part of a difference in speed",
        ("process_group", "controller", "library", "mode"),
        by_library=True,
        in_control=False,
        by_host="a rank that is alone on its host cannot use shared memory",
    ),
    _compared("library", _attested("group", "library")),
    _compared("single copy", _attested("group", "single_copy"), by_library=True, optional=True),
    _compared("process group", _attested("group", "process_group"), "process_group", by_library=True),
    _compared("controller", _attested("group", "controller")),
    _compared(
        "buckets in bytes",
        _attested("replica", "bucket_bytes"),
        *("bucket_cap_mb", "bucket_mb", "mode"),
        by_library=True,
    ),
    _compared(
        "fusion in bytes", _attested("group", "fusion_bytes"), "env.HOROVOD_FUSION_THRESHOLD", by_library=True
    ),
    _compared(
        "cycle time in ms",
        _attested("group", "cycle_milliseconds"),
        "env.HOROVOD_CYCLE_TIME",
        by_library=True,
    ),
    _compared("bytes held", _held, by_library=True, by_rank=True),
    _compared("autotune", _attested("group", "autotune")),
    _compared(
        "messages in bytes",
        lambda rank: rank.message_bytes or None,
        *("bucket_cap_mb", "bucket_mb", "mode", "compression", "comm_hook"),
        by_library=True,
        optional=True,  # compressed messages are not known
    ),
    _compared("gradients as bucket views", _switch("gradient_as_bucket_view"), "gradient_as_bucket_view"),
    _compared("graph breaks", _attested("graph_breaks"), by_library=True),
    _compared("static graph", _switch("static_graph"), "static_graph"),
    _compared("PowerSGD rank", _attested("replica", "powersgd_rank"), "comm_hook", "powersgd_rank"),
    _compared("PowerSGD start", _attested("replica", "powersgd_start"), "comm_hook", "powersgd_start"),
)


def _malloc(run: Run) -> Item:
    """Return the item of the allocator's settings, without the settings that an arm sets."""
    own = _set_by_arms(run)

    def read(rank: RankResult) -> Any:
        found = _attested("malloc")(rank)
        return None if found is None else {name: held for name, held in found.items() if name not in own}

    return Item("malloc settings", "controlled", read)


def _versions(run: Run) -> list[Item]:
    """Return an item for the version of each library, compared among the arms that load the library."""
    names = {
        name
        for launch in run.launches
        for rank in launch.ranks
        for name in (_attested("group", "versions")(rank) or {})
    }
    return [
        Item(
            f"version of {name}",
            "controlled",
            _attested("group", "versions", name),
            in_control=False,
            optional=True,
            exempt=(_INTERPRETER,),
        )
        for name in sorted(names)
    ]


def _environment(run: Run) -> list[Item]:
    """Return an item for each library setting of the user's shell, and for each variable that an arm sets.

    A setting is compared among the arms whose libraries read it.
    """
    inherited = {name: value for launch in run.launches for name, value in launch.inherited.items()}
    values = dict.fromkeys(sorted(_set_by_arms(run)), "") | inherited
    readers = {name: readers_of(name, value) for name, value in sorted(values.items())}
    return [
        Item(
            *(name, "controlled", _setting(name, reading)),
            "set in the shell, and not every arm reads it: unset it, or make it an option of an arm",
            (f"env.{name}",),
            in_control=not reading,
            from_shell=True,
        )
        for name, reading in readers.items()
    ]


def _set_by_arms(run: Run) -> set[str]:
    return {name for arm in run.config.arms for name in arm.environment}


def _setting(name: str, readers: tuple[str, ...]) -> Callable[[RankResult], Any]:
    """Return a reader of an environment variable; it gives None if no library of the rank uses the variable.

    ``readers`` are parts of the names of these libraries. If it is empty, every library uses the variable.
    """

    def read(rank: RankResult) -> Any:
        group = rank.attestation.get("group", {})
        known = f"{group.get('library')} {group.get('controller')} {group.get('transport')}".lower()
        concerned = not readers or any(reader in known for reader in readers)
        return _attested("environment", name)(rank) if concerned else None

    return read
