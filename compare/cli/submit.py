"""Submit a command to a scheduler: ``ringside submit``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from compare.cli.options import with_flags
from compare.cli.output import make_console, make_say
from compare.cli.replaced import refuse_former
from compare.errors import UsageError
from compare.jobs import Resources

slurm_flag = partial(typer.Option, rich_help_panel="Slurm")
kubernetes_flag = partial(typer.Option, rich_help_panel="Kubernetes")
_FLAGS_OF_OTHERS = {
    "slurm": ("image", "cpus", "memory", "gpus", "shm", "name", "namespace"),
    "kubernetes": ("partition", "option", "wait"),
}
"""Flags that have no meaning for an engine, because they are for another, by the name of the engine."""
_RESULT_FLAGS = ("--output", "--export")
"""Flags that name a place where the result is kept."""


@dataclass(frozen=True, kw_only=True)
class JobFlags:
    """The flags of a job of Slurm or of Kubernetes."""

    engine: Annotated[Literal["slurm", "kubernetes"], typer.Option(help="Where the job runs.")] = "slurm"
    nodes: Annotated[
        int, typer.Option("-N", "--nodes", min=1, help="Number of nodes, or of workers' pods.")
    ] = 2
    ranks_per_node: Annotated[int, typer.Option(min=1, help="Ranks on each node or worker.")] = 1
    minutes: Annotated[int, typer.Option("-t", "--minutes", min=2, help="Time limit of the job.")] = 30
    partition: Annotated[str, slurm_flag("-p", "--partition", show_default="the cluster's")] = ""
    option: Annotated[
        list[str] | None,
        slurm_flag(metavar="OPTION", help="A further option of sbatch: --option=--gres=gpu:4."),
    ] = None
    wait: Annotated[bool, slurm_flag("--wait", help="Show what the job prints until it ends.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the job, and stop; an MPIJob is only printed.")
    ] = False
    image: Annotated[str, kubernetes_flag(help="Image of all pods.", show_default=False)] = ""
    cpus: Annotated[
        int | None, kubernetes_flag(min=1, show_default="one a rank", help="CPUs of a worker.")
    ] = None
    memory: Annotated[str | None, kubernetes_flag(show_default="8Gi", help="Memory of a worker.")] = None
    gpus: Annotated[int, kubernetes_flag(min=0, help="GPUs of a worker.")] = 0
    shm: Annotated[
        str | None, kubernetes_flag(show_default="1Gi", help="Size of /dev/shm, a part of the memory.")
    ] = None
    name: Annotated[str, kubernetes_flag(show_default="ringside-<command>", help="Name of the job.")] = ""
    namespace: Annotated[str, kubernetes_flag(show_default="kubectl's")] = ""


@with_flags(JobFlags)
def submit(
    flags: JobFlags,
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="The command, as without a scheduler: run --backend ddp."),
    ] = None,
) -> None:
    """Submit a command as a job of Slurm, or print an MPIJob.

    It takes the job's nodes as its hosts. With --wait the exit code is that of the command. An MPIJob is
    only printed: kubectl applies it.
    """
    from compare.launch.engines.detect import require_started_once

    require_started_once(os.environ)
    refuse_former(words or [])  # before it waits in a queue
    for name in _FLAGS_OF_OTHERS[flags.engine]:
        if getattr(flags, name):
            raise UsageError(f"--{name} has no meaning with --engine {flags.engine}.", remedy="Leave it out.")
    given = {name: getattr(flags, name) for name in Resources._fields}
    resources = Resources(**{name: value for name, value in given.items() if value})
    if flags.engine == "slurm":
        _submit_to_slurm(flags, resources, words or [])
    else:
        _print_manifest(resources, words or [])


def _submit_to_slurm(flags: JobFlags, resources: Resources, words: Sequence[str]) -> None:
    from compare.jobs import slurm

    file, output = slurm.default_files(Path("runs").absolute(), words[0] if words else "")
    script = slurm.write_script(resources, words, output)
    if flags.dry_run:
        make_console().print(script, soft_wrap=True, markup=False, end="")
        return
    job = slurm.submit(script, file)
    say = make_say(make_console(stderr=True))
    say(f"Slurm job {job}: {file}")
    say(f"It prints to {output}")
    if flags.wait:
        try:
            raise typer.Exit(slurm.follow(job, output, lambda text: typer.echo(text, nl=False)))
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"The job is still running. To end it: scancel {job}")
            raise


def _print_manifest(resources: Resources, words: Sequence[str]) -> None:
    """Print an MPIJob; print on standard error how its time is divided, and how to apply and follow it."""
    from compare.experiment.settle import SETTLE_SECONDS
    from compare.jobs import flag_value, kubernetes

    manifest = kubernetes.write_manifest(resources, words)
    times = kubernetes.explain_time(resources, words, SETTLE_SECONDS)
    typer.echo(manifest, nl=False)
    where = ["-n", resources.namespace] if resources.namespace else []
    job = f"job/{kubernetes.job_name(resources, words)}-launcher"
    logs = shlex.join(["kubectl", *where, "logs", "-f", job])
    say = make_say(make_console(stderr=True))
    say(times)
    if all(flag_value(words, flag) is None for flag in _RESULT_FLAGS):
        say("The result is lost with the launcher's pod. To keep it in the log, add: --export -")
    again = shlex.join(["ringside", *sys.argv[1:]])
    say(f"The job is only printed. To apply it: {again} | kubectl apply -f -")
    say(f"To follow it: until {logs}; do sleep 2; done")  # it fails while the container is being made
