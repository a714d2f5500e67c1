"""Measure what an arm loses among stopped neighbours.

``python -m tests.bench.neighbours FOLDER --rounds 24`` measures one arm a round: alone, among them, and alone
again. It prints each arm's step among stopped neighbours over its step alone. These are half a minute apart,
and a machine may change meanwhile. So among them, the arm takes two turns after each turn of a neighbour. The
first over the second is what that turn costs the arm. Then it prints the time of a turn beside its steps.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

from compare.analysis.figures import LaunchFigures
from compare.experiment import rounds
from compare.experiment.schedule import LEAD_SECONDS, TURN_SECONDS
from compare.launch.launches import Cohort
from compare.schema.store import read_run
from compare.schema.turns import GO_ON, PlannedTurn
from tests.bench.estimate import estimate
from tests.comparing import find_mnist

ARMS = "none,ddp,manual,manual:mode=shared_memory,horovod,mpi"
_ALONE = 6
"""Turns of the first part, and of the third."""
_AMONG = 12
"""Turns of the neighbours in the second part."""
_FIRST = 1
_SECOND = _FIRST + _ALONE
_THIRD = _SECOND + 2 * _AMONG
_END = _THIRD + _ALONE
"""Numbers of its turns: where each part begins, and one after all."""
_COSTS = "turns.jsonl"


class AmongNeighbours(Cohort):
    """A cohort in which one arm begins and ends alone.

    The rounds take the arms by turns. All other arms start, take turns with it, and finish, in between.
    """

    def carry_out(self, planned, turns):  # noqa: ARG002 -- the turns here are others
        own = (planned[0].round - 1) % len(planned)
        try:
            alone = self._joined(planned[own])
            for number in range(_FIRST, _SECOND):
                self._take_timed(alone, number)
            neighbours = [self._joined(one) for index, one in enumerate(planned) if index != own]
            for index, number in enumerate(range(_SECOND, _THIRD, 2)):
                before, other = divmod(index, len(neighbours))
                self._take(neighbours[other], _turn(1 + before))
                self._take_timed(alone, number)
                self._take_timed(alone, number + 1)
            finished = {launch.planned.number: self._left(launch) for launch in neighbours}
            for number in range(_THIRD, _END):
                self._take_timed(alone, number)
            finished[alone.planned.number] = self._left(alone)
            return [finished[one.number] for one in planned]
        finally:
            self.end_all()

    def _joined(self, planned):
        launch = self.start(planned)
        self.wait_for_turn(launch)
        self._go(launch, GO_ON)
        return launch

    def _left(self, launch):
        self._go(launch, GO_ON)
        launch.place.go(GO_ON)
        self.finish(launch)
        return launch.conclude()

    def _take_timed(self, alone, number):
        began = time.perf_counter()
        self._take(alone, _turn(number))
        entry = {"launch": alone.planned.number, "turn": number, "seconds": time.perf_counter() - began}
        with (self._directory / _COSTS).open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _turn(number):
    return PlannedTurn(arm=0, number=number, seconds=TURN_SECONDS, lead_seconds=LEAD_SECONDS)


def main():
    parser = argparse.ArgumentParser(description="Measure what stopped neighbours cost.")
    parser.add_argument("folder", type=Path, help="folder of the run; an existing one is only read")
    parser.add_argument("--rounds", type=int, default=24, help="each takes 80 s")
    given = parser.parse_args()
    if not given.folder.exists():
        _measure(given)
    for line in summary(given.folder):
        print(line)


def _measure(given):
    from compare.cli.main import app

    data_dir = find_mnist() or sys.exit("MNIST is missing: compare data fetch --data-dir data")
    rounds.Cohort = AmongNeighbours
    command = ["run", "--backend", ARMS, "--interleave", "blocks", "--repeats", given.rounds]
    command += ["--data-dir", data_dir, "--output", given.folder]
    app(list(map(str, command)), prog_name="compare", standalone_mode=False)


def summary(folder):
    """Return a line for each arm, for all, and for the turns."""
    run = read_run(folder)
    by_number = {launch.number: launch for launch in run.launches}
    entries = [json.loads(line) for line in (folder / _COSTS).read_text().splitlines()]
    launches = [by_number[number] for number in sorted({e["launch"] for e in entries} & set(by_number))]
    lines = []
    for what, ratio in (("among over alone", _among_over_alone), ("after a neighbour", _after_a_neighbour)):
        ratios = {}
        for launch in launches:
            ratios.setdefault(launch.arm, []).append(ratio(LaunchFigures(launch).turns))
        lines += [_line(f"{what}, {arm}", found) for arm, found in sorted(ratios.items())]
        lines.append(_line(f"{what}, all arms", [each for found in ratios.values() for each in found]))
    costs = [_cost(by_number[e["launch"]], e) for e in entries if e["launch"] in by_number]
    low, middle, high = statistics.quantiles(1e3 * cost for cost in costs)
    return [*lines, f"a turn costs {middle:.1f} ms beside its steps; half of all {low:.1f} to {high:.1f} ms"]


def _among_over_alone(turns):
    """Return the ratio of the second part to the first and third."""
    alone = _mean(turns, range(_FIRST, _SECOND)), _mean(turns, range(_THIRD, _END))
    return math.exp(_mean(turns, range(_SECOND, _THIRD, 2)) - sum(alone) / 2)


def _after_a_neighbour(turns):
    """Return the ratio of turns after a neighbour's to others."""
    return math.exp(_mean(turns, range(_SECOND, _THIRD, 2)) - _mean(turns, range(_SECOND + 1, _THIRD, 2)))


def _mean(turns, numbers):
    return statistics.fmean(math.log(turns[number].seconds) for number in numbers)


def _line(name, ratios):
    if len(ratios) < 2:
        return f"{name}: {', '.join(f'{ratio:.3f}' for ratio in ratios)}"
    found = estimate(ratios)
    return f"{name}: {found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}], {found.n} launches"


def _cost(launch, entry):
    """Return the seconds of a turn that are none of its steps."""
    blocks = [block for block in launch.ranks[0].blocks if block.turn == entry["turn"]]
    timed = sum(block.wall_ns for block in blocks) / 1e9
    # The first part of the turn and the first step of each block train, and are not timed.
    step = LaunchFigures(launch).turns[entry["turn"]].seconds
    return entry["seconds"] - timed - LEAD_SECONDS - len(blocks) * step


if __name__ == "__main__":
    main()
