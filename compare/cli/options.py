"""Declare the flags that several commands share, and give them to commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import typer

from compare.cli.flag_options import Export, read_exports
from compare.schema.config import Precision
from compare.text import seconds_of

Format: TypeAlias = Literal["table", "markdown", "html", "csv", "json"]
"""Formats in which a result or a prediction can be printed."""


def read_seconds(written: str | float) -> float:
    """Return a time in seconds, which is written as a number of seconds or with a unit, such as ``5m``.

    Raises:
        BadParameter: it is neither; the parser adds the name of the flag or the key in the settings file.
    """
    try:
        return seconds_of(str(written))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def complete_names(module: str, known: str) -> Callable[[str], list[str]]:
    """Return a function that completes the last of several names, separated by commas, for a shell.

    The possible names are in the attribute ``known`` of ``module``. The module is imported when a shell
    completes a word, so ``--help`` stays fast.
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        names = getattr(import_module(module), known)
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


arms_flag = partial(typer.Option, rich_help_panel="Arms")
training_flag = partial(typer.Option, rich_help_panel="Training")
length_flag = partial(typer.Option, rich_help_panel="Time")
hosts_flag = partial(typer.Option, rich_help_panel="Ranks and hosts")
output_flag = partial(typer.Option, rich_help_panel="Output")
"""Each of these five declares a flag, in the group of ``--help`` that it names."""

time_flag = partial(length_flag, parser=read_seconds, metavar="TIME")
RunFolder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="Folder of a run, or its results.json; or `last`, the newest in runs/."
    ),
]
steps_flag = partial(
    training_flag,
    metavar="N[:warmup=N]",
    help="Training steps of a launch, or epochs as 2epochs. warmup: the first steps, which train but are not "
    "timed; 30 by default.",
)
Formats = Annotated[Format, output_flag("--format", help="What to print.")]
Backends = Annotated[
    list[str] | None,
    arms_flag(
        "--backend",
        metavar="ARMS",
        help="Arms, comma separated or repeated: ddp,manual:mode=overlap,mpi. "
        "`ringside backends` lists them with their options.",
        show_default="all available of the default arms in `ringside backends`; "
        "manual:mode=shared_memory, too, on one host's CPUs",
        autocompletion=complete_names("backends", "BACKENDS"),
    ),
]


Exports = Annotated[
    list[str] | None,
    output_flag(
        "--export",
        metavar="FILE",
        help="Also write the result here, as its suffix says: .json, .csv, .md, .html. Repeatable. `-` is "
        "JSON on standard output, and `-.csv` another format there.",
    ),
]


def output_option(suffix: str = "", *, name: str = "runs/<time>-<model>-np<ranks>") -> Any:
    """Return the option for the folder of results; its help shows ``name`` and ``suffix`` as the default."""
    name += suffix
    return output_flag(show_default=name, help="Folder for results and logs.")


DryRun: TypeAlias = Annotated[
    bool,
    output_flag(
        "--dry-run", help="Print what would run, where and for how long; with -v its environment too."
    ),
]


@dataclass(frozen=True, kw_only=True)
class HostFlags:
    """The flags of every command that reaches hosts."""

    hostfile: Annotated[Path | None, hosts_flag(help="Where the ranks run; see hostfiles/.")] = None
    hosts: Annotated[
        str | None,
        hosts_flag(
            "-H",
            "--hosts",
            help="Hosts instead of a file: node1:4,node[2-3]:2. With --hostfile or in a job, only these of "
            "its hosts, or all but ^node3.",
        ),
    ] = None
    engine: Annotated[
        str,
        hosts_flag(
            metavar="NAME[:OPTION=VALUE,…]",
            help="How hosts are reached. auto: your hosts by ssh; else those of the job that this program "
            "runs in; else this machine. local, slurm or ssh chooses, as ssh:user=ann,port=2222, where "
            "identity=FILE may follow. Each takes interface=eth0, and all but local wait=5m. "
            "rehearsal:hosts=4,rate=1gbit makes hosts on this machine, also with slots=2 and latency=2ms.",
        ),
    ] = "auto"


@dataclass(frozen=True, kw_only=True)
class RankFlags(HostFlags):
    """The flags of every command that starts ranks, also those of a user's own script."""

    num_proc: Annotated[
        int | None,
        hosts_flag(
            *("-np", "--num-proc"),
            min=1,
            metavar="N",
            show_default="the hostfile's slots, or else 2",
            help="Number of ranks.",
        ),
    ] = None
    env: Annotated[
        list[str] | None,
        hosts_flag(
            *("-x", "--env"),
            metavar="NAME[=VALUE]",
            help="NAME, with its value from your shell, or NAME=VALUE: set for every rank. The value is "
            "kept out of command lines, logs and results.",
        ),
    ] = None
    output: Annotated[Path | None, output_option()] = None
    export: Exports = None
    verbose: Annotated[
        bool, output_flag("--verbose", "-v", help="Print every command as it is executed.")
    ] = False
    quiet: Annotated[bool, output_flag("--quiet", "-q", help="Print nothing but the result and errors.")] = (
        False
    )

    @property
    def exports(self) -> list[Export]:
        """Return the files to export to, each with its format.

        Raises:
            UsageError: a file has an unknown suffix, or is named twice.
        """
        return read_exports(self.export)


@dataclass(frozen=True, kw_only=True)
class LaunchFlags(RankFlags):
    """The flags of every command that launches arms or groups."""

    device: Annotated[
        Literal["auto", "cpu", "cuda", "cuda:shared"],
        hosts_flag(
            help="What the ranks compute on. cuda:shared: ranks may share GPUs, in verify alone. "
            "In a rehearsal cuda means the same."
        ),
    ] = "auto"
    threads: Annotated[
        int | None, hosts_flag(show_default="cores / ranks per host", help="Threads per rank.")
    ] = None
    timeout: Annotated[
        str,
        length_flag(
            metavar="TIME[:stall=TIME]",
            help="Maximum time for a launch, without its waits for other arms, in seconds or as 5m. stall: "
            "maximum time without progress, by default 30 s.",
        ),
    ] = "5m"


@dataclass(frozen=True, kw_only=True)
class TrainingFlags(LaunchFlags):
    """The flags of every command that trains arms."""

    backend: Backends = None
    model: Annotated[
        str | None,
        training_flag(
            show_default="mlp",
            help="mlp, wide, convnet, or widths of your own: mlp:784-4096-10.",
            autocompletion=complete_names("compare.data.models", "MODELS"),
        ),
    ] = None
    workload: Annotated[
        str | None,
        training_flag(
            help="A function in a Python file of your own, in place of --model: train.py:make. It returns a "
            "compare.workload.Workload."
        ),
    ] = None
    optimizer: Annotated[
        str | None,
        training_flag(
            metavar="NAME[:lr=X]",
            show_default="sgd",
            help="sgd, adam or adamw, for a built-in model. lr: the learning rate, never scaled; 0.01 "
            "for sgd and 0.001 for the others.",
        ),
    ] = None
    batch_size: Annotated[int, training_flag(help="Samples per rank and pass.")] = 64
    accumulate: Annotated[
        int, training_flag(help="Passes per step; gradients add up and are averaged after the last.")
    ] = 1
    seed: Annotated[int, training_flag(help="Of the model, the shuffles and the order of arms.")] = 0
    precision: Annotated[
        Precision,
        training_flag(help="bf16-autocast: forward and loss in torch.autocast with bfloat16."),
    ] = "float32"
    compile: Annotated[
        bool, training_flag("--compile", help="Compile the model of every arm with torch.compile.")
    ] = False
    data: Annotated[
        str | None,
        training_flag(
            metavar="FOLDER|NAME",
            show_default="MNIST, or digits where it cannot be had",
            help="Folder that holds MNIST/raw/*-ubyte[.gz], or mnist or digits; mnist:folder=DIR names both.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TimedFlags(TrainingFlags):
    """The flags of every command that trains arms for their times."""

    steps: Annotated[str | None, steps_flag()] = None
    interleave: Annotated[
        str,
        arms_flag(
            metavar="auto|blocks|launches",
            help="blocks: all arms alive, training in turns. launches: one launch after another, where up to "
            "three noisy rounds are repeated (launches:reruns=3). auto: in turns where it is possible.",
        ),
    ] = "auto"


def with_flags(
    kind: type[Any], defaults: Mapping[str, Any] = MappingProxyType({}), **described: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for a command that takes an instance of the dataclass ``kind`` as first argument.

    The command then has a flag for each field of ``kind``. ``defaults`` replaces defaults of flags by their
    names, and ``described`` their annotations, which hold the texts of ``--help``. In ``--help``, the flags
    of ``LaunchFlags`` come last among those of ``kind``. The command's own flags follow after all of these if
    ``kind`` is a ``HostFlags``, and otherwise come first.
    """
    hints = get_type_hints(kind, include_extras=True) | described
    # The signature of a dataclass has its flags, all with defaults.
    flags = [
        flag.replace(annotation=hints[name], default=defaults.get(name, flag.default))
        for name, flag in inspect.signature(kind).parameters.items()
    ]
    if issubclass(kind, LaunchFlags):
        flags.sort(key=lambda flag: flag.name in LaunchFlags.__dataclass_fields__)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            command(kind(**{flag.name: given.pop(flag.name) for flag in flags}), **given)

        _, *own_flags = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [*flags, *own_flags] if issubclass(kind, HostFlags) else [*own_flags, *flags]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return called

    return decorate
