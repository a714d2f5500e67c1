"""Declare the flags that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from compare.cli.choices import (
    Dataset,
    Device,
    EngineName,
    Interleave,
    Optimizer,
    Order,
    Precision,
    complete_names,
)
from compare.cli.passing import pass_flags
from compare.cli.times import read_seconds

arms_flag = partial(typer.Option, rich_help_panel="Arms")
training_flag = partial(typer.Option, rich_help_panel="Training")
length_flag = partial(typer.Option, rich_help_panel="Time")
hosts_flag = partial(typer.Option, rich_help_panel="Ranks and hosts")
output_flag = partial(typer.Option, rich_help_panel="Output")
"""Each of these declares a flag in one group of ``--help``."""

time_flag = partial(length_flag, parser=read_seconds, metavar="TIME")
DataDir = Annotated[
    Path | None,
    training_flag(
        "--data-dir", show_default="~/.cache/ringside/data", help="Folder that holds MNIST/raw/*-ubyte[.gz]."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")]
Wide = Annotated[bool, output_flag("--wide", help="Show every column and note, with full names.")]
Detail = Annotated[bool, output_flag("--detail", help="As --wide, and where the cost goes.")]
Sort = Annotated[
    Order | None,
    output_flag(show_default="step; as named where nothing is ranked", help="Order of the arms."),
]
Backends = Annotated[
    list[str] | None,
    arms_flag(
        "--backend",
        help="Arms, comma separated or repeated: ddp,manual:mode=overlap,horovod:controller=mpi,mpi. "
        "`compare backends` lists them with their options.",
        show_default="all available of the default arms in `compare backends`; "
        "manual:mode=shared_memory, too, on one host's CPUs",
        autocompletion=complete_names("backends", "BACKENDS"),
    ),
]
Warmup = Annotated[int, training_flag(help="First steps, which train but are not timed.")]
InterleaveMode = Annotated[
    Interleave,
    arms_flag(
        help="blocks: all arms alive, training in turns. launches: one launch after another. "
        "auto: in turns where it is possible."
    ),
]
MaxReruns = Annotated[
    int,
    length_flag(
        help="One launch after another: maximum number of noisy rounds to repeat, one twice at most."
    ),
]


def output_option(suffix: str = "", *, name: str = "runs/<time>-<model>-np<ranks>") -> Any:
    """Return the option for the folder of results; ``--help`` shows ``name`` + ``suffix`` as its default."""
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
        EngineName,
        hosts_flag(
            help="How hosts are reached. auto: your hosts by ssh; else those of the "
            "allocation that this program runs in; else this machine."
        ),
    ] = EngineName.AUTO
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
    device: Annotated[Device, hosts_flag(help="What the ranks compute on.")] = Device.AUTO
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
        """Return the file of each format that is to be exported, by the name of the format."""
        files = {
            "json": self.export_json,
            "csv": self.export_csv,
            "markdown": self.export_markdown,
            "html": self.export_html,
        }
        return {form: path for form, path in files.items() if path}

    @property
    def exports_to_stdout(self) -> bool:
        """Return whether an export goes to standard output, so that tables must not."""
        from compare.system.files import STANDARD_OUTPUT

        return STANDARD_OUTPUT in self.exports.values()


@dataclass(frozen=True, kw_only=True)
class Shared(LaunchFlags):
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
        Optimizer | None, training_flag(show_default="sgd", help="Optimizer of a built-in model.")
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
    ] = Precision.FLOAT32
    compile: Annotated[
        bool, training_flag("--compile", help="Compile the model of every arm with torch.compile.")
    ] = False
    dataset: Annotated[
        Dataset | None, training_flag(show_default="auto", help="auto: digits where MNIST cannot be had.")
    ] = None
    data_dir: DataDir = None


@dataclass(frozen=True, kw_only=True)
class RunFlags(Shared):
    """The flags that ``run``, ``aa`` and ``gate`` share."""

    warmup: Warmup = 30
    interleave: InterleaveMode = Interleave.AUTO
    wide: Wide = False
    detail: Detail = False
    sort: Sort = None


def with_run_flags(**described: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that passes the flags of ``RunFlags``; see ``pass_flags``."""
    return partial(pass_flags, RunFlags, described, last=LaunchFlags)


def with_shared(**described: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that passes the flags of ``Shared``; see ``pass_flags``."""
    return partial(pass_flags, Shared, described, last=LaunchFlags)


def with_host_flags(**described: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that passes the flags of ``HostFlags``; see ``pass_flags``."""
    return partial(pass_flags, HostFlags, described, last=HostFlags)


def with_launch_flags(**described: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that passes the flags of ``LaunchFlags``; see ``pass_flags``."""
    return partial(pass_flags, LaunchFlags, described, last=LaunchFlags)
