"""Examine all hosts side by side, and judge them by their answers.

Each host's Python reads ``checkup.py`` from its standard input. So the examination works on a host without
Ringside, and with ``python3`` if the requested Python fails. ``rules`` judges the facts.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from compare import __version__, data
from compare.data import DatasetSource
from compare.doctor import checkup
from compare.doctor.facts import (
    OLDEST_PYTHON,
    STOPPING,
    Examination,
    ExaminedHost,
    Facts,
    Finding,
    Installation,
    PortTrial,
    Topic,
)
from compare.doctor.rules import diagnose
from compare.doctor.rules.network import shared_network
from compare.errors import HostError
from compare.launch.engines import Answer, Carrier, describe_host
from compare.launch.engines.commands import NOT_FOUND, OPENED_AT_ONCE, host_error, join_errors, run_script
from compare.launch.staging import ask_hosts, not_copied, read_place
from compare.schema.hosts import Host, is_local

T = TypeVar("T")

QUICK_SECONDS = 14.0
"""Maximum time for the quick facts of a host: four seconds more than connecting to it may take."""
FULL_SECONDS = checkup.PROBE_MOST_SECONDS + 35.0
"""Maximum time for all facts of a host: on a busy machine or a slow disk, libraries take long."""
HANDSHAKE_SECONDS = 0.1
"""Additional time for each host that is connected to at a time, because they share this machine's cores."""

_PEERS = 256
"""Maximum number of names of other hosts that each host looks up.

Without a maximum, the size of all answers would grow with the square of the number of hosts.
"""
_TRIAL_SECONDS = 8.0
_PORTS = range(20_000, 32_768)  # above the services, below the ports that the kernel assigns
_ANY_PYTHON = "python3"

_START_SECONDS = 0.2
"""Maximum wait at the start of a run for the check of this machine."""
_FAILURE_SECONDS = 6.0
"""Maximum wait for the same check after a failure; its name look-ups may take five seconds."""
_REPORTED_HERE: frozenset[Topic] = frozenset({"disk", "limits"})
"""Topics of findings that are printed before a run on this machine alone.

Others are left out because the results themselves report them, such as too few cores or refused reads of
memory.
"""


def examine(
    hosts: Sequence[Host],
    *,
    carrier: Carrier,
    python: str = sys.executable,
    quick: bool = False,
    ports: bool = False,
    workload: DatasetSource | None = None,
) -> Examination:
    """Examine hosts that are to work together, and return their facts and the findings.

    The examination of up to ``OPENED_AT_ONCE`` hosts takes as long as its slowest host. ``python`` is the
    interpreter of the ranks. With ``quick``, GPUs, mpirun and the loading of libraries are left out, because
    they take over a second. With ``ports``, all hosts also connect to a port of the first one. If
    ``workload`` is given, its folder is looked for on every host.

    Raises:
        UnavailableError: the carrier's program is missing on this machine.
    """
    seconds = (QUICK_SECONDS if quick else FULL_SECONDS) + HANDSHAKE_SECONDS * min(len(hosts), OPENED_AT_ONCE)
    examined = _collect_facts(hosts, python, carrier, seconds, _checkup_arguments(hosts, quick=quick))
    if ports:
        examined = _try_port(examined, python, carrier)
    here = Installation(version=__version__, sources=checkup.ringside_facts()["ringside_sources"])
    return Examination(
        here=here,
        examined_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        hosts=examined,
        findings=diagnose(
            examined, here, _workload_findings(examined, workload, python, carrier) if workload else ()
        ),
    )


# ---- the check before a run ------------------------------------------------------------------------------


class Findings(Protocol):
    """A function that returns the findings of a check that was started before a run."""

    def __call__(self, *, failed: bool) -> list[Finding]:
        """Return the findings that may explain a failed run, or else those to print before a run."""


def check_beforehand(hosts: Sequence[Host], *, carrier: Carrier) -> Findings:
    """Check hosts before a run, and return a function that returns the findings.

    If another host takes part, all hosts are examined quickly before this returns, in about a second, or in
    10 to 15 seconds if a host does not answer. Every host must answer, and all must have the same Ringside,
    Python and torch. The findings are then the problems that break only some arms, and after them all
    warnings. Otherwise a thread checks this machine, so that the run can start at once.

    Raises:
        HostError: some hosts cannot be used; the error names all of them, each with its fix.
        UnavailableError: the carrier's program, such as ssh, is missing on this machine.
    """
    if not all(map(is_local, hosts)):
        examination = examine(hosts, carrier=carrier, quick=True)
        problems = examination.of("problem")
        errors = []
        for host in hosts:
            if own := [each for each in problems if each.topic in STOPPING and each.host == host.name]:
                what = f"{describe_host(host)}: {' '.join(problem.what for problem in own)}"
                evidence, fixes = (problem.found for problem in own), (problem.fix for problem in own)
                errors.append(HostError(what, found=" ".join(evidence), remedy="\n".join(fixes)))
        if errors:
            raise join_errors(errors, of=len(hosts))
        checked = [*problems, *examination.of("warning")]
        return lambda *, failed: checked  # noqa: ARG005 -- they are worth a line at both times
    findings: list[Finding] = []

    def check_here() -> None:
        facts = msgspec.convert(checkup.collect_facts(quick=True), Facts)
        here = Installation(version=__version__, sources=facts.ringside_sources)
        findings.extend(diagnose([ExaminedHost(host=hosts[0], facts=facts)], here))

    thread = threading.Thread(target=check_here, daemon=True)
    thread.start()

    def read(*, failed: bool) -> list[Finding]:
        thread.join(_FAILURE_SECONDS if failed else _START_SECONDS)
        worse = [finding for finding in findings if finding.level != "note"]
        return [finding for finding in worse if failed or finding.topic in _REPORTED_HERE]

    return read


# ---- collecting facts ------------------------------------------------------------------------------------


def _checkup_arguments(hosts: Sequence[Host], *, quick: bool) -> list[str]:
    """Return the arguments of ``checkup.py``: ``--quick``, or names that each of several hosts looks up."""
    if quick:
        return ["--quick"]
    if len(hosts) == 1:
        return []
    # Addresses need no look-up.
    names = [host.name for host in hosts if not (is_local(host) or host.name.replace(".", "").isdigit())]
    return ["--peers", ",".join([name for name in names if ":" not in name][:_PEERS])]


def _collect_facts(
    hosts: Sequence[Host], python: str, carrier: Carrier, seconds: float, arguments: list[str]
) -> list[ExaminedHost]:
    examined = [
        _examined_host(answer, python, carrier)
        for answer in _run_checkup(hosts, python, carrier, seconds, arguments)
    ]
    # If the right Python is missing or broken, any other can collect the rest.
    broken = [n for n, each in enumerate(examined) if each.trouble and each.trouble.topic == "python"]
    answers = _run_checkup([hosts[number] for number in broken], _ANY_PYTHON, carrier, seconds, arguments)
    for number, answer in zip(broken, answers, strict=True):
        substitute = _examined_host(answer, _ANY_PYTHON, carrier)
        examined[number] = msgspec.structs.replace(substitute, trouble=examined[number].trouble)
    return examined


def _run_checkup(
    hosts: Sequence[Host], python: str, carrier: Carrier, seconds: float, arguments: list[str]
) -> list[Answer]:
    script = Path(checkup.__file__).read_bytes()
    return run_script(hosts, python, script, *arguments, carrier=carrier, timeout_seconds=seconds)


def _examined_host(answer: Answer, python: str, carrier: Carrier) -> ExaminedHost:
    """Return what an answer says of its host and of its clock, or the trouble if the examination failed."""
    unknown = ExaminedHost(host=answer.host, seconds=answer.seconds)
    try:
        if error := host_error(answer, carrier):
            raise error
        facts = _read(answer, Facts)
    except HostError as error:
        return msgspec.structs.replace(unknown, trouble=_trouble(answer, error, python, carrier))
    # The host began after we did, and answered before we read it: its clock lies between these bounds.
    highest = facts.began_at - answer.started_at
    lowest = facts.answered_at - (answer.started_at + answer.seconds)
    return msgspec.structs.replace(
        unknown,
        facts=facts,
        clock_ahead_seconds=(highest + lowest) / 2,
        clock_uncertain_seconds=(highest - lowest) / 2,
    )


def _read(answer: Answer, kind: type[T]) -> T:
    """Read the last line of an answer that begins with ``PREFIX``, because login shells may print others.

    Raises:
        HostError: there is no such line, or its JSON is not a ``kind``.
    """
    prefix = checkup.PREFIX.encode()
    lines = [line for line in answer.stdout.splitlines() if line.startswith(prefix)]
    printed = answer.stdout[-200:].decode(errors="replace").strip()
    found = f"It printed: {printed or 'nothing'}"
    try:
        if lines:
            return msgspec.json.decode(lines[-1][len(prefix) :], type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        found = str(error)
    raise HostError(
        "The host sent no valid answer to Ringside's examination.",
        found=found,
        remedy="Does a start-up file of its login shell run a program or read standard input? Change that.",
    )


def _trouble(answer: Answer, error: HostError, python: str, carrier: Carrier) -> Finding:
    """Return the finding that a host could not be reached, or that its Python could not examine it."""
    host = answer.host
    what = error.what.removeprefix(describe_host(host)).lstrip(" :")
    what, fix = what[:1].upper() + what[1:], error.remedy
    refused = answer.status is None or carrier.explain(answer) is not None
    if answer.status in NOT_FOUND:
        what = f"{python} does not exist, or cannot be executed."
        fix = "Make the environment at the same path on every host, or name another with --python."
    elif b"SyntaxError" in answer.stderr:
        what = f"{python} is too old for the examination."
        fix = f"Recreate the environment there with Python {OLDEST_PYTHON} or later."
    return ExaminedHost(host=host).problem("reach" if refused else "python", what, error.found, fix)


# ---- the folder of the user's own workload ---------------------------------------------------------------


def _workload_findings(
    hosts: Sequence[ExaminedHost], source: DatasetSource, python: str, carrier: Carrier
) -> Iterator[Finding]:
    """Yield findings on hosts that lack the folder of the workload, and on hosts that cannot be asked.

    A missing folder is a note if the first run will copy it, and a problem if it is too large to be copied.
    If this machine is one of the hosts, it gets a note that such a folder is not copied.
    """
    copied = data.is_copied(source)
    size = f"{source.directory} has {data.size_bytes(Path(source.directory)) / 1e6:.1f} MB"
    found = f"{size} here; up to {data.MOST_BYTES / 1e6:.0f} MB are copied."
    for each in hosts:
        if is_local(each.host) and not copied:
            fix = "Copy the folder to the same path on every other host, or keep its data outside the folder."
            yield each.finding("note", "workload", "The workload's folder is not copied.", found, fix)
    others = [each for each in hosts if each.software and not is_local(each.host)]
    answers = ask_hosts([each.host for each in others], source, python=python, carrier=carrier)
    for each, answer in zip(others, answers, strict=True):
        try:
            if error := host_error(answer, carrier):
                raise error
            is_missing = not read_place(answer).directory
        except HostError as error:
            yield each.problem("workload", error.what, error.found, error.remedy)
            continue
        if is_missing and copied:
            fix = "Nothing to do: the first run copies the folder."
            yield each.finding("note", "workload", "The host gets a copy of the workload.", found, fix)
        elif is_missing:
            missing = not_copied(each.host, source)
            yield each.problem("workload", "The workload's folder is missing.", missing.found, missing.remedy)


# ---- the trial of a port ---------------------------------------------------------------------------------


def _try_port(examined: list[ExaminedHost], python: str, carrier: Carrier) -> list[ExaminedHost]:
    """Let the hosts whose software is known connect to a port of the first, and add the results to them."""
    numbers = [number for number, each in enumerate(examined) if each.software]
    hosts = [examined[number] for number in numbers]
    shared = shared_network(hosts) or shared_network(hosts[:1])  # without one, a router may join networks
    if not shared:
        return examined
    address = shared.addresses[0]
    port = random.choice(_PORTS)
    # Hosts start at different times: the more there are, the later the last one starts.
    seconds = _TRIAL_SECONDS + HANDSHAKE_SECONDS * len(numbers)
    arguments = ["--try-port", address, str(port), str(len(numbers) - 1), str(seconds)]
    answers = _run_checkup(
        [each.host for each in hosts], python, carrier, 2 * seconds + QUICK_SECONDS, arguments
    )
    examined = examined.copy()
    for number, answer in zip(numbers, answers, strict=True):
        try:
            trial = _read(answer, PortTrial)
        except HostError as error:
            trial = PortTrial(role="connects", problem=f"The host gave no answer. {error.found}")
        examined[number] = msgspec.structs.replace(
            examined[number], port_trial=trial, port_address=f"{address}:{port}"
        )
    return examined
