"""Carry out one launch through the agents of its hosts, and collect exactly one result from every rank.

Every launch takes the same path. The agents make its folders and write its files. Then the agent of this
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
from typing import Any, TypeVar

import msgspec

from backends import BACKENDS
from backends.launchers import hydra
from backends.launchers.request import Command
from compare.errors import HostError, InterleaveError, OutputError, RingsideError
from compare.launch.agent.connection import Connection, LaunchLink
from compare.launch.agent.exchange import exchange_until
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
from compare.schema.job import Planned
from compare.schema.results import Launch, RankResult
from compare.schema.turns import Turn
from compare.system.clock import unix_time
from compare.system.files import executable_root, tail, write_json

RecordType = TypeVar("RecordType", Launch, SweepLaunch)
_END_SECONDS = 20.0
"""Maximum time for all agents to end a launch."""
_CUDA_BYTES = 3 << 29
"""GPU memory that CUDA and NCCL take in addition to a rank's tensors: 1.5 GiB.

On an H200 they took 1.2 GiB.
"""
_MPICH_FILES = "mpich_*"
"""Pattern of the names of MPICH's files in /dev/shm, which are needed only while a launch runs."""
_PORT_ERRORS = ("EADDRINUSE", "address already in use")
"""What launchers print if their port is in use."""


@dataclass(eq=False)
class LaunchSettings:
    """The settings that are the same for all launches which are alive side by side."""

    config: LaunchConfig
    directory: Path
    """The folder of the run."""
    cluster: Cluster
    observer: Observer
    make_job: MakeJob
    """Makes the job of each launch, which every rank reads."""
    budget_ends_at: float = math.inf
    """Unix time at which the run's budget ends."""
    in_turns: bool = False
    """Whether the ranks wait for their turns, because launches of a round take turns."""
    started_alone: bool = True
    """Whether no other launch starts at the same time."""


@dataclass(eq=False)
class RunningLaunch:
    """One launch of an arm on the hosts of a cluster, from its folder to the record of its results.

    The constructor makes the folder and prepares the launch. No rank starts before ``begin``.

    Raises:
        HostError: the first host was lost, or does not answer.
        OutputError: the launch's folder cannot be made.
        UnavailableError: the launcher is not installed.
    """

    settings: LaunchSettings
    planned: Planned

    def __post_init__(self) -> None:
        self.prepare()

    def prepare(self, *, restarted_because: str = "") -> None:
        """Prepare the launch, or its second start in other folders if ``restarted_because`` is a reason.

        Raises:
            RingsideError: the same errors as those of the constructor.
        """
        settings, planned, arm = self.settings, self.planned, self.planned.arm
        cluster = self._cluster = settings.cluster
        self.restarted_because = restarted_because
        self._began = self._ended = unix_time()
        self.waited_seconds = 0.0
        """Seconds in which this launch was waited for; the turns of other arms do not count."""
        self.files = launch_files(settings.directory, planned, again=bool(restarted_because))
        try:
            self.files.directory.mkdir(parents=True)
        except OSError as error:
            raise OutputError.unwritten(self.files.directory, error) from None
        self._folders = LaunchFolders(cluster, self.files, in_turns=settings.in_turns)
        plan = plan_launch(settings.config, planned, self._folders, cluster.free_port(), settings.make_job)
        self._job, self.commands = plan.job, plan.commands
        uses_mpich = arm.runtime.launcher == hydra.EXECUTABLE
        self._segments = Segments(_MPICH_FILES, time.time()) if uses_mpich else None
        agents = [agent for agent in cluster.agents for _ in range(agent.host.slots)]
        agents = agents[:1] if arm.traits.one_process else agents  # of each rank's host
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
        self.links: dict[Connection, LaunchLink] = {}
        """The launch on each host, by the connection to the host's agent."""
        for agent in cluster.all_agents:
            ranks = [rank for rank, of_rank in enumerate(agents) if of_rank is agent]
            self.links[agent] = agent.launch(self._folders.mark, ranks, self.monitor.note)
        write_json(self.files.commands, [list(command.argv) for command in self.commands])

    def begin(self) -> None:
        """Make the launch's folders on every host, and start its commands.

        A command that names no host is started by this machine's agent. Each host gets the job with its own
        CPUs, data set and clock. The caller must call ``end`` afterwards, also if this raises an error.

        Raises:
            HostError: a host was lost, or could not begin.
            OutputError: a file cannot be written.
            UnavailableError: a command could not be executed.
        """
        write_json(self.files.job, self._job)
        agents = {agent.host.name: agent for agent in self._cluster.agents}
        commands = {agents[c.host.name] if c.host else self._cluster.local_agent: c for c in self.commands}
        used = list(dict.fromkeys([*self._cluster.agents, *commands]))  # each once, in the order of hosts
        # A launcher may start ranks on other hosts at once: the folders there come first.
        self._begin([agent for agent in used if agent not in commands], commands)
        self._begin(list(commands), commands)

    def is_waiting(self) -> bool:
        """Return whether all ranks of the launch wait for their next turn."""
        return all(link.arrivals for link in self.links.values() if link.ranks)

    def step_seconds(self) -> float:
        """Return the longest time of a step, in seconds, that the waiting ranks reported on arrival."""
        return max(rank.step_seconds for link in self._links_with_ranks() for rank in link.arrivals)

    def require_memory_left(self, others: Sequence[RunningLaunch], arms: int) -> None:
        """Require that every host has memory for one more launch beside this one and ``others``, which wait.

        The next launch may need as much as the largest of those. ``arms`` is the number of launches that are
        to be alive in the end, which the error names.

        Raises:
            InterleaveError: a host, or one of its GPUs, has too little memory left.
        """
        agents = [link.agent for link in self._links_with_ranks()]
        # Hosts of a rehearsal share the memory of one machine.
        for group in [agents] if self._cluster.network.rehearsed else [[agent] for agent in agents]:
            link = self.links[group[0]]
            # A host whose ranks do not all wait adds nothing.
            waiting = [
                [arrival for agent in group for arrival in launch.links[agent].arrivals]
                for launch in (self, *others)
            ]
            needs = [sum(arrival.memory.peak_bytes for arrival in arrivals) for arrivals in waiting]
            took = f"{len(needs)} of them took {_in_gib(sum(needs))}. "
            limits = [("host", took, link.memory_left_bytes, max(needs))]
            if gpus := [left for a in link.arrivals if (left := a.memory.gpu_left_bytes) is not None]:
                peak = max(arrival.memory.gpu_peak_bytes for arrivals in waiting for arrival in arrivals)
                limits.append(("a GPU of host", "", min(gpus), peak + _CUDA_BYTES))
            for what, took, left, need in limits:
                if need > left:
                    raise InterleaveError(
                        f"{arms} arms side by side need more memory than {what} {link.agent.host.name} has.",
                        found=f"{took}{_in_gib(left)} is left, and another may need {_in_gib(need)}.",
                        remedy="Run one launch after another: --interleave launches.",
                    )

    def go(self, turn: Turn) -> None:
        """Send all ranks their turn, and return without waiting for its end."""
        for link in self._links_with_ranks():
            link.go(turn)

    def ending(self) -> Ending | None:
        """Return how the launchers of this launch ended; None while it is not decided.

        The failure of one launcher decides at once, but success needs all of them.
        """
        if not any(link.exited for link in self.links.values()):
            return None  # this is asked after every message of a host
        starters = [link for link in self.links.values() if link.order and link.order.argv]
        ended = [link.exited for link in starters if link.exited]
        if any(exited.abandoned for exited in ended):
            return Ending(None, abandoned=True)
        failed = next((exited.status for exited in ended if exited.status != 0), 0)
        return Ending(failed) if failed != 0 or len(ended) == len(starters) else None

    def ask_to_end(self) -> None:
        """Ask all agents to end the launch, without waiting for them."""
        for link in self.links.values():
            if link.order and not link.exited:
                link.end()

    def end(self) -> HostError | None:
        """End the launch on all hosts, and return the error of a host that was lost or did not answer.

        It returns None if all hosts ended the launch; then nothing of it is left on them. A lost host ends
        its ranks when their lease expires.
        """
        lost: dict[Connection, RingsideError] = {}
        asked = [link for link in self.links.values() if link.order]
        here = self.links[self._cluster.local_agent]
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
        self._ended = unix_time()
        errors = [*lost.values(), *(link.error for link in asked)]
        hosts = [error for error in errors if isinstance(error, HostError)]
        silent = [link.agent for link in asked if not (link.exited or link.agent in lost)]
        for agent in self.links:
            agent.launches.pop(self._folders.mark, None)
        if not hosts and silent:
            return HostError(
                f"Host {silent[0].host.name} did not end the launch within {_END_SECONDS:g} s.",
                remedy="Look there for processes with RINGSIDE_LAUNCH in their environment, and end them: "
                "grep -l RINGSIDE_LAUNCH /proc/[0-9]*/environ",
            )
        return hosts[0] if hosts else None

    def port_was_taken(self) -> bool:
        """Return whether a launcher failed because its port was in use.

        It did if its log says so, and no rank has written a progress record.
        """
        printed = "\n".join(tail(log, lines=200) for log in self.files.launcher_logs())
        return not self.monitor.progress and any(mark in printed for mark in _PORT_ERRORS)

    def conclude(self, kind: type[RecordType], ending: Ending = SUCCEEDED) -> RecordType:
        """Return the launch's record with the results of all ranks, or raise the root cause.

        Raises:
            RingsideError: see ``Monitor.conclude``.
        """
        where = f"{self.planned.label}, round {self.planned.round}"
        of_sweep = {"group": self.planned.group} if kind is SweepLaunch else {}
        ranks: list[Any] = self.monitor.conclude(where, ending, RankSweep if of_sweep else RankResult)
        set_by_launch = dict(self.commands[0].environment)
        of_libraries = library_settings(self._from_shell)
        return kind(
            number=self.planned.number,
            round=self.planned.round,
            arm=self.planned.arm.label,
            launcher=self.planned.arm.runtime.launcher,
            argv=[list(command.argv) for command in self.commands],
            environment=set_by_launch,
            inherited={name: value for name, value in of_libraries.items() if name not in set_by_launch},
            started_at=self._began,
            seconds=self._ended - self._began,
            started_alone=self.settings.started_alone,
            restarted_because=self.restarted_because,
            ranks=ranks,
            **of_sweep,
        )

    def _links_with_ranks(self) -> list[LaunchLink]:
        return [link for link in self.links.values() if link.ranks]

    def _begin(self, agents: Sequence[Connection], commands: Mapping[Connection, Command]) -> None:
        """Start the launch on the hosts of ``agents``, and wait until they have made its folders.

        ``commands`` holds the launcher's command for each agent that is to start one.
        """
        for agent in agents:
            self.links[agent].start(
                self._order(agent, commands.get(agent)), None if self._folders.in_place else self.files
            )
        self._cluster.wait(lambda: all(self.links[agent].started for agent in agents), agents)

    def _order(self, agent: Connection, command: Command | None) -> Start:
        """Return the message that makes one host's agent start the launch, and ``command`` if it is given."""
        cluster, folders = self._cluster, self._folders
        files = {str(folders.exported): msgspec.json.encode(cluster.exported)}
        if agent in cluster.agents and not folders.in_place:
            job = cluster.job_for(agent, self._job, self.links[agent].ranks)
            files[folders.job_file.name] = msgspec.json.encode(job)
        environment = dict(command.environment) if command else {}
        scratch = [str(folders.temporary), str(folders.shared_memory), *filter(None, [folders.turns])]
        programs: dict[str, bytes] = {}
        if command and command.host is None and not folders.in_place:
            at = executable_root() / folders.programs_name
            programs[str(at / REMOTE_SHELL)] = cluster.carrier.remote_shell(cluster.hosts).encode()
            environment["PATH"] = f"{at}{os.pathsep}{environment['PATH']}"
            scratch.append(str(at))
        return Start(
            directory=folders.mark,
            in_place=folders.in_place,
            files=files,
            programs=programs,
            folders=tuple(scratch),
            argv=command.argv if command else (),
            environment=environment,
            ranks=len(self.links[agent].ranks),
            turns=folders.turns,
            stops=BACKENDS[self.planned.arm.backend].runs_while_waiting,
            segments=self._segments.pattern if self._segments else "",
        )


def _in_gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
