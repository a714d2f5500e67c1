"""Take the nodes of a Slurm job, and reach them with srun, without sshd.

The environment names the job, and often the number of tasks on each node. Slurm's controller knows the rest,
and why a job ended.

Each process is a job step of its own, which shares the job's resources with all others (``--overlap``).
srun would read dozens of variables of the job and of an outer step. So all of them are removed except the
path of Slurm's configuration, and every option stands on the command line. srun would also pass on its whole
environment. So it gets a list of the names that a launch may inherit, and no value is an argument.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from compare.errors import AllocationError, HostError, UnavailableError, UsageError
from compare.launch.engines import (
    HOSTS_REMEDY,
    LOCAL_REMEDY,
    OF_OTHER_HOSTS,
    Allocation,
    Answer,
    Carrier,
    Options,
    describe_host,
    ssh_stand_in,
)
from compare.schema.environment import inherited_variables
from compare.schema.hostfile import parse_hosts
from compare.schema.hosts import Host, printable_line
from compare.system.clock import unix_time
from compare.system.files import tail
from compare.system.scontrol import UNSET, fields_of, show_job
from compare.text import counted

OPTIONS: Options = OF_OTHER_HOSTS
_KEPT_BACK_SECONDS = 60.0
"""Time at the end of a job in which nothing is measured."""
_STEP = (
    # A step that waited for others to end would wait for ever.
    *("--overlap", "--immediate=10", "--nodes=1", "--ntasks=1"),
    # Without it, srun passes on whole lines only: a message has no end of line.
    "--unbuffered",
    *("--quiet", "--kill-on-bad-exit=1", "--mem=0", "--mpi=none"),
    # One task would be bound to one CPU. The step itself is confined to the job's CPUs.
    "--cpu-bind=none",
)
# What srun prints, what that means, what to do. The first that fits counts.
_TROUBLES = (
    (
        (
            *("Node failure", "NODE FAIL", "JOB REQUEUE", "ommunication connection failure"),
            *("Unable to contact", "timed out"),
        ),
        "cannot be reached",
        "Is it down? `sinfo -R` gives Slurm's reason. Ask for another node.",
    ),
    (
        ("Unable to create step", "Unable to confirm allocation", "Invalid job", "Job/step already"),
        "takes no further step of {job}",
        "Is the job over? `squeue --me` lists yours. Does `{by_hand}` work?",
    ),
    (("not found in", "Invalid node name"), "is not a node of {job}", "Name only nodes of the job."),
    (("CANCELLED AT",), "lost its step in {job}", "Was it cancelled by hand, as with scancel JOB.STEP?"),
)
_SLURM_PREFIXES = ("srun:", "slurmstepd")
"""Beginnings of the lines that Slurm itself prints."""
_COMMAND_ENDED = "task "
"""Part of those errors of srun that only report how the command ended."""
_COMPLETING_SECONDS = 5.0
"""Maximum time to wait until a job that is completing has ended on its nodes."""
_POLL_SECONDS = 0.3
_LINES = 1000
_WITHOUT_A_JOB = f"Or do without a Slurm job: {HOSTS_REMEDY[:1].lower()}{HOSTS_REMEDY[1:]}"
"""The end of a remedy: what a user can do instead, if the job cannot be used."""
_NUMBER_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID")
_USER = re.compile(r"(.*)\((\d+)\)")
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_NODES = re.compile(r"Nodes=(\S+) CPU_IDs=(\S+) Mem=\S+ GRES=(\S*)")
_GPUS = re.compile(r"gpu(?::[^,:()]+)?:(\d+)")
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


class _Ending(NamedTuple):
    """A way in which Slurm ends a job."""

    what: str
    """A phrase that follows the job's name."""
    remedy: str
    states: tuple[str, ...] = ()
    """The controller's states of such a job, and the reasons that it gives while the job is completing."""
    printed: str = ""
    """What Slurm then prints on the job's nodes, and into the job's output; empty if that is unknown."""

    def error(self, job: str, found: str = "") -> AllocationError:
        """Return the error of a job that ended in this way."""
        return AllocationError(f"{job} {self.what}.", found=found, remedy=self.remedy)


_TIME_OVER = _Ending(
    "reached its time limit",
    "Ask Slurm for a longer time limit, or give a smaller --budget.",
    ("TIMEOUT", "DEADLINE", "TimeLimit"),
    "DUE TO TIME LIMIT",
)
_PREEMPTED = _Ending(
    "was preempted",
    "A job of higher priority took its nodes. Run again, perhaps in another partition.",
    ("PREEMPTED", "Preempted"),
    "DUE TO PREEMPTION",
)
# Slurm prints its mark for any ending, so the others come first.
_CANCELLED = _Ending(
    "was cancelled",
    "scancel, or an administrator, ended it. Start another job.",
    ("CANCELLED",),
    " CANCELLED AT ",
)
_UNKNOWN_ENDING = _Ending(
    "was ended by Slurm", "It was cancelled or preempted: `sacct` gives the reason. Start another job."
)


def detect(environ: Mapping[str, str]) -> Allocation | None:
    """Return the nodes of the Slurm job that the environment names; None without a job's number.

    A node has as many slots as tasks, or else as GPUs, or else one.

    Raises:
        UnavailableError: Slurm's controller does not answer, or the job's tasks cannot be read.
        UsageError: the job does not run, belongs to another user, is a part of an array, or has several
            components. Or it is unknown how many tasks each node has.
    """
    name = next((name for name in _NUMBER_VARIABLES if name in environ), None)
    if name is None:
        return None
    number = environ[name]
    if not re.fullmatch(r"[1-9][0-9]*", number):
        raise UsageError(
            f"{name} is '{printable_line(number)}', which is not a job number.",
            found="Slurm sets this variable within a job.",
            remedy=f"Run `{UNSET}`. {_WITHOUT_A_JOB}",
        )
    _require_simple(number, environ)
    described = show_job(number, otherwise=_WITHOUT_A_JOB)
    fields = fields_of(described)
    _require_own(name, number, fields)
    cpus, gpus = {}, {}
    for nodes, ids, gres in _NODES.findall(described):
        for host in parse_hosts(nodes):
            cpus[host.name] = len(parse_hosts(f"n[{ids}]"))
            gpus[host.name] = sum(map(int, _GPUS.findall(gres)))
    nodes = [host.name for host in parse_hosts(fields.get("NodeList", ""))]
    try:
        slots = _slots(nodes, environ, fields, cpus, gpus)
    except (KeyError, ValueError) as error:
        raise UnavailableError(
            f"The tasks of Slurm job {number} cannot be read.",
            found=f"{type(error).__name__}: {error}",
            remedy=f"Unset the SLURM_ variables that your shell sets itself. {_WITHOUT_A_JOB}",
        ) from None
    job = SlurmJob(number, cpus, gpus, unix_time() + _seconds_left(fields) - _KEPT_BACK_SECONDS)
    hosts = tuple(Host(node, count, source=job.name) for node, count in zip(nodes, slots, strict=True))
    names = tuple(sorted(inherited_variables(environ)))
    carrier = Slurm(job=number, names=names, config=environ.get("SLURM_CONF", ""))
    return Allocation(hosts, carrier, job.name, job)


class Slurm(Carrier, frozen=True, kw_only=True):
    """The carrier that starts each process as a step of a Slurm job.

    Attributes:
        job: number of the job.
        names: names of the environment variables that a step receives.
        config: path of Slurm's configuration; empty for the default.
    """

    job: str
    names: tuple[str, ...] = ()
    config: str = ""

    def _argv(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        return (*self._srun(), f"--nodelist={host.name}", "--", *argv)

    def _by_hand(self, host: Host) -> str:
        return f"srun --overlap --jobid={self.job} -N1 -n1 -w {host.name} hostname"

    def _explain(self, answer: Answer) -> HostError | None:
        # The command's own output may hold any words.
        lines = answer.stderr.decode(errors="replace").splitlines()
        slurm_lines = [line for line in lines if line.startswith(_SLURM_PREFIXES)]
        printed, job = "\n".join(slurm_lines), f"Slurm job {self.job}"
        for ending in (_TIME_OVER, _PREEMPTED):
            if ending.printed in printed:
                return ending.error(job, answer.last_lines)
        name, by_hand = describe_host(answer.host), self.by_hand(answer.host)
        for marks, trouble, remedy in _TROUBLES:
            if any(mark in printed for mark in marks):
                what = f"{name} {trouble.format(job=job)}."
                return HostError(what, found=answer.last_lines, remedy=remedy.format(by_hand=by_hand))
        if any("error:" in line and _COMMAND_ENDED not in line for line in slurm_lines):
            return HostError(f"{name}: srun failed.", found=answer.last_lines, remedy=f"Try `{by_hand}`.")
        return None

    def _remote_shell(self, _hosts: Sequence[Host]) -> str:
        return ssh_stand_in(f'exec {shlex.join(self._srun())} --nodelist="$host" -- sh -c "$*"')

    def _srun(self) -> tuple[str, ...]:
        """Return the srun command that starts a step, without the step's node and its command."""
        program = shutil.which("srun")
        if program is None:
            raise UnavailableError(
                "srun is not installed, but Ringside needs it to reach the nodes of a Slurm job.",
                found=f"This process belongs to Slurm job {self.job}.",
                remedy=f"Add Slurm's programs to PATH. {_WITHOUT_A_JOB}",
            )
        dropped = (f"-u{name}" for name in sorted(os.environ) if name.startswith(("SLURM_", "SRUN_")))
        config = (f"SLURM_CONF={self.config}",) if self.config else ()
        exported = f"--export={','.join(self.names)}"
        return ("env", *dropped, *config, program, f"--jobid={self.job}", *_STEP, exported)


class SlurmJob(msgspec.Struct, frozen=True):
    """The Slurm job that this process belongs to; see ``ScheduledJob``."""

    number: str
    cpus: dict[str, int]
    """Number of CPUs that the job has on each node, by the node's name."""
    gpus: dict[str, int]
    """Number of GPUs that the job has on each node, by the node's name."""
    ends_at: float = math.inf
    """Unix time after which nothing may be measured: one minute before the job's end."""

    @property
    def name(self) -> str:
        return f"Slurm job {self.number}"

    def require_share(self, host: Host, cpus: int, gpus: int) -> None:
        for kind, sees, has, option in (
            ("CPU", cpus, self.cpus.get(host.name, 0), "--cpu-bind=none --cpus-per-task"),
            ("GPU", gpus, self.gpus.get(host.name, 0), "--gpus-per-task"),
        ):
            if sees < has:
                raise HostError(
                    f"Host {host.name}: Ringside sees {counted(sees, kind)} of the {has} that "
                    f"{self.name} has there.",
                    found="It runs in a job step of its own, and the srun of that step gave it fewer, or "
                    "bound it to some of them.",
                    remedy="Start it in the job itself, or give its step all of them: "
                    f"srun -n1 {option}={has}",
                )

    def share(self, host: Host, cpus: int) -> int:
        # Some clusters do not confine a job to its CPUs.
        return min(cpus, self.cpus.get(host.name, cpus))

    def why_it_ended(self) -> AllocationError | None:
        """Return why Slurm ended the job, as an error; None if it did not, or if that is unknown.

        While the job is completing, this waits up to 5 s, because the reason may come late.
        """
        deadline = time.monotonic() + _COMPLETING_SECONDS
        while True:
            try:
                fields = fields_of(show_job(self.number))
            except (UnavailableError, UsageError):
                return None
            ending, is_completing = _ending_of(self.number, fields), fields.get("JobState") == "COMPLETING"
            if not is_completing or ending or time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        # A job that this program is the script of completes only when it exits.
        ending = ending or (_UNKNOWN_ENDING if is_completing else None)
        return ending.error(self.name) if ending else None


def _require_own(name: str, number: str, fields: Mapping[str, str]) -> None:
    """Raise a ``UsageError`` if the job in the variable ``name`` is another user's, or does not run now."""
    owner = _USER.fullmatch(fields.get("UserId", ""))
    if owner and int(owner[2]) != os.getuid() and not _is_renumbered():
        raise UsageError(
            f"Slurm job {number} is not yours.",
            found=f"It belongs to {printable_line(owner[1])}, and {name} names it.",
            remedy=f"Leave it with `{UNSET}`. {_WITHOUT_A_JOB}",
        )
    if (state := fields.get("JobState", "RUNNING")) != "RUNNING":
        raise UsageError(
            f"Slurm job {number} is not running.",
            found=f"Its state is {printable_line(state)}. {name} names this job.",
            remedy=f"Start another job, or leave this one with `{UNSET}`. {_WITHOUT_A_JOB}",
        )


def _is_renumbered() -> bool:
    """Return whether the ids of users may differ inside and outside this process's container."""
    try:
        return Path("/proc/self/uid_map").read_text().split()[:2] != ["0", "0"]
    except OSError:
        return False


def _require_simple(number: str, environ: Mapping[str, str]) -> None:
    """Raise a ``UsageError`` if a job is a part of an array, or has several components."""
    if "SLURM_ARRAY_TASK_ID" in environ:
        raise UsageError(
            f"Slurm job {number} is a task of a job array.",
            found="The tasks of an array may run at the same time, which makes measurements noisy.",
            remedy=f"Submit it without --array, or {LOCAL_REMEDY}",
        )
    components = environ.get("SLURM_HET_SIZE", "1")
    if components != "1":
        raise UsageError(
            f"Slurm job {number} is heterogeneous.",
            found=f"It has {components} components, and srun reaches only one of them.",
            remedy=f"Ask for all nodes in one component. {_WITHOUT_A_JOB}",
        )


def _slots(
    nodes: Sequence[str],
    environ: Mapping[str, str],
    fields: Mapping[str, str],
    cpus: Mapping[str, int],
    gpus: Mapping[str, int],
) -> list[int]:
    """Return the slots of every node, in order: as many as it has tasks, or else GPUs, or else one.

    A missing variable raises a KeyError, and one without a number a ValueError. A ``UsageError`` says that it
    is unknown how many tasks each node has.
    """
    in_a_step = "SLURM_STEP_ID" in environ
    if not in_a_step and not {"SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"}.isdisjoint(environ):
        counts = _expand(environ["SLURM_TASKS_PER_NODE"], len(nodes) + 1)
        if len(counts) == len(nodes):
            return counts
    tasks = int(fields.get("NumTasks", "0"))
    if tasks > len(nodes):
        # The variables of a step hide those of its job, or none are there: the CPUs show where tasks are.
        each = max(1, int(fields.get("CPUs/Task", "1")))
        by_cpus = [cpus.get(name, 0) // each for name in nodes]
        if sum(by_cpus) == tasks and min(by_cpus):
            return by_cpus
        if tasks % len(nodes) == 0:
            return [tasks // len(nodes)] * len(nodes)
        form = ",".join(f"{name}:N" for name in nodes)
        raise UsageError(
            "It is not known how many tasks of the Slurm job each node has.",
            found=f"The job has {tasks} tasks on {len(nodes)} nodes, and no variable shows their places.",
            remedy=f"Give the number for each node, so that ssh reaches it: -H {form}; or {LOCAL_REMEDY}",
        )
    return [gpus.get(name, 0) or 1 for name in nodes]


def _expand(counts: str, most: int) -> list[int]:
    """Expand Slurm's form ``2(x2),1`` to ``[2, 2, 1]``, but to no more than ``most`` numbers."""
    pairs = _REPEATED.findall(counts)
    return list(islice((int(count) for count, times in pairs for _ in range(int(times or 1))), most))


def _seconds_left(fields: Mapping[str, str]) -> float:
    """Return the time until a job reaches its limit; infinity if it has none."""
    limit, used = (_DURATION.fullmatch(fields.get(name, "")) for name in ("TimeLimit", "RunTime"))
    return _in_seconds(limit) - (_in_seconds(used) if used else 0.0) if limit else math.inf


def _in_seconds(duration: re.Match[str]) -> float:
    days, hours, minutes, seconds = (int(part or 0) for part in duration.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _ending_of(number: str, fields: Mapping[str, str]) -> _Ending | None:
    """Return in which way Slurm ended a job; None if it did not, or if that is unknown."""
    state, endings = fields.get("JobState", ""), (_TIME_OVER, _PREEMPTED, _CANCELLED)
    if state == "RUNNING":
        # The controller ends it some seconds later, and starts no further step before.
        return _TIME_OVER if _seconds_left(fields) <= 0 else None
    is_completing = state == "COMPLETING"
    known = fields.get("Reason", "") if is_completing else state
    # What Slurm wrote about the job's end into its output.
    lines = tail(Path(fields.get("StdErr", "")), lines=_LINES).splitlines() if is_completing else []
    printed = "\n".join(line for line in lines if f"*** JOB {number} ON " in line)
    return next((each for each in endings if known in each.states or each.printed in printed), None)
