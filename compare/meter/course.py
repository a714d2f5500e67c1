"""Measure blocks of a script's steps, with and without synchronising."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from compare.meter.by_hand import ByHand
from compare.meter.facts import Load, find_shortage, free_bytes, rank_facts
from compare.meter.found import class_of, copies_of, find_unswitchable, objects_of
from compare.meter.isolated import time_messages
from compare.meter.loaders import Loaders, Progress, find_iterators, shortest
from compare.meter.phases import Stopwatch, reading_clock
from compare.meter.plan import TRIES_PER_PAIR, block_steps, orders, steps_to_wait
from compare.meter.ranks import Ranks
from compare.meter.reads import noticing_reads
from compare.meter.recorder import Recorder
from compare.meter.scaler import counting_skipped, scalers
from compare.meter.state import State
from compare.meter.steps import Steps
from compare.meter.switches import find_ways
from compare.meter.ways import Way
from compare.schema.metered import Kind, MeteredBlock, MeteredRank, MeterSettings, Synchronised
from compare.text import counted, listed

_NUMBERS = itertools.count(1)
_PHASE_BLOCKS, _PHASE_STEPS = 2, 10


class StoppedError(Exception):
    """Measuring cannot begin or go on; the text says why, in a sentence."""


class _Edge(msgspec.Struct):
    """What a rank tells the others after a block."""

    step: int
    kind: Kind
    seconds: float
    cpu: float = 0.0
    busy: float = 0.0
    restoring: float = 0.0
    interrupted: str = ""
    failed: str = ""
    """Why this rank cannot take the block, which then begins on none."""
    progress: Progress = Progress()
    phases: dict[str, float] = {}


class _Arrival(msgspec.Struct):
    """What a rank tells the others before the first block."""

    step: int
    facts: MeteredRank
    settings: MeterSettings
    optimizers: list[str]
    synchronised: list[Synchronised]
    free_bytes: int
    refused: str = ""
    progress: Progress = Progress()


# Their fields are resolved while our modules can be found by their names, which the script may use itself.
_EDGES, _ARRIVALS = msgspec.json.Decoder(list[_Edge]), msgspec.json.Decoder(list[_Arrival])


class Course:
    """What is measured of a script, from its first step to the last block.

    It holds all that the meter keeps of the script: models, optimizers, and copies of their state. So the
    script's memory is as before once the course is dropped. ``skip`` counts a step that an optimizer skipped.

    Attributes:
        ranks: the ranks that train together, from the moment at which they meet.
        is_undoing: whether a block is open whose steps will be undone.
    """

    def __init__(
        self,
        settings: MeterSettings,
        recorder: Recorder,
        steps: Steps,
        skip: Callable[[Any], None],
    ) -> None:
        self._number = next(_NUMBERS)
        self._settings = settings
        self._recorder = recorder
        self._steps = steps
        self._skip = skip
        self.ranks: Ranks | None = None
        self.is_undoing = False
        self._state: State | None = None
        self._by_hand: list[ByHand] = []
        self._device = torch.device("cpu")
        self._stopwatch: Stopwatch | None = None
        self._interrupted = ""
        self._restored_at = -1

    # ---- what happens in a step ----

    def step_begins(self, optimizer: Any, *, is_first: bool) -> None:
        """Take note that an optimizer begins a step, which may be its first."""
        if self._stopwatch:
            self._stopwatch.mark("clipping")
        if is_first and self._state:
            self._state.add(optimizer)

    def step_ended(self) -> None:
        """Take note that an optimizer ended a step."""
        if self._stopwatch:
            self._stopwatch.mark("optimizer")

    def script_stepped(self) -> None:
        """Take note that a step of the script has ended."""
        for way in self._by_hand:
            if not way.step_ended():
                self._interrupted = "a step called all_reduce otherwise than one after the warm-up did"

    # ---- the course of measuring ----

    def run(self) -> Generator[int, None, None]:
        """Measure; each value that it yields is the number of the script's steps until it goes on.

        Raises:
            StoppedError: measuring cannot begin or go on.
            DisagreementError: ranks are at different steps, or cannot be compared.
        """
        yield 1
        self._refuse_unswitchable()  # also in a script that ends before the warm-up does
        yield max(1, self._settings.warmup - 1)
        self._steps.settle()
        yield 1
        self._refuse_unswitchable()
        optimizers = self._steps.optimizers
        ways = find_ways(optimizers)
        if not ways:
            raise StoppedError(
                "The ranks do not synchronise: no model is in DDP, no optimizer is Horovod's, and "
                "torch.distributed is not initialised."
            )
        self.ranks = ways[0].join(self._number)
        loaders = Loaders(find_iterators)
        with ExitStack() as stack:
            for way in ways:
                stack.enter_context(way.measuring())
            stack.enter_context(counting_skipped(self._steps.taken, self._skip))
            yield from self._learn(ways)
            progress = self._meet(self.ranks, ways, optimizers, loaders.progress(1))
            if self._settings.pairs:
                yield from self._pairs(self.ranks, ways, loaders, progress)
                self._recorder.complete_pairs()
                yield from self._phase_blocks(self.ranks, ways)
                self._time_alone(self.ranks, ways)

    def _learn(self, ways: Sequence[Way]) -> Iterator[int]:
        """Take one step in which calls by hand are seen."""
        by_hand = [way for way in ways if isinstance(way, ByHand)]
        for way in by_hand:
            way.begin_learning()
        yield 1
        for way in by_hand:
            way.end_learning()
        self._by_hand = by_hand

    def _refuse_unswitchable(self) -> None:
        """Raise StoppedError if something synchronises that cannot be switched off."""
        self._recorder.unswitched = find_unswitchable()
        if self._recorder.unswitched:
            names = ", ".join(one.name for one in self._recorder.unswitched)
            raise StoppedError(f"The synchronising of {names} cannot be switched off.")

    def _meet(
        self, ranks: Ranks, ways: Sequence[Way], optimizers: Sequence[Any], progress: Progress
    ) -> Progress:
        """Compare with the other ranks what was found, and begin the record; return the shortest progress.

        Raises:
            StoppedError: the ranks differ, or one of them cannot be measured.
        """
        models = [model for way in ways for model in way.models]
        averages = copies_of(models, objects_of(torch.nn.Module))
        self._state = State([*models, *averages], optimizers, scalers())
        self._device = _device_of(optimizers)
        # Of several groups of ranks, such as those with the same part of a model, one writes the record.
        writes = ranks.rank == 0 and self._recorder.is_first
        obstacles = [
            self._recorder.make_folder(ranks.size) if writes else "",
            *(way.obstacle for way in ways),
        ]
        arrival = _Arrival(
            step=self._steps.count,
            facts=rank_facts(ranks.rank, self._device, self._state.size_bytes),
            settings=self._settings,
            optimizers=[type(optimizer).__name__ for optimizer in optimizers],
            synchronised=[way.describe() for way in ways if not way.obstacle],
            free_bytes=free_bytes(self._device),
            refused=next(filter(None, obstacles), ""),
            progress=progress,
        )
        arrivals = msgspec.convert(ranks.exchange(arrival), list[_Arrival])
        if writes:
            self._recorder.begin(
                ranks=[one.facts for one in arrivals],
                backend=dist.get_backend() if dist.is_initialized() else "horovod",
                synchronised=arrival.synchronised,
                optimizers=arrival.optimizers,
            )
            if dist.is_initialized() and ranks.size < dist.get_world_size():
                self._recorder.note(
                    f"Its ranks are {listed(map(str, ranks.members))} of {dist.get_world_size()}, which "
                    "synchronise with each other. Other groups are not shown."
                )
        for rank, one in enumerate(arrivals):
            if one.refused:
                raise StoppedError(f"Rank {rank} cannot be measured: {one.refused}.")
            if _steps_of(one) != _steps_of(arrival):
                raise StoppedError(f"Rank {rank} takes other steps than rank {ranks.rank}.")
        if shortage := find_shortage([(one.facts, one.free_bytes) for one in arrivals]):
            raise StoppedError(shortage)
        return shortest(one.progress for one in arrivals)

    def _pairs(
        self, ranks: Ranks, ways: Sequence[Way], loaders: Loaders, progress: Progress
    ) -> Iterator[int]:
        """Measure all pairs, each within one epoch where the script's loaders show epochs."""
        settings = self._settings
        steps = block_steps(settings.block, progress.total)
        if steps < settings.block:
            self._recorder.note(
                f"Blocks have {counted(steps, 'step')}, because an epoch has {progress.total}."
            )
        order, complete, tries = orders(settings), 0, 0
        while complete < settings.pairs and tries < TRIES_PER_PAIR * settings.pairs:
            while wait := steps_to_wait(progress.left, steps, progress.total):
                yield wait
                progress = self._compare_progress(ranks, loaders, wait)
            before, discarded = self._steps.count, False
            for kind in next(order):
                edge = yield from self._block(kind, steps, ranks, ways)
                edge.progress = loaders.progress(self._steps.count - before)
                before = self._steps.count
                edges = self._agree(ranks, edge)
                progress = shortest(one.progress for one in edges)
                discarded |= self._record(tries, steps, edges)
            tries += 1
            complete += not discarded
        if complete < settings.pairs:
            raise StoppedError(f"Only {complete} of {counted(tries, 'pair')} could be used.")

    def _phase_blocks(self, ranks: Ranks, ways: Sequence[Way]) -> Iterator[int]:
        """Measure some blocks with hooks that read the clock within steps."""
        compiled = class_of("torch._dynamo.eval_frame", "OptimizedModule")
        if compiled and objects_of(compiled):
            self._recorder.note("Phases are not measured, because hooks would compile the model anew.")
            return
        for number in range(_PHASE_BLOCKS):
            stopwatch = self._stopwatch = Stopwatch(self._device)
            with ExitStack() as stack:
                for way in ways:
                    stack.enter_context(reading_clock(stopwatch, way.models))
                    stack.enter_context(way.marking_waits(stopwatch.mark))
                edge = yield from self._block("phases", _PHASE_STEPS, ranks, ways)
            self._stopwatch = None
            edge.phases = stopwatch.seconds(_PHASE_STEPS)
            self._record(number, _PHASE_STEPS, self._agree(ranks, edge))

    def _time_alone(self, ranks: Ranks, ways: Sequence[Way]) -> None:
        """Measure the all-reduces of a step without any computing."""
        if any(way.describe().settings.get("comm_hook") for way in ways):
            self._recorder.note("All-reduces were not timed alone, because the script's hook sends others.")
            return
        for number, seconds in enumerate(time_messages([way.start_messages for way in ways], _now)):
            self._record(number, 1, self._agree(ranks, _Edge(self._steps.count, "isolated", seconds)))

    def _compare_progress(self, ranks: Ranks, loaders: Loaders, waited: int) -> Progress:
        """Return the shortest progress of any rank, after a wait for the next epoch."""
        edge = _Edge(self._steps.count, "synchronised", 0.0, progress=loaders.progress(waited))
        return shortest(one.progress for one in self._agree(ranks, edge))

    def _keep(self, ranks: Ranks, edge: _Edge, state: State) -> None:
        """Keep the state, and wait for the other ranks, because no rank may take the block alone.

        Raises:
            StoppedError: one of the ranks failed to keep its state.
        """
        began = time.perf_counter()
        try:
            state.keep()
        except Exception as error:  # noqa: BLE001 -- mostly memory; all ranks must learn of it
            edge.failed = f"{error!r}"
        edge.restoring = time.perf_counter() - began
        for rank, one in enumerate(self._agree(ranks, edge)):
            if one.failed:
                raise StoppedError(f"Rank {rank} could not keep what is put back: {one.failed}.")

    def _block(
        self, kind: Kind, steps: int, ranks: Ranks, ways: Sequence[Way]
    ) -> Generator[int, None, _Edge]:
        """Take the steps of one block; return what this rank found, as a generator does."""
        state = self._state
        assert state  # noqa: S101 -- ``_meet`` made it
        edge = _Edge(self._steps.count, kind, 0.0)
        if kind in {"local", "aa"}:
            self._keep(ranks, edge, state)
            self.is_undoing = True
        self._interrupted, self._restored_at = "", -1
        try:
            for way in ways:
                way.switch(on=kind != "local")
            with noticing_reads(self._notice):
                yield 1
                load = Load()
                began = _now()
                if self._stopwatch:
                    self._stopwatch.clear()
                    self._stopwatch.mark("optimizer")
                yield steps
                edge.seconds = _now() - began
                edge.cpu, edge.busy = load.seconds()
        finally:
            for way in ways:
                way.switch(on=True)
            began = time.perf_counter()
            if self.is_undoing:
                state.put_back()
            self.is_undoing = False
            edge.restoring += time.perf_counter() - began
        edge.interrupted = self._interrupted
        return edge

    def _notice(self, what: str) -> None:
        """Let the script see the kept state, because it reads or evaluates its model within a block."""
        self._interrupted = what
        if self.is_undoing and self._restored_at != self._steps.count and self._state:
            self._restored_at = self._steps.count
            self._state.put_back()

    def _agree(self, ranks: Ranks, edge: _Edge) -> list[_Edge]:
        """Compare a block with the other ranks'.

        Raises:
            StoppedError: another rank was at another step.
        """
        edges = msgspec.convert(ranks.exchange(edge), list[_Edge])
        for rank, other in enumerate(edges):
            if (other.step, other.kind) != (edge.step, edge.kind):
                raise StoppedError(
                    f"Rank {rank} began a block at step {other.step}, rank {ranks.rank} at step {edge.step}."
                )
        return edges

    def _record(self, pair: int, steps: int, edges: Sequence[_Edge]) -> bool:
        """Write a block down; return whether it is discarded."""
        undone = edges[0].kind in {"local", "aa"}
        discarded = next((one.interrupted for one in edges if one.interrupted), "")
        block = MeteredBlock(
            kind=edges[0].kind,
            pair=pair,
            step=edges[0].step,
            steps=steps,
            seconds=[one.seconds for one in edges],
            phases=[one.phases for one in edges] if edges[0].phases else [],
            cpu_seconds=[one.cpu for one in edges],
            busy_seconds=[one.busy for one in edges],
            restoring_seconds=[one.restoring for one in edges] if undone else [],
            discarded=f"The script was busy otherwise: {discarded}." if discarded else "",
        )
        self._recorder.add(block, steps_so_far=self._steps.count, undone=steps + 1 if undone else 0)
        return bool(discarded)


def _now() -> float:
    """Return the time in seconds, after everything that was started on a GPU."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def _steps_of(arrival: _Arrival) -> tuple[Any, ...]:
    """Return what must be the same on all ranks."""
    return arrival.step, arrival.settings, arrival.optimizers, arrival.synchronised


def _device_of(optimizers: Sequence[Any]) -> torch.device:
    """Return where the first parameter is that an optimizer updates."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return next(parameter.device for group in groups for parameter in group["params"])
