"""Write the script of a Slurm job, submit it, and follow the job's output."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from compare.errors import (
    AllocationError,
    OutputError,
    RingsideError,
    UnavailableError,
    UsageError,
    system_reason,
)
from compare.jobs import Resources, flag_value, require_fit
from compare.schema.environment import import_path
from compare.system.files import write_text
from compare.system.scontrol import fields_of, show_job

_POLL_SECONDS = 2.0
_SILENT_SECONDS = 60.0
"""Maximum time for which the state of a job may be unknown."""
_FINAL_STATES = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"),
    *("DEADLINE", "OUT_OF_MEMORY", "REVOKED"),
}
"""States of a job that has ended."""

# For each kind: how options of sbatch begin, what they do, why that is refused, and the remedy. Only their
# first letters are compared, because sbatch accepts long options that are cut short, such as ``--arr=1-3``.
_REFUSED_OPTIONS = (
    (
        ("--ou", "-o"),
        "names the file of the output",
        "Ringside chooses that file, because it shows the output.",
        "Leave the option out. The path of the file is printed.",
    ),
    (
        ("--ar", "-a"),
        "makes a job array",
        "The tasks of an array may run at the same time, which makes measurements noisy.",
        "Leave it out, and submit one job.",
    ),
    (
        ("hetjob", "packjob", "--het", "--pack"),
        "makes a heterogeneous job",
        "srun reaches only one of its components.",
        "Leave it out, and ask for all nodes at once.",
    ),
)


def write_script(resources: Resources, words: Sequence[str], output: Path) -> str:
    """Return the script that runs a command of Ringside as a Slurm job.

    ``words`` is the command line without the program's name. The job's output goes to the file ``output``.

    Raises:
        UsageError: the command launches no ranks, or has a value of ``-x``, which the script would reveal. An
            option that makes another kind of job or moves the output is refused as well.
    """
    options = [
        f"--job-name=ringside-{words[0] if words else ''}",
        f"--nodes={resources.nodes}",
        f"--ntasks-per-node={resources.ranks_per_node}",
        f"--time={resources.minutes}",
        *([f"--partition={resources.partition}"] if resources.partition else []),
        f"--output={output}",
        *resources.option,
    ]
    require_fit(
        words,
        [*options, str(Path.cwd())],
        secrets_remedy="Set the variable in your shell, which the job inherits, and give only its name: "
        "-x NAME",
    )
    for option in resources.option:
        for beginnings, effect, found, remedy in _REFUSED_OPTIONS:
            if option.startswith(beginnings):
                raise UsageError(f"--option={option} {effect}.", found=found, remedy=remedy)
    engine = ("--engine", "slurm") if flag_value(words, "--engine") is None else ()
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
        command = ["sbatch", "--parsable", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UnavailableError(
            "sbatch, which submits jobs, cannot be executed.",
            found=f"{system_reason(error)}.",
            remedy="Submit on a login node of the cluster, or print the script with --dry-run.",
        ) from None
    if done.returncode:
        raise UnavailableError(
            "Slurm refused the job.",
            found=done.stderr.strip(),
            remedy=f"Correct what Slurm names, and submit again. The script is {file}.",
        )
    return done.stdout.strip().partition(";")[0]


def follow(job: str, output: Path, show: Callable[[str], None]) -> int:
    """Pass the output of a job to ``show`` as it grows, until the job ends; return its exit status.

    ``job`` is the job's number, and ``output`` the file that it writes.

    Raises:
        AllocationError: the job did not end by itself, so it has no exit status of its own.
        UnavailableError: Slurm's controller has not reported the job's state for a minute.
    """
    fields: dict[str, str] = {}
    shown_bytes, answered = 0, time.monotonic()
    while fields.get("JobState") not in _FINAL_STATES:
        time.sleep(_POLL_SECONDS)
        reason = "Slurm's answers do not contain it."
        try:  # before the output is read, so that the last output is shown
            fields = fields_of(show_job(job))
        except RingsideError as error:
            fields, reason = {}, error.found
        if "JobState" in fields:
            answered = time.monotonic()
        elif time.monotonic() - answered > _SILENT_SECONDS:
            raise UnavailableError(
                f"Slurm does not report the state of job {job}.",
                found=f"The state has been unknown for {_SILENT_SECONDS:g} s. {reason}".strip(),
                remedy=f"The job may still be running: `scontrol show job {job}`. Its output is in {output}.",
            )
        if output.exists():
            with output.open("rb") as file:
                file.seek(shown_bytes)
                text = file.read()
            shown_bytes += len(text)
            if text:
                show(text.decode(errors="replace"))
    state, (code, _, number) = fields["JobState"], fields.get("ExitCode", "").partition(":")
    signal = "" if number in {"", "0"} else f", after signal {number}"
    if signal or state not in {"COMPLETED", "FAILED"}:
        raise AllocationError(
            f"Slurm job {job} was ended before it finished.",
            found=f"Its state is {state}{signal}.",
            remedy=f"Read its output in {output}. If it lacked time or memory, ask for more when you submit "
            "it again.",
        )
    return int(code or 0)


def default_files(folder: Path, command: str) -> tuple[Path, Path]:
    """Return paths in ``folder`` for a job's script and output, named after time, command and process id."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{command}-{os.getpid()}"
    return folder / f"{stem}.sh", folder / f"{stem}.out"
