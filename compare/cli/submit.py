"""Submit a command to a scheduler: ``compare submit``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from compare.cli.output import make_console, make_say
from compare.errors import UsageError

if TYPE_CHECKING:
    from compare.jobs import kubernetes, slurm

slurm_flag = partial(typer.Option, rich_help_panel="Slurm")
kubernetes_flag = partial(typer.Option, rich_help_panel="Kubernetes")

Words: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND", help="The command, as without a scheduler: run --backend ddp."),
]
Engine: TypeAlias = Annotated[Literal["slurm", "kubernetes"], typer.Option(help="Where the job runs.")]
Nodes: TypeAlias = Annotated[
    int, typer.Option("-N", "--nodes", min=1, help="Number of nodes, or of workers' pods.")
]
RanksPerNode: TypeAlias = Annotated[int, typer.Option(min=1, help="Ranks on each of them.")]
Minutes: TypeAlias = Annotated[int, typer.Option("-t", "--minutes", min=2, help="Time limit of the job.")]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Print the job, and stop; an MPIJob is only printed.")
]
Partition: TypeAlias = Annotated[str, slurm_flag("-p", "--partition", show_default="the cluster's")]
Options: TypeAlias = Annotated[
    list[str] | None, slurm_flag(help="A further option of sbatch: --option=--gres=gpu:4.")
]
Wait: TypeAlias = Annotated[bool, slurm_flag("--wait", help="Show what the job prints until it ends.")]
Image: TypeAlias = Annotated[str, kubernetes_flag(help="Image of all pods.", show_default=False)]
Cpus: TypeAlias = Annotated[
    int | None, kubernetes_flag(min=1, show_default="one a rank", help="CPUs of a worker.")
]
Memory: TypeAlias = Annotated[str | None, kubernetes_flag(show_default="8Gi", help="Memory of a worker.")]
Gpus: TypeAlias = Annotated[int, kubernetes_flag(min=0, help="GPUs of a worker.")]
Shm: TypeAlias = Annotated[
    str | None, kubernetes_flag(show_default="1Gi", help="Size of /dev/shm, a part of the memory.")
]
Name: TypeAlias = Annotated[str, kubernetes_flag(show_default="compare-<command>", help="Name of the job.")]
Namespace: TypeAlias = Annotated[str, kubernetes_flag(show_default="kubectl's")]

_KEEPING = ("--output", "--export-json", "--export-csv", "--export-markdown", "--export-html")
"""Flags that name where the result is kept."""


def submit(
    words: Words = None,
    *,
    engine: Engine = "slurm",
    nodes: Nodes = 2,
    ranks_per_node: RanksPerNode = 1,
    minutes: Minutes = 30,
    partition: Partition = "",
    option: Options = None,
    wait: Wait = False,
    dry_run: DryRun = False,
    image: Image = "",
    cpus: Cpus = None,
    memory: Memory = None,
    gpus: Gpus = 0,
    shm: Shm = None,
    name: Name = "",
    namespace: Namespace = "",
) -> None:
    """Submit a command as a job of Slurm, or print an MPIJob.

    It takes the job's nodes as its hosts. With --wait the exit code is that of the command. An MPIJob is
    only printed: kubectl applies it.
    """
    from compare.jobs import kubernetes, slurm
    from compare.launch.engines.detect import require_started_once

    require_started_once(os.environ)
    of_slurm = {"--partition": partition, "--option": option, "--wait": wait}
    of_kubernetes = {
        "--image": image,
        "--cpus": cpus,
        "--memory": memory,
        "--gpus": gpus,
        "--shm": shm,
        "--name": name,
        "--namespace": namespace,
    }
    if engine == "slurm":
        _refuse(of_kubernetes, engine)
        script = slurm.Resources(nodes, ranks_per_node, minutes, partition, option or ())
        _submit_to_slurm(script, words or [], wait=wait, dry_run=dry_run)
    else:
        _refuse(of_slurm, engine)
        asked = (memory or kubernetes.MEMORY, shm or kubernetes.SHARED_MEMORY)
        pods = kubernetes.Resources(
            image, nodes, ranks_per_node, minutes, cpus, gpus, name, namespace, *asked
        )
        _print_manifest(pods, words or [])


def _refuse(flags: Mapping[str, object], engine: str) -> None:
    """Raise a ``UsageError`` if a flag of the other scheduler is given."""
    for flag, value in flags.items():
        if value:
            raise UsageError(f"{flag} has no meaning with --engine {engine}.", remedy="Leave it out.")


def _submit_to_slurm(resources: slurm.Resources, words: Sequence[str], *, wait: bool, dry_run: bool) -> None:
    from compare.jobs import slurm

    file, output = slurm.default_files(Path("runs").absolute(), words[0] if words else "")
    script = slurm.write_script(resources, words, output)
    if dry_run:
        make_console().print(script, soft_wrap=True, markup=False, end="")
        return
    job = slurm.submit(script, file)
    say = make_say(make_console(stderr=True))
    say(f"Slurm job {job}: {file}")
    say(f"It prints to {output}")
    if wait:
        try:
            raise typer.Exit(slurm.follow(job, output, lambda text: typer.echo(text, nl=False)))
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"The job is still running. To end it: scancel {job}")
            raise


def _print_manifest(resources: kubernetes.Resources, words: Sequence[str]) -> None:
    """Print an MPIJob, and on standard error its times and how to apply and follow it."""
    from compare.experiment.settle import SETTLE_SECONDS
    from compare.jobs import kubernetes, names_flag

    manifest = kubernetes.write_manifest(resources, words)
    times = kubernetes.explain_time(resources, words, SETTLE_SECONDS)
    typer.echo(manifest, nl=False)
    where = ["-n", resources.namespace] if resources.namespace else []
    job = f"job/{kubernetes.job_name(resources, words)}-launcher"
    logs = shlex.join(["kubectl", *where, "logs", "-f", job])
    say = make_say(make_console(stderr=True))
    say(times)
    if not any(names_flag(words, flag) for flag in _KEEPING):
        say("The result ends with the launcher's pod. To keep it in the log, add: --export-json -")
    say(f"It is only printed. To apply it: {shlex.join(['compare', *sys.argv[1:]])} | kubectl apply -f -")
    say(f"To follow it: until {logs}; do sleep 2; done")  # it fails while the container is being made
