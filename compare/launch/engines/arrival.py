"""Wait for hosts that are starting, such as pods."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from compare.errors import HostError
from compare.launch.engines import AbsentHostError, Carrier
from compare.launch.engines.commands import host_error, join_errors, run_everywhere
from compare.schema.hosts import Host
from compare.text import duration

_ATTEMPT_SECONDS = 15.0
"""Maximum time for a host to answer one attempt."""
_LEAST_ATTEMPT_SECONDS = 2.0
_PAUSE_SECONDS = 1.0
_SHOWN_HOSTS = 4


def wait_for_hosts(
    hosts: Sequence[Host], *, carrier: Carrier, seconds: float, say: Callable[[str], None]
) -> None:
    """Wait until every host executes a command, at most for ``seconds``.

    Whenever the reasons change, ``say`` gets a line with the number of missing hosts and at most four
    reasons. A failure that does not go away by waiting, such as a refused login, ends the wait at once.

    Raises:
        HostError: hosts did not answer in time, or failed in a way that ends the wait.
        UnavailableError: the carrier's program is not installed.
    """
    deadline = time.monotonic() + seconds
    awaited, shown = list(hosts), ""
    while True:
        absent = _absent(awaited, carrier, deadline - time.monotonic(), of=len(hosts))
        awaited = [host for host in awaited if host.name in absent]
        left = deadline - time.monotonic()
        if not awaited:
            if shown:
                say(f"All {len(hosts)} hosts are there")
            return
        if left <= 0:
            raise _did_not_come(list(absent.values()), list(absent), seconds, of=len(hosts))
        reasons = _listed([error.what for error in absent.values()])
        if reasons != shown:
            say(f"Waiting for {len(awaited)} of {len(hosts)} hosts, at most {duration(left)} more. {reasons}")
            shown = reasons
        time.sleep(min(_PAUSE_SECONDS, left))


def _absent(hosts: Sequence[Host], carrier: Carrier, left: float, *, of: int) -> dict[str, HostError]:
    """Return the errors of hosts that are not there yet, by the hosts' names.

    Raises:
        HostError: a host failed in a way that does not go away by waiting.
    """
    limit = max(_LEAST_ATTEMPT_SECONDS, min(_ATTEMPT_SECONDS, left))
    answers = run_everywhere(hosts, ("true",), carrier=carrier, timeout_seconds=limit)
    absent: dict[str, HostError] = {}
    refusals = []
    for answer in answers:
        if error := host_error(answer, carrier):
            absent[answer.host.name] = error
            if answer.status is not None and not isinstance(error, AbsentHostError):
                refusals.append(error)
    if refusals:
        raise join_errors(refusals, of=of)
    return absent


def _listed(parts: Sequence[str]) -> str:
    more = len(parts) - _SHOWN_HOSTS
    return " ".join([*parts[:_SHOWN_HOSTS], *([f"And {more} more."] if more > 0 else [])])


def _did_not_come(errors: Sequence[HostError], names: Sequence[str], seconds: float, *, of: int) -> HostError:
    return AbsentHostError(
        f"{len(names)} of {of} hosts did not come within {duration(seconds)}.",
        found=_listed([f"{error.what} {error.found}" for error in errors]),
        remedy="Do they start at all? For pods, `kubectl describe pods` gives the reason. Wait longer, or "
        f"leave them out: --exclude {','.join(names[:_SHOWN_HOSTS])}",
    )
