"""Carry out ``ringside meter``: run a user's own script under its launcher, and read what was measured."""

from __future__ import annotations

import gzip
import shlex
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from compare.errors import OutputError, UsageError
from compare.launch.agent.machine import free_port
from compare.launch.cluster import open_cluster
from compare.launch.engines import Allocation
from compare.launch.engines.commands import host_error, run_everywhere
from compare.launch.script import Ended, Place, ScriptLauncher, run_attached, script_commands
from compare.meter.command import variables_of
from compare.schema.hosts import LOOPBACK, Network, is_local
from compare.schema.metered import METER_FILE, Metered, MeterSettings, read_metered
from compare.schema.store import CONFIG_FILE, create_output
from compare.system.files import write_bytes, write_json

_FETCH_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class MeterRequest:
    """What the user asked ``ringside meter`` for."""

    allocation: Allocation
    exported: Mapping[str, str]
    """Environment variables of the ranks, as ``-x`` gives their names and values."""
    output: Path | None
    """The folder for the record; None for a new one."""
    launcher: ScriptLauncher
    script: Path
    arguments: Sequence[str]
    """Arguments of the script."""
    settings: MeterSettings
    command: Sequence[str] = ()
    """The command line as the user typed it."""


class Measured(NamedTuple):
    """The end of a metered script."""

    metered: Metered | None
    """What was measured; None if no rank wrote anything."""
    directory: Path
    ended: Ended
    unfetched: OutputError | None = None
    """Why the record of a script that failed stayed on its host; None if it did not."""


def measure_script(request: MeterRequest, say: Callable[[str], None] = lambda _: None) -> Measured:
    """Run a script with the meter in it, and return what was measured and how the script ended.

    ``say`` receives each command line. Then the script has the terminal until it ends.

    Raises:
        OutputError: the folder cannot be written, or the record cannot be fetched or is damaged.
        HostError: a host cannot be reached.
        UsageError: there is no such script, or the launcher does not reach the hosts.
    """
    if not request.script.is_file():
        raise UsageError(
            f"There is no script {request.script}.",
            found=f"{request.script.absolute()} is not a file.",
            remedy="Name a Python file; options of `ringside meter` come before it.",
        )
    with request.allocation.opened() as allocation:
        place = _find_place(allocation, request.launcher)
        ranks = sum(host.slots for host in place.hosts)
        directory = create_output(request.output, request.script.stem, ranks, purpose="-meter")
        # Rank 0 writes the record, on the first host.
        here = is_local(place.hosts[0])
        folder = directory if here else Path("/tmp", f"ringside-{uuid.uuid4().hex[:8]}-meter")  # noqa: S108 -- it is every host's
        commands = script_commands(
            request.launcher,
            place,
            [str(request.script), *request.arguments],
            variables_of(request.settings, folder) | dict(request.exported),
        )
        launched = [list(command.argv) for command in commands]
        for argv in launched:
            say(shlex.join(argv))
        write_json(directory / CONFIG_FILE, {"command": list(request.command), "launcher": launched})
        ended = run_attached(commands)
        record = directory / METER_FILE
        unfetched = None
        if not here:
            try:
                _fetch(folder / METER_FILE, record, place)
            except OutputError as error:
                if not ended.status:
                    raise
                unfetched = error  # that the script failed comes first, and may be the reason
    return Measured(read_metered(record) if record.exists() else None, directory, ended, unfetched)


def _find_place(allocation: Allocation, launcher: ScriptLauncher) -> Place:
    """Return where the ranks run; agents on all hosts say how these are connected.

    Raises:
        HostError: a host cannot be reached.
        UsageError: the launcher starts no ranks on other hosts, or they share no network.
    """
    hosts, carrier = allocation.hosts, allocation.carrier
    if all(map(is_local, hosts)):
        network = Network(interface=allocation.interface or LOOPBACK)
        return Place(hosts=hosts, carrier=carrier, network=network, port=free_port())
    if launcher != "torchrun":
        raise UsageError(
            f"`ringside meter --launcher {launcher}` starts ranks on this machine alone.",
            found=f"{next(host.name for host in hosts if not is_local(host))} is another one.",
            remedy="Start it as you always do, with the meter before the script: "
            f"{'' if launcher == 'none' else f'{launcher} -H … '}python -m ringside.meter train.py",
        )
    with open_cluster(allocation, interface=allocation.interface, exported={}) as cluster:
        return Place(hosts=cluster.hosts, carrier=carrier, network=cluster.network, port=cluster.free_port())


def _fetch(source: Path, target: Path, place: Place) -> None:
    """Copy the record from the first host, if there is one, and remove its folder there.

    Raises:
        OutputError: the record could not be copied, or not be written here, so it stays on its host.
    """
    host, folder = place.hosts[0], str(source.parent)
    shell = ("sh", "-c", '[ ! -e "$0" ] || gzip -c "$0"', str(source))
    [answer] = run_everywhere([host], shell, carrier=place.carrier, timeout_seconds=_FETCH_SECONDS)
    error = host_error(answer, place.carrier)
    found = (error.found or error.what) if error else ""
    try:
        record = b"" if error else gzip.decompress(answer.stdout)
    except (OSError, EOFError, zlib.error) as damage:
        found = f"{damage}"
    if found:
        raise OutputError(
            f"The record could not be fetched from {host.name}.",
            found=found,
            remedy=f"Copy {source} from there into a folder of its own, and show it by `ringside report`.",
        )
    if record:
        write_bytes(target, record)
    remove = ("rm", "-rf", folder)
    run_everywhere([host], remove, carrier=place.carrier, timeout_seconds=_FETCH_SECONDS)
