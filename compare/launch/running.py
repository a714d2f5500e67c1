"""Carry out one launch through the agents of its hosts, and collect exactly one result from every rank.

Every launch takes the same path. The agents make its folders and write its job. Then the agent of this
machine starts mpirun or horovodrun, or the agent of every host starts its torchrun. The agents renew the
lease of the ranks, send back the files, and end all processes.

A run on one machine has one agent, which works in the run's own folder. So it sends no files back, and
errors name paths that the user knows.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from backends import BACKENDS
from backends.launchers import hydra
from backends.launchers.request import Command
from compare.errors import HostError, InterleaveError, OutputError, RingsideError
from compare.launch.agent.connection import Connection, LaunchLink, exchange_until
from compare.launch.agent.launch import clean_up
from compare.launch.agent.protocol import Start
from compare.launch.arm import LaunchFolders, MakeJob, Observer, launch_files, plan_launch
from compare.launch.circumstances import Circumstances, shell_settings
from compare.launch.cluster import Cluster
from compare.launch.engines import REMOTE_SHELL
from compare.launch.monitor import SUCCEEDED, Ending, Monitor
from compare.launch.processes import Segments
from compare.launch.signals import uninterrupted
from compare.schema.collectives import RankSweep, SweepLaunch
from compare.schema.config import LaunchConfig
from compare.schema.environment import library_settings
from compare.schema.job import Planned, read_progress
from compare.schema.results import Launch, RankResult
from compare.schema.turns import Arrival, Turn
from compare.system.clock import unix_time
from compare.system.files import executable_root, tail, write_json

_END_SECONDS = 20.0
"""Maximum time for all agents to end a launch."""
_CUDA_BYTES = 3 << 29
"""GPU memory that CUDA and NCCL take in addition to a rank's tensors: 1.5 GiB.

On an H200 they took 1.2 GiB.
"""
_OF_MPICH = "mpich_*"
"""Pattern of MPICH's files in /dev/shm, which are needed only while the launch runs."""
_PORT_ERRORS = ("EADDRINUSE", "address already in use")


@dataclass(eq=False)
class LaunchSettings:
    """What launches that are alive side by side have in common."""

    config: LaunchConfig
    directory: Path
    """The folder of the run."""
    cluster: Cluster
    observer: Observer
    make_job: MakeJob
    """Makes the job of each launch."""
    budget_ends_at: float = math.inf
    """Unix time at which the run's budget ends."""
    in_turns: bool = False
    """Whether the ranks wait for their turns, because launches of a round take turns."""
    started_alone: bool = True
    """Whether no other launch starts at the same time."""


@dataclass(eq=False)
class RunningLaunch:
    """One launch of an arm on the hosts of a cluster, from its folder to the record of its results.

    Making it makes the launch's folder, and prepares its job, commands and monitor. No rank starts before
    ``begin``.

    Raises:
        OutputError: the launch's folder cannot be made.
        UnavailableError: the launcher is not installed.
    """

    settings: LaunchSettings
    planned: Planned

    def __post_init__(self) -> None:
        self.prepare()

    def prepare(self, *, restarted_because: str = "") -> None:
        """Prepare the launch; with a reason, prepare its second start, in other folders.

        Raises:
            RingsideError: see the class.
        """
        settings, planned, arm = self.settings, self.planned, self.planned.arm
        cluster = self._cluster = settings.cluster
        self.restarted_because = restarted_because
        self._began = unix_time()
        self.waited_seconds = 0.0
        """Time in which the launch was waited for, without the turns of others."""
        self.files = launch_files(settings.directory, planned, again=bool(restarted_because))
        try:
            self.files.directory.mkdir(parents=True)
        except OSError as error:
            raise OutputError.unwritten(self.files.directory, error) from None
        self._folders = LaunchFolders(cluster, self.files, in_turns=settings.in_turns)
        self._job, self.commands = plan_launch(
            settings.config, planned, self._folders, cluster.free_port(), settings.make_job
        )
        of_mpich = arm.runtime.launcher == hydra.EXECUTABLE
        self._segments = Segments(_OF_MPICH, time.time()) if of_mpich else None
        agents = [agent for agent in cluster.agents for _ in range(agent.host.slots)]
        agents = agents[:1] if arm.traits.one_process else agents  # of each rank's host
        self._links: dict[Connection, LaunchLink] = {}
        for agent in cluster.all_agents:
            ranks = [rank for rank, of_rank in enumerate(agents) if of_rank is agent]
            self._links[agent] = agent.launch(self._folders.mark, ranks)
        self._from_shell = shell_settings(self.commands[0].environment)
        crowded = any(host.slots > n for host, n in zip(cluster.hosts, cluster.cores(), strict=True))
        self.monitor = Monitor(
            self.files,
            [a.ready.hostname if self._folders.in_place and a.ready else a.host.name for a in agents],
            settings.config.stall_seconds,
            clock_ahead_seconds=lambda rank: agents[rank].clock_ahead_seconds,
            oversubscribed=crowded and len(agents) > 1,
            circumstances=Circumstances(arm, self._from_shell, cluster.defects),
        )
        write_json(self.files.commands, [list(command.argv) for command in self.commands])

    def begin(self) -> None:
        """Make the folders on every host, and start the commands.

        A command without a host is for this machine's agent. Each host gets the job with its own CPUs, data
        set and clock. Call ``end`` afterwards, also if this fails.

        Raises:
            HostError: a host was lost, or could not begin.
            OutputError: a file cannot be written.
            UnavailableError: a command could not be executed.
        """
        write_json(self.files.job, self._job)
        agents = {agent.host.name: agent for agent in self._cluster.agents}
        own = {agents[c.host.name] if c.host else self._cluster.local_agent: c for c in self.commands}
        used = list(dict.fromkeys([*self._cluster.agents, *own]))  # each once, in the order of hosts
        # A launcher may start ranks on other hosts at once: the folders there come first.
        self._begin([agent for agent in used if agent not in own], own)
        self._begin(list(own), own)

    def is_waiting(self) -> bool:
        """Return whether all ranks wait for their next turn."""
        return all(link.arrivals for link in self._with_ranks())

    def step_seconds(self) -> float:
        """Return the longest step time that the waiting ranks reported, in seconds."""
        return max(rank.step_seconds for link in self._with_ranks() for rank in link.arrivals)

    def require_memory_left(self, others: Sequence[RunningLaunch], arms: int) -> None:
        """Require that every host has memory for one more launch beside those that wait.

        The next launch may need as much as the largest of them, which are this one and ``others``. Errors
        name ``arms``, the number of launches that are to be alive in the end.

        Raises:
            InterleaveError: a host, or one of its GPUs, has too little memory left.
        """
        agents = [link.agent for link in self._with_ranks()]
        # Hosts of a rehearsal share the memory of one machine.
        for group in [agents] if self._cluster.network.rehearsed else [[agent] for agent in agents]:
            link = self._links[group[0]]
            waiting = [one.waiting_on(group) for one in (self, *others)]
            needs = [sum(arrival.memory.peak_bytes for arrival in arrivals) for arrivals in waiting]
            took = f"{len(needs)} of them took {_gib(sum(needs))}. "
            rooms = [("host", took, link.memory_left_bytes, max(needs))]
            if gpus := [left for a in link.arrivals if (left := a.memory.gpu_left_bytes) is not None]:
                peak = max(arrival.memory.gpu_peak_bytes for arrivals in waiting for arrival in arrivals)
                rooms.append(("a GPU of host", "", min(gpus), peak + _CUDA_BYTES))
            for what, took, left, need in rooms:
                if need > left:
                    raise InterleaveError(
                        f"{arms} arms side by side need more memory than {what} {link.agent.host.name} has.",
                        found=f"{took}{_gib(left)} is left, and another may need {_gib(need)}.",
                        remedy="Run one launch after another: --interleave launches.",
                    )

    def waiting_on(self, agents: Sequence[Connection]) -> list[Arrival]:
        """Return the arrivals of the ranks that wait on the hosts of these agents; empty if none wait."""
        return [arrival for agent in agents for arrival in self._links[agent].arrivals]

    def go(self, turn: Turn) -> None:
        """Send all ranks their turn, without waiting for its end."""
        for link in self._with_ranks():
            link.go(turn)

    def ending(self) -> Ending | None:
        """Return how the launchers ended, or None while they run.

        A failure of one launcher decides at once, but success needs all of them.
        """
        starters = [link for link in self._links.values() if link.order and link.order.argv]
        ended = [link.exited for link in starters if link.exited]
        if any(exited.abandoned for exited in ended):
            return Ending(None, abandoned=True)
        failed = next((exited.status for exited in ended if exited.status != 0), 0)
        return Ending(failed) if failed != 0 or len(ended) == len(starters) else None

    def ask_to_end(self) -> None:
        """Ask all agents to end the launch, without waiting for them."""
        for link in self._links.values():
            if link.order and not link.exited:
                link.end()

    def end(self) -> HostError | None:
        """End the launch on all hosts, and return the error of a lost or unresponsive host; None without.

        Nothing of the launch is left on the other hosts. A lost host ends its ranks when their lease expires.
        """
        lost: dict[Connection, RingsideError] = {}
        asked = [link for link in self._links.values() if link.order]
        here = self._links[self._cluster.local_agent]
        self.ask_to_end()
        try:
            exchange_until(
                self._cluster.all_agents,
                lambda: all(link.exited or link.agent in lost for link in asked),
                _END_SECONDS,
                lost=lost,
            )
        finally:
            # The agent of this machine was killed, or a second Ctrl-C ended the wait for it.
            if here.order and not here.exited:
                with uninterrupted():
                    clean_up(here.order, self._segments)
        errors = [*lost.values(), *(link.error for link in asked)]
        hosts = [error for error in errors if isinstance(error, HostError)]
        silent = [link.agent for link in asked if not (link.exited or link.agent in lost)]
        for agent in self._links:
            agent.launches.pop(self._folders.mark, None)
        if not hosts and silent:
            return HostError(
                f"Host {silent[0].host.name} did not end the launch within {_END_SECONDS:g} s.",
                remedy="Look there for processes with RINGSIDE_LAUNCH in their environment, and end them.",
            )
        return hosts[0] if hosts else None

    def port_was_taken(self) -> bool:
        """Return whether a launcher failed because its port was in use.

        Its log must say so, and no rank may have written a progress record.
        """
        began = any(read_progress(self.files, rank) for rank in range(self._job.config.ranks))
        printed = "\n".join(tail(log, lines=200) for log in self.files.launcher_logs())
        return not began and any(mark in printed for mark in _PORT_ERRORS)

    def conclude(self, ending: Ending = SUCCEEDED) -> Launch:
        """Return the launch's record with the results of all ranks, or raise the root cause.

        Raises:
            RingsideError: see ``Monitor.conclude``.
        """
        return Launch(**self._record(ending, RankResult))

    def conclude_sweep(self) -> SweepLaunch:
        """Return the record of a sweep's launch with the results of all ranks, or raise the root cause.

        Raises:
            RingsideError: see ``Monitor.conclude``.
        """
        return SweepLaunch(**self._record(SUCCEEDED, RankSweep), group=self.planned.group)

    def _with_ranks(self) -> list[LaunchLink]:
        return [link for link in self._links.values() if link.ranks]

    def _begin(self, agents: Sequence[Connection], own: Mapping[Connection, Command]) -> None:
        """Start the launch on some hosts, and wait until they have made its folders."""
        for agent in agents:
            self._links[agent].start(
                self._order(agent, own.get(agent)), None if self._folders.in_place else self.files
            )
        self._cluster.wait(lambda: all(self._links[agent].started for agent in agents), agents)

    def _order(self, agent: Connection, command: Command | None) -> Start:
        """Return the order to start the launch, and a launcher if there is a ``command``, on one host."""
        cluster, folders = self._cluster, self._folders
        files = {str(folders.exported): msgspec.json.encode(cluster.exported)}
        if agent in cluster.agents and not folders.in_place:
            files[folders.job_file.name] = msgspec.json.encode(cluster.job_for(agent, self._job))
        environment = dict(command.environment) if command else {}
        made = [str(folders.temporary), str(folders.shared_memory), *filter(None, [folders.turns])]
        programs: dict[str, bytes] = {}
        if command and command.host is None and not folders.in_place:
            at = executable_root() / folders.programs_name
            programs[str(at / REMOTE_SHELL)] = cluster.carrier.remote_shell(cluster.hosts).encode()
            environment["PATH"] = f"{at}{os.pathsep}{environment['PATH']}"
            made.append(str(at))
        return Start(
            directory=folders.mark,
            in_place=folders.in_place,
            files=files,
            programs=programs,
            folders=tuple(made),
            argv=command.argv if command else (),
            environment=environment,
            ranks=len(self._links[agent].ranks),
            turns=folders.turns,
            stops=BACKENDS[self.planned.arm.backend].runs_while_waiting,
            segments=self._segments.pattern if self._segments else "",
        )

    def _record(self, ending: Ending, kind: type[RankResult | RankSweep]) -> dict[str, Any]:
        """Return the fields of ``LaunchRecord``, by their names, with the results of all ranks."""
        where = f"{self.planned.label}, round {self.planned.round}"
        ranks = self.monitor.conclude(where, ending, kind)
        set_here = dict(self.commands[0].environment)
        of_libraries = library_settings(self._from_shell)
        return {
            "number": self.planned.number,
            "round": self.planned.round,
            "arm": self.planned.arm.label,
            "launcher": self.planned.arm.runtime.launcher,
            "argv": [list(command.argv) for command in self.commands],
            "environment": set_here,
            "inherited": {name: value for name, value in of_libraries.items() if name not in set_here},
            "started_at": self._began,
            "seconds": unix_time() - self._began,
            "started_alone": self.settings.started_alone,
            "restarted_because": self.restarted_because,
            "ranks": ranks,
        }


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
