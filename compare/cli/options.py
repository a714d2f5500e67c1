"""Declare the flags that several commands share, and give them to commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_type_hints

import typer

from compare.schema.config import Interleave, Precision
from compare.text import seconds_of

if TYPE_CHECKING:
    from compare.report import View

Format: TypeAlias = Literal["table", "markdown", "html", "csv", "json"]
"""Formats in which a result or a prediction can be printed."""
Order: TypeAlias = Literal["step", "name", "sync"]
"""What a report can sort the arms by: step time, name, or the cost of synchronising."""


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
DataDir = Annotated[
    Path | None,
    training_flag(
        "--data-dir", show_default="~/.cache/ringside/data", help="Folder that holds MNIST/raw/*-ubyte[.gz]."
    ),
]
RunFolder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="Folder of a run, or its results.json; or `last`, the newest in runs/."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")]
Backends = Annotated[
    list[str] | None,
    arms_flag(
        "--backend",
        help="Arms, comma separated or repeated: ddp,manual:mode=overlap,horovod:controller=mpi,mpi. "
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


@dataclass(frozen=True, kw_only=True)
class HostFlags:
    """The flags of every command that reaches hosts."""

    hostfile: Annotated[Path | None, hosts_flag(help="Where the ranks run; see hostfiles/.")] = None
    hosts: Annotated[
        str | None, hosts_flag("-H", "--hosts", help="Hosts instead of a file: node1:4,node[2-3]:2.")
    ] = None
    engine: Annotated[
        Literal["auto", "local", "ssh", "slurm"],
        hosts_flag(
            help="How hosts are reached. auto: your hosts by ssh; else those of the "
            "allocation that this program runs in; else this machine."
        ),
    ] = "auto"
    include: Annotated[list[str] | None, hosts_flag(help="Use only these of the hosts: node[1-2],node7.")] = (
        None
    )
    exclude: Annotated[list[str] | None, hosts_flag(help="Leave these hosts out: node3.")] = None
    ssh_user: Annotated[
        str, hosts_flag(show_default="as ssh is configured", help="For hosts that name no user themselves.")
    ] = ""
    ssh_port: Annotated[
        int | None, hosts_flag(min=1, max=65535, show_default="as ssh is configured", help="Port of sshd.")
    ] = None
    ssh_identity: Annotated[
        Path | None,
        hosts_flag(
            exists=True, dir_okay=False, show_default="as ssh is configured", help="File of the private key."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LaunchFlags(HostFlags):
    """The flags of every command that launches ranks."""

    num_proc: Annotated[
        int | None,
        hosts_flag(
            *("-np", "--num-proc"),
            min=1,
            show_default="the hostfile's slots, or else 2",
            help="Number of ranks.",
        ),
    ] = None
    nproc_per_node: Annotated[
        int | None, hosts_flag(min=1, hidden=True, help="torchrun's name of -np, on one machine.")
    ] = None
    wait_for_hosts: Annotated[
        float,
        hosts_flag(
            parser=read_seconds,
            metavar="TIME",
            help="Maximum time for hosts that are starting, in seconds or as 5m.",
        ),
    ] = 0.0
    interface: Annotated[
        str | None,
        hosts_flag(
            show_default="the one that all hosts share; lo on one machine",
            help="Network interface of all arms.",
        ),
    ] = None
    env: Annotated[
        list[str] | None,
        hosts_flag(
            "-x",
            "--env",
            help="NAME, with its value from your shell, or NAME=VALUE: set for every rank. The value is "
            "kept out of command lines, logs and results.",
        ),
    ] = None
    device: Annotated[Literal["auto", "cpu", "cuda"], hosts_flag(help="What the ranks compute on.")] = "auto"
    threads: Annotated[
        int | None, hosts_flag(show_default="cores / ranks per host", help="Threads per rank.")
    ] = None
    output: Annotated[Path | None, output_option()] = None
    export_json: Annotated[
        Path | None, output_flag(help="Also write everything here, for programs; `-` is standard output.")
    ] = None
    export_csv: Annotated[Path | None, output_flag(help="Also write every figure here.")] = None
    export_markdown: Annotated[Path | None, output_flag(help="Also write the tables and notes here.")] = None
    export_html: Annotated[Path | None, output_flag(help="Also write a page here, with pictures.")] = None
    timeout: Annotated[
        float, time_flag(help="Maximum time for a launch, without its waits for other arms: seconds, or 5m.")
    ] = 300.0
    stall: Annotated[float, time_flag(help="Maximum time without progress, in seconds or as 5m.")] = 30.0
    verbose: Annotated[
        bool, output_flag("--verbose", "-v", help="Print every command as it is executed.")
    ] = False
    quiet: Annotated[bool, output_flag("--quiet", "-q", help="Print nothing but the result and errors.")] = (
        False
    )

    @property
    def exports(self) -> dict[str, Path]:
        """Return the path of each file to export to, by the name of its format."""
        paths = ((form, getattr(self, f"export_{form}")) for form in ("json", "csv", "markdown", "html"))
        return {form: path for form, path in paths if path}


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
        Literal["sgd", "adam", "adamw"] | None,
        training_flag(show_default="sgd", help="Optimizer of a built-in model."),
    ] = None
    lr: Annotated[
        float | None,
        training_flag(
            "--lr", show_default="0.01 for sgd, 0.001 for the others", help="Learning rate, never scaled."
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
    dataset: Annotated[
        Literal["auto", "mnist", "digits"] | None,
        training_flag(show_default="auto", help="auto: digits where MNIST cannot be had."),
    ] = None
    data_dir: DataDir = None


@dataclass(frozen=True, kw_only=True)
class TimedFlags(TrainingFlags):
    """The flags of every command that trains arms for their times."""

    warmup: Annotated[int, training_flag(help="First steps, which train but are not timed.")] = 30
    interleave: Annotated[
        Interleave,
        arms_flag(
            help="blocks: all arms alive, training in turns. launches: one launch after another. "
            "auto: in turns where it is possible."
        ),
    ] = "auto"
    max_reruns: Annotated[
        int,
        length_flag(
            help="One launch after another: maximum number of noisy rounds to repeat, one twice at most."
        ),
    ] = 3


@dataclass(frozen=True, kw_only=True)
class ViewFlags:
    """The flags that choose what is shown of a run."""

    wide: Annotated[bool, output_flag("--wide", help="Show every column and note, with full names.")] = False
    detail: Annotated[bool, output_flag("--detail", help="As --wide, and where the cost goes.")] = False
    sort: Annotated[
        Order | None,
        output_flag(show_default="step; as named where nothing is ranked", help="Order of the arms."),
    ] = None

    def view(self, report_argument: str = "RUN") -> View:
        """Return the view that these flags choose.

        ``report_argument`` is the argument that makes ``ringside report`` show the same run.
        """
        from compare.report import View

        return View(wide=self.wide, detail=self.detail, sort=self.sort, report_argument=report_argument)


@dataclass(frozen=True, kw_only=True)
class RunFlags(ViewFlags, TimedFlags):
    """The flags that ``run``, ``aa`` and ``gate`` share."""


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
