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
from compare.meter.facts import Load, rank_facts
from compare.meter.found import class_of, copies_of, find_unswitchable, objects_of
from compare.meter.isolated import ROUNDS, time_messages
from compare.meter.loaders import Loaders, Progress, find_iterators
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
from compare.system.limits import memory_left_bytes
from compare.text import counted

_NUMBERS = itertools.count(1)
_PHASE_BLOCKS, _PHASE_STEPS = 2, 10
_ROOM = 1.2
"""How much memory must be free, as a multiple of what is kept."""


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
    progress: Progress = Progress()
    phases: dict[str, float] = {}


class _Arrival(msgspec.Struct):
    """What a rank tells the others before the first block."""

    step: int
    facts: MeteredRank
    settings: MeterSettings
    optimizers: list[str]
    synchronised: list[Synchronised]
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
            way.step_ended()

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
        arrival = _Arrival(
            step=self._steps.count,
            facts=rank_facts(ranks.rank, models, self._state.size_bytes),
            settings=self._settings,
            optimizers=[type(optimizer).__name__ for optimizer in optimizers],
            synchronised=[way.describe() for way in ways if not way.obstacle],
            refused=self._obstacle(ways),
            progress=progress,
        )
        arrivals = msgspec.convert(ranks.exchange(arrival), list[_Arrival])
        if ranks.rank == 0:
            self._recorder.begin(
                ranks=[one.facts for one in arrivals],
                backend=dist.get_backend() if dist.is_initialized() else "horovod",
                synchronised=arrival.synchronised,
                optimizers=arrival.optimizers,
            )
        for rank, one in enumerate(arrivals):
            if one.refused:
                raise StoppedError(f"Rank {rank} cannot be measured: {one.refused}.")
            mine = (arrival.step, arrival.settings, arrival.optimizers)
            if (one.step, one.settings, one.optimizers) != mine:
                raise StoppedError(f"Rank {rank} takes other steps than rank {ranks.rank}.")
        return _shortest(one.progress for one in arrivals)

    def _obstacle(self, ways: Sequence[Way]) -> str:
        """Return why this rank cannot be measured, or an empty text."""
        needed = self._state.size_bytes if self._state else 0
        free = _free_bytes(_device_of(ways))
        if needed * _ROOM > free:
            return f"what is put back has {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB of memory are free"
        return next(filter(None, (way.obstacle for way in ways)), "")

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
                edge = yield from self._block(kind, steps, ways)
                edge.progress = loaders.progress(self._steps.count - before)
                before = self._steps.count
                edges = self._agree(ranks, edge)
                progress = _shortest(one.progress for one in edges)
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
            stopwatch = self._stopwatch = Stopwatch(_device_of(ways))
            with ExitStack() as stack:
                for way in ways:
                    stack.enter_context(reading_clock(stopwatch, way.models))
                    stack.enter_context(way.marking_waits(stopwatch.mark))
                edge = yield from self._block("phases", _PHASE_STEPS, ways)
            self._stopwatch = None
            edge.phases = stopwatch.seconds(_PHASE_STEPS)
            self._record(number, _PHASE_STEPS, self._agree(ranks, edge))

    def _time_alone(self, ranks: Ranks, ways: Sequence[Way]) -> None:
        """Measure the all-reduces of a step without any computing."""
        seconds = time_messages([way.start_messages for way in ways], _now)
        self._record(0, ROUNDS, self._agree(ranks, _Edge(self._steps.count, "isolated", seconds)))

    def _compare_progress(self, ranks: Ranks, loaders: Loaders, waited: int) -> Progress:
        """Return the shortest progress of any rank, after a wait for the next epoch."""
        edge = _Edge(self._steps.count, "synchronised", 0.0, progress=loaders.progress(waited))
        return _shortest(one.progress for one in self._agree(ranks, edge))

    def _block(self, kind: Kind, steps: int, ways: Sequence[Way]) -> Generator[int, None, _Edge]:
        """Take the steps of one block; return what this rank found, as a generator does."""
        state = self._state
        assert state  # noqa: S101 -- ``_meet`` made it
        edge = _Edge(self._steps.count, kind, 0.0)
        self.is_undoing, self._interrupted, self._restored_at = kind in {"local", "aa"}, "", -1
        began = time.perf_counter()
        if self.is_undoing:
            state.keep()
        edge.restoring = time.perf_counter() - began
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


def _shortest(progress: Any) -> Progress:
    """Return the progress of the rank whose epoch ends first; without steps if no rank knows it."""
    known = [one for one in progress if one.left is not None]
    return min(known) if known else Progress()


def _now() -> float:
    """Return the time in seconds, after everything that was started on a GPU."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def _device_of(ways: Sequence[Way]) -> torch.device:
    """Return where the parameters of the first model are."""
    return next(parameter.device for way in ways for model in way.models for parameter in model.parameters())


def _free_bytes(device: torch.device) -> int:
    """Return the free memory of a device in bytes."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_left_bytes()
