"""Ask Slurm's controller about a job."""

from __future__ import annotations

import re
import subprocess

from compare.errors import UnavailableError, UsageError, system_reason

UNSET = "unset SLURM_JOB_ID SLURM_JOBID"
"""The command that takes a shell out of a job, for which Slurm sets both variables."""

_ANSWER_SECONDS = 10.0
_FIELD = re.compile(r"(\S+?)=(\S*)")


def show_job(number: str, *, otherwise: str = "") -> str:
    """Return what ``scontrol show job`` prints about a job, with all its details on one line.

    ``otherwise`` is a sentence that ends the remedies: what the user can do without the controller.

    Raises:
        UnavailableError: the controller does not answer.
        UsageError: it knows no such job.
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
            remedy=f"Start another job, or {UNSET}. {otherwise}",
        )
    raise UnavailableError(
        f"Slurm gives no information about job {number}.",
        found=problem,
        remedy=f"Does `scontrol show job {number}` work here? {otherwise}",
    )


def fields_of(shown: str) -> dict[str, str]:
    """Return the fields of what ``show_job`` returned, such as ``JobState``, by their names."""
    return dict(_FIELD.findall(shown))
