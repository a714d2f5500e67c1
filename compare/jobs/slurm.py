"""Write a Slurm job's script, submit it, and follow its output."""

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
"""Maximum time without an answer of the controller."""
_ENDED = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"),
    *("DEADLINE", "OUT_OF_MEMORY", "REVOKED"),
}
"""States of a job that goes on no more."""


class Resources(NamedTuple):
    """What a job asks for."""

    nodes: int
    ranks_per_node: int
    minutes: int
    partition: str = ""
    options: Sequence[str] = ()
    """Further options of sbatch, such as ``--gres=gpu:4``."""


def write_script(resources: Resources, words: Sequence[str], output: Path) -> str:
    """Return the script that runs a command of Ringside as a job.

    ``output`` is the file for what it prints.

    Raises:
        UsageError: the command launches no ranks, or an option makes another kind of job. A value of ``-x``
            is refused, too: it would stand in the script.
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
    """Require options of one job, with its output as named.

    sbatch takes long options cut short, as ``--arr=1-3``.

    Raises:
        UsageError: one makes several jobs or components, or moves the output.
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
    """Write a script, submit it, and return the job's number.

    Raises:
        OutputError: the file cannot be written.
        UnavailableError: sbatch is not installed, or refuses the job.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
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
    """Show a job's output until its end, and return its status.

    Raises:
        AllocationError: it ended without a status of its own.
    """
    shown, state, answered = 0, "", time.monotonic()
    while state not in _ENDED:
        time.sleep(_LOOK_SECONDS)
        state, status = _state(job)  # before the output, so that its end is shown
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
    """Return the job's state and status; empty without an answer."""
    asked = ["scontrol", "--oneliner", "show", "job", job]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return "", ""
    fields = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    return fields.get("JobState", ""), fields.get("ExitCode", "")


def default_files(folder: Path, command: str) -> tuple[Path, Path]:
    """Return the files of a job's script and of its output."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{command}-{os.getpid()}"
    return folder / f"{stem}.sh", folder / f"{stem}.out"
