"""Write the manifest of an MPIJob, which Kubernetes' MPI operator carries out.

The operator starts the pods, gives them an ssh key in common, and writes the hostfile of the launcher's pod.
Ringside runs there, and reaches the workers over ssh.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from compare.errors import UsageError
from compare.jobs.submission import flag_value, names_flag, require_command, require_printable
from compare.schema.config import LARGEST_NUMBER
from compare.text import counted, duration, seconds_of

MEMORY, SHARED_MEMORY = "8Gi", "1Gi"
"""What a worker gets if the user gives no sizes."""
_SSHD_PORT = 22
_START_SECONDS = 600
"""Maximum time for the workers' pods to start.

A shorter job gives them a third of its time.
"""
_END_SECONDS = 60
"""Time for the result, before Kubernetes deletes the launcher's pod."""
_READY_SECONDS = 2
_VOLUME = "shared-memory"
_LAUNCHER = {"cpu": "1", "memory": "2Gi"}
"""Resources of the pod that trains nothing."""
# Names of pods are made of it, with up to 17 characters more.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_QUANTITY = re.compile(r"([1-9][0-9]*(?:\.[0-9]+)?)([MGT])(i?)")
# YAML reads these as they are; it would take others for numbers, truth values or marks.
_PLAIN = re.compile(r"[A-Za-z/][\w./-]*")
_WORDS_OF_YAML = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class Resources(NamedTuple):
    """What a job asks for; those of one worker, unless stated."""

    image: str
    workers: int
    ranks_per_worker: int
    minutes: int
    """Time limit of the whole job."""
    cpus: int | None = None
    """None for one CPU a rank."""
    gpus: int = 0
    name: str = ""
    """Name of the job, or empty."""
    namespace: str = ""
    """Empty for that of kubectl."""
    memory: str = MEMORY
    shared_memory: str = SHARED_MEMORY
    """Size of /dev/shm, which is a part of the memory."""


def job_name(resources: Resources, words: Sequence[str]) -> str:
    """Return the name of the job."""
    return resources.name or f"compare-{words[0]}"


def write_manifest(resources: Resources, words: Sequence[str]) -> str:
    """Return the manifest that runs a command of Ringside as an MPIJob.

    Raises:
        UsageError: the command launches no ranks, or a size is none. A value of ``-x`` is refused, too.
    """
    require_command(
        words,
        secrets="Add it to the launcher's container as a variable from a Secret, and give its name: -x NAME",
    )
    require_printable([*words, resources.image, resources.namespace])
    _require_written_well(resources)
    return _yaml(_manifest(resources, words))


def _manifest(resources: Resources, words: Sequence[str]) -> dict[str, Any]:
    own = {"cpu": str(resources.cpus or resources.ranks_per_worker), "memory": resources.memory}
    if resources.gpus:
        own["nvidia.com/gpu"] = str(resources.gpus)
    command = ["ringside", *(word.replace("$", "$$") for word in words)]  # Kubernetes would expand $(NAME)
    for flag, value in [("--engine", "ssh"), *_times(resources, words)]:  # never the launcher's pod alone
        if not names_flag(words, flag):
            command += [flag, value]
    sshd = {
        # The folder of the operator's keys can be written by everybody.
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
    """Return how a job shares its time.

    ``usual_seconds`` is what a run takes to settle its verdicts, where it has the time.
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


def _times(resources: Resources, words: Sequence[str]) -> list[tuple[str, str]]:
    """Return flags with which a command ends before the job does."""
    wait, left = _shares(resources, words)
    times = [("--wait-for-hosts", f"{wait:g}")]
    return [*times, ("--budget", f"{left:g}")] if _sets_budget(words) else times


def _sets_budget(words: Sequence[str]) -> bool:
    """Return whether the job gives a budget; only ``run`` has one."""
    return words[0] == "run" and not any(names_flag(words, flag) for flag in ("--repeats", "--budget"))


def _shares(resources: Resources, words: Sequence[str]) -> tuple[float, float]:
    """Return the seconds for the workers to start, and to measure.

    Raises:
        UsageError: none are left to measure.
    """
    limit = 60 * resources.minutes
    asked = _seconds(words, "--wait-for-hosts")
    wait = min(_START_SECONDS, limit // 3) if asked is None else asked
    left = limit - wait - _END_SECONDS
    if not left > 0:
        raise UsageError(
            f"-t {resources.minutes} leaves no time to measure.",
            found=f"The workers may take {wait:g} s to start, and {_END_SECONDS} s are for the end.",
            remedy="Give the job longer with -t, or shorten --wait-for-hosts.",
        )
    return wait, left


def _least_minutes(words: Sequence[str], seconds: float) -> int:
    """Return the shortest job that leaves so many seconds to measure."""
    whole = seconds + _END_SECONDS
    asked = _seconds(words, "--wait-for-hosts")
    # Workers get a third of a short job.
    return math.ceil((min(whole + _START_SECONDS, whole * 3 / 2) if asked is None else whole + asked) / 60)


def _seconds(words: Sequence[str], flag: str) -> float | None:
    """Return the value of a time's flag; None without it.

    Raises:
        UsageError: it is no time.
    """
    asked = flag_value(words, flag)
    if asked is None:
        return None
    try:
        seconds = seconds_of(asked)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LARGEST_NUMBER:
        raise UsageError(f"{flag} cannot be {asked!r}.", remedy=f"Use seconds, or a unit: {flag} 5m.")
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
            found="It has Ringside, sshd and ssh; docs/kubernetes.md has one.",
            remedy="Name it: --image registry/ringside:1",
        )
    if resources.name and not _NAME.fullmatch(resources.name):
        raise UsageError(
            f"--name cannot be {resources.name!r}.",
            remedy="Use up to 40 small letters, digits and dashes, with a letter first.",
        )
    ranks, gpus = resources.ranks_per_worker, resources.gpus
    if 0 < gpus < ranks:
        raise UsageError(
            f"A worker cannot have {counted(ranks, 'rank')} and {counted(gpus, 'GPU')}.",
            found="Every rank needs a GPU of its own.",
            remedy=f"Ask for more: --gpus {ranks}. Or take fewer ranks: --ranks-per-node {gpus}.",
        )
    if _bytes("--shm", resources.shared_memory) > _bytes("--memory", resources.memory):
        raise UsageError(
            f"--shm {resources.shared_memory} is more than --memory {resources.memory}.",
            found="What lies in /dev/shm counts as memory of the worker.",
            remedy="Give the worker more memory, or less of it to /dev/shm.",
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


# ---- YAML, without a library -----------------------------------------------------------------------------


def _yaml(fields: Mapping[str, Any]) -> str:
    return "\n".join(_lines(fields)) + "\n"


def _lines(fields: Mapping[str, Any]) -> Iterator[str]:
    """Write a mapping, with lists of words in one line."""
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield f"{_scalar(key)}:"
            yield from (f"  {line}" for line in _lines(value))
        elif isinstance(value, list) and isinstance(value[0], Mapping):
            yield f"{_scalar(key)}:"
            for item in value:
                first, *more = _lines(item)
                yield f"- {first}"
                yield from (f"  {line}" for line in more)
        elif isinstance(value, list):
            yield f"{_scalar(key)}: [{', '.join(map(_quoted, value))}]"
        else:
            yield f"{_scalar(key)}: {_scalar(value)}"


def _scalar(value: str | int) -> str:
    if isinstance(value, int) or (_PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_YAML):
        return str(value)
    return _quoted(value)


def _quoted(value: str) -> str:
    # YAML reads the strings of JSON.
    return json.dumps(value, ensure_ascii=False)
