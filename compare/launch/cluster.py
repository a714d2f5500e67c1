"""A run on hosts that a carrier reaches, with or without a file system in common.

One link to each host is kept for the whole run. The agent at its other end puts down what the ranks
read, sends back what they write as it comes to be, and ends them. torchrun is started by the agents, one
on each host; mpirun and horovodrun are started here and start their ranks themselves, through the
remote shell of the carrier.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from compare.errors import HostError, RingsideError
from compare.launch.agent.__main__ import addresses
from compare.launch.agent.connection import START_SECONDS, linked
from compare.launch.agent.protocol import Begin
from compare.launch.engines import write_remote_shell
from compare.launch.engines.commands import join_errors, python_command
from compare.launch.local import Folders, masked_json
from compare.launch.network import choose_network, in_network
from compare.launch.processes import Ending, supervise
from compare.launch.staging import deliver
from compare.schema.environment import EXPORTED, inherited, library_settings
from compare.schema.files import temporary_folder, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from backends.launchers.request import Command
    from compare.data import DatasetSource
    from compare.launch.agent.connection import Link
    from compare.launch.engines import Carrier
    from compare.launch.local import Spot
    from compare.schema.hosts import Host, Network
    from compare.schema.job import Job
    from compare.schema.launch_files import LaunchFiles

_POLL_SECONDS = 0.02
_LOOKUPS = 64
"""Names that are looked up at once."""
_ANSWER_SECONDS = 20.0
"""For an agent that lives to say what it was asked: none does more than make a few folders."""
_END_SECONDS = 20.0
"""For all agents to end a launch; one behind a dead link is given up sooner, by its link."""


@contextmanager
def many_hosts(
    hosts: tuple[Host, ...],
    *,
    python: str,
    carrier: Carrier,
    interface: str | None = None,
    exported: Mapping[str, str] | None = None,
) -> Iterator[ManyHosts]:
    """Link to all hosts for as long as the block lasts, and find out how they reach each other.

    Args:
        hosts: each with the number of its ranks as slots.
        python: the interpreter, at the same path on every host.
        carrier: how hosts are reached.
        interface: network interface of all arms; None to find the one that all hosts share.
        exported: environment of the ranks that travels in the job alone.

    Raises:
        HostError: a host cannot be reached or is of another version; named within seconds.
        UsageError: it cannot be told which interface to take, or that one is not there.
    """
    with linked(hosts, python=python, carrier=carrier) as links:
        _require_ready(links)
        yield ManyHosts(links, python, carrier, interface, exported or {})


class ManyHosts:
    """The hosts of a run, with a link to each; see ``many_hosts``."""

    def __init__(
        self,
        links: list[Link],
        python: str,
        carrier: Carrier,
        interface: str | None,
        exported: Mapping[str, str],
    ) -> None:
        self.hosts = tuple(link.host for link in links)
        self.exported = exported
        self._links = links
        self._python = python
        self._carrier = carrier
        self._ready = [link.ready for link in links if link.ready]
        self.network = choose_network(
            {link.host.name: ready.addresses for link, ready in zip(links, self._ready, strict=True)},
            asked=interface,
            reached_at=_addresses_of(self.hosts),
        )
        self._datasets: list[str] = []
        self._run = uuid.uuid4().hex[:12]
        self._launches = 0

    def cpus(self) -> list[list[int]]:
        """Return the CPUs that ranks may use, host by host."""
        return [ready.cpus for ready in self._ready]

    def gpus(self) -> list[int]:
        """Count GPUs, host by host."""
        return [ready.gpus for ready in self._ready]

    def require_launchers(self, names: set[str]) -> None:
        """Insist that hosts can call back the launchers that start here and not by an agent."""
        if names - {"torchrun"}:
            _require_here(self.network)

    def deliver(self, source: DatasetSource, say: Callable[[str], None]) -> None:
        """Find the data set on every host where it lies here, or put it there."""
        self._datasets = deliver(self.hosts, source, python=self._python, carrier=self._carrier, say=say)

    def free_port(self) -> int:
        """Ask the first host for a port that is free there."""
        first = self._links[0]
        first.find_port()
        _tick_until(self._links, lambda link: link is not first or link.port is not None)
        assert first.port is not None  # noqa: S101 -- it was waited for
        return first.port

    @contextmanager
    def spot(self, files: LaunchFiles) -> Iterator[Spot]:
        """Name folders for a launch, which the agents make and remove, and make what its launcher needs."""
        self._launches += 1
        name = f"ringside-{self._run}-{self._launches}"
        with temporary_folder("ringside-") as here:
            yield _Spot(self, name, files, here)


class _Spot:
    """The place of one launch on all hosts."""

    def __init__(self, site: ManyHosts, name: str, files: LaunchFiles, here: Path) -> None:
        self._directory = Path("/tmp") / name  # noqa: S108 -- the agents insist on making it themselves
        self._folders = Folders(
            self._directory.with_name(f"{name}-tmp"),
            Path("/dev/shm") / name,  # noqa: S108 -- where POSIX shared memory is on Linux
        )
        self.job_file = self._directory / files.job.name
        self.mark = name
        self._site = site
        self._links = site._links  # noqa: SLF001 -- a part of it
        self.files = files
        self._here = here
        self._link_of = [link for link in self._links for _ in range(link.host.slots)]

    def settings(self) -> dict[str, str]:
        return {
            # What the user's own environment tells libraries holds for every host, as on one machine.
            **library_settings(inherited(os.environ)),
            **self._folders.settings(),
            EXPORTED: str(self._directory / "exported.json"),
        }

    def described(self) -> dict[str, str]:
        exported = {f"{self._directory}/exported.json on every host": masked_json(self._site.exported)}
        hosts, carrier = self._site.hosts, self._site._carrier  # noqa: SLF001
        agent = python_command(self._site._python, "compare.launch.agent")  # noqa: SLF001
        agents = [carrier.argv(host, agent) for host in hosts]
        return {
            "the agents, one connection to each host for the whole run": "\n".join(map(shlex.join, agents)),
            **(exported if self._site.exported else {}),
            **{
                f"{name} of the launchers that are started here": content
                for name, content in carrier.remote_shell(self._here, hosts).items()
            },
        }

    def carry_out(
        self,
        commands: Sequence[Command],
        job: Job,
        *,
        deadline_seconds: float,
        on_tick: Callable[[], bool],
    ) -> Ending:
        write_json(self.files.job, job)
        there = {command.host.name: command for command in commands if command.host}
        here = [command for command in commands if command.host is None]
        try:
            for number, link in enumerate(self._links):
                own = there.get(link.host.name)
                link.begin(self._begin(number, job, own, deadline_seconds), self.files)
            _tick_until(self._links, lambda link: link.begun or link.ended is not None)
            if here:
                ending = self._supervised(here, deadline_seconds, on_tick)
            else:
                ending = self._watched(deadline_seconds, on_tick)
        except BaseException:
            self._end_all()
            raise
        lost = self._end_all()
        if lost and ending.status != 0:
            # Ranks whose peer's host is gone complain of the peer: the host is the cause, not they.
            raise lost
        return ending

    def keep_up(self) -> None:
        for link in self._links:
            link.tick()

    def gone_at(self, rank: int, pid: int, now: float) -> float | None:
        del pid, now
        return self._link_of[rank].gone.get(rank)

    def absent(self, begun: Collection[int], now: float) -> dict[int, float]:
        del now
        return {rank: at for link in self._links for rank, at in link.gone.items() if rank not in begun}

    def host_of(self, rank: int) -> str:
        return self._link_of[rank].host.name

    def clock_ahead_seconds(self, rank: int) -> float:
        return self._link_of[rank].clock_ahead_seconds

    def _begin(self, number: int, job: Job, command: Command | None, deadline_seconds: float) -> Begin:
        site, link = self._site, self._links[number]
        own = msgspec.structs.replace(
            job,
            affinity=site.cpus()[number],
            dataset=msgspec.structs.replace(job.dataset, directory=site._datasets[number]),  # noqa: SLF001
            # By the clock that the rank reads.
            launched_at=job.launched_at + link.clock_ahead_seconds,
        )
        return Begin(
            mark=self.mark,
            directory=str(self._directory),
            files={
                self.job_file.name: msgspec.json.encode(own),
                "exported.json": msgspec.json.encode(site.exported),
            },
            folders=tuple(map(str, self._folders)),
            argv=command.argv if command else (),
            environment=dict(command.environment) if command else {},
            launcher=job.launcher,
            ranks=tuple(rank for rank, its in enumerate(self._link_of) if its is link),
            # The parent's own deadline comes first, because it knows more.
            deadline_seconds=deadline_seconds + _ANSWER_SECONDS,
        )

    def _supervised(
        self, commands: Sequence[Command], deadline_seconds: float, on_tick: Callable[[], bool]
    ) -> Ending:
        """Start a launcher here, which starts its ranks by the remote shell."""
        path = write_remote_shell(self._site._carrier, self._here, self._site.hosts)  # noqa: SLF001
        made = [folder for folder in self._folders if _make(folder)]
        ours = [
            replace(
                command,
                environment={
                    **command.environment,
                    "PATH": f"{path}{os.pathsep}{command.environment['PATH']}",
                },
            )
            for command in commands
        ]
        try:
            return supervise(
                ours,
                name=self.mark,
                log=self.files.launcher_log,
                deadline_seconds=deadline_seconds,
                on_tick=on_tick,
            )
        finally:
            for folder in made:
                shutil.rmtree(folder, ignore_errors=True)

    def _watched(self, deadline_seconds: float, on_tick: Callable[[], bool]) -> Ending:
        """Watch the launchers that the agents have started."""
        began = time.monotonic()
        while True:
            seconds = time.monotonic() - began
            # Asked before it is looked: what came last must be seen.
            goes_on = on_tick()
            statuses = [link.ended.status for link in self._links if link.ended]
            failed = next((status for status in statuses if status != 0), 0)
            if failed != 0 or len(statuses) == len(self._links):
                return Ending(failed, seconds)
            if not goes_on or seconds > deadline_seconds:
                return Ending(None, seconds, timed_out=seconds > deadline_seconds)
            time.sleep(_POLL_SECONDS)

    def _end_all(self) -> HostError | None:
        """End the launch on every host, and wait until each has said so; return the first that does not."""
        lost: HostError | None = None
        waiting = [link for link in self._links if not link.ended]
        for link in waiting:
            link.end()
        until = time.monotonic() + _END_SECONDS
        while waiting and time.monotonic() < until:
            for link in list(waiting):
                try:
                    link.tick()
                except RingsideError as error:
                    waiting.remove(link)
                    if isinstance(error, HostError):
                        lost = lost or error
            waiting = [link for link in waiting if not link.ended]
            time.sleep(_POLL_SECONDS)
        if waiting and lost is None:
            lost = HostError(
                f"Host {waiting[0].host.name} did not end the launch within {_END_SECONDS:g} s.",
                remedy="Look for processes there whose environment names RINGSIDE_LAUNCH.",
            )
        return lost


def _require_ready(links: Sequence[Link]) -> None:
    """Wait for the first word of every agent, so that all hosts that cannot be used are named at once."""
    troubles: dict[str, HostError] = {}
    while waiting := [link for link in links if link.host.name not in troubles and link.ready is None]:
        for link in waiting:
            try:
                link.tick()
            except HostError as error:
                troubles[link.host.name] = error
        time.sleep(_POLL_SECONDS)
    if troubles:
        raise join_errors(list(troubles.values()), of=len(links))
    # Nobody was refused meanwhile.
    for link in links:
        link.tick()


def _tick_until(links: Sequence[Link], condition: Callable[[Link], bool]) -> None:
    """Keep up all links until each fulfils the condition; one that never will raises by itself."""
    until = time.monotonic() + START_SECONDS + _ANSWER_SECONDS
    while waiting := [link for link in links if not condition(link)]:
        if time.monotonic() > until:
            raise HostError(
                f"Host {waiting[0].host.name} does not answer.",
                found=f"Its agent is linked, and said nothing for {START_SECONDS + _ANSWER_SECONDS:g} s.",
                remedy="Is it overloaded, or its disk stuck? Look with `compare doctor`, or leave it out: "
                f"--exclude {waiting[0].host.name}.",
            )
        for link in links:
            link.tick()
        time.sleep(_POLL_SECONDS)


def _addresses_of(hosts: Sequence[Host]) -> list[str]:
    """Look up all hosts at once: a name server that does not answer is waited for once."""
    with ThreadPoolExecutor(max_workers=max(1, min(_LOOKUPS, len(hosts)))) as pool:
        return list(pool.map(_address_of, hosts))


def _address_of(host: Host) -> str:
    """Look a host's address up as the carrier would; nothing where only the carrier knows the name."""
    try:
        return socket.gethostbyname(host.name)
    except OSError:
        return ""


def _require_here(network: Network) -> None:
    """Insist that this machine is on the hosts' network: launchers that start here are called back.

    Raises:
        HostError: it is not.
    """
    mine = addresses().get(network.interface, [])
    if not any(in_network(address, network) for address in mine):
        raise HostError(
            f"This machine has no address on {network.interface} in {network.network}.",
            found=f"It has {', '.join(mine) or 'none'}; hosts call back where mpirun and horovodrun run.",
            remedy="Start on one of the hosts, name another --interface, or compare ddp and manual alone.",
        )


def _make(folder: Path) -> bool:
    """Make a folder here, unless this machine is one of the hosts and has it."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True
