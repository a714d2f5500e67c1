"""Count false alarms: gate an environment against itself again and again.

``python -m tests.bench.false_alarms --more 10`` adds ten gates to a record, one line each. It can be ended at
any time, and continued: a gate is recorded when it is finished. Without ``--more`` it prints what the record
shows, and what 10,000 gates do that are drawn from its rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

from compare.analysis.change import judge_gate
from compare.analysis.estimate import binomial_interval
from compare.analysis.figures import Figures, LaunchFigures
from compare.analysis.looks import FIRST_LOOK, Look
from compare.errors import SlowerError, TooNoisyError
from compare.schema.store import read_run
from compare.text import counted
from tests.bench.simulate import planned_looks, simulate_gates
from tests.comparing import ROOT, compare, find_mnist

RECORD = ROOT / "docs" / "false-alarms.jsonl"
LIMIT = 0.05
"""Largest slowdown that passes without a flag."""
SLOWDOWNS = (0.0, LIMIT, 0.1, 0.15, 0.2, 0.3)
_DESIGNS = {
    "5 rounds": [Look(FIRST_LOOK, FIRST_LOOK)],
    "5 to 20 rounds": planned_looks(20),
}
_ARMS = (1, 4)
_EXPECTED = {0, SlowerError.exit_code, TooNoisyError.exit_code}


def main():
    given = _parse()
    data_dir = find_mnist() or sys.exit("MNIST is missing: compare data fetch --data-dir data")
    for _ in range(given.more):
        entry = _gate_once(given, data_dir)
        with given.record.open("a") as record:
            record.write(json.dumps(entry) + "\n")
        print(f"{entry['arm']}: {entry['outcome']}, {entry['ratio']:.3f}", flush=True)
    for line in summary(given.record, given.also):
        print(line)


def summary(record, also=()):
    """Return lines for the gates of every arm, real and drawn.

    Quiet turns of ``also`` are drawn likewise, by arm: records of ``false_differences``.
    """
    entries = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    lines = []
    for arm in sorted({entry["arm"] for entry in entries}):
        own = [entry for entry in entries if entry["arm"] == arm]
        alarms = sum(entry["outcome"] == "slower" for entry in own)
        unsettled = sum(entry["outcome"] == "too noisy" for entry in own)
        low, high = binomial_interval(alarms, len(own))
        lines.append(f"{arm}: {alarms} of {len(own)} slower [{low:.1%}, {high:.1%}], {unsettled} open")
        lines += _drawn(arm, [pair for entry in own for pair in entry["step_seconds"]])
    for path in also:
        others = [json.loads(line) for line in path.read_text().splitlines()]
        quiet = [one for one in others if (one["mode"], one["load"]) == ("blocks", "none")]
        for arm in sorted({one["arm"] for one in quiet}):
            pairs = [pair for one in quiet if one["arm"] == arm for pair in one["step_seconds"]]
            lines += _drawn(f"{path.name}, {arm}", pairs)
    return lines


def _drawn(name, pairs):
    """Return the rates of gates drawn from recorded rounds, in which one arm has a slowdown."""
    if len(pairs) < max(looks[-1].rounds for looks in _DESIGNS.values()):
        return [f"{name}: {len(pairs)} rounds are too few to draw from"]
    lines = []
    for arms, (design, looks), slowdown in itertools.product(_ARMS, _DESIGNS.items(), SLOWDOWNS):
        slowdowns = [slowdown, *[0.0] * (arms - 1)]
        found = simulate_gates(pairs, looks, limit=LIMIT, slowdowns=slowdowns)
        lines.append(
            f"{name}, {counted(arms, 'arm')}, {design}, one {slowdown:.0%} slower: "
            f"{found.slower / found.experiments:.1%} slower, {found.passed / found.experiments:.1%} passed, "
            f"{found.mean_rounds:.1f} rounds"
        )
    return lines


def _gate_once(given, data_dir):
    with tempfile.TemporaryDirectory(prefix="ringside-gate-") as folder:
        output = Path(folder) / "run"
        done = compare(
            *("gate", "--against", sys.executable, "--backend", given.arm, "--budget", given.budget),
            *("--seed", time.time_ns() % 2**32, "--data-dir", data_dir, "--output", output),
            timeout=1200,
        )
        if done.returncode not in _EXPECTED:
            sys.exit(done.stderr)
        run = read_run(output)
    figures = Figures(run)
    gate = judge_gate(figures)
    (change,) = gate.changes
    new, old = (arm.label for arm in run.config.arms)
    return {
        "at": run.started_at,
        "arm": given.arm,
        "outcome": gate.outcome,
        "ratio": change.ratio,
        "low": change.low,
        "high": change.high,
        "other_cpu_load": max(LaunchFigures(launch).other_cpu_load for launch in figures.run.launches),
        "step_seconds": [[launch.step_seconds for launch in pair] for pair in figures.pairs(new, old)],
    }


def _parse():
    parser = argparse.ArgumentParser(description="Count false alarms of a gate against itself.")
    parser.add_argument("--arm", default="ddp", help="the arm that is compared with itself")
    parser.add_argument("--budget", type=float, default=150.0, metavar="S", help="seconds of each gate")
    parser.add_argument("--more", type=int, default=0, metavar="N", help="gates to add")
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE", help="where they are added")
    parser.add_argument(
        "--also", type=Path, nargs="*", default=[], metavar="FILE", help="records to draw from"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
