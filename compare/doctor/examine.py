"""Examine all hosts at the same time, and judge them by their answers.

Each host's Python reads ``checkup.py`` from its standard input. So the examination works on a host without
Ringside, and ``python3`` serves if the requested Python fails. ``diagnose.py`` judges the facts.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from compare import __version__
from compare.data import DatasetSource
from compare.doctor import checkup
from compare.doctor.diagnose import diagnose
from compare.doctor.facts import (
    OLDEST_PYTHON,
    STOPPING,
    Examination,
    ExaminedHost,
    Facts,
    Finding,
    Installation,
    PortTrial,
)
from compare.doctor.rules.network import shared_network
from compare.doctor.workload import find_workload
from compare.errors import HostError
from compare.launch.engines import Answer, Carrier, named
from compare.launch.engines.commands import (
    NOT_FOUND,
    host_error,
    join_errors,
    run_script,
)
from compare.schema.hosts import Host, is_local

QUICK_SECONDS = 14.0
"""Maximum time for the quick facts of a host; a carrier gives up on a connection four seconds earlier."""
FULL_SECONDS = 75.0
"""Maximum time for all facts of a host: on a slow disk, libraries take long to load."""
HANDSHAKE_SECONDS = 0.1
"""Additional time for each host, because all handshakes share the cores of this machine."""

_PEERS = 256
"""Maximum number of names that each host looks up.

Without a maximum, the size of all answers would grow with the square of the number of hosts.
"""
_MEET_SECONDS = 8.0
_PORTS = range(20_000, 32_768)  # above the services, below the ports that the kernel assigns
_ANY_PYTHON = "python3"
_NO_ANSWER = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Raised for lines that are something else."""


def examine(
    hosts: Sequence[Host],
    *,
    carrier: Carrier,
    python: str = sys.executable,
    quick: bool = False,
    ports: bool = False,
    own: DatasetSource | None = None,
) -> Examination:
    """Examine hosts that are to work together, and return their facts and the findings.

    The examination takes as long as its slowest host. ``python`` is the interpreter of the ranks. With
    ``quick``, GPUs, mpirun and the loading of libraries are left out, because they take over a second. With
    ``ports``, all hosts also connect to a port of the first one. ``own`` is the user's own workload, and all
    hosts are asked for its folder.

    Raises:
        UnavailableError: the carrier's program is missing on this machine.
    """
    seconds = (QUICK_SECONDS if quick else FULL_SECONDS) + HANDSHAKE_SECONDS * len(hosts)
    examined = _look(hosts, python, carrier, seconds, _arguments(hosts, quick=quick))
    if ports:
        examined = _meet(examined, python, carrier)
    here = Installation(version=__version__, sources=checkup.ringside()["ringside_sources"])
    return Examination(
        here=here,
        examined_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        hosts=examined,
        findings=diagnose(
            examined, here, find_workload(examined, own, python=python, carrier=carrier) if own else ()
        ),
    )


def exit_code(examination: Examination) -> int:
    """Return the exit code of a ``HostError`` if there is a problem; 0 with warnings and notes only."""
    return HostError.exit_code if examination.of("problem") else 0


def quick_check(hosts: Sequence[Host], *, carrier: Carrier) -> tuple[Examination, list[Finding]]:
    """Require that hosts can work together, by a quick examination.

    Every host must answer, and all must have the same Ringside, Python and torch. This takes about a second,
    or 10 to 15 if a host does not answer.

    Returns:
        The examination, and the findings to warn of: problems that break only some arms, then all warnings.

    Raises:
        HostError: names every host that cannot be used, each with its fix.
        UnavailableError: the carrier's program is missing on this machine.
    """
    examination = examine(hosts, carrier=carrier, python=sys.executable, quick=True)
    problems = examination.of("problem")
    stopping = [problem for problem in problems if problem.topic in STOPPING]
    if stopping:
        raise _unfit(hosts, stopping)
    return examination, [*problems, *examination.of("warning")]


def _unfit(hosts: Sequence[Host], problems: list[Finding]) -> HostError:
    by_host = [(host, [problem for problem in problems if problem.host == host.name]) for host in hosts]
    errors = [
        HostError(
            f"{named(host)}: {' '.join(problem.what for problem in found)}",
            found=" ".join(problem.found for problem in found),
            remedy="\n".join(problem.fix for problem in found),
        )
        for host, found in by_host
        if found
    ]
    return join_errors(errors, of=len(hosts))


# ---- collecting facts ------------------------------------------------------------------------------------


def _arguments(hosts: Sequence[Host], *, quick: bool) -> list[str]:
    if quick:
        return ["--quick"]
    if len(hosts) == 1:
        return []
    # Addresses need no look-up.
    names = [host.name for host in hosts if not (is_local(host) or host.name.replace(".", "").isdigit())]
    return ["--peers", ",".join([name for name in names if ":" not in name][:_PEERS])]


def _look(
    hosts: Sequence[Host], python: str, carrier: Carrier, seconds: float, arguments: list[str]
) -> list[ExaminedHost]:
    examined = [
        _examined(answer, python, carrier) for answer in _ask(hosts, python, carrier, seconds, arguments)
    ]
    # If the right Python is missing or broken, any other can collect the rest.
    broken = [n for n, each in enumerate(examined) if each.trouble and each.trouble.topic == "python"]
    again = _ask([hosts[number] for number in broken], _ANY_PYTHON, carrier, seconds, arguments)
    for number, answer in zip(broken, again, strict=True):
        substitute = _examined(answer, _ANY_PYTHON, carrier)
        examined[number] = msgspec.structs.replace(substitute, trouble=examined[number].trouble)
    return examined


def _ask(
    hosts: Sequence[Host], python: str, carrier: Carrier, seconds: float, arguments: list[str]
) -> list[Answer]:
    script = Path(checkup.__file__).read_bytes()
    return run_script(hosts, python, script, *arguments, carrier=carrier, timeout_seconds=seconds)


def _examined(answer: Answer, python: str, carrier: Carrier) -> ExaminedHost:
    unknown = ExaminedHost(host=answer.host, seconds=answer.seconds)
    if error := host_error(answer, carrier):
        return msgspec.structs.replace(unknown, trouble=_trouble(answer, error, python, carrier))
    try:
        facts = msgspec.convert(_line(answer), Facts)
    except _NO_ANSWER as error:
        what = "The answer is not that of the examination."
        unexpected = HostError(what, found=str(error), remedy="Does its login shell print, or run a program?")
        return msgspec.structs.replace(unknown, trouble=_trouble(answer, unexpected, python, carrier))
    # The host began after we did, and answered before we read it: its clock lies between these bounds.
    most = facts.began_at - answer.started_at
    least = facts.answered_at - (answer.started_at + answer.seconds)
    return msgspec.structs.replace(
        unknown,
        facts=facts,
        clock_ahead_seconds=(most + least) / 2,
        clock_uncertain_seconds=(most - least) / 2,
    )


def _line(answer: Answer) -> Any:
    """Return the JSON of the last line that begins with ``PREFIX``; login shells may print other lines."""
    prefix = checkup.PREFIX.encode()
    lines = [line for line in answer.stdout.splitlines() if line.startswith(prefix)]
    if not lines:
        printed = answer.stdout[-200:].decode(errors="replace").strip()
        raise msgspec.DecodeError(f"it printed: {printed or 'nothing'}")
    return msgspec.json.decode(lines[-1][len(prefix) :])


def _trouble(answer: Answer, error: HostError, python: str, carrier: Carrier) -> Finding:
    host = answer.host
    what = error.what.removeprefix(named(host)).lstrip(" :")
    what, fix = what[:1].upper() + what[1:], error.remedy
    refused = answer.status is None or carrier.explain(answer) is not None
    if answer.status in NOT_FOUND:
        what = f"{python} does not exist."
        fix = "Make the environment at the same path on every host, or name another with --python."
    elif b"SyntaxError" in answer.stderr:
        what = f"{python} is too old for the examination."
        fix = f"Recreate the environment there with Python {OLDEST_PYTHON} or later."
    return ExaminedHost(host=host).problem("reach" if refused else "python", what, error.found, fix)


# ---- the trial of a port ---------------------------------------------------------------------------------


def _meet(examined: list[ExaminedHost], python: str, carrier: Carrier) -> list[ExaminedHost]:
    """Let hosts whose software is known connect to a port of the first; return all hosts with the results."""
    able = [number for number, each in enumerate(examined) if each.software]
    address = _address([examined[number] for number in able])
    if not address:
        return examined
    port = random.choice(_PORTS)
    # Hosts start at different times: the more there are, the later the last one starts.
    seconds = _MEET_SECONDS + HANDSHAKE_SECONDS * len(able)
    arguments = ["--meet", address, str(port), str(len(able) - 1), str(seconds)]
    hosts = [examined[number].host for number in able]
    examined = examined.copy()
    for number, answer in zip(
        able, _ask(hosts, python, carrier, 2 * seconds + QUICK_SECONDS, arguments), strict=True
    ):
        try:
            met = msgspec.convert(_line(answer), PortTrial)
        except _NO_ANSWER as error:
            met = PortTrial(role="connects", problem=f"The host did not answer: {error}")
        examined[number] = msgspec.structs.replace(examined[number], met=met, met_at=f"{address}:{port}")
    return examined


def _address(examined: Sequence[ExaminedHost]) -> str:
    """Return the first host's address, if possible in a network of all hosts; empty without one."""
    shared = shared_network(examined) or shared_network(examined[:1])
    return shared.addresses[0] if shared else ""
