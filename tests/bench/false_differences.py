"""Count false differences: compare an arm with itself again and again.

``python -m tests.bench.false_differences --arm mpi --more 10`` adds ten comparisons to a record, one line
each. It can be ended at any time, and continued: a comparison is recorded when it is finished. Without
``--more`` it prints what the record shows.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from compare.analysis.estimate import binomial_interval
from compare.analysis.figures import Figures, LaunchFigures
from compare.analysis.looks import FIRST_LOOK, Look
from compare.analysis.ranking import log_ratios
from compare.schema.store import read_run
from tests.bench import loads
from tests.bench.simulate import planned_looks, simulate_aa
from tests.comparing import ROOT, compare, find_mnist

RECORD = ROOT / "docs" / "false-differences.jsonl"
_LOOKS = 20
LOADS = ("none", *loads.WANTED)


def main():
    given = _parse()
    data_dir = find_mnist() or sys.exit("MNIST is missing: compare data fetch --data-dir data")
    for _ in range(given.more):
        with loads.injected(given.load):
            entry = _compare_once(given, data_dir)
        with given.record.open("a") as record:
            record.write(json.dumps(entry) + "\n")
        interval = f"[{entry['low']:.3f}, {entry['high']:.3f}]"
        print(f"{entry['arm']}: {entry['kind']}, {entry['ratio']:.3f} {interval}", flush=True)
    for line in summary(given.record):
        print(line)


def summary(record):
    """Return a line for every arm, mode and load of a record."""
    entries = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    lines = []
    for key in sorted(set(map(_design, entries))):
        own = [entry for entry in entries if _design(entry) == key]
        false = sum(entry["kind"] in {"faster", "slower"} for entry in own)
        low, high = binomial_interval(false, len(own))
        arm, mode, load, lengths = key
        line = f"{arm}, {mode}, load {load}, {lengths}: {false} of {len(own)} false [{low:.1%}, {high:.1%}]"
        lines.append(line + _resampled([pair for entry in own for pair in entry["step_seconds"]]))
    return lines


def _design(entry):
    return entry["arm"], entry["mode"], entry["load"], entry.get("lengths", "turns of equal length")


def _resampled(pairs):
    """Return the rates of comparisons drawn from the recorded cohorts."""
    if len(pairs) < 2 * _LOOKS:
        return ""
    once = simulate_aa(pairs, [Look(FIRST_LOOK, FIRST_LOOK)])
    often = simulate_aa(pairs, planned_looks(_LOOKS))
    return f"; resampled {once.rate:.1%}, with optional stopping {often.rate:.1%}"


def _compare_once(given, data_dir):
    with tempfile.TemporaryDirectory(prefix="ringside-aa-") as folder:
        output = Path(folder) / "run"
        done = compare(
            *("aa", "--backend", given.arm, "--comparisons", 1, "--repeats", FIRST_LOOK),
            *("--interleave", given.mode, "--max-reruns", 0, "--seed", time.time_ns() % 2**32),
            *("--data-dir", data_dir, "--output", output, "--export-json", Path(folder) / "out.json"),
            timeout=1200,
        )
        if done.returncode:
            sys.exit(done.stderr)
        run = read_run(output)
        (verdict,) = json.loads((Path(folder) / "out.json").read_text())["summary"]["aa"]["verdicts"]
    first, second = (arm.label for arm in run.config.arms)
    figures = Figures(run)
    assert len(log_ratios(figures, second, first)) == FIRST_LOOK
    pairs = [[launch.step_seconds for launch in pair] for pair in figures.pairs(first, second)]
    return {
        "at": run.started_at,
        "arm": given.arm,
        "mode": run.interleaved.mode,
        "load": given.load,
        "lengths": "turns by spread" if run.interleaved.mode == "blocks" else "launches",
        "kind": verdict["kind"],
        "ratio": verdict["speed_ratio"],
        "low": verdict["low"],
        "high": verdict["high"],
        "other_cpu_load": max(LaunchFigures(launch).other_cpu_load for launch in figures.run.launches),
        "step_seconds": pairs,
    }


def _parse():
    parser = argparse.ArgumentParser(description="Count false differences of an arm against itself.")
    parser.add_argument("--arm", default="mpi", help="the arm that is compared with itself")
    parser.add_argument("--mode", default="blocks", choices=["blocks", "launches"], help="as --interleave")
    parser.add_argument("--load", default="none", choices=LOADS, help="other programs")
    parser.add_argument("--more", type=int, default=0, metavar="N", help="comparisons to add")
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE", help="where they are added")
    return parser.parse_args()


if __name__ == "__main__":
    main()
