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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from backends import BACKENDS
from backends.launchers import hydra
from backends.launchers.request import Command
from compare.errors import HostError, InterleaveError, RingsideError
from compare.launch.agent.connection import Connection, LaunchLink, attend
from compare.launch.agent.protocol import Start, Turns
from compare.launch.processes import Ending, Segments, end_all
from compare.launch.signals import uninterrupted
from compare.schema.arms import Arm
from compare.schema.environment import EXPORTED, inherited, library_settings
from compare.schema.job import LaunchJob
from compare.schema.launch_files import LaunchFiles
from compare.schema.turns import Arrival, Turn
from compare.system.files import executable_root, temporary_root, write_json

if TYPE_CHECKING:
    from compare.launch.cluster import Cluster

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
TICK_SECONDS = 0.5
"""Time between two checks of the files of a launch.

Every check takes a core from a rank for a moment.
"""


class LaunchPlace:
    """The folders and the agents of one launch on the hosts of a cluster.

    Its name, ``mark``, differs from that of any other launch on these hosts.
    """

    def __init__(self, cluster: Cluster, files: LaunchFiles, *, in_turns: Arm | None = None) -> None:
        """Choose the folders of a launch, without making them.

        ``in_turns`` is the arm of a launch that takes turns with others, and None for any other launch.
        """
        self.files = files
        """The launch's files on this machine, which receive what the ranks on all hosts write."""
        self.cluster = cluster
        """The cluster on which the launch runs."""
        self._in_turns = in_turns
        self._asked: list[LaunchLink] = []
        """The launch on each host that was asked to start it, in the order of asking."""
        self._starters: list[LaunchLink] = []
        """Those of ``_asked`` whose host starts a launcher."""
        self._segments: Segments | None = None
        self._agent_of = [agent for agent in cluster.agents for _ in range(agent.host.slots)]
        in_place, name = cluster.is_this_machine, cluster.name_launch()
        on_disk = temporary_root() if in_place else Path("/tmp")  # noqa: S108 -- agents insist on making it
        in_memory = Path("/dev/shm")  # noqa: S108 -- where POSIX shared memory is on Linux
        self._directory = files.directory if in_place else on_disk / name
        self._temporary = on_disk / f"{name}-tmp"
        self._programs_name = f"{name}-programs"
        self._programs: Path | None = None
        shared = in_memory if not in_place or os.access(in_memory, os.W_OK) else self._temporary
        self._shared_memory = shared / name
        self._exported = self._temporary / "exported.json"
        self._pipes = self._temporary / "turns"
        self.turns = str(self._pipes) if in_turns else ""
        """Folder of the pipes for turns, the same path on every host; empty without turns."""
        self.job_file = self._directory / files.job.name
        """Path of the job's file, the same on every host."""
        self.mark = str(self._directory)
        """The launch's name: its folder's path, which all its processes have in their environment."""
        self._links = {agent: agent.launch(self.mark) for agent in cluster.agents}

    @property
    def programs(self) -> Path:
        """Return the folder where launchers find the programs with which they reach other hosts.

        It is chosen at the first call, because many launches need none.

        Raises:
            OutputError: no folder lets a program be executed.
        """
        self._programs = self._programs or executable_root() / self._programs_name
        return self._programs

    def settings(self) -> dict[str, str]:
        """Return the environment variables of this launch that are added to those of all arms."""
        return {
            # What your shell tells the libraries holds on every host; on this machine it is inherited.
            **({} if self.cluster.is_this_machine else library_settings(inherited(os.environ))),
            "TMPDIR": str(self._temporary),
            # Open MPI's segments would survive a rank that was killed.
            "OMPI_MCA_btl_vader_backing_directory": str(self._shared_memory),
            **self._without_listeners(),
            EXPORTED: str(self._exported),
            # A stopped Horovod over Gloo would take its peers for lost, by default after 30 s.
            **({"HOROVOD_GLOO_TIMEOUT_SECONDS": _NO_TIMEOUT} if self._in_turns else {}),
        }

    def _without_listeners(self) -> dict[str, str]:
        """Return the variable that keeps Open MPI's ranks from listening for peers on other hosts.

        Without it, they would listen on every address. The result is empty if there are other hosts, or if
        the user's shell sets the variable.
        """
        listens = self.cluster.network.network or "OMPI_MCA_btl" in os.environ
        return {} if listens else {"OMPI_MCA_btl": "^tcp"}

    def _scratch(self) -> tuple[Path, ...]:
        """Return the folders that are removed after the launch."""
        mirrored = () if self.cluster.is_this_machine else (self._directory,)
        return (*mirrored, self._temporary, self._shared_memory, *filter(None, [self._programs]))

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
        if job.arm.runtime.launcher == hydra.EXECUTABLE:
            self._segments = Segments(_OF_MPICH, time.time())
        own = {self.cluster.agent_for(command.host): command for command in commands}
        used = list(dict.fromkeys([*self.cluster.agents, *own]))  # each once, in the order of hosts
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
        indices = range(len(self._with_ranks))
        # Hosts of a rehearsal share the memory of one machine.
        for own in [indices] if self.cluster.network.rehearsed else [[index] for index in indices]:
            link = self._with_ranks[own[0]]
            waiting = [[a for index in own for a in one.waiting_on(index)] for one in [self, *others]]
            needs = [sum(arrival.memory.peak_bytes for arrival in arrivals) for arrivals in waiting]
            left, need = link.memory_left_bytes, max(needs)
            if need > left:
                raise InterleaveError(
                    f"{arms} arms side by side need more memory than host {link.agent.host.name} has.",
                    found=f"{len(needs)} took {_gib(sum(needs))}; {_gib(left)} is left, and another may need "
                    f"{_gib(need)}.",
                    remedy="Run one launch after another: --interleave launches.",
                )
            _require_gpu_room(link, [a for arrivals in waiting for a in arrivals], arms)

    def waiting_on(self, index: int) -> list[Arrival]:
        """Return the arrivals of the ranks that wait on one host; empty if none wait.

        ``index`` counts from 0 the hosts on which the launch has ranks.
        """
        links = self._with_ranks
        return links[index].arrivals if index < len(links) else []

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
                self.cluster.attended,
                lambda: all(link.exited or link.agent in lost for link in self._asked),
                _END_SECONDS,
                lost=lost,
            )
        finally:
            if any(link.agent is self.cluster.here and not link.exited for link in self._asked):
                self._end_here()
        errors = [*lost.values(), *(link.error for link in self._asked)]
        hosts = [error for error in errors if isinstance(error, HostError)]
        silent = [link.agent for link in self._asked if not (link.exited or link.agent in lost)]
        for agent in self._links:
            agent.launches.pop(self.mark, None)
        if not hosts and silent:
            return HostError(
                f"Host {silent[0].host.name} did not end the launch within {_END_SECONDS:g} s.",
                remedy="Look for processes there whose environment names RINGSIDE_LAUNCH.",
            )
        return hosts[0] if hosts else None

    def host_of(self, rank: int) -> str:
        """Return the name of a rank's host, which for this machine alone is its hostname."""
        agent = self._agent_of[rank]
        return agent.ready.hostname if self.cluster.is_this_machine and agent.ready else agent.host.name

    def clock_ahead_seconds(self, rank: int) -> float:
        """Return the seconds by which the clock of a rank's host is ahead of this machine's."""
        return self._agent_of[rank].clock_ahead_seconds

    def _begin(
        self,
        agents: Sequence[Connection],
        own: Mapping[Connection, Command],
        job: LaunchJob,
    ) -> None:
        """Start the launch on some hosts, and wait until they have made its folders."""
        mirrored = None if self.cluster.is_this_machine else self.files
        for agent in agents:
            if agent not in self._links:  # this machine's, which has no ranks
                self._links[agent] = agent.launch(self.mark)
            link = self._links[agent]
            self._asked.append(link)
            if agent in own:
                self._starters.append(link)
            ranks = frozenset(rank for rank, its in enumerate(self._agent_of) if its is agent)
            link.start(self._message(agent, own.get(agent), job), mirrored, ranks)
        self.cluster.wait(lambda: all(self._links[agent].started for agent in agents), agents)

    def _message(self, agent: Connection, command: Command | None, job: LaunchJob) -> Start:
        cluster = self.cluster
        files = {str(self._exported): msgspec.json.encode(cluster.exported)}
        if agent in cluster.agents and not cluster.is_this_machine:
            files[self.job_file.name] = msgspec.json.encode(cluster.job_for(agent, job))
        environment = dict(command.environment) if command else {}
        folders = [self._temporary, self._shared_memory, *([self._pipes] if self.turns else [])]
        programs: dict[str, bytes] = {}
        if not cluster.is_this_machine and command and command.host is None:
            at = self.programs
            programs = {str(at / name): text.encode() for name, text in cluster.remote_shell(at).items()}
            environment["PATH"] = f"{at / 'bin'}{os.pathsep}{environment['PATH']}"
            folders.append(at)
        return Start(
            directory=self.mark,
            in_place=cluster.is_this_machine,
            files=files,
            programs=programs,
            folders=tuple(map(str, folders)),
            argv=command.argv if command else (),
            environment=environment,
            turns=self._turns_on(agent),
            segments=self._segments.pattern if self._segments else "",
        )

    def _turns_on(self, agent: Connection) -> Turns | None:
        """Return how the ranks of a host wait for their turns; None if they take no turns."""
        ranks, arm = self._ranks_on(agent), self._in_turns
        if arm is None or not ranks:
            return None
        return Turns(directory=self.turns, ranks=ranks, stops=BACKENDS[arm.backend].runs_while_waiting)

    def _ranks_on(self, agent: Connection) -> int:
        if agent not in self.cluster.agents:
            return 0
        if self._in_turns and self._in_turns.traits.one_process:
            return int(agent is self.cluster.agents[0])
        return agent.host.slots

    @property
    def _with_ranks(self) -> list[LaunchLink]:
        return [self._links[agent] for agent in self.cluster.agents if self._ranks_on(agent)]

    def _end_here(self) -> None:
        """End the launch on this machine without its agent.

        This is needed if the agent was killed, or if a second Ctrl-C ended the wait for it.
        """
        with uninterrupted():
            end_all(self.mark, segments=self._segments)
            for folder in self._scratch():
                shutil.rmtree(folder, ignore_errors=True)


def _require_gpu_room(link: LaunchLink, waiting: Sequence[Arrival], arms: int) -> None:
    """Require that the GPUs of a host have memory for one more launch beside those that wait.

    Raises:
        InterleaveError: a GPU has too little memory left.
    """
    own = [arrival.memory.gpu_left_bytes for arrival in link.arrivals]
    left = min((size for size in own if size is not None), default=None)
    need = max(arrival.memory.gpu_peak_bytes for arrival in waiting) + _CUDA_BYTES
    if left is not None and need > left:
        raise InterleaveError(
            f"{arms} arms side by side need more memory than a GPU of host {link.agent.host.name} has.",
            found=f"{_gib(left)} is left, and another may need {_gib(need)}.",
            remedy="Run one launch after another: --interleave launches.",
        )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
