"""Examine hosts, all at the same time: ask each for its facts over ssh, and have ``diagnosis.py`` judge them.

What is executed on a host is ``checkup.py``, sent there as the input of a Python, so that a host without
Ringside, or without the right Python, is found out like any other.
"""

from __future__ import annotations

import random
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from compare import __version__
from compare.doctor import checkup
from compare.doctor.diagnose import (
    OLDEST_PYTHON,
    STOPPING,
    Examination,
    Facts,
    Finding,
    Here,
    Met,
    Seen,
    diagnose,
    meeting,
)
from compare.errors import HostError
from compare.launch.engines.commands import NOT_FOUND, host_error, run_everywhere, script_command
from compare.schema.hosts import is_local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compare.launch.engines import Answer, Carrier
    from compare.schema.hosts import Host

QUICK_SECONDS = 14.0
"""How long a host may take for what takes no second; ssh itself gives up four seconds before."""
FULL_SECONDS = 75.0
"""How long it may take for everything: torch from a slow disk, with time to say that it was too slow."""
HANDSHAKE_SECONDS = 0.1
"""What each of many hosts adds to that: computing of one ssh here."""

_MEET_SECONDS = 8.0
_PORTS = range(20_000, 32_768)  # where neither services are nor the kernel takes ports for itself
_ANY_PYTHON = "python3"
_SHOWN = 8


def examine(
    hosts: Sequence[Host],
    *,
    carrier: Carrier,
    python: str = sys.executable,
    quick: bool = False,
    ports: bool = False,
) -> Examination:
    """Find out what is wrong with hosts that are to work together; takes as long as the slowest of them.

    Args:
        hosts: at least one; this machine is examined without ssh.
        carrier: how hosts are reached.
        python: the interpreter that the ranks will have on the hosts.
        quick: leave out what takes longer than a second: GPUs, mpirun, and loading libraries.
        ports: also let all connect to a port of the first.

    Raises:
        UnavailableError: there is no ssh here.
    """
    # Hundreds of handshakes take longer than one: they have the cores here in common.
    seconds = (QUICK_SECONDS if quick else FULL_SECONDS) + HANDSHAKE_SECONDS * len(hosts)
    seen = _look(hosts, python, carrier, seconds, _arguments(hosts, quick=quick))
    if ports:
        seen = _meet(seen, python, carrier)
    mine = checkup.ringside()
    here = Here(version=__version__, sources=mine["ringside_sources"])
    return Examination(
        here=here,
        examined_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        hosts=seen,
        findings=diagnose(seen, here),
    )


def exit_code(examination: Examination) -> int:
    """Return 0 where there is no problem; warnings and notes are none."""
    return HostError.exit_code if examination.of("problem") else 0


def quick_check(
    hosts: Sequence[Host], *, carrier: Carrier, python: str = sys.executable
) -> tuple[Examination, list[Finding]]:
    """Insist, before anything is started, on hosts that answer and have the same Ringside, Python and torch.

    Takes about a second, or 10 to 15 where a host says nothing.

    Returns:
        The examination, and what is worth a warning: that slots are more than cores, say. What breaks some
        arms only is among it.

    Raises:
        HostError: some cannot be used; all of them are named, each with what to do.
        UnavailableError: there is no ssh here.
    """
    examination = examine(hosts, carrier=carrier, python=python, quick=True)
    problems = examination.of("problem")
    stopping = [problem for problem in problems if problem.topic in STOPPING]
    if stopping:
        raise _unfit(hosts, stopping)
    return examination, [*problems, *examination.of("warning")]


def _unfit(hosts: Sequence[Host], problems: list[Finding]) -> HostError:
    sources = {host.name: host.source for host in hosts}
    said = [
        f"Host {problem.host}{f' ({source})' if (source := sources[problem.host]) else ''}: {problem.what}"
        for problem in problems
    ]
    if len(problems) == 1:
        return HostError(said[0], found=problems[0].found, remedy=problems[0].fix)
    shown = [f"{what} {problem.found}" for what, problem in zip(said, problems, strict=True)][:_SHOWN]
    more = len(said) - len(shown)
    return HostError(
        f"{len({problem.host for problem in problems})} of {len(hosts)} hosts cannot be used.",
        found="\n".join(shown + ([f"and {more} more"] if more else [])),
        remedy="\n".join(dict.fromkeys(problem.fix for problem in problems[:_SHOWN])),
    )


# ---- asking ----------------------------------------------------------------------------------------------


def _arguments(hosts: Sequence[Host], *, quick: bool) -> list[str]:
    # Addresses need not be known, and a name with one host alone is nobody's business.
    names = [host.name for host in hosts if not (is_local(host) or host.name.replace(".", "").isdigit())]
    peers = [] if quick or len(hosts) == 1 else ["--peers", ",".join(n for n in names if ":" not in n)]
    return [*(["--quick"] if quick else []), *peers]


def _look(
    hosts: Sequence[Host], python: str, carrier: Carrier, seconds: float, arguments: list[str]
) -> list[Seen]:
    seen = [_seen(answer, python, carrier) for answer in _ask(hosts, python, carrier, seconds, arguments)]
    # Where the right Python is missing or broken, any other will do to see the rest.
    strange = [number for number, each in enumerate(seen) if each.trouble and each.trouble.topic == "python"]
    again = _ask([hosts[number] for number in strange], _ANY_PYTHON, carrier, seconds, arguments)
    for number, answer in zip(strange, again, strict=True):
        stand_in = _seen(answer, _ANY_PYTHON, carrier)
        seen[number] = msgspec.structs.replace(stand_in, trouble=seen[number].trouble)
    return seen


def _ask(
    hosts: Sequence[Host], python: str, carrier: Carrier, seconds: float, arguments: list[str]
) -> list[Answer]:
    script = Path(checkup.__file__).read_bytes()
    argv = script_command(python, *arguments)
    return run_everywhere(hosts, argv, carrier=carrier, timeout_seconds=seconds, stdin=script)


def _seen(answer: Answer, python: str, carrier: Carrier) -> Seen:
    if error := host_error(answer, carrier):
        return Seen(
            host=answer.host, trouble=_trouble(answer, error, python, carrier), seconds=answer.seconds
        )
    try:
        facts = msgspec.convert(_line(answer), Facts)
    except msgspec.MsgspecError as error:
        what = "Something else than the examination answered."
        unexpected = HostError(what, found=str(error), remedy="Is its login shell set to say something?")
        return Seen(
            host=answer.host, trouble=_trouble(answer, unexpected, python, carrier), seconds=answer.seconds
        )
    # It began after we did, and answered before we heard of it: its clock lies between these two.
    most = facts.began_at - answer.started_at
    least = facts.answered_at - (answer.started_at + answer.seconds)
    return Seen(
        host=answer.host,
        facts=facts,
        seconds=answer.seconds,
        clock_ahead_seconds=(most + least) / 2,
        clock_uncertain_seconds=(most - least) / 2,
    )


def _line(answer: Answer) -> Any:
    """Return what stands on the line that is ours; a login shell may have said things before and after."""
    prefix = checkup.PREFIX.encode()
    lines = [line for line in answer.stdout.splitlines() if line.startswith(prefix)]
    if not lines:
        raise msgspec.DecodeError(
            f"it said: {answer.stdout[-200:].decode(errors='replace').strip() or 'nothing'}"
        )
    return msgspec.json.decode(lines[-1][len(prefix) :])


def _trouble(answer: Answer, error: HostError, python: str, carrier: Carrier) -> Finding:
    host = answer.host
    named = f"Host {host.name} ({host.source})" if host.source else f"Host {host.name}"
    what = error.what.removeprefix(named).lstrip(" :")
    what, fix = what[:1].upper() + what[1:], error.remedy
    refused = answer.status is None or carrier.explain(answer) is not None
    if answer.status in NOT_FOUND:
        what = f"There is no {python}."
        fix = "Make the environment at the same path on every host; or name another with --python."
    elif b"SyntaxError" in answer.stderr:
        what = f"Its {python} is too old even to examine it."
        fix = f"Make the environment anew there with Python {'.'.join(map(str, OLDEST_PYTHON))} or later."
    return Finding(
        level="problem",
        topic="reach" if refused else "python",
        host=host.name,
        what=what,
        found=error.found,
        fix=fix,
    )


def _meet(seen: list[Seen], python: str, carrier: Carrier) -> list[Seen]:
    """Let all hosts that can connect to a port of the first, as the ranks of a launch would."""
    able = [number for number, each in enumerate(seen) if each.software]
    address = _address([seen[number] for number in able])
    if not address:
        return seen
    port = random.choice(_PORTS)
    # The first may begin to listen long before the last of many comes, or the other way round.
    seconds = _MEET_SECONDS + HANDSHAKE_SECONDS * len(able)
    arguments = ["--meet", address, str(port), str(len(able) - 1), str(seconds)]
    answers = _ask(
        [seen[number].host for number in able], python, carrier, 2 * seconds + QUICK_SECONDS, arguments
    )
    seen = seen.copy()
    for number, answer in zip(able, answers, strict=True):
        try:
            met = msgspec.convert(_line(answer), Met)
        except msgspec.MsgspecError as error:
            met = Met(role="connects", problem=f"It did not answer: {error}")
        seen[number] = msgspec.structs.replace(seen[number], met=met, met_at=f"{address}:{port}")
    return seen


def _address(seen: Sequence[Seen]) -> str:
    """Return where all can meet: in the network they share, or at the first's own if they share none."""
    if place := meeting(seen):
        return place.addresses[0]
    first = meeting(seen[:1])
    return first.addresses[0] if first else ""
