"""Ask Slurm's controller about a job."""

from __future__ import annotations

import re
import subprocess

from compare.errors import UnavailableError, UsageError, system_reason

UNSET = "unset SLURM_JOB_ID SLURM_JOBID SLURM_JOB_NODELIST SLURM_NODELIST"
"""The shell command after which Ringside no longer takes itself to be in a job of Slurm."""

_ANSWER_SECONDS = 10.0
_FIELD = re.compile(r"(\S+?)=(\S*)")


def show_job(number: str, *, otherwise: str = "") -> str:
    """Return the line that ``scontrol show job`` prints about a job, with all details.

    ``otherwise`` is a sentence that ends the remedies, and states what a user can do without the controller.

    Raises:
        UnavailableError: Slurm's controller does not answer, or scontrol cannot be executed.
        UsageError: the controller knows no such job.
    """
    command = ["scontrol", "--details", "--oneliner", "show", "job", number]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
            start_new_session=True,
        )
        if done.returncode == 0:
            return done.stdout
        problem = done.stderr.strip()
    except subprocess.TimeoutExpired:
        problem = f"No answer within {_ANSWER_SECONDS:g} s."
    except OSError as error:
        problem = f"scontrol: {system_reason(error)}."
    if "Invalid job id" in problem:
        raise UsageError(
            f"Slurm does not know a job {number}.",
            found="It may have ended some time ago, because Slurm soon forgets a job that has ended.",
            remedy=f"Start another job, or leave this one with `{UNSET}`. {otherwise}",
        )
    raise UnavailableError(
        f"Slurm gives no information about job {number}.",
        found=problem,
        remedy=f"Check that `scontrol show job {number}` works here. {otherwise}",
    )


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of a line that ``show_job`` returned, such as ``JobState``, by their names."""
    return dict(_FIELD.findall(line))
