"""Write the script of a Slurm job, submit it, and follow the job's output."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from compare.errors import AllocationError, OutputError, UnavailableError, UsageError, system_reason
from compare.jobs.submission import names_flag, require_command, require_printable
from compare.schema.environment import import_path
from compare.system.files import write_text

_LOOK_SECONDS = 2.0
_SILENT_SECONDS = 60.0
"""Maximum time without an answer from Slurm's controller."""
_ENDED = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"),
    *("DEADLINE", "OUT_OF_MEMORY", "REVOKED"),
}
"""States of a job that has ended."""


class Resources(NamedTuple):
    """What a job asks for: values for the options of sbatch."""

    nodes: int
    ranks_per_node: int
    minutes: int
    partition: str = ""
    options: Sequence[str] = ()
    """Further options of sbatch, such as ``--gres=gpu:4``."""


def write_script(resources: Resources, words: Sequence[str], output: Path) -> str:
    """Return the script that runs a command of Ringside as a Slurm job.

    ``words`` is the command line, without the name of the program. ``output`` is the file for what it prints.

    Raises:
        UsageError: the command launches no ranks, or has a value of ``-x``, which the script would reveal. An
            option that makes another kind of job or moves the output is refused as well.
    """
    require_command(
        words,
        secrets="Set the variable in your shell, which the job inherits, and give its name: -x NAME",
    )
    engine = () if names_flag(words, "--engine") else ("--engine", "slurm")
    options = [
        f"--job-name=compare-{words[0]}",
        f"--nodes={resources.nodes}",
        f"--ntasks-per-node={resources.ranks_per_node}",
        f"--time={resources.minutes}",
        *([f"--partition={resources.partition}"] if resources.partition else []),
        f"--output={output}",
        *resources.options,
    ]
    require_printable([*options, str(Path.cwd())])
    _require_one_job(resources.options)
    path = f"PYTHONPATH={import_path(os.environ)}"
    command = ["env", path, "PYTHONSAFEPATH=1", sys.executable, "-m", "compare", *words, *engine]
    lines = [
        "#!/bin/sh",
        *(f"#SBATCH {shlex.quote(option)}" for option in options),
        "",
        f"cd {shlex.quote(str(Path.cwd()))} || exit {OutputError.exit_code}",
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def _require_one_job(options: Sequence[str]) -> None:
    """Refuse options with which sbatch would make several jobs, or write the output to another file.

    Only the first letters are compared, because sbatch accepts long options that are cut, such as
    ``--arr=1-3``.

    Raises:
        UsageError: an option makes an array or a heterogeneous job, or names the output.
    """
    for option in options:
        if option.startswith(("--ou", "-o")):
            raise UsageError(
                f"--option={option}: Ringside names this file, to show it.",
                remedy="Leave it out; the file is printed.",
            )
        if option.startswith(("--ar", "-a")):
            raise UsageError(
                f"--option={option} makes a job array.",
                found="Every part would measure beside the others.",
                remedy="Leave it out, and submit one job.",
            )
        if option.startswith(("hetjob", "packjob", "--het", "--pack")):
            raise UsageError(
                f"--option={option} makes a heterogeneous job.",
                found="srun reaches one of its components alone.",
                remedy="Leave it out, and ask for all nodes at once.",
            )


def submit(script: str, file: Path) -> str:
    """Write a script into ``file``, submit it with sbatch, and return the job's number as text.

    Raises:
        OutputError: the file cannot be written.
        UnavailableError: sbatch cannot be executed, or refuses the job.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError.unwritten(file.parent, error) from None
    write_text(file, script)
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(file)], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise UnavailableError(
            "sbatch cannot be executed, which submits jobs.",
            found=f"{system_reason(error)}.",
            remedy="Submit on a login node of the cluster, or print the script with --dry-run.",
        ) from None
    if done.returncode:
        raise UnavailableError(
            "Slurm refuses the job.",
            found=done.stderr.strip(),
            remedy=f"Correct the resources; the script is {file}.",
        )
    return done.stdout.strip().partition(";")[0]


def follow(job: str, output: Path, show: Callable[[str], None]) -> int:
    """Pass a job's output to ``show`` as it grows, until the job ends, and return the job's exit status.

    Raises:
        AllocationError: the job did not end by itself, so it has no exit status of its own.
        UnavailableError: Slurm's controller has not answered for a minute.
    """
    shown, state, answered = 0, "", time.monotonic()
    while state not in _ENDED:
        time.sleep(_LOOK_SECONDS)
        state, status = _state(job)  # asked before the output is read, so that the last output is shown
        answered = time.monotonic() if state else answered
        if time.monotonic() - answered > _SILENT_SECONDS:
            raise UnavailableError(
                f"Slurm does not say how job {job} does.",
                found=f"No answer for {_SILENT_SECONDS:g} s.",
                remedy=f"It may still run: `scontrol show job {job}`. What it prints is in {output}.",
            )
        if output.exists():
            with output.open("rb") as file:
                file.seek(shown)
                text = file.read()
            shown += len(text)
            if text:
                show(text.decode(errors="replace"))
    code, _, number = status.partition(":")
    if number not in {"", "0"} or state not in {"COMPLETED", "FAILED"}:
        raise AllocationError(
            f"Slurm job {job} did not end by itself.",
            found=f"Its state is {state}.",
            remedy=f"What it printed is in {output}.",
        )
    return int(code or 0)


def _state(job: str) -> tuple[str, str]:
    """Return a job's state, and its exit code as ``status:signal``; both are empty without an answer."""
    asked = ["scontrol", "--oneliner", "show", "job", job]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return "", ""
    fields = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    return fields.get("JobState", ""), fields.get("ExitCode", "")


def default_files(folder: Path, command: str) -> tuple[Path, Path]:
    """Return two paths in ``folder``, for a new job's script and its output, named by time and command."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{command}-{os.getpid()}"
    return folder / f"{stem}.sh", folder / f"{stem}.out"
