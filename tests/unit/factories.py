"""Build results as a run would have measured them.

Every builder takes what its test is about and fills in the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from backends import BACKENDS
from compare.data import DatasetSource
from compare.doctor.availability import Availability, Survey
from compare.doctor.facts import Library
from compare.launch.agent.protocol import Exited, Ready
from compare.launch.cluster import Cluster
from compare.launch.engines import Carrier
from compare.schema.arms import parse_arms
from compare.schema.config import RunConfig
from compare.schema.hosts import Host, Network, local_host
from compare.schema.parity import ParityPass
from compare.schema.results import Block, Evaluation, Launch, MachineUse, Moments, RankResult, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compare.schema.results import Mode

INITIAL = "0" * 64
TRAINED = "abcdef0123456789" * 4

MNIST = DatasetSource(name="mnist", requested="auto", directory="/data/MNIST/raw")
DIGITS = DatasetSource(
    name="digits",
    requested="auto",
    directory="/data/digits/v1",
    note="MNIST is not available (no network): scikit-learn's digits instead",
)


def a_config(arms: str = "none,ddp", **changes: Any) -> RunConfig:
    """Return a valid config; the first arm with communication is the baseline."""
    parsed = parse_arms([arms])
    first = next((arm.label for arm in parsed if arm.backend != "none"), "none")
    return RunConfig(**{"arms": parsed, "baseline": first, "steps": 100, "warmup_steps": 10} | changes)


def a_survey(
    *,
    gpus: int = 0,
    missing: Sequence[str] = (),
    controllers: Sequence[str] = ("gloo", "mpi"),
    has_mpich: bool = False,
) -> Survey:
    """Return what can run here; the missing backends cannot."""
    backends = {
        name: Availability(
            backend=name,
            launcher=backend.default_runtime.launcher,
            problem=f"{'mpi4py' if name == 'mpi' else name} is not installed" if name in missing else "",
            remedy=backend.default_runtime.install if name in missing else "",
        )
        for name, backend in BACKENDS.items()
    }
    facts = {"torch": {"gpus": gpus}, "horovod": {"controllers": list(controllers)}, "mpi4py": {}}
    mpich = Availability(
        backend="mpi:library=mpich",
        launcher="mpiexec.hydra",
        problem="" if has_mpich else "mpich is not installed",
        remedy="" if has_mpich else "ringside setup mpich",
    )
    return Survey(
        backends, {name: Library(facts=found) for name, found in facts.items()}, {mpich.backend: mpich}
    )


class AnAgent:
    """A connection to no agent, and the launch in it, which exits with a given status."""

    def __init__(
        self, slots: int = 2, cpus: Sequence[int] = (0,), status: int | None = 1, host: Host | None = None
    ) -> None:
        self.host = host or local_host(slots)
        self.ready = Ready(hostname="here", version="", cpus=list(cpus), memory_left_bytes=1 << 40)
        self.agent = self.pipe = self
        self.launches: dict[str, Any] = {}
        self.ranks: Sequence[int] = ()
        self.order: Any = None
        self.error = None
        self.port: int | None = None
        self.started = False
        self.exited: Exited | None = None
        self.clock_ahead_seconds = 0.0
        self.told_to_end = False
        self.on_begin = lambda _order: None
        self._status = status

    def exit_at_once(self, status: int) -> None:
        self._status = status

    def exit(self, status: int | None, *, abandoned: bool = False) -> None:
        self.exited = Exited(status=status, abandoned=abandoned)

    def launch(self, _name: str, ranks: Sequence[int], _on_news: Any) -> AnAgent:
        self.ranks = ranks
        return self

    def start(self, order: Any, _files: Any) -> None:
        self.order = order
        self.on_begin(order)
        self.started = True
        if self._status is not None:
            self.exit(self._status)

    def end(self) -> None:
        self.told_to_end = True
        self.exit(None)

    def find_port(self) -> None:
        self.port = 29_999

    def attend(self) -> None:
        """Send no message."""

    def waits_for(self) -> list[tuple[int, int]]:
        return []


def a_cluster(slots: int = 2, cpus: Sequence[int] = (0,), agent: Any = None) -> Cluster:
    """This machine as the only host, without a process."""
    agent = agent or AnAgent(slots, cpus)
    return cluster_of([agent], agent)


def cluster_of(agents: list[Any], here: Any, **changes: Any) -> Cluster:
    """The hosts of some agents, without a process."""
    facts = {"hosts": tuple(agent.host for agent in agents), "machines": [agent.ready for agent in agents]}
    facts |= {"network": Network(), "exported": {}, "this_machine": here.ready, "carrier": Carrier()}
    return Cluster(agents=agents, local_agent=here, **facts | changes)


def a_block(milliseconds: float, **changes: Any) -> Block:
    """A block of 30 steps that took ``milliseconds`` each."""
    nanoseconds = round(milliseconds * 30e6)
    return Block(**{"steps": 30, "wall_ns": nanoseconds, "cpu_ns": nanoseconds} | changes)


def a_pass(**changes: Any) -> ParityPass:
    """Rank 0's float64 pass of a strategy that is right."""
    fields: dict[str, Any] = {
        "kind": "float64",
        "steps": 20,
        "samples_per_rank": 4,
        "optimizer": "sgd",
        "learning_rate": 0.01,
        "hash": TRAINED,
        "share_of_first_update": 1.0,
        "error_of_first_update": 0.0,
        "error_of_whole_update": 0.0,
        "differences": [2e-16] * 20,
        "seconds": 0.25,
    }
    return ParityPass(**fields | changes)


def a_phased_block(mode: Mode = "training", **milliseconds: list[float]) -> Block:
    """Return a block with the milliseconds of each phase in every step."""
    phases = {name: [round(time * 1e6) for time in times] for name, times in milliseconds.items()}
    nanoseconds = sum(map(sum, phases.values()))
    steps = len(next(iter(phases.values())))
    return Block(mode=mode, steps=steps, wall_ns=nanoseconds, cpu_ns=nanoseconds, phases=phases)


def a_rank(
    rank: int = 0,
    *,
    milliseconds: float | list[float] = 10.0,
    reference: float | Sequence[float] = (),
    **changes: Any,
) -> RankResult:
    """Return a rank's result with a block for every step time."""
    times, others = _list(milliseconds), _list(reference)
    fields: dict[str, Any] = {
        "rank": rank,
        "local_rank": rank,
        "host": "localhost",
        "pid": 4000 + rank,
        "blocks": [a_block(time) for time in times] + [a_block(time, mode="reference") for time in others],
        "initial_hash": INITIAL,
        "final_hash": TRAINED,
        "evaluation": Evaluation(correct=4_900, samples=5_000, loss_sum=500.0),
        "peak_memory_bytes": 200 << 20,
        "whole_peak_memory_bytes": 300 << 20,
        "peak_device_memory_bytes": None,
        "gradient_bytes": 814_120,
        "gradient_tensors": 4,
        "message_bytes": [814_120],
        "collective_ns": [200_000, 210_000, 220_000],
        "cpu_ns": sum(round(time * 30e6) for time in [*times, *others]),
        "machine": None,
        "moments": Moments(1.0, 1.5, 2.0, 2.25, 2.5),
        "parity": [a_pass(differences=[2e-16] * (1 if rank else 20))],
        "attestation": {"group": {"transport": "TCP over lo"}, "threads": 1},
    }
    return RankResult(**fields | changes)


def _list(times: float | Sequence[float]) -> list[float]:
    return [times] if isinstance(times, int | float) else list(times)


def a_launch(
    arm: str = "ddp", round_: int = 1, *, ranks: list[RankResult] | None = None, **changes: Any
) -> Launch:
    """One launch; two ranks unless they are given."""
    fields: dict[str, Any] = {
        "number": round_,
        "round": round_,
        "arm": arm,
        "launcher": "torchrun",
        "argv": [["torchrun", "--module", "compare.worker"]],
        "environment": {"OMP_NUM_THREADS": "1"},
        "started_at": 1_700_000_000.0,
        "seconds": 12.5,
        "ranks": [a_rank(0), a_rank(1)] if ranks is None else ranks,
    }
    return Launch(**fields | changes)


def a_run(
    milliseconds: dict[str, list[float]] | None = None,
    *,
    config: dict[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """Return a run from the step times of all arms and rounds.

    A shorter list is a run that was stopped.
    """
    if milliseconds is None:
        milliseconds = {"none": [4.0, 4.0, 4.0], "ddp": [5.0, 5.1, 5.2]}
    launches = [
        a_launch(arm, round_, ranks=[a_rank(rank, milliseconds=time) for rank in range(2)])
        for arm, times in milliseconds.items()
        for round_, time in enumerate(times, start=1)
    ]
    settled = a_config(",".join(milliseconds), **config or {})
    fields: dict[str, Any] = {
        "ringside_version": "0.1.0",
        "started_at": "2026-11-21T09:00:00+00:00",
        "command": ["ringside", "run"],
        "config": settled,
        "dataset": MNIST,
        "hosts": [Host("localhost", settled.ranks)],
        "cores": 2,
        "launches": launches,
        "complete": True,
    }
    return Run(**fields | changes)


def noisy(run: Run, *rounds: int) -> Run:
    """Return the run with other processes on both CPUs in these rounds."""
    busy = MachineUse(wall_ns=10**9, cpus=2, busy_ns=2 * 10**9, stolen_ns=0)
    launches = [
        msgspec.structs.replace(
            launch,
            ranks=[msgspec.structs.replace(rank, cpu_ns=0, machine=busy) for rank in launch.ranks],
        )
        if launch.round in rounds
        else launch
        for launch in run.launches
    ]
    return msgspec.structs.replace(run, launches=launches)


def beside(run, cpus=2, **cores):
    """Return the run with that other load beside each arm, in every round or in each."""

    def use(launch):
        own = cores[launch.arm]
        busy = own[launch.round - 1] if isinstance(own, list) else own
        machine = MachineUse(wall_ns=10**9, cpus=cpus, busy_ns=round(busy * 1e9), stolen_ns=0)
        ranks = [msgspec.structs.replace(rank, cpu_ns=0, machine=machine) for rank in launch.ranks]
        return msgspec.structs.replace(launch, ranks=ranks)

    return msgspec.structs.replace(run, launches=[use(launch) for launch in run.launches])
