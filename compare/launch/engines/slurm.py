"""Reach the nodes of a Slurm job with srun, without sshd.

Each process is a job step of its own, which shares the job's resources with all others (``--overlap``).
srun would read dozens of variables of the job and of an outer step. So all are removed except the path of its
configuration, and every option stands on its command line. srun would also pass on its whole environment. So
it gets a list of the names that a launch may inherit, and no value is an argument.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from compare.errors import AllocationError, HostError, UnavailableError
from compare.launch.engines import Answer, named
from compare.launch.engines.local import Local
from compare.schema.environment import inherited
from compare.schema.hosts import Host, is_local

_STEP = (
    # A step that waited for others to end would wait for ever.
    *("--overlap", "--immediate=10", "--nodes=1", "--ntasks=1"),
    # Without it, srun passes on whole lines only: a message has no end of line.
    "--unbuffered",
    *("--quiet", "--kill-on-bad-exit=1", "--mem=0", "--mpi=none"),
    # One task would be bound to one CPU. The step itself is confined to the job's CPUs.
    "--cpu-bind=none",
)

_WRAPPER = """\
#!/bin/sh
# Starts a job step where mpirun and horovodrun call ssh. Options of ssh, on either side of the host, are
# dropped: a step needs neither port nor key.
host=
while [ $# -gt 0 ]; do
  case $1 in
    -[BbcDEeFIiJLlmOopQRSWw]) shift 2 ;;
    -*) shift ;;
    *) [ -z "$host" ] || break; host=$1; shift ;;
  esac
done
exec {srun} --nodelist="$host" -- sh -c "$*"
"""

# What srun prints, what that means, what to do. The first that fits counts.
_TROUBLES = (
    (
        (
            "Node failure",
            "NODE FAIL",
            "JOB REQUEUE",
            "ommunication connection failure",
            "Unable to contact",
            "timed out",
        ),
        "cannot be reached",
        "Is it down? `sinfo -R` gives Slurm's reason. Ask for another node.",
    ),
    (
        ("Unable to create step", "Unable to confirm allocation", "Invalid job", "Job/step already"),
        "takes no further step of {job}",
        "Is the job over? `squeue --me` lists yours. Does `{by_hand}` work?",
    ),
    (("not found in", "Invalid node name"), "is no node of {job}", "Name nodes of the job."),
    (("CANCELLED AT",), "lost its step in {job}", "Was it cancelled by hand, as with scancel JOB.STEP?"),
)
ENDINGS = (
    ("DUE TO TIME LIMIT", "reached its time limit"),
    ("DUE TO PREEMPTION", "was preempted"),
)
"""What Slurm prints as it ends a job, and what that means."""
ENDED = "was ended by Slurm"
_OWN_LINES = ("srun:", "slurmstepd")
_OF_THE_COMMAND = "task "
"""Part of those errors of srun that only report how the command ended."""


class Slurm(msgspec.Struct, frozen=True, kw_only=True):
    """The carrier that starts job steps.

    The node on which this program runs is reached without srun.

    Attributes:
        job: number of the job.
        names: names of the variables that a step receives.
        config: path of Slurm's configuration, or empty.
    """

    job: str
    names: tuple[str, ...] = ()
    config: str = ""

    def argv(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the srun command line that executes ``argv`` on a host; on this machine, ``argv`` itself."""
        if is_local(host):
            return tuple(argv)
        return (*self._srun(), f"--nodelist={host.name}", "--", *argv)

    def by_hand(self, host: Host) -> str:
        """Return an srun command that only prints the name of a host; empty for this machine."""
        if is_local(host):
            return ""
        return f"srun --overlap --jobid={self.job} -N1 -n1 -w {host.name} hostname"

    def explain(self, answer: Answer) -> HostError | None:
        """Return the error of an srun that failed itself, or of a job that ended; None without either."""
        if answer.here:
            return Local().explain(answer)
        # The command's own output may hold any words.
        lines = answer.stderr.decode(errors="replace").splitlines()
        own = [line for line in lines if line.startswith(_OWN_LINES)]
        printed, job = "\n".join(own), f"Slurm job {self.job}"
        for mark, what in ENDINGS:
            if mark in printed:
                return job_ended(job, what, found=answer.last_lines)
        name, by_hand = named(answer.host), self.by_hand(answer.host)
        for marks, trouble, remedy in _TROUBLES:
            if any(mark in printed for mark in marks):
                what = f"{name} {trouble.format(job=job)}."
                return HostError(what, found=answer.last_lines, remedy=remedy.format(by_hand=by_hand))
        if any("error:" in line and _OF_THE_COMMAND not in line for line in own):
            return HostError(f"{name}: srun failed.", found=answer.last_lines, remedy=f"Try `{by_hand}`.")
        return None

    def remote_shell(self, folder: Path, hosts: Sequence[Host]) -> dict[str, str]:
        """Return a program ``ssh`` that starts a job step; nothing if every host is this machine."""
        del folder
        if all(map(is_local, hosts)):
            return {}
        return {"bin/ssh": _WRAPPER.format(srun=shlex.join(self._srun()))}

    def _srun(self) -> tuple[str, ...]:
        program = shutil.which("srun")
        if program is None:
            raise UnavailableError(
                "srun is not installed, and the nodes of a Slurm job are reached with it.",
                found=f"This process belongs to Slurm job {self.job}.",
                remedy="Add Slurm's programs to PATH, name hosts with -H, or take this machine alone: "
                "--engine local",
            )
        dropped = (f"-u{name}" for name in sorted(os.environ) if name.startswith(("SLURM_", "SRUN_")))
        config = (f"SLURM_CONF={self.config}",) if self.config else ()
        exported = f"--export={','.join(self.names)}"
        return ("env", *dropped, *config, program, f"--jobid={self.job}", *_STEP, exported)


def carrier_of(job: str, environ: Mapping[str, str]) -> Slurm:
    """Return the carrier of a job, whose steps receive those of these variables that a launch may inherit."""
    return Slurm(job=job, names=tuple(sorted(inherited(environ))), config=environ.get("SLURM_CONF", ""))


def job_ended(job: str, what: str, *, found: str = "") -> AllocationError:
    """Return the error of a job that Slurm ended; ``what`` is a phrase such as ``ENDED``."""
    remedies = {
        "was cancelled": "scancel, or an administrator, ended it. Start another job.",
        "was preempted": "A job of higher priority took its nodes. Run again, or in another partition.",
        ENDED: "It was cancelled or preempted: `sacct` gives the reason. Start another job.",
        "reached its time limit": "Ask for a longer --time, or give a smaller --budget.",
    }
    return AllocationError(f"{job} {what}.", found=found, remedy=remedies[what])
