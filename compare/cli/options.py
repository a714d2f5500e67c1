"""Declare the flags that several commands share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from compare.errors import UsageError

if TYPE_CHECKING:
    from compare.experiment.settle import UserRequest
    from compare.schema.arms import Arm

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", show_default="~/.cache/ringside/data", help="Folder that holds MNIST/raw/*-ubyte[.gz]."
    ),
]
Detail = Annotated[bool, typer.Option("--detail", help="Also show where the cost goes.")]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        help="Arms, comma separated or repeated: ddp,manual:mode=overlap,horovod:controller=mpi,mpi. "
        "`compare backends` lists them with their options.",
        show_default="all available but zero, fsdp and single; "
        "manual:mode=shared_memory, too, on one host's CPUs",
    ),
]
Hostfile = Annotated[Path | None, typer.Option(help="Where the ranks run; see hostfiles/.")]
Engine = Annotated[
    str,
    typer.Option(
        help="How hosts are reached: local, ssh or slurm. auto: your hosts by ssh; else those of the "
        "allocation that this program runs in; else this machine."
    ),
]
HostList = Annotated[
    str | None, typer.Option("-H", "--hosts", help="Hosts instead of a file: node1:4,node[2-3]:2.")
]
SshUser = Annotated[
    str, typer.Option(show_default="as ssh is configured", help="For hosts that name no user themselves.")
]
SshPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, show_default="as ssh is configured", help="Port of sshd."),
]
SshIdentity = Annotated[
    Path | None,
    typer.Option(
        exists=True, dir_okay=False, show_default="as ssh is configured", help="File of the private key."
    ),
]
Warmup = Annotated[int, typer.Option(help="First steps, which train but are not timed.")]
InterleaveMode = Annotated[
    str,
    typer.Option(
        help="blocks: all arms alive, training in turns. launches: one launch after another. "
        "auto: in turns where it is possible."
    ),
]
MaxReruns = Annotated[int, typer.Option(help="Maximum number of noisy rounds to repeat; one twice at most.")]


def output_option(suffix: str = "", *, name: str = "runs/<time>-<model>-np<ranks>") -> Any:
    """Return the option for the folder of a run."""
    name += suffix
    return typer.Option(show_default=name, help="Folder for results and logs.")


@dataclass(frozen=True, kw_only=True)
class LaunchFlags:
    """The flags of every command that launches ranks."""

    num_proc: Annotated[
        int | None,
        typer.Option(
            "-np",
            "--num-proc",
            min=1,
            show_default="the hostfile's slots, or else 2",
            help="Number of ranks.",
        ),
    ] = None
    hostfile: Hostfile = None
    hosts: HostList = None
    engine: Engine = "auto"
    include: Annotated[
        list[str] | None, typer.Option(help="Use only these of the hosts: node[1-2],node7.")
    ] = None
    exclude: Annotated[list[str] | None, typer.Option(help="Leave these hosts out: node3.")] = None
    interface: Annotated[
        str | None,
        typer.Option(
            show_default="the one that all hosts share; lo on one machine",
            help="Network interface of all arms.",
        ),
    ] = None
    ssh_user: SshUser = ""
    ssh_port: SshPort = None
    ssh_identity: SshIdentity = None
    env: Annotated[
        list[str] | None,
        typer.Option(
            "-x",
            "--env",
            help="NAME, with its value from your shell, or NAME=VALUE: set for every rank. The value is "
            "kept out of command lines, logs and results.",
        ),
    ] = None
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto"
    threads: Annotated[
        int | None, typer.Option(show_default="cores / ranks per host", help="Threads per rank.")
    ] = None
    output: Annotated[Path | None, output_option()] = None
    export_json: Annotated[Path | None, typer.Option(help="Also write the run and its summary here.")] = None
    timeout: Annotated[float, typer.Option(help="Maximum time for a launch, in seconds.")] = 300.0
    stall: Annotated[float, typer.Option(help="Maximum time without progress, in seconds.")] = 30.0
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print every command as it is executed.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Shared(LaunchFlags):
    """The flags that ``run``, ``aa`` and ``verify`` share."""

    backend: Backends = None
    model: Annotated[
        str | None,
        typer.Option(show_default="mlp", help="mlp, wide, convnet, or widths of your own: mlp:784-4096-10."),
    ] = None
    workload: Annotated[
        str | None,
        typer.Option(
            help="A function in a Python file of your own, in place of --model: train.py:make. It returns a "
            "compare.workload.Workload."
        ),
    ] = None
    optimizer: Annotated[str | None, typer.Option(show_default="sgd", help="sgd, adam or adamw.")] = None
    lr: Annotated[
        float | None,
        typer.Option(
            "--lr", show_default="0.01 for sgd, 0.001 for the others", help="Learning rate, never scaled."
        ),
    ] = None
    batch_size: Annotated[int, typer.Option(help="Samples per rank and pass.")] = 64
    accumulate: Annotated[
        int, typer.Option(help="Passes per step; gradients add up and are averaged after the last.")
    ] = 1
    seed: Annotated[int, typer.Option(help="Of the model, the shuffles and the order of arms.")] = 0
    precision: Annotated[
        str, typer.Option(help="float32, or bf16-autocast: forward and loss in torch.autocast with bfloat16.")
    ] = "float32"
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the model of every arm with torch.compile.")
    ] = False
    dataset: Annotated[str | None, typer.Option(show_default="auto", help="auto, mnist or digits.")] = None
    data_dir: DataDir = None


def with_shared(**described: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Pass the flags of ``Shared`` to a command, as its first argument.

    ``described`` replaces what ``--help`` says of some of them.
    """
    return partial(_with_flags, Shared, described)


def with_launch_flags(**described: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Pass the flags of ``LaunchFlags`` to a command likewise."""
    return partial(_with_flags, LaunchFlags, described)


def _with_flags(
    kind: type[LaunchFlags], described: Mapping[str, Any], command: Callable[..., None]
) -> Callable[..., None]:
    _, *own = inspect.signature(command).parameters.values()
    hints = get_type_hints(command, include_extras=True)
    # The signature of a dataclass has its flags, all with defaults. Those of every command come last.
    flags = dict(inspect.signature(kind).parameters)
    flags = dict(sorted(flags.items(), key=lambda flag: flag[0] in LaunchFlags.__dataclass_fields__))
    hints |= get_type_hints(kind, include_extras=True) | dict(described)

    @wraps(command)
    def called(**given: Any) -> None:
        command(kind(**{name: given.pop(name) for name in flags}), **given)

    parameters = [flag.replace(annotation=hints[flag.name]) for flag in (*flags.values(), *own)]
    # typer looks at these two alone.
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del called.__wrapped__
    return called


def read_request(
    shared: Shared, *, baseline: str | None = None, control: bool = False, **config: Any
) -> UserRequest:
    """Read a request from the flags.

    ``config`` holds fields of ``RunConfig`` for which the command has flags of its own.

    Raises:
        UsageError: a flag has a wrong value.
        OutputError: the file of ``--export-json`` cannot be written.
    """
    from compare.experiment.settle import UserRequest, choose_dataset, choose_own

    arms = read_arms(shared.backend)
    dataset = choose_dataset(shared.dataset or "auto")
    own = choose_own(shared.workload, _replaced_by_a_workload(shared), length=config)
    settings = {
        "model": shared.model or "mlp",
        "batch_size_per_rank": shared.batch_size,
        "accumulate": shared.accumulate,
        "seed": shared.seed,
        "precision": shared.precision,
        "compile": shared.compile,
    }
    return UserRequest(
        arms=arms,
        baseline=baseline,
        control=control,
        dataset=dataset,
        data_dir=shared.data_dir,
        own=own.source if own else None,
        optimizer=shared.optimizer or "sgd",
        learning_rate=shared.lr,
        **read_launch(shared, **settings | config | dict(own.config if own else {})),
    )


def read_launch(flags: LaunchFlags, **config: Any) -> dict[str, Any]:
    """Read the fields of a ``LaunchRequest`` from the flags.

    ``config`` holds further fields of its config.

    Raises:
        UsageError: a flag has a wrong value.
        OutputError: the file of ``--export-json`` cannot be written.
    """
    from compare.experiment.allocation import choose_allocation
    from compare.launch.engines.ssh import Ssh
    from compare.schema.environment import read_exports
    from compare.schema.store import require_writable

    identity = str(flags.ssh_identity.absolute()) if flags.ssh_identity else ""
    allocation = choose_allocation(
        flags.engine,
        flags.hostfile,
        flags.num_proc,
        ssh=Ssh(user=flags.ssh_user, port=flags.ssh_port, identity=identity),
        named=flags.hosts,
        include=flags.include or (),
        exclude=flags.exclude or (),
    )
    if flags.export_json:
        require_writable(flags.export_json, to_be_made=flags.output)
    return {
        "allocation": allocation,
        "interface": flags.interface,
        "exported": read_exports(flags.env or [], os.environ),
        "output": flags.output,
        "threads_per_rank": flags.threads,
        "config": {
            "device": flags.device,
            "launch_timeout_seconds": flags.timeout,
            "stall_seconds": flags.stall,
            **config,
        },
    }


def _replaced_by_a_workload(shared: Shared) -> dict[str, object]:
    """Return the flags that a workload of the user's own makes meaningless."""
    return {
        "--model": shared.model,
        "--dataset": shared.dataset,
        "--data-dir": shared.data_dir,
        "--optimizer": shared.optimizer,
        "--lr": shared.lr,
    }


def read_arms(backend: list[str] | None) -> tuple[Arm, ...]:
    """Read the arms that ``--backend`` names; none where it is left out.

    Raises:
        UsageError: an arm is wrong, or the flag names none.
    """
    from compare.schema.arms import parse_arms

    arms = parse_arms(backend or [])
    if backend and not arms:
        raise UsageError(
            "--backend names no arm.", remedy="Name some, or leave it out to compare all that are available."
        )
    return arms
