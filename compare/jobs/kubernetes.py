"""Write the manifest of an MPIJob, a job that Kubernetes' MPI operator runs.

The operator starts the pods, gives them a common ssh key, and writes a hostfile into the launcher's pod.
Ringside runs in the launcher's pod, and reaches the workers over ssh.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from compare.errors import UsageError
from compare.jobs import Resources, flag_value, require_fit
from compare.schema.config import LARGEST_NUMBER
from compare.text import counted, duration, seconds_of

_SSHD_PORT = 22
_START_SECONDS = 600
"""Maximum time for the workers' pods to start; it is at most a third of the job's time."""
_END_SECONDS = 60
"""Time at the end of a job to save the result, before Kubernetes deletes the launcher's pod."""
_READY_SECONDS = 2
_VOLUME = "shared-memory"
_LAUNCHER = {"cpu": "1", "memory": "2Gi"}
"""The resources of the launcher's pod, which trains nothing."""
# The name of a job. Kubernetes makes the names of pods from it, with up to 17 more characters.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_QUANTITY = re.compile(r"([1-9][0-9]*(?:\.[0-9]+)?)([MGT])(i?)")


def job_name(resources: Resources, words: Sequence[str]) -> str:
    """Return the name that the user gave the job, or else ``ringside-`` and the command's name."""
    return resources.name or f"ringside-{words[0]}"


def write_manifest(resources: Resources, words: Sequence[str]) -> str:
    """Return the manifest of an MPIJob that runs a command of Ringside.

    It is in JSON, which kubectl reads like YAML. ``words`` is the command line without the program's name.

    Raises:
        UsageError: the command launches no ranks, has a value of ``-x`` or no time left to measure, or the
            resources are wrong. A word, the image or the namespace with an unprintable character is refused
            as well.
    """
    require_fit(
        words,
        [*words, resources.image, resources.namespace],
        secrets_remedy="Add it to the launcher's container as a variable from a Secret, and give only its "
        "name: -x NAME",
    )
    _require_valid(resources)
    worker = {"cpu": str(resources.cpus or resources.ranks_per_node), "memory": resources.memory}
    if resources.gpus:
        worker["nvidia.com/gpu"] = str(resources.gpus)
    command = ["ringside", *(word.replace("$", "$$") for word in words)]  # Kubernetes would expand $(NAME)
    start_seconds, measure_seconds = _divide_time(resources, words)
    # Without --engine ssh, a command might use only the launcher's pod.
    engine = flag_value(words, "--engine") or "ssh"
    if "wait" not in _engine_options(words) and engine.partition(":")[0] != "local":
        engine += f"{',' if ':' in engine else ':'}wait={start_seconds:g}"
    if engine != flag_value(words, "--engine"):
        command += ["--engine", engine]
    if _adds_budget(words):
        command += ["--budget", f"{measure_seconds:g}"]
    sshd = {
        # StrictModes would refuse the operator's keys, because every user may write to their folder.
        "command": ["/usr/sbin/sshd", "-De", "-oStrictModes=no", f"-p{_SSHD_PORT}"],
        "readinessProbe": {"tcpSocket": {"port": _SSHD_PORT}, "periodSeconds": _READY_SECONDS},
    }
    namespace = {"namespace": resources.namespace} if resources.namespace else {}
    manifest = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": job_name(resources, words), **namespace},
        "spec": {
            "slotsPerWorker": resources.ranks_per_node,
            "runPolicy": {
                "cleanPodPolicy": "Running",
                "backoffLimit": 0,
                "activeDeadlineSeconds": 60 * resources.minutes,
            },
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, resources, {"command": command}, _LAUNCHER),
                "Worker": _replicas(resources.nodes, resources, sshd, worker),
            },
        },
    }
    return json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"


def explain_time(resources: Resources, words: Sequence[str], usual_seconds: float) -> str:
    """Return sentences that state how a job divides its time, and whether enough is left to measure.

    ``usual_seconds`` is the time in which a run without a time limit usually settles its verdicts.

    Raises:
        UsageError: no time is left to measure, or a flag's time is wrong.
    """
    start_seconds, measure_seconds = _divide_time(resources, words)
    division = (
        f"Of the job's {resources.minutes} min, the workers may take {duration(start_seconds)} to start, and "
        f"{duration(_END_SECONDS)} is kept to save the result. "
        f"That leaves {duration(measure_seconds)} to measure"
    )
    given = flag_value(words, "--budget") if words[0] == "run" else None
    if given is not None:
        budget, budget_seconds = f"--budget {given}", _seconds("--budget", given)
        if budget_seconds <= measure_seconds:
            return f"{division}: enough for {budget}."
        return (
            f"{division}. {budget} is longer, so the result would be lost: "
            f"give the job -t {_least_minutes(words, budget_seconds)}, or --budget {measure_seconds:g}."
        )
    if not _adds_budget(words):
        return f"{division}. A command that takes longer loses its result: in doubt, raise -t."
    if measure_seconds >= usual_seconds:
        return f"{division} (--budget)."
    least = _least_minutes(words, usual_seconds)
    return f"{division} (--budget). Verdicts may take {duration(usual_seconds)}: give the job -t {least}."


def _adds_budget(words: Sequence[str]) -> bool:
    """Return whether the job adds ``--budget`` to a command.

    It does so only for ``run``, if the user gave neither ``--budget`` nor ``--repeats``.
    """
    return words[0] == "run" and all(flag_value(words, flag) is None for flag in ("--repeats", "--budget"))


def _divide_time(resources: Resources, words: Sequence[str]) -> tuple[float, float]:
    """Return the seconds in which the workers may start, and the seconds that are left to measure.

    Raises:
        UsageError: no time is left to measure, or the option ``wait`` of ``--engine`` is wrong.
    """
    limit = 60 * resources.minutes
    given = _wait_seconds(words)
    start_seconds = min(_START_SECONDS, limit // 3) if given is None else given
    measure_seconds = limit - start_seconds - _END_SECONDS
    if not measure_seconds > 0:
        raise UsageError(
            f"-t {resources.minutes} leaves no time to measure.",
            found=f"The workers may take {start_seconds:g} s to start, and {_END_SECONDS} s are kept "
            "to save the result.",
            remedy="Give the job longer with -t, or shorten the wait: --engine ssh:wait=60.",
        )
    return start_seconds, measure_seconds


def _least_minutes(words: Sequence[str], seconds: float) -> int:
    """Return the time limit in minutes of the shortest job that leaves ``seconds`` to measure."""
    needed = seconds + _END_SECONDS
    given = _wait_seconds(words)
    # In a short job, the workers may take a third of the time to start.
    return math.ceil((min(needed + _START_SECONDS, needed * 3 / 2) if given is None else needed + given) / 60)


def _engine_options(words: Sequence[str]) -> dict[str, str]:
    """Return the options that a command line gives to ``--engine``, as they are written."""
    options = (flag_value(words, "--engine") or "").partition(":")[2]
    return dict(option.partition("=")[::2] for option in options.split(","))


def _wait_seconds(words: Sequence[str]) -> float | None:
    """Return the time that a command line lets hosts take to start, or None without such an option."""
    wait = _engine_options(words).get("wait")
    return None if wait is None else _seconds("--engine ssh:wait", wait)


def _seconds(flag: str, written: str) -> float:
    """Return a value in seconds; a ``UsageError`` that names the ``flag`` if it is not a time in range."""
    try:
        seconds = seconds_of(written)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LARGEST_NUMBER:
        raise UsageError(
            f"{flag} cannot be {written!r}.",
            remedy="Give a number of seconds, or a number with a unit, such as 5m.",
        )
    return seconds


def _replicas(
    count: int, resources: Resources, command: Mapping[str, Any], amounts: Mapping[str, str]
) -> dict[str, Any]:
    """Return ``count`` equal pods of a manifest, with their command and amounts of resources."""
    container = {
        "name": "ringside",
        "image": resources.image,
        **command,
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "volumeMounts": [{"name": _VOLUME, "mountPath": "/dev/shm"}],  # noqa: S108 -- of POSIX
    }
    memory = {"medium": "Memory", "sizeLimit": resources.shm}
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [container], "volumes": [{"name": _VOLUME, "emptyDir": memory}]}},
    }


def _require_valid(resources: Resources) -> None:
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
    ranks, gpus = resources.ranks_per_node, resources.gpus
    if 0 < gpus < ranks:
        raise UsageError(
            f"A worker cannot have {counted(ranks, 'rank')} and {counted(gpus, 'GPU')}.",
            found="Every rank needs a GPU of its own.",
            remedy=f"Ask for more GPUs: --gpus {ranks}. Or use fewer ranks: --ranks-per-node {gpus}.",
        )
    if _bytes("--shm", resources.shm) > _bytes("--memory", resources.memory):
        raise UsageError(
            f"--shm {resources.shm} is more than --memory {resources.memory}.",
            found="What lies in /dev/shm counts as memory of the worker.",
            remedy="Raise --memory, or lower --shm.",
        )


def _bytes(flag: str, size: str) -> float:
    """Return the bytes of a size such as 8Gi or 500M; the error for another text names ``flag``."""
    match = _QUANTITY.fullmatch(size)
    if not match:
        raise UsageError(
            f"{flag} cannot be {size!r}.",
            found="Kubernetes takes a number without a unit for bytes." if size.isdecimal() else "",
            remedy=f"Write it with a unit, as in {flag} 8Gi.",
        )
    number, unit, binary = match.groups()
    return float(number) * (1024 if binary else 1000) ** (2 + "MGT".index(unit))
