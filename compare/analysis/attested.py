"""List the items that are compared between arms.

Every value comes from a rank's result, mostly from what it attests of its running libraries. An item has one
of three roles:

- ``controlled``: it must be the same everywhere, or the comparison is invalid
- ``compared``: it belongs to the arm, so the difference is part of the comparison
- ``confounder``: it comes with a backend and cannot be removed, but it is not what the user compares
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from compare.schema.arms import Arm
from compare.schema.environment import readers_of
from compare.schema.results import RankResult, Run

ABSENT = "–"
"""Text that stands for a missing value."""
Role = Literal["controlled", "compared", "confounder"]
_MEAN_OPERATIONS = {
    "mean",
    "average",
    "divided by the number of ranks in backward, then summed",
    # in older runs, in which backward did not divide
    "sum, then divided by the number of ranks",
    "divided by the number of ranks, then summed",
}
Exemption: TypeAlias = tuple[Callable[[Arm], Any], str]
"""A test for arms that may differ in an item by declaration, and a phrase for how they differ."""
_OTHER_INTERPRETER: Exemption = (lambda arm: arm.against, "another interpreter")
_ONE_PROCESS: Exemption = (
    lambda arm: arm.traits.one_process,
    "one process has all threads and the global batch",
)
_IN_LAYERS: Exemption = (
    lambda arm: arm.traits.in_layers,
    "its ranks hold different layers and share each batch",
)
_OWN_STEP: Exemption = (lambda arm: arm.traits.own_step, "its step is the user's own")
_OTHER_DTYPE: Exemption = (
    lambda arm: arm.options.get("param_dtype", "none") != "none",
    "its layers compute in the dtype of the option param_dtype",
)
_OTHER_TRAINING: Exemption = (lambda arm: not arm.same_training, "another training")


class Item(NamedTuple):
    """One item to compare between arms, and which arms may differ in it."""

    name: str
    role: Role
    read: Callable[[RankResult], Any]
    """Map a rank's result to the attested value; None if the rank attests none."""
    why: str = ""
    """What a difference between arms means, as a phrase; empty if there is no more to explain."""
    options: tuple[str, ...] = ()
    """Names of the arms' options that declare a difference."""
    by_library: bool = False
    """Whether a backend's library chooses the value, so that arms differ in it without any option."""
    in_control: bool = True
    """Whether arms that do not communicate, such as the control, are compared too."""
    by_rank: bool = False
    """Whether the ranks of an arm may differ, so that each is compared with the same rank of other arms."""
    by_host: str = ""
    """Why ranks on different hosts may differ in it; empty if they may not."""
    optional: bool = False
    """Whether arms that attest no value are left out of the comparison."""
    exempt: tuple[Exemption, ...] = ()
    """Tests for the arms that may differ in it by declaration."""
    from_shell: bool = False
    """Whether it is an environment variable, which is reported even if no arm reads it."""


def items_of(run: Run) -> list[Item]:
    """Return every item to compare in a run, the fixed ones before those that depend on the run."""
    return [*_ITEMS, _malloc_item(run), *_version_items(run), *_environment_items(run)]


def spell(value: Any) -> str:
    """Return an attested value as text: ``ABSENT`` for None, ``on`` or ``off`` for a boolean."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return ", ".join(f"{key}={spell(item)}" for key, item in sorted(value.items())) or "none"
    if isinstance(value, (list, tuple)):
        return " ".join(map(spell, value)) or "none"
    return str(value)


# ---- reading what a rank attests ----


def _attested(*path: str) -> Callable[[RankResult], Any]:
    """Return a function that reads the value at ``path`` from a rank's attestation, or None without one."""

    def read(rank: RankResult) -> Any:
        value: Any = rank.attestation
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    return read


def transport_of(rank: RankResult) -> Any:
    """Return the transport of a rank's gradients as its strategy or else its group attests it, or None."""
    return _attested("replica", "transport")(rank) or _attested("group", "transport")(rank)


def _reduce_op(rank: RankResult) -> Any:
    """Return the reduce operation that a strategy attests; None if it has only the base class's ``none``."""
    operation = _attested("replica", "reduce_op")(rank)
    if operation == "none":
        return None
    return "mean" if operation in _MEAN_OPERATIONS else operation


def _compression(rank: RankResult) -> Any:
    if not _attested("replica")(rank):
        return None
    names = ("compression", "comm_hook", "reduce_dtype")
    return next(filter(None, (_attested("replica", name)(rank) for name in names)), "none")


def _switch(name: str, rank: RankResult) -> bool | None:
    """Return whether a rank attests that its strategy has a switch on; None if it attests no strategy."""
    replica = _attested("replica")(rank)
    return bool(replica.get(name)) if replica else None


def _is_compiled(rank: RankResult) -> bool | None:
    graphs = _attested("compiled_graphs")(rank)
    return None if graphs is None else graphs > 0


def _passes(rank: RankResult) -> Any:
    by_horovod = _attested("replica", "backward_passes_per_step")(rank)
    return by_horovod or _attested("replica", "passes_per_step")(rank)


def _trained_steps(rank: RankResult) -> int | None:
    """Return how many training steps of a rank were timed; None if arms may differ in that number.

    They may if the arms took turns, because a turn lasts for a number of seconds. They also may if an arm
    communicates only in some steps, because such an arm is timed in whole cycles of steps.
    """
    if (_attested("replica", "cycle")(rank) or 1) > 1 or any(block.turn for block in rank.blocks):
        return None
    return sum(block.steps for block in rank.blocks if block.mode == "training")


def _global_batch(rank: RankResult) -> Any:
    """Return how many samples all ranks take together in one pass; None if the rank attests no batch."""
    samples, shard = _attested("batch", "samples")(rank), _attested("batch", "shard")(rank)
    return samples * shard[1] if samples and shard else samples


def _held_bytes(rank: RankResult) -> Any:
    """Return what a rank holds by kind; without activations, which a batch of another length changes."""
    sizes = _attested("held")(rank)
    left_out = "activation_bytes"
    return sizes and {name.removesuffix("_bytes"): size for name, size in sizes.items() if name != left_out}


_HOST_LIMITS = "each host has limits of its own"
WHAT_IS_COMPARED = "this is what is compared"


def _backend_item(name: str, read: Callable[[RankResult], Any], *options: str, **fields: Any) -> Item:
    """Return an item that belongs to the backend and is compared among arms that communicate."""
    why = f"part of the backend: {WHAT_IS_COMPARED}"
    return Item(name, "compared", read, why, options, in_control=False, **fields)


_ITEMS = (
    Item("device", "controlled", _attested("device")),
    Item("GPU driver", "controlled", _attested("gpu", "driver")),
    Item("GPU power limit in watts", "controlled", _attested("gpu", "power_limit_watts")),
    Item("host", "controlled", lambda rank: rank.host, by_rank=True, exempt=(_ONE_PROCESS,)),
    Item("threads", "controlled", _attested("threads"), exempt=(_ONE_PROCESS,)),
    Item("inter-op threads", "controlled", _attested("interop_threads")),
    Item("affinity", "controlled", _attested("affinity")),
    Item("nice", "controlled", _attested("nice"), by_host=_HOST_LIMITS),
    Item("CPU quota in cores", "controlled", _attested("core_quota"), by_host=_HOST_LIMITS),
    Item("matmul precision", "controlled", _attested("matmul_precision")),
    Item("parameter dtypes", "controlled", _attested("parameter_dtypes")),
    Item(
        *("activation dtypes", "controlled", _attested("activation_dtypes")),
        exempt=(_IN_LAYERS, _OWN_STEP, _OTHER_DTYPE),
    ),
    Item("compiled", "controlled", _is_compiled),
    Item("input dtype", "controlled", _attested("batch", "dtype")),
    Item("global batch size", "controlled", _global_batch),
    Item("passes per step", "controlled", _passes, optional=True),
    Item("training samples", "controlled", _attested("batch", "training_samples")),
    Item("shard", "controlled", _attested("batch", "shard"), by_rank=True, exempt=(_ONE_PROCESS, _IN_LAYERS)),
    Item("optimizer", "controlled", _attested("optimizer")),
    Item("timed steps", "controlled", _trained_steps, optional=True),
    Item("gradient bytes", "controlled", lambda rank: rank.gradient_bytes),
    Item("initial parameters", "controlled", lambda rank: rank.initial_hash[:12]),
    Item(
        *("reduce op", "controlled", _reduce_op, "the arms compute different gradients"),
        in_control=False,
        optional=True,
        exempt=(_OWN_STEP, _OTHER_TRAINING),
    ),
    Item(
        *("compression", "controlled", _compression),
        "compressed gradients differ from those that were computed",
        ("compression", "comm_hook", "reduce_dtype"),
        in_control=False,
    ),
    Item("python", "controlled", _attested("python"), exempt=(_OTHER_INTERPRETER,)),
    Item("torch", "controlled", _attested("torch"), exempt=(_OTHER_INTERPRETER,)),
    Item(
        *("transport", "confounder", transport_of),
        "comes with the backend: it may explain part of a difference in speed",
        ("process_group", "controller", "library", "mode"),
        by_library=True,
        in_control=False,
        by_host="a rank that is alone on its host cannot use shared memory",
    ),
    _backend_item("library", _attested("group", "library")),
    _backend_item("single copy", _attested("group", "single_copy"), by_library=True, optional=True),
    _backend_item("process group", _attested("group", "process_group"), "process_group", by_library=True),
    _backend_item("controller", _attested("group", "controller")),
    _backend_item(
        "buckets in bytes",
        _attested("replica", "bucket_bytes"),
        *("bucket_cap_mb", "bucket_mb", "mode"),
        by_library=True,
    ),
    _backend_item(
        "fusion in bytes", _attested("group", "fusion_bytes"), "env.HOROVOD_FUSION_THRESHOLD", by_library=True
    ),
    _backend_item(
        "cycle time in ms",
        _attested("group", "cycle_milliseconds"),
        "env.HOROVOD_CYCLE_TIME",
        by_library=True,
    ),
    _backend_item("bytes held", _held_bytes, by_library=True, by_rank=True),
    _backend_item("autotune", _attested("group", "autotune")),
    _backend_item(
        "messages in bytes",
        lambda rank: rank.message_bytes or None,
        *("bucket_cap_mb", "bucket_mb", "mode", "compression", "comm_hook"),
        by_library=True,
        optional=True,  # compressed messages are not known
    ),
    _backend_item(
        "gradients as bucket views", partial(_switch, "gradient_as_bucket_view"), "gradient_as_bucket_view"
    ),
    _backend_item("graph breaks", _attested("graph_breaks"), by_library=True),
    _backend_item(
        "reshards after forward", partial(_switch, "reshard_after_forward"), "reshard_after_forward"
    ),
    _backend_item("static graph", partial(_switch, "static_graph"), "static_graph"),
    _backend_item("PowerSGD rank", _attested("replica", "powersgd_rank"), "comm_hook", "powersgd_rank"),
    _backend_item("PowerSGD start", _attested("replica", "powersgd_start"), "comm_hook", "powersgd_start"),
)


def _malloc_item(run: Run) -> Item:
    """Return the item for the settings of the memory allocator, except those that an arm's options set."""
    set_by_arms = _variables_of_arms(run)

    def read(rank: RankResult) -> Any:
        settings = _attested("malloc")(rank)
        return settings and {name: value for name, value in settings.items() if name not in set_by_arms}

    return Item("malloc settings", "controlled", read)


def _version_items(run: Run) -> list[Item]:
    """Return an item for the version of each library; only arms that load the library are compared."""
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
            exempt=(_OTHER_INTERPRETER,),
        )
        for name in sorted(names)
    ]


def _environment_items(run: Run) -> list[Item]:
    """Return an item for each environment variable by which the user's shell or an arm sets up a library.

    A variable is compared among the arms whose libraries read it.
    """
    inherited = {name: value for launch in run.launches for name, value in launch.inherited.items()}
    values = dict.fromkeys(sorted(_variables_of_arms(run)), "") | inherited
    readers = {name: readers_of(name, value) for name, value in sorted(values.items())}
    return [
        Item(
            *(name, "controlled", partial(_variable, name, reading)),
            "set in the shell, and not every arm reads it: unset it, or make it an option of an arm",
            (f"env.{name}",),
            in_control=not reading,
            from_shell=True,
        )
        for name, reading in readers.items()
    ]


def _variables_of_arms(run: Run) -> set[str]:
    return {name for arm in run.config.arms for name in arm.environment}


def _variable(name: str, readers: tuple[str, ...], rank: RankResult) -> Any:
    """Return an environment variable that a rank attests; None if no library of the rank reads it.

    ``readers`` are parts of the names of the libraries that do; if it is empty, all do.
    """
    group = rank.attestation.get("group", {})
    known = f"{group.get('library')} {group.get('controller')} {group.get('transport')}".lower()
    concerned = not readers or any(reader in known for reader in readers)
    return _attested("environment", name)(rank) if concerned else None
