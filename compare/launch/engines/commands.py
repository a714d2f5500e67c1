"""Run a command on many hosts, turn their answers into errors, and wait for hosts that are starting.

A ``Carrier`` gives the command that starts a process on a host, and ``fanout`` executes such commands side by
side.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from compare import PACKAGE_ROOT
from compare.errors import AllocationError, HostError
from compare.launch.engines import STREAM_BYTES, AbsentHostError, Answer, Carrier, describe_host
from compare.schema.hostfile import LEFT_OUT
from compare.schema.hosts import Host
from compare.text import duration

OPENED_AT_ONCE = 64
"""Maximum number of connections to hosts that are being opened at the same time.

Hundreds of logins at once would be refused by a host that all of them jump over, or by a name server.
"""
NOT_FOUND = (126, 127)
"""Exit statuses with which a shell or ``env`` reports that it cannot execute a program."""

_SHOWN_HOSTS = 8
_SHOWN_REASONS = 4
_ATTEMPT_SECONDS = 15.0
"""Maximum time for a host that may be starting to answer one attempt."""
_LEAST_ATTEMPT_SECONDS = 2.0
_PAUSE_SECONDS = 1.0
_SPARE_FILES = 128
_FILES_PER_PROCESS = 6

# It ends with its input, and so with the program here. With ``-`` the script itself would last to that end.
_EXECUTE = """\
import os, sys, threading
given = os.fdopen(0, "rb")
script = given.read(int(sys.argv.pop(1)))
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
exec(script)
"""


def python_command(python: str, *words: str) -> tuple[str, ...]:
    """Return the command line that starts Python on a host so that it can import Ringside.

    ``python`` is the interpreter's path, and ``words`` are its arguments. Ringside must be at the same path
    on the host as on this machine.
    """
    return ("env", f"PYTHONPATH={PACKAGE_ROOT}", "PYTHONSAFEPATH=1", python, *words)


def run_everywhere(
    hosts: Sequence[Host],
    argv: Sequence[str],
    *,
    carrier: Carrier,
    timeout_seconds: float,
    stdin: bytes = b"",
    input_ends: bool = True,
) -> list[Answer]:
    """Execute one command on all hosts, and return the answers in the order of hosts.

    At most ``OPENED_AT_ONCE`` hosts execute it at a time. ``timeout_seconds`` counts from the start on each
    host. The command reads ``stdin``, which stays open until the command exits if ``input_ends`` is False. A
    failed command raises no error; see ``host_error``.

    Raises:
        UnavailableError: the carrier's program is not installed.
    """
    from compare.launch.engines.fanout import execute  # only here: most runs reach no other host

    commands = [(host, carrier.argv(host, argv)) for host in hosts]
    with enough_files(min(len(hosts), OPENED_AT_ONCE)) as at_once:
        answers = execute(commands, stdin, timeout_seconds, at_once, input_ends=input_ends)
    pairs = zip(answers, commands, strict=True)
    return [answer._replace(ran_here=command == tuple(argv)) for answer, (_, command) in pairs]


def run_script(
    hosts: Sequence[Host],
    python: str,
    script: bytes,
    *arguments: str,
    carrier: Carrier,
    timeout_seconds: float,
) -> list[Answer]:
    """Execute a Python script on all hosts, and return the answers in the order of hosts.

    ``python`` is the path of the interpreter on every host, and ``arguments`` are those of the script. The
    script can import Ringside, which must be at the same path on every host. If this program is killed, the
    script ends as well, because its standard input ends.

    Raises:
        UnavailableError: the carrier's program is not installed.
    """
    argv = python_command(python, "-c", _EXECUTE, str(len(script)), *arguments)
    return run_everywhere(
        hosts, argv, carrier=carrier, timeout_seconds=timeout_seconds, stdin=script, input_ends=False
    )


@contextmanager
def enough_files(processes: int) -> Iterator[int]:
    """Raise the limit of open files within the block, and yield how many processes may run at a time.

    ``processes`` is the number that the caller wants. The system's hard limit may allow fewer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = min(max(soft, _SPARE_FILES + _FILES_PER_PROCESS * processes), hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    try:
        yield max(1, min(processes, (allowed - _SPARE_FILES) // _FILES_PER_PROCESS))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- what answers mean -----------------------------------------------------------------------------------


def join_errors(errors: Sequence[HostError], *, of: int) -> HostError:
    """Join the errors of several hosts into one error; ``of`` is the number of all hosts.

    A single error is returned unchanged. If the scheduler ended the job, only the error that says so is
    returned.
    """
    ended = [error for error in errors if isinstance(error, AllocationError)]
    if ended or len(errors) == 1:
        return (ended or errors)[0]  # one job ended on all its hosts
    shown = [f"{error.what} {error.found}" for error in errors[:_SHOWN_HOSTS]]
    more = len(errors) - len(shown)
    return HostError(
        f"{len(errors)} of {of} hosts cannot be used.",
        found="\n".join(shown + ([f"and {more} more"] if more else [])),
        remedy="\n".join(dict.fromkeys(error.remedy for error in errors[:_SHOWN_HOSTS])),
    )


def host_error(answer: Answer, carrier: Carrier) -> HostError | None:
    """Return the error of a host that failed to execute its command; None if the command succeeded."""
    name, found = describe_host(answer.host), answer.last_lines
    by_hand = carrier.by_hand(answer.host)
    if answer.flooded:
        return HostError(
            f"{name} sent more than {STREAM_BYTES >> 20} MiB on {answer.flooded}.",
            found=found,
            remedy="Does a start-up file of its login shell print in a loop? Correct it, and try again.",
        )
    if answer.status == 0:
        return None
    if answer.status is None:
        question = f"Does `{by_hand}` work? " if by_hand else ""
        return AbsentHostError(
            f"{name} did not answer within {answer.seconds:.0f} s.",
            found=found,
            remedy=f"{question}If the host is only slow, try again.",
        )
    if error := carrier.explain(answer):
        return error
    if answer.status in NOT_FOUND:
        return HostError(
            f"{name} cannot start Ringside.",
            found=found,
            remedy="Ringside and its Python must be at the same path on every host.",
        )
    remedy = "The host was reached, but its command printed nothing. Try again."
    if found:
        remedy = "The host was reached, but its command failed with this output. Correct the reason."
    if "No module named" in found:
        remedy = "Install the same version of Ringside there, for the same Python."
    return HostError(f"{name}: a command failed with status {answer.status}.", found=found, remedy=remedy)


# ---- hosts that are starting, such as pods ---------------------------------------------------------------


def wait_for_hosts(
    hosts: Sequence[Host], *, carrier: Carrier, seconds: float, say: Callable[[str], None]
) -> None:
    """Wait at most ``seconds`` until every host can execute a command.

    ``say`` receives a line with the number of missing hosts and at most four reasons, and another one each
    time the reasons change. A failure that waiting cannot cure, such as a refused login, ends the wait.

    Raises:
        HostError: hosts did not answer in time, or failed in a way that ends the wait.
        UnavailableError: the carrier's program is not installed.
    """
    deadline = time.monotonic() + seconds
    awaited, shown = list(hosts), ""
    while True:
        turns = math.ceil(len(awaited) / OPENED_AT_ONCE)  # of hosts that are asked side by side
        left = (deadline - time.monotonic()) / turns
        limit = max(_LEAST_ATTEMPT_SECONDS, min(_ATTEMPT_SECONDS, left))
        answers = run_everywhere(awaited, ("true",), carrier=carrier, timeout_seconds=limit)
        absent = {answer.host: error for answer in answers if (error := host_error(answer, carrier))}
        if refusals := [error for error in absent.values() if not isinstance(error, AbsentHostError)]:
            raise join_errors(refusals, of=len(hosts))
        awaited, left = list(absent), deadline - time.monotonic()
        if not awaited:
            break
        if left <= 0:
            names = ",".join(f"{LEFT_OUT}{host.name}" for host in awaited[:_SHOWN_REASONS])
            raise AbsentHostError(
                f"{len(awaited)} of {len(hosts)} hosts did not answer within {duration(seconds)}.",
                found=_listed([f"{error.what} {error.found}" for error in absent.values()]),
                remedy="Do they start at all? For pods, `kubectl describe pods` gives the reason. Allow more "
                f"time with --engine auto:wait=10m, or leave them out: -H '{names}'",
            )
        reasons = _listed([error.what for error in absent.values()])
        if reasons != shown:
            say(f"Waiting for {len(awaited)} of {len(hosts)} hosts, at most {duration(left)} more. {reasons}")
            shown = reasons
        time.sleep(min(_PAUSE_SECONDS, left))
    if shown:
        say(f"All {len(hosts)} hosts answer")


def _listed(reasons: Sequence[str]) -> str:
    more = len(reasons) - _SHOWN_REASONS
    return " ".join([*reasons[:_SHOWN_REASONS], *([f"And {more} more."] if more > 0 else [])])
