"""Define the entries of the registry: backends, their options, and groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from backends.base import Options, OptionValue


@dataclass(frozen=True, slots=True)
class Runtime:
    """What starts the ranks of an arm, and what they load."""

    launcher: str = "torchrun"
    """The default launcher; an allocation may need another."""
    libraries: tuple[str, ...] = ()
    """What must load beside torch, as ``backends.probe`` names it."""
    install: str = ""
    """The command that installs what is missing."""
    only_here_because: str = ""
    """Why it runs on this machine only, or nothing."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a backend, as written in an arm: ``backend:name=value``.

    Its values have the type of its default: a switch is a bool, a count an int, a number a float, and a
    choice one of ``choices``.
    """

    name: str
    default: OptionValue
    summary: str
    choices: tuple[str, ...] = ()
    least: int = 1
    """Minimum of a ``count``."""
    strategies: Mapping[str, str] = field(default_factory=dict)
    """Choices with another strategy than the backend's: ``module:class`` of the Replica."""
    runtimes: Mapping[str, Runtime] = field(default_factory=dict)
    """Choices with another launcher and other libraries than the backend's."""
    lossy: Mapping[str, float] = field(default_factory=dict)
    """Choices that change the arithmetic on purpose, each with its tolerance.

    The tolerance is the distance of an averaged gradient from the mean, over the largest number in its
    tensor.
    """
    cuda_only: tuple[str, ...] = ()
    """Choices that the library refuses on the CPU."""
    accumulates: bool = True
    """False for a switch that rules out gradient accumulation."""
    compiles_from: float = 0.0
    """Minimum for torch.compile."""
    needs: tuple[str, str] | None = None
    """Another option and its value that this option needs."""
    offered_in: str = ""
    """Fact of the library that lists the choices it was built with.

    It is empty if the library always has all choices.
    """
    rebuild: str = ""
    """The command that installs the library with every choice."""
    summaries: Mapping[str, str] = field(default_factory=dict)
    """Choices that are something else than the backend's summary says, in a few words."""
    code: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Choices whose lines are quoted in place of the backend's ``code``."""
    while_proven: OptionValue | None = None
    """Its value in the proof of parity; None keeps the arm's value.

    The proof takes few steps, which would not show what an option delays.
    """

    @property
    def kind(self) -> str:
        """``choice``, ``number``, ``count`` or ``switch``."""
        return {bool: "switch", int: "count", float: "number", str: "choice"}[type(self.default)]


@dataclass(frozen=True, slots=True)
class Backend:
    """A group with a strategy, described without importing them."""

    name: str
    summary: str
    strategy: str
    """``module:class`` of the Replica."""
    group: str = "backends.groups.torch_group:TorchGroup"
    """``module:class`` of the Group."""
    code: tuple[str, ...] = ()
    """Functions that synchronise, to be quoted: ``module:Class.function``, or ``:function`` of the group."""
    default_runtime: Runtime = field(default_factory=Runtime)
    """What it needs to run, unless an option needs something else."""
    options: tuple[Option, ...] = ()
    on_one_host: Mapping[str, OptionValue] = field(default_factory=dict)
    """Options of a second default arm, for ranks on one host's CPUs."""
    synchronises: bool = True
    """False only for the control: its ranks train alone and differ."""
    cuda: bool = True
    """Whether it can average tensors in GPU memory."""
    not_on_cpus: str = ""
    """Why it needs several GPUs; empty if it does not."""
    runs_while_waiting: bool = False
    """Whether threads of its library run while its ranks wait outside it."""
    only_named: bool = False
    """Whether it runs only when it is named."""
    own_step: bool = False
    """Whether it trains by a step of the user's own."""
    one_process: bool = False
    """Whether it always runs as one process with the global batch."""
    training: Literal["same", "same at period 1", "another"] = "same"
    """Whether it trains what a single process trains.

    ``same at period 1``: only with the options ``while_proven``. ``another``: never; its accuracy and loss
    have to be read beside its speed.
    """
    zeros_for_unused: bool = False
    """Whether parameters without a gradient get zeros, which weight decay then moves."""
    shards: Literal["nothing", "optimizer state", "parameters", "layers"] = "nothing"
    """What is divided among the ranks.

    ``layers``: each rank holds some layers with all their state, and ranks share each batch. With divided
    parameters, equal hashes of the gathered copies prove nothing. Only the reference does.
    """

    @property
    def claims(self) -> tuple[str, ...]:
        """Return what the arm claims, in a few words each; all lists of arms show them."""
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
        """Return whether the ranks exchange gradients or parameters."""
        return self.synchronises and not self.one_process

    @property
    def another_training(self) -> bool:
        """Return whether it declares that it never trains like one process."""
        return self.training == "another"

    @property
    def in_shards(self) -> bool:
        """Return whether ranks hold parts of the parameters, so that equal hashes prove nothing."""
        return self.shards in {"parameters", "layers"}

    @property
    def in_layers(self) -> bool:
        """Return whether ranks hold different layers, and share every batch."""
        return self.shards == "layers"

    @property
    def has_sync_cost(self) -> bool:
        """Return whether each rank computes what it would compute alone.

        Else a difference from the control's step time is no cost of synchronising.
        """
        return self.communicates and not self.in_layers

    def runtime(self, options: Options) -> Runtime:
        """Return what these options need to run; missing ones have their defaults."""
        for option in self.options:
            if chosen := option.runtimes.get(str(options.get(option.name))):
                return chosen
        return self.default_runtime


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A group whose collectives can be timed alone."""

    summary: str
    backend: str
    """The backend with its launcher and libraries."""
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    """The backend's options that choose this group."""
    group: str = ""
    """``module:class`` of the Group, if it is not the backend's."""
    device: str = ""
    """The only kind of device whose tensors it moves; empty for any."""
    one_host: bool = False
    """Whether it needs all ranks on one host."""
