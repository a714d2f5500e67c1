"""Carry out one launch through the agents of its hosts.

Every launch takes the same path. The agents make its folders and write its job. Then the agent of this
machine starts mpirun or horovodrun, or the agent of every host starts its torchrun. The agents renew the
lease of the ranks, send back the files, and end all processes.

A run on one machine has one agent, which works in the run's own folder. So it sends no files back, and
errors name paths that the user knows.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from backends import BACKENDS
from backends.launchers import hydra
from backends.launchers.request import Command
from compare.errors import HostError, InterleaveError, RingsideError
from compare.launch.agent.connection import Connection, LaunchLink, attend
from compare.launch.agent.protocol import Start, Turns
from compare.launch.cluster import Cluster
from compare.launch.host_facts import HostFacts
from compare.launch.processes import Ending, Segments, end_all
from compare.launch.signals import uninterrupted
from compare.schema.arms import Arm
from compare.schema.environment import EXPORTED, inherited, library_settings
from compare.schema.job import LaunchJob
from compare.schema.launch_files import LaunchFiles
from compare.schema.turns import Arrival, Turn
from compare.system.files import executable_root, temporary_root, write_json

_END_SECONDS = 20.0
"""Maximum time for all agents to end a launch."""
_NO_TIMEOUT = str(24 * 60 * 60)
"""A day in seconds, which stands for no limit: watchdogs and the lease end what hangs."""
_CUDA_BYTES = 3 << 29
"""GPU memory that CUDA and NCCL take in addition to a rank's tensors: 1.5 GiB.

On an H200 they took 1.2 GiB.
"""
_OF_MPICH = "mpich_*"
"""Pattern of MPICH's files in /dev/shm, which are needed only while the launch runs."""


class LaunchFolders:
    """The folders of one launch, which are the same on every host, and the variables that name them."""

    def __init__(self, hosts: HostFacts, files: LaunchFiles, *, in_turns: bool = False) -> None:
        """Choose the folders, without making them; with ``in_turns`` also one for the pipes of turns."""
        self.hosts = hosts
        """The hosts on which the launch runs."""
        self.files = files
        """The launch's files on this machine, which receive what the ranks on all hosts write."""
        self.in_place = hosts.is_this_machine
        """Whether the ranks work in the run's own folder."""
        name = f"ringside-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        root = temporary_root() if self.in_place else Path("/tmp")  # noqa: S108 -- agents insist on making it
        in_memory = Path("/dev/shm")  # noqa: S108 -- where POSIX shared memory is on Linux
        self._programs_name = f"{name}-programs"
        self._directory = files.directory if self.in_place else root / name
        self._temporary = root / f"{name}-tmp"
        has_memory = not self.in_place or os.access(in_memory, os.W_OK)
        self._shared_memory = (in_memory if has_memory else self._temporary) / name
        self._exported = self._temporary / "exported.json"
        self.turns = str(self._temporary / "turns") if in_turns else ""
        """Folder of the pipes for turns, the same path on every host; empty without turns."""
        self.job_file = self._directory / files.job.name
        """Path of the job's file, the same on every host."""
        self.mark = str(self._directory)
        """The launch's name: its folder's path, which all its processes have in their environment."""

    def settings(self) -> dict[str, str]:
        """Return the environment variables of this launch that are added to those of all arms."""
        settings = {
            "TMPDIR": str(self._temporary),
            # Open MPI's segments would survive a rank that was killed.
            "OMPI_MCA_btl_vader_backing_directory": str(self._shared_memory),
            EXPORTED: str(self._exported),
        }
        if self.turns:
            # A stopped Horovod over Gloo would take its peers for lost, by default after 30 s.
            settings["HOROVOD_GLOO_TIMEOUT_SECONDS"] = _NO_TIMEOUT
        if not self.in_place:
            # What your shell tells the libraries holds on every host; on this machine it is inherited.
            return library_settings(inherited(os.environ)) | settings
        if "OMPI_MCA_btl" not in os.environ:
            # Otherwise Open MPI's ranks would listen for peers on other hosts, on every address.
            settings["OMPI_MCA_btl"] = "^tcp"
        return settings


class LaunchPlace(LaunchFolders):
    """The folders and the agents of one launch of ``arm`` on the hosts of a cluster.

    Its name, ``mark``, differs from that of any other launch on these hosts. With ``in_turns``, it takes
    turns with other launches.
    """

    def __init__(self, cluster: Cluster, files: LaunchFiles, arm: Arm, *, in_turns: bool = False) -> None:
        super().__init__(cluster, files, in_turns=in_turns)
        self._cluster = cluster
        self._stops = BACKENDS[arm.backend].runs_while_waiting
        """Whether ranks that wait for their turn are stopped."""
        self._links = {agent: agent.launch(self.mark) for agent in cluster.attended}
        self._asked: list[LaunchLink] = []
        """The launch on each host that was asked to start it, in the order of asking."""
        self._starters: list[LaunchLink] = []
        """Those of ``_asked`` whose host starts a launcher."""
        self._made_here: list[str] = []
        """The folders that the agent of this machine was asked to make."""
        of_mpich = arm.runtime.launcher == hydra.EXECUTABLE
        self._segments = Segments(_OF_MPICH, time.time()) if of_mpich else None
        agent_of = [agent for agent in cluster.agents for _ in range(agent.host.slots)]
        self._agent_of = agent_of[:1] if arm.traits.one_process else agent_of
        """The agent of each rank's host."""
        self._with_ranks = [self._links[agent] for agent in dict.fromkeys(self._agent_of)]

    def begin(self, commands: Sequence[Command], job: LaunchJob) -> None:
        """Make the folders on every host, and start the commands.

        A command without a host is for this machine's agent. Each host gets the job with its own CPUs, data
        set and clock. Call ``end`` afterwards, also if this fails.

        Raises:
            HostError: a host was lost, or could not begin.
            OutputError: a file cannot be written.
            UnavailableError: a command could not be executed.
        """
        write_json(self.files.job, job)
        agents = {agent.host.name: agent for agent in self._cluster.agents}
        here = self._cluster.here
        own = {agents[c.host.name] if c.host else here: c for c in commands}
        used = list(dict.fromkeys([*self._cluster.agents, *own]))  # each once, in the order of hosts
        # A launcher may start ranks on other hosts at once: the folders there come first.
        self._begin([agent for agent in used if agent not in own], own, job)
        self._begin(list(own), own, job)

    def is_waiting(self) -> bool:
        """Return whether all ranks wait for their next turn."""
        return all(link.arrivals for link in self._with_ranks)

    def step_seconds(self) -> float:
        """Return the longest step time that the waiting ranks reported, in seconds."""
        return max(rank.step_seconds for link in self._with_ranks for rank in link.arrivals)

    def require_room(self, others: Sequence[LaunchPlace], arms: int) -> None:
        """Require that every host has memory for one more launch beside those that wait.

        The next launch may need as much as the largest of them, which are this one and ``others``. Errors
        name ``arms``, the number of launches that are to be alive in the end.

        Raises:
            InterleaveError: a host, or one of its GPUs, has too little memory left.
        """
        agents = [link.agent for link in self._with_ranks]
        # Hosts of a rehearsal share the memory of one machine.
        for group in [agents] if self.hosts.network.rehearsed else [[agent] for agent in agents]:
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
        for link in self._with_ranks:
            link.go(turn)

    def ending(self) -> Ending | None:
        """Return how the launchers ended, or None while they run.

        A failure of one launcher decides at once, but success needs all of them.
        """
        ended = [link.exited for link in self._starters if link.exited]
        if any(exited.abandoned for exited in ended):
            return Ending(None, abandoned=True)
        failed = next((exited.status for exited in ended if exited.status != 0), 0)
        return Ending(failed) if failed != 0 or len(ended) == len(self._starters) else None

    def ask_to_end(self) -> None:
        """Ask all agents to end the launch, without waiting for them."""
        for link in self._asked:
            if not link.exited:
                link.end()

    def end(self) -> HostError | None:
        """End the launch on all hosts, and return the error of a lost or unresponsive host; None without.

        Nothing of the launch is left on the other hosts. A lost host ends its ranks when their lease expires.
        """
        lost: dict[Connection, RingsideError] = {}
        self.ask_to_end()
        try:
            attend(
                self._cluster.attended,
                lambda: all(link.exited or link.agent in lost for link in self._asked),
                _END_SECONDS,
                lost=lost,
            )
        finally:
            if any(link.agent is self._cluster.here and not link.exited for link in self._asked):
                self._end_here()
        errors = [*lost.values(), *(link.error for link in self._asked)]
        hosts = [error for error in errors if isinstance(error, HostError)]
        silent = [link.agent for link in self._asked if not (link.exited or link.agent in lost)]
        for agent in self._links:
            agent.launches.pop(self.mark, None)
        if not hosts and silent:
            return HostError(
                f"Host {silent[0].host.name} did not end the launch within {_END_SECONDS:g} s.",
                remedy="Look there for processes with RINGSIDE_LAUNCH in their environment, and end them.",
            )
        return hosts[0] if hosts else None

    def host_of(self, rank: int) -> str:
        """Return the name of a rank's host, which for this machine alone is its hostname."""
        agent = self._agent_of[rank]
        return agent.ready.hostname if self.in_place and agent.ready else agent.host.name

    def clock_ahead_seconds(self, rank: int) -> float:
        """Return the seconds by which the clock of a rank's host is ahead of this machine's."""
        return self._agent_of[rank].clock_ahead_seconds

    def _begin(self, agents: Sequence[Connection], own: Mapping[Connection, Command], job: LaunchJob) -> None:
        """Start the launch on some hosts, and wait until they have made its folders."""
        for agent in agents:
            link, start = self._links[agent], self._message(agent, own.get(agent), job)
            self._asked.append(link)
            if start.argv:
                self._starters.append(link)
            if agent is self._cluster.here:
                self._made_here = [*start.folders, *([] if self.in_place else [start.directory])]
            ranks = frozenset(rank for rank, its in enumerate(self._agent_of) if its is agent)
            link.start(start, None if self.in_place else self.files, ranks)
        self._cluster.wait(lambda: all(self._links[agent].started for agent in agents), agents)

    def _message(self, agent: Connection, command: Command | None, job: LaunchJob) -> Start:
        cluster, ranks = self._cluster, self._agent_of.count(agent)
        files = {str(self._exported): msgspec.json.encode(cluster.exported)}
        if agent in cluster.agents and not self.in_place:
            files[self.job_file.name] = msgspec.json.encode(cluster.job_for(agent, job))
        environment = dict(command.environment) if command else {}
        folders = [str(self._temporary), str(self._shared_memory), *filter(None, [self.turns])]
        programs: dict[str, bytes] = {}
        if command and command.host is None and not self.in_place:
            at = executable_root() / self._programs_name
            shell = cluster.carrier.remote_shell(at, cluster.hosts)
            programs = {str(at / name): text.encode() for name, text in shell.items()}
            environment["PATH"] = f"{at / 'bin'}{os.pathsep}{environment['PATH']}"
            folders.append(str(at))
        return Start(
            directory=self.mark,
            in_place=self.in_place,
            files=files,
            programs=programs,
            folders=tuple(folders),
            argv=command.argv if command else (),
            environment=environment,
            turns=Turns(directory=self.turns, ranks=ranks, stops=self._stops)
            if self.turns and ranks
            else None,
            segments=self._segments.pattern if self._segments else "",
        )

    def _end_here(self) -> None:
        """End the launch on this machine without its agent.

        This is needed if the agent was killed, or if a second Ctrl-C ended the wait for it.
        """
        with uninterrupted():
            end_all(self.mark, segments=self._segments)
            for folder in self._made_here:
                shutil.rmtree(folder, ignore_errors=True)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
