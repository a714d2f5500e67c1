"""Read what a Slurm job has: nodes, tasks, CPUs, GPUs and time.

The environment names the job and often the tasks of each node. Slurm's controller knows the rest, and why a
job ended.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from compare.errors import AllocationError, HostError, UnavailableError, UsageError, system_reason
from compare.launch.engines.detect import ELSEWHERE, LOCAL
from compare.launch.engines.slurm import ENDED, ENDINGS, job_ended
from compare.schema.hostfile import parse_hosts
from compare.schema.hosts import Host, shown
from compare.system.clock import unix_time
from compare.text import counted

KEPT_BACK_SECONDS = 60.0
"""Time at the end of a job in which nothing is measured."""

_ANSWER_SECONDS = 10.0
_COMPLETING_SECONDS = 5.0
"""Maximum time to wait until a job that is completing has ended on its nodes."""
_POLL_SECONDS = 0.3
_STATES = {
    "TIMEOUT": "reached its time limit",
    "DEADLINE": "reached its time limit",
    "PREEMPTED": "was preempted",
    "CANCELLED": "was cancelled",
}
_REASONS = {"TimeLimit": "reached its time limit", "Preempted": "was preempted"}
"""How a job that is still completing was ended, by Slurm's ``Reason``."""
_TAIL_BYTES = 1 << 16
_NUMBERS = ("SLURM_JOB_ID", "SLURM_JOBID")
_UNSET = f"unset {' '.join(_NUMBERS)}"
"""The command that takes a shell out of a job, for which Slurm sets both variables."""
_USER = re.compile(r"(.*)\((\d+)\)")
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_FIELD = re.compile(r"(\S+?)=(\S*)")
_NODES = re.compile(r"Nodes=(\S+) CPU_IDs=(\S+) Mem=\S+ GRES=(\S*)")
_GPUS = re.compile(r"gpu(?::[^,:()]+)?:(\d+)")
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


class SlurmJob(msgspec.Struct, frozen=True):
    """A running job that this process belongs to."""

    number: str
    hosts: tuple[Host, ...]
    """The nodes in Slurm's order; the slots of each are its tasks, or else its GPUs, or 1."""
    cpus: dict[str, int]
    """Number of CPUs that the job has on each node, by the node's name."""
    gpus: dict[str, int]
    """Number of GPUs that the job has on each node, by the node's name."""
    ends_at: float = math.inf
    """Unix time after which nothing may be measured; infinite without a time limit."""

    @property
    def name(self) -> str:
        """The job's name in messages, as ``Slurm job 17``."""
        return f"Slurm job {self.number}"

    def require_share(self, host: Host, cpus: int, gpus: int) -> None:
        """Require that an agent sees all that the job has on its node.

        ``cpus`` and ``gpus`` are the numbers that it sees.

        Raises:
            HostError: it sees fewer, which would slow down every arm.
        """
        for kind, sees, has, option in (
            ("CPU", cpus, self.cpus.get(host.name, 0), "--cpu-bind=none --cpus-per-task"),
            ("GPU", gpus, self.gpus.get(host.name, 0), "--gpus-per-task"),
        ):
            if sees < has:
                raise HostError(
                    f"Host {host.name}: Ringside sees {counted(sees, kind)} of the {has} that "
                    f"{self.name} has there.",
                    found="It runs in a step of its own, whose srun gave it fewer, or bound it to some.",
                    remedy=f"Start it in the job itself, or give its step all: srun -n1 {option}={has}",
                )

    def share(self, host: Host, cpus: int) -> int:
        """Return how many of a host's ``cpus`` ranks may keep busy: at most as many as the job has there.

        Some clusters do not confine a job to its CPUs.
        """
        return min(cpus, self.cpus.get(host.name, cpus))

    def why_it_ended(self) -> AllocationError | None:
        """Return the error of a job that Slurm ended; None if it did not, or if that is unknown.

        It waits up to 5 s for a job that is completing, because the reason may come late.
        """
        deadline = time.monotonic() + _COMPLETING_SECONDS
        while True:
            try:
                fields = dict(_FIELD.findall(_scontrol(self.number)))
            except UnavailableError:
                return None
            what = _ending_of(self.number, fields)
            if fields.get("JobState") != "COMPLETING" or what or time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        # A job that this program is the script of completes only when it exits.
        what = what or (ENDED if fields.get("JobState") == "COMPLETING" else "")
        return job_ended(self.name, what) if what else None


def is_named(environ: Mapping[str, str]) -> bool:
    """Return whether the environment has a variable with a job's number, even a wrong one."""
    return any(name in environ for name in _NUMBERS)


def read_job(environ: Mapping[str, str]) -> SlurmJob:
    """Return the job that the environment names, as Slurm's controller describes it.

    Call it only if ``is_named`` returns True.

    Raises:
        UnavailableError: Slurm's controller does not answer, or the job's tasks cannot be read.
        UsageError: it is not a running job of this user. Or it is a part of an array, or has several
            components, or it is unknown how many tasks each node has.
    """
    name = next(name for name in _NUMBERS if name in environ)
    number = environ[name]
    if not re.fullmatch(r"[1-9][0-9]*", number):
        raise UsageError(
            f"{name} is '{shown(number)}', which is no number of a job.",
            found="Slurm sets it within a job.",
            remedy=f"Unset it. {ELSEWHERE}",
        )
    _require_simple(number, environ)
    described = _scontrol(number)
    fields = dict(_FIELD.findall(described))
    _require_own(number, fields)
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
            remedy=f"Unset SLURM_ variables that your shell sets itself. {ELSEWHERE}",
        ) from None
    source = f"Slurm job {number}"
    return SlurmJob(
        number,
        tuple(Host(name, count, source=source) for name, count in zip(nodes, slots, strict=True)),
        cpus,
        gpus,
        unix_time() + _seconds_left(fields) - KEPT_BACK_SECONDS,
    )


def _require_own(number: str, fields: Mapping[str, str]) -> None:
    """Require that a job is this user's, and runs.

    Raises:
        UsageError: it is another user's, or does not run now.
    """
    owner = _USER.fullmatch(fields.get("UserId", ""))
    if owner and int(owner[2]) not in _own_numbers():
        raise UsageError(
            f"Slurm job {number} is not yours.",
            found=f"It belongs to {shown(owner[1])}, and SLURM_JOB_ID names it.",
            remedy=f"Unset SLURM_JOB_ID. {ELSEWHERE}",
        )
    if (state := fields.get("JobState", "RUNNING")) != "RUNNING":
        raise UsageError(
            f"Slurm job {number} does not run.",
            found=f"Its state is {shown(state)}, and SLURM_JOB_ID names it.",
            remedy=f"Start another job, or {_UNSET}. {ELSEWHERE}",
        )


def _own_numbers() -> set[int]:
    """Return the ids of this user, in this process and outside its container."""
    numbers = {os.getuid()}
    try:
        for line in Path("/proc/self/uid_map").read_text().splitlines():
            inside, outside, count = map(int, line.split())
            if 0 <= os.getuid() - inside < count:
                numbers.add(outside + os.getuid() - inside)
    except (OSError, ValueError):
        pass
    return numbers


def _require_simple(number: str, environ: Mapping[str, str]) -> None:
    if "SLURM_ARRAY_TASK_ID" in environ:
        raise UsageError(
            f"Slurm job {number} is a part of a job array.",
            found="Every part would measure beside the others.",
            remedy=f"Submit it without --array, or {LOCAL}",
        )
    components = environ.get("SLURM_HET_SIZE", "1")
    if components != "1":
        raise UsageError(
            f"Slurm job {number} is heterogeneous.",
            found=f"It has {components} components, and srun reaches one of them.",
            remedy=f"Ask for all nodes in one component. {ELSEWHERE}",
        )


def _slots(
    nodes: Sequence[str],
    environ: Mapping[str, str],
    fields: Mapping[str, str],
    cpus: Mapping[str, int],
    gpus: Mapping[str, int],
) -> list[int]:
    """Return the slots of every node, in order: its tasks, or else its GPUs, or 1."""
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
        raise UsageError(
            "It is not known which node has how many tasks of the job.",
            found=f"Its variables do not say it: {tasks} tasks on {len(nodes)} nodes.",
            remedy=f"Name them: --engine slurm -H {','.join(f'{name}:N' for name in nodes)}; or {LOCAL}",
        )
    return [gpus.get(name, 0) or 1 for name in nodes]


def _expand(counts: str, most: int) -> list[int]:
    """Expand ``2(x2),1`` to ``[2, 2, 1]``, but to no more than ``most`` numbers."""
    written = _REPEATED.findall(counts)
    return list(islice((int(count) for count, times in written for _ in range(int(times or 1))), most))


def _seconds_left(fields: Mapping[str, str]) -> float:
    limit, used = (_DURATION.fullmatch(fields.get(name, "")) for name in ("TimeLimit", "RunTime"))
    return _seconds(limit) - (_seconds(used) if used else 0.0) if limit else math.inf


def _seconds(duration: re.Match[str]) -> float:
    days, hours, minutes, seconds = (int(part or 0) for part in duration.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _ending_of(number: str, fields: Mapping[str, str]) -> str:
    """Return a phrase for how Slurm ended a job; empty if it did not, or if that is unknown."""
    state = fields.get("JobState", "")
    if state == "RUNNING":
        # The controller ends it some seconds later, and starts no further step before.
        return _STATES["TIMEOUT"] if _seconds_left(fields) <= 0 else ""
    if state == "COMPLETING":
        return _REASONS.get(fields.get("Reason", "")) or _printed_ending(number, fields.get("StdErr", ""))
    return _STATES.get(state, "")


def _printed_ending(number: str, output: str) -> str:
    """Return a phrase for how a job ended, from what Slurm wrote into its output; empty without one."""
    try:
        with Path(output).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    own = [line for line in lines if f"*** JOB {number} ON " in line and " CANCELLED AT " in line]
    found = (what for line in own for mark, what in ENDINGS if mark in line)
    return next(found, "was cancelled" if own else "")


def _scontrol(number: str) -> str:
    """Return what ``scontrol show job`` prints about a job, with all its details on one line.

    Raises:
        UnavailableError: the controller does not answer.
        UsageError: it knows no such job.
    """
    problem = ""
    try:
        done = subprocess.run(
            ["scontrol", "--details", "--oneliner", "show", "job", number],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
            start_new_session=True,
        )
        problem = done.stderr.strip()
        if done.returncode == 0:
            return done.stdout
    except subprocess.TimeoutExpired:
        problem = f"No answer within {_ANSWER_SECONDS:g} s."
    except OSError as error:
        problem = f"scontrol: {system_reason(error)}."
    if "Invalid job id" in problem:
        raise UsageError(
            f"Slurm knows no job {number}.",
            found="SLURM_JOB_ID names it, so it ended some time ago.",
            remedy=f"Start another job, or {_UNSET}. {ELSEWHERE}",
        )
    raise UnavailableError(
        f"Slurm does not say what job {number} has.",
        found=problem,
        remedy=f"Does `scontrol show job {number}` work here? {ELSEWHERE}",
    )
