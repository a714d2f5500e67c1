"""Submit a command to a scheduler: ``compare submit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compare.cli.console import make_console, make_say
from compare.errors import UsageError


def submit(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="The command, as without a scheduler: run --backend ddp."),
    ] = None,
    *,
    engine: Annotated[str, typer.Option(help="The scheduler: slurm.")] = "slurm",
    nodes: Annotated[int, typer.Option("-N", "--nodes", min=1, help="Number of nodes.")] = 2,
    ranks_per_node: Annotated[int, typer.Option(min=1, help="Ranks on each node.")] = 1,
    minutes: Annotated[int, typer.Option("-t", "--minutes", min=2, help="Time limit of the job.")] = 30,
    partition: Annotated[str, typer.Option("-p", "--partition", show_default="the cluster's")] = "",
    option: Annotated[
        list[str] | None, typer.Option(help="A further option of sbatch: --option=--gres=gpu:4.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show what the job prints until it ends.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script, and stop.")] = False,
) -> None:
    """Submit a command as a job.

    It takes the job's nodes as its hosts. With --wait the exit code is that of the command.
    """
    from compare.launch.engines import slurm_script

    if engine != "slurm":
        raise UsageError(f"--engine cannot be {engine!r}.", remedy="Use slurm.")
    resources = slurm_script.Resources(nodes, ranks_per_node, minutes, partition, option or ())
    words = words or []
    file, output = slurm_script.default_files(Path("runs").absolute(), words[0] if words else "")
    script = slurm_script.write_script(resources, words, output)
    if dry_run:
        make_console().print(script, soft_wrap=True, markup=False, end="")
        return
    job = slurm_script.submit(script, file)
    say = make_say(make_console(stderr=True))
    say(f"Slurm job {job}: {file}")
    say(f"It prints to {output}")
    if wait:
        try:
            raise typer.Exit(slurm_script.follow(job, output, lambda text: typer.echo(text, nl=False)))
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"The job goes on. To end it: scancel {job}")
            raise
