"""Write the manifest of an MPIJob, which Kubernetes' MPI operator carries out.

The operator starts the pods, gives them a common ssh key, and writes a hostfile into the launcher's pod.
Ringside runs in the launcher's pod, and reaches the workers over ssh.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from compare.errors import UsageError
from compare.jobs import flag_value, require_command, require_printable
from compare.schema.config import LARGEST_NUMBER
from compare.text import counted, duration, seconds_of

MEMORY, SHARED_MEMORY = "8Gi", "1Gi"
"""Sizes of a worker's memory and of its /dev/shm if the user gives none."""
_SSHD_PORT = 22
_START_SECONDS = 600
"""Maximum time for the workers' pods to start; a job shorter than three times this gives them a third."""
_END_SECONDS = 60
"""Time that is kept at the end to save the result, before Kubernetes deletes the launcher's pod."""
_READY_SECONDS = 2
_VOLUME = "shared-memory"
_LAUNCHER = {"cpu": "1", "memory": "2Gi"}
"""Resources of the launcher's pod, which trains nothing."""
# The name of a job. Kubernetes makes the names of pods from it, with up to 17 more characters.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_QUANTITY = re.compile(r"([1-9][0-9]*(?:\.[0-9]+)?)([MGT])(i?)")


class Resources(NamedTuple):
    """What a job asks for. CPUs, GPUs and memory are those of one worker."""

    image: str
    workers: int
    ranks_per_worker: int
    minutes: int
    """Time limit of the whole job."""
    cpus: int | None = None
    """CPUs of a worker; None for one CPU for each rank."""
    gpus: int = 0
    name: str = ""
    """Name of the job; empty for a name made from the command."""
    namespace: str = ""
    """Kubernetes' namespace; empty for the default of kubectl."""
    memory: str = MEMORY
    """Memory of a worker, with a unit as in 8Gi."""
    shared_memory: str = SHARED_MEMORY
    """Size of /dev/shm, which is a part of the memory."""


def job_name(resources: Resources, words: Sequence[str]) -> str:
    """Return the name that the user gave the job, or ``compare-`` and the command."""
    return resources.name or f"compare-{words[0]}"


def write_manifest(resources: Resources, words: Sequence[str]) -> str:
    """Return the manifest that runs a command of Ringside as an MPIJob, in JSON, which kubectl reads as well.

    ``words`` is the command line, without the name of the program.

    Raises:
        UsageError: the command launches no ranks, has a value of ``-x``, or has no time left to measure; or
            the resources are wrong.
    """
    require_command(
        words,
        secrets="Add it to the launcher's container as a variable from a Secret, and give only its name: "
        "-x NAME",
    )
    require_printable([*words, resources.image, resources.namespace])
    _require_written_well(resources)
    return json.dumps(_manifest(resources, words), indent=2, ensure_ascii=False) + "\n"


def _manifest(resources: Resources, words: Sequence[str]) -> dict[str, Any]:
    own = {"cpu": str(resources.cpus or resources.ranks_per_worker), "memory": resources.memory}
    if resources.gpus:
        own["nvidia.com/gpu"] = str(resources.gpus)
    command = ["ringside", *(word.replace("$", "$$") for word in words)]  # Kubernetes would expand $(NAME)
    wait, left = _shares(resources, words)
    # Without --engine ssh, a command might use only the launcher's pod.
    added = {"--engine": "ssh", "--wait-for-hosts": f"{wait:g}"}
    if _sets_budget(words):
        added["--budget"] = f"{left:g}"
    for flag, value in added.items():
        if flag_value(words, flag) is None:
            command += [flag, value]
    sshd = {
        # StrictModes would refuse the operator's keys, because every user may write to their folder.
        "command": ["/usr/sbin/sshd", "-De", "-oStrictModes=no", f"-p{_SSHD_PORT}"],
        "readinessProbe": {"tcpSocket": {"port": _SSHD_PORT}, "periodSeconds": _READY_SECONDS},
    }
    named = {"namespace": resources.namespace} if resources.namespace else {}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": job_name(resources, words), **named},
        "spec": {
            "slotsPerWorker": resources.ranks_per_worker,
            "runPolicy": {
                "cleanPodPolicy": "Running",
                "backoffLimit": 0,
                "activeDeadlineSeconds": 60 * resources.minutes,
            },
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, resources, {"command": command}, _LAUNCHER),
                "Worker": _replicas(resources.workers, resources, sshd, own),
            },
        },
    }


def explain_time(resources: Resources, words: Sequence[str], usual_seconds: float) -> str:
    """Return sentences that state how a job divides its time, and whether that is enough to measure.

    ``usual_seconds`` is the time that a run without a limit takes to settle its verdicts.

    Raises:
        UsageError: no time is left to measure, or a flag's time is wrong.
    """
    wait, left = _shares(resources, words)
    shares = (
        f"Of the job's {resources.minutes} min, the workers may take {duration(wait)} to start, and the end "
        f"has {duration(_END_SECONDS)}. That leaves {duration(left)} to measure"
    )
    asked = _seconds(words, "--budget") if words[0] == "run" else None
    if asked is not None:
        budget = f"--budget {flag_value(words, '--budget')}"
        if asked <= left:
            return f"{shares}: enough for {budget}."
        return (
            f"{shares}. {budget} is longer, so the result would be lost: "
            f"give the job -t {_least_minutes(words, asked)}, or --budget {left:g}."
        )
    if not _sets_budget(words):
        return f"{shares}. A command that takes longer loses its result: in doubt, raise -t."
    if left >= usual_seconds:
        return f"{shares} (--budget)."
    least = _least_minutes(words, usual_seconds)
    return f"{shares} (--budget). Verdicts may take {duration(usual_seconds)}: give the job -t {least}."


def _sets_budget(words: Sequence[str]) -> bool:
    """Return whether the job adds ``--budget``: only to ``run`` without ``--budget`` and ``--repeats``."""
    return words[0] == "run" and all(flag_value(words, flag) is None for flag in ("--repeats", "--budget"))


def _shares(resources: Resources, words: Sequence[str]) -> tuple[float, float]:
    """Return the seconds in which the workers may start, and those that are left to measure.

    Raises:
        UsageError: none are left to measure, or the value of ``--wait-for-hosts`` is no time.
    """
    limit = 60 * resources.minutes
    asked = _seconds(words, "--wait-for-hosts")
    wait = min(_START_SECONDS, limit // 3) if asked is None else asked
    left = limit - wait - _END_SECONDS
    if not left > 0:
        raise UsageError(
            f"-t {resources.minutes} leaves no time to measure.",
            found=f"The workers may take {wait:g} s to start, and {_END_SECONDS} s are kept for the end.",
            remedy="Give the job longer with -t, or shorten --wait-for-hosts.",
        )
    return wait, left


def _least_minutes(words: Sequence[str], seconds: float) -> int:
    """Return the minutes of the shortest job that leaves so many seconds to measure."""
    whole = seconds + _END_SECONDS
    asked = _seconds(words, "--wait-for-hosts")
    # In a short job, the workers may take a third of the time to start.
    return math.ceil((min(whole + _START_SECONDS, whole * 3 / 2) if asked is None else whole + asked) / 60)


def _seconds(words: Sequence[str], flag: str) -> float | None:
    """Return the value of a flag in seconds, or None if the command line lacks the flag.

    Raises:
        UsageError: the value is no time, or is out of range.
    """
    asked = flag_value(words, flag)
    if asked is None:
        return None
    try:
        seconds = seconds_of(asked)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LARGEST_NUMBER:
        raise UsageError(
            f"{flag} cannot be {asked!r}.",
            remedy=f"Give a number of seconds, or a number with a unit: {flag} 5m.",
        )
    return seconds


def _replicas(
    count: int, resources: Resources, runs: Mapping[str, Any], asked: Mapping[str, str]
) -> dict[str, Any]:
    container = {
        "name": "ringside",
        "image": resources.image,
        **runs,
        "resources": {"requests": dict(asked), "limits": dict(asked)},
        "volumeMounts": [{"name": _VOLUME, "mountPath": "/dev/shm"}],  # noqa: S108 -- of POSIX
    }
    memory = {"medium": "Memory", "sizeLimit": resources.shared_memory}
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [container], "volumes": [{"name": _VOLUME, "emptyDir": memory}]}},
    }


def _require_written_well(resources: Resources) -> None:
    if not resources.image:
        raise UsageError(
            "An MPIJob needs an image.",
            found="Its pods run Ringside, sshd and ssh. docs/kubernetes.md shows how to build such an image.",
            remedy="Name it: --image registry/ringside:1",
        )
    if resources.name and not _NAME.fullmatch(resources.name):
        raise UsageError(
            f"--name cannot be {resources.name!r}.",
            remedy="Use up to 40 lower-case letters, digits and dashes, and begin with a letter.",
        )
    ranks, gpus = resources.ranks_per_worker, resources.gpus
    if 0 < gpus < ranks:
        raise UsageError(
            f"A worker cannot have {counted(ranks, 'rank')} and {counted(gpus, 'GPU')}.",
            found="Every rank needs a GPU of its own.",
            remedy=f"Ask for more GPUs: --gpus {ranks}. Or use fewer ranks: --ranks-per-node {gpus}.",
        )
    if _bytes("--shm", resources.shared_memory) > _bytes("--memory", resources.memory):
        raise UsageError(
            f"--shm {resources.shared_memory} is more than --memory {resources.memory}.",
            found="What lies in /dev/shm counts as memory of the worker.",
            remedy="Raise --memory, or lower --shm.",
        )


def _bytes(flag: str, size: str) -> float:
    match = _QUANTITY.fullmatch(size)
    if not match:
        raise UsageError(
            f"{flag} cannot be {size!r}.",
            found="Kubernetes takes a number without a unit for bytes." if size.isdecimal() else "",
            remedy=f"Write it with a unit, as in {flag} 8Gi.",
        )
    number, unit, binary = match.groups()
    return float(number) * (1024 if binary else 1000) ** (2 + "MGT".index(unit))
