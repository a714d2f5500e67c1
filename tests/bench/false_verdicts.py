"""Count false verdicts: compare an arm, or gate an environment, with itself again and again.

``python -m tests.bench.false_verdicts aa --arm mpi --more 10`` adds ten A/A tests to a record, one line each.
``gate --more 10`` adds ten gates to another. It can be ended at any time, and continued: a line is written
when its test is finished. Without ``--more`` it prints what the record shows, and what 10,000 tests do that
are drawn from its rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

from compare.analysis.budget import FIRST_LOOK, Look
from compare.analysis.change import judge_gate
from compare.analysis.figures import Figures, LaunchFigures, binomial_interval
from compare.analysis.ranking import assess_aa_test, log_ratios
from compare.errors import SlowerError, TooNoisyError
from compare.schema.store import read_run
from compare.text import counted
from tests.bench import loads
from tests.bench.simulate import planned_looks, simulate_aa, simulate_gates
from tests.comparing import ROOT, compare, find_mnist

LIMIT = 0.05
"""Largest slowdown that passes a gate without a flag."""
SLOWDOWNS = (0.0, LIMIT, 0.1, 0.15, 0.2, 0.3)
_LOOKS = 20
_DESIGNS = {
    "5 rounds": [Look(FIRST_LOOK, FIRST_LOOK)],
    "5 to 20 rounds": planned_looks(_LOOKS),
}
_ARMS = (1, 4)
_EXPECTED = {0, SlowerError.exit_code, TooNoisyError.exit_code}


def main():
    given = _parse()
    for _ in range(given.more):
        entry = given.once(given)
        with given.record.open("a") as record:
            record.write(json.dumps(entry) + "\n")
        interval = f"[{entry['low']:.3f}, {entry['high']:.3f}]"
        print(f"{entry['arm']}: {entry[given.verdict]}, {entry['ratio']:.3f} {interval}", flush=True)
    for line in given.summary(given):
        print(line)


def _read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _rounds(entries):
    return [pair for entry in entries for pair in entry["step_seconds"]]


def _run(given, arms, command, *flags):
    """Carry out a command with the arms; return its run, and what is recorded of every test."""
    data_dir = find_mnist() or sys.exit("MNIST is missing: ringside setup data --data data")
    with tempfile.TemporaryDirectory(prefix="ringside-false-") as folder:
        done = compare(
            *(command, *flags, "--backend", arms, "--seed", time.time_ns() % 2**32),
            *("--data", data_dir, "--output", Path(folder) / "run"),
            timeout=1200,
        )
        if done.returncode not in _EXPECTED:
            sys.exit(done.stderr)
        run = read_run(Path(folder) / "run")
    figures = Figures(run)
    first, second = (arm.label for arm in run.config.arms)
    return figures, {
        "at": run.started_at,
        "arm": given.arm,
        "other_cpu_load": max(LaunchFigures(launch).other_cpu_load for launch in figures.run.launches),
        "step_seconds": [[launch.step_seconds for launch in pair] for pair in figures.pairs(first, second)],
    }


# ---- A/A tests -------------------------------------------------------------------------------------------


def _compare_once(given):
    flags = ("--repeats", FIRST_LOOK, "--interleave", f"{given.mode}:reruns=0")
    with loads.injected(given.load):
        figures, entry = _run(given, f"{given.arm},{given.arm}", "run", *flags)
    (verdict,), mode = assess_aa_test(figures).verdicts, figures.run.interleaved.mode
    first, second = (arm.label for arm in figures.run.config.arms)
    assert len(log_ratios(figures, second, first)) == FIRST_LOOK
    return entry | {
        "mode": mode,
        "load": given.load,
        "lengths": "turns by spread" if mode == "blocks" else "launches",
        "kind": verdict.kind,
        "ratio": verdict.speed_ratio,
        "low": verdict.low,
        "high": verdict.high,
    }


def _differences(given):
    """Return a line for every arm, mode and load of a record."""
    entries = _read(given.record)
    for key in sorted(set(map(_design, entries))):
        own = [entry for entry in entries if _design(entry) == key]
        false = sum(entry["kind"] in {"faster", "slower"} for entry in own)
        low, high = binomial_interval(false, len(own))
        arm, mode, load, lengths = key
        line = f"{arm}, {mode}, load {load}, {lengths}: {false} of {len(own)} false [{low:.1%}, {high:.1%}]"
        if len(pairs := _rounds(own)) >= 2 * _LOOKS:
            once, often = (simulate_aa(pairs, looks).rate for looks in _DESIGNS.values())
            line += f"; resampled {once:.1%}, with optional stopping {often:.1%}"
        yield line


def _design(entry):
    return entry["arm"], entry["mode"], entry["load"], entry.get("lengths", "turns of equal length")


# ---- gates -----------------------------------------------------------------------------------------------


def _gate_once(given):
    figures, entry = _run(given, given.arm, "gate", "--against", sys.executable, "--budget", given.budget)
    gate = judge_gate(figures)
    (change,) = gate.changes
    found = {
        "outcome": gate.outcome,
        "ratio": change.speed_ratio,
        "low": change.low,
        "high": change.high,
    }
    return entry | found


def _alarms(given):
    """Return lines for the gates of every arm, real and drawn.

    Quiet turns of ``--also`` are drawn likewise, by arm: records of A/A tests.
    """
    entries = _read(given.record)
    for arm in sorted({entry["arm"] for entry in entries}):
        own = [entry for entry in entries if entry["arm"] == arm]
        alarms = sum(entry["outcome"] == "slower" for entry in own)
        unsettled = sum(entry["outcome"] == "too noisy" for entry in own)
        low, high = binomial_interval(alarms, len(own))
        yield f"{arm}: {alarms} of {len(own)} slower [{low:.1%}, {high:.1%}], {unsettled} open"
        yield from _drawn(arm, _rounds(own))
    for path in given.also:
        quiet = [one for one in _read(path) if (one["mode"], one["load"]) == ("blocks", "none")]
        for arm in sorted({one["arm"] for one in quiet}):
            yield from _drawn(f"{path.name}, {arm}", _rounds(one for one in quiet if one["arm"] == arm))


def _drawn(name, pairs):
    """Return the rates of gates drawn from recorded rounds, in which one arm has a slowdown."""
    if len(pairs) < _LOOKS:
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


# ---- the command line ------------------------------------------------------------------------------------


def _parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(required=True)
    aa = kinds.add_parser("aa", help="compare an arm with itself")
    aa.set_defaults(once=_compare_once, summary=_differences, verdict="kind")
    aa.add_argument("--mode", default="blocks", choices=["blocks", "launches"], help="as --interleave")
    aa.add_argument("--load", default="none", choices=["none", *loads.WANTED], help="other programs")
    gate = kinds.add_parser("gate", help="gate this environment against itself")
    gate.set_defaults(once=_gate_once, summary=_alarms, verdict="outcome")
    gate.add_argument("--budget", type=float, default=150.0, metavar="S", help="seconds of each gate")
    gate.add_argument("--also", type=Path, nargs="*", default=[], metavar="FILE", help="records to draw from")
    for kind, arm, record in ((aa, "mpi", "false-differences"), (gate, "ddp", "false-alarms")):
        file = ROOT / "docs" / f"{record}.jsonl"
        kind.add_argument("--arm", default=arm, help="the arm that is compared with itself")
        kind.add_argument("--more", type=int, default=0, metavar="N", help="how many to add")
        kind.add_argument("--record", type=Path, default=file, metavar="FILE", help="where they are added")
    return parser.parse_args()


if __name__ == "__main__":
    main()
