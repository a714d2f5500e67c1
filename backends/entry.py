"""Define the entries of the registry: backends, their options, and groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from backends.base import Options, OptionValue

Shards: TypeAlias = Literal["nothing", "optimizer state", "parameters", "layers"]
"""What the ranks of a backend divide among each other; see ``Backend.shards``."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The launcher that starts the ranks of an arm, and the libraries that they load."""

    launcher: str = "torchrun"
    """Name of the launcher, a key of ``LAUNCHERS`` in ``backends.launchers``."""
    libraries: tuple[str, ...] = ()
    """Names of the libraries that must load beside torch, as in ``PROBES`` of ``backends.probe``."""
    install: str = ""
    """The command that installs a missing library."""
    only_here_because: str = ""
    """Why ranks run only on the machine of the command; empty if they run on other hosts too."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of a backend, which users write as ``backend:name=value``.

    All values have the type of the default. There are four kinds: a switch is a bool, a count is an int, a
    number is a float, and a choice is one of the texts in ``choices``.
    """

    name: str
    default: OptionValue
    summary: str
    choices: tuple[str, ...] = ()
    least: int = 1
    """If the option is a whole number, a value below this one is refused."""
    strategies: Mapping[str, str] = field(default_factory=dict)
    """The ``module:class`` of the Replica for choices with another strategy than the backend's."""
    runtimes: Mapping[str, Runtime] = field(default_factory=dict)
    """The runtime for choices that need another launcher or other libraries than the backend."""
    lossy: Mapping[str, float] = field(default_factory=dict)
    """The tolerance for choices that round or compress gradients on purpose.

    It is the largest error of an averaged gradient that is allowed, as a fraction of the largest number in
    the gradient's tensor.
    """
    cuda_only: tuple[str, ...] = ()
    """Choices that the library refuses on the CPU."""
    accumulates: bool = True
    """Whether gradients can be accumulated over several passes while this switch is on."""
    compiles_from: float = 0.0
    """torch.compile needs a value that is at least this large; 0 if it works with every value."""
    divides_ranks: bool = False
    """Whether the number of ranks must be divisible by this whole number."""
    needs: tuple[str, str] | None = None
    """The name and value of another option without which this one has no effect; None if it needs none."""
    offered_in: str = ""
    """Name of the fact of ``backends.probe`` that lists the choices that the library was built with.

    It is empty if the library always has all choices.
    """
    rebuild: str = ""
    """The command that installs the library with every choice."""
    summaries: Mapping[str, str] = field(default_factory=dict)
    """The summary for choices that the backend's own summary does not describe.

    Those of a switch are ``true`` and ``false``.
    """
    code: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The functions to quote for some choices, in place of the backend's ``code``."""
    while_proven: OptionValue | None = None
    """The value during the parity check, or None to keep the arm's own value.

    The check takes few steps, so it would not reach an update that the arm's own value delays.
    """

    def value_in(self, options: Options) -> OptionValue:
        """Return the option's value among ``options``, or its default if an arm lacks it."""
        return options.get(self.name, self.default)

    @property
    def kind(self) -> str:
        """The kind of the option: ``choice``, ``number``, ``count`` or ``switch``."""
        return {bool: "switch", int: "count", float: "number", str: "choice"}[type(self.default)]


@dataclass(frozen=True, slots=True)
class Backend:
    """An entry of the registry: a group with a strategy, described without importing their libraries."""

    name: str
    summary: str
    strategy: str
    """``module:class`` of the Replica."""
    group: str = "backends.groups.torch_group:TorchGroup"
    """``module:class`` of the Group."""
    code: tuple[str, ...] = ()
    """The functions that ``ringside report --format lesson`` quotes, because they synchronise.

    Each is written as ``module:Class.function``, or as ``:function`` for a method of the group's class.
    """
    default_runtime: Runtime = field(default_factory=Runtime)
    """The launcher and libraries, unless the value of an option has a runtime of its own."""
    options: tuple[Option, ...] = ()
    on_one_host: Mapping[str, OptionValue] = field(default_factory=dict)
    """The options of a second default arm, which runs only on the CPUs of one host; empty for none."""
    synchronises: bool = True
    """Whether ranks synchronise; False only for the control, whose ranks train alone and differ."""
    cuda: bool = True
    """Whether the backend can average tensors in GPU memory."""
    not_on_cpus: str = ""
    """Why the backend needs several GPUs; empty if it does not need them."""
    runs_while_waiting: bool = False
    """Whether threads of the library keep running while the ranks wait outside the library."""
    only_named: bool = False
    """Whether the backend runs only if the user names it, so that it is not a default arm."""
    own_step: bool = False
    """Whether the backend trains by the user's own training step."""
    one_process: bool = False
    """Whether the backend always runs as one process, which trains on the global batch."""
    training: Literal["same", "same at period 1", "another"] = "same"
    """Whether the backend trains what a single process with the global batch would train.

    ``same at period 1`` means that it does so only with the values ``while_proven`` of its options.
    ``another`` means that it never does, so its accuracy and loss have to be read beside its speed.
    """
    zeros_for_unused: bool = False
    """Whether parameters without a gradient get zeros, which weight decay then moves."""
    shards: Shards = "nothing"
    """What the ranks divide among each other.

    With ``layers``, each rank holds some layers with all their state, and all ranks train on the same batch.
    Where parameters are divided, equal hashes of the gathered model on all ranks prove nothing. Only the
    comparison with a single process does.
    """

    @property
    def claims(self) -> tuple[str, ...]:
        """Return what the backend claims about its training, in a few words each, for lists of arms."""
        training = self.training.replace("same", "same training").replace("another", "another training")
        return tuple(
            claim
            for claim, holds in (
                (training if self.synchronises else "ranks train apart", True),
                (f"{self.shards} in shards", self.shards != "nothing"),
                ("one process with the global batch", self.one_process),
                ("zero gradients for unused parameters", self.zeros_for_unused),
                ("not in GPU memory", not self.cuda),
            )
            if holds
        )

    @property
    def communicates(self) -> bool:
        """Return whether the ranks exchange gradients, parameters or activations."""
        return self.synchronises and not self.one_process

    @property
    def another_training(self) -> bool:
        """Return whether the backend declares that it never trains what one process trains."""
        return self.training == "another"

    @property
    def in_shards(self) -> bool:
        """Return whether each rank holds only a part of the parameters."""
        return self.shards in {"parameters", "layers"}

    @property
    def mixes_collectives(self) -> bool:
        """Return whether a step calls several kinds of collectives, because ranks hold shards."""
        return self.shards in {"optimizer state", "parameters"}

    @property
    def in_layers(self) -> bool:
        """Return whether ranks hold different layers, and train on the same batch."""
        return self.shards == "layers"

    @property
    def has_sync_cost(self) -> bool:
        """Return whether the step time minus the control's is the cost of synchronising.

        It is so if each rank computes what it would compute alone, and communicates as well.
        """
        return self.communicates and not self.in_layers

    def runtime(self, options: Options) -> Runtime:
        """Return the launcher and libraries that these options need; options may be left out."""
        for option in self.options:
            if chosen := option.runtimes.get(str(options.get(option.name))):
                return chosen
        return self.default_runtime


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group whose collectives can be timed alone."""

    summary: str
    backend: str
    """Name of the backend whose launcher and libraries the group needs."""
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    """The options of the backend that choose this group."""
    group: str = ""
    """The ``module:class`` of the Group; empty for the backend's own group."""
    device: str = ""
    """The only type of device whose tensors the group takes, such as ``cpu``; empty for any."""
    one_host: bool = False
    """Whether the group needs all ranks on one host."""
