"""Find hosts that lack the folder of the user's own workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from compare import data
from compare.data import DatasetSource
from compare.doctor.facts import ExaminedHost, Finding
from compare.errors import HostError
from compare.launch.engines import Answer, Carrier
from compare.launch.engines.commands import host_error
from compare.launch.staging import ask_hosts, not_copied, read_held
from compare.schema.hosts import is_local


def find_workload(
    hosts: Sequence[ExaminedHost], source: DatasetSource, *, python: str, carrier: Carrier
) -> Iterator[Finding]:
    """Find hosts that lack the folder of the workload, and hosts that cannot be asked.

    A missing folder is a note if the first run will copy it, and a problem if it is too large to be copied.
    This machine, if it is one of the hosts, gets a note about a folder that is not copied.
    """
    copied = data.is_copied(source)
    size = f"{source.directory} has {data.size_bytes(Path(source.directory)) / 1e6:.1f} MB"
    found = f"{size} here; up to {data.MOST_BYTES / 1e6:.0f} MB are copied."
    for each in hosts:
        if is_local(each.host) and not copied:
            fix = "Copy it to the same path on every other host, or keep its data elsewhere there."
            yield each.finding("note", "workload", "The workload's folder is not copied.", found, fix)
    others = [each for each in hosts if each.software and not is_local(each.host)]
    answers = ask_hosts([each.host for each in others], source, python=python, carrier=carrier)
    for each, answer in zip(others, answers, strict=True):
        error = _trouble(answer, carrier)
        if error:
            yield each.problem("workload", error.what, error.found, error.remedy)
        elif not read_held(answer).directory and copied:
            fix = "Nothing to do: each run looks for it, and the first one copies it."
            yield each.finding("note", "workload", "The host gets a copy of the workload.", found, fix)
        elif not read_held(answer).directory:
            missing = not_copied(each.host, source)
            yield each.problem("workload", "The workload's folder is missing.", missing.found, missing.remedy)


def _trouble(answer: Answer, carrier: Carrier) -> HostError | None:
    """Return why a host gave no readable answer; None if it gave one."""
    try:
        error = host_error(answer, carrier)
        if error is None:
            read_held(answer)
    except HostError as unreadable:
        return unreadable
    return error
