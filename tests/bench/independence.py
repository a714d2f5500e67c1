"""Test whether cohorts are independent: does a ratio follow the one before it?

``python -m tests.bench.independence docs/false-differences.jsonl runs/long`` takes records of A/A tests or
gates, and folders of runs. A verdict takes the log ratios of a run's rounds as independent. Were a high one
followed by another high one, their lag-1 correlation would be positive, and intervals too narrow.

Around their own mean, n independent values correlate by -1 / n on average, and not by 0: all deviations add
up to 0, so two of them go against each other. That holds for any distribution and any n, as for any values
whose order does not matter. So p comes from 4,000 shuffles of every series.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path

import numpy as np

from compare.analysis.figures import Figures
from compare.analysis.ranking import paired_log_ratios
from compare.schema.store import read_run
from tests.comparing import ROOT

RECORDS = [ROOT / "docs" / "false-differences.jsonl", ROOT / "docs" / "false-alarms.jsonl"]
_SHUFFLES = 4_000
_FEWEST = 3


def main():
    parser = argparse.ArgumentParser(description="Correlate the log ratios of consecutive rounds.")
    parser.add_argument("paths", type=Path, nargs="*", default=RECORDS, help="records (.jsonl) or runs")
    for path in parser.parse_args().paths:
        series = of_record(path) if path.suffix == ".jsonl" else of_run(path)
        for name, own in {**series, "all": list(itertools.chain(*series.values()))}.items():
            print(f"{path.name}, {name}: {describe(own)}")


def of_record(path):
    """Return the log ratios of every comparison or gate in turns, by arm, load and lengths of turns."""
    found = {}
    for entry in map(json.loads, path.read_text().splitlines()):
        if entry.get("mode", "blocks") == "blocks":
            ratios = [math.log(second / first) for first, second in entry["step_seconds"]]
            design = [entry["arm"], f"load {entry.get('load', 'none')}", entry.get("lengths", "")]
            found.setdefault(", ".join(filter(None, design)), []).append(ratios)
    return found


def of_run(path):
    """Return the log ratios of a run, by arm."""
    run = read_run(path)
    return {arm: [ratios] for arm, ratios in paired_log_ratios(Figures(run), run.config.baseline).items()}


def describe(series):
    """Write the mean lag-1 correlation of some series, and that of independent values."""
    series = [np.asarray(own) for own in series if len(own) >= _FEWEST]
    if not series:
        return f"fewer than {_FEWEST} rounds"
    found, shuffled = lag_1_of(series)
    low, high = np.quantile(shuffled, [0.025, 0.975])
    p = np.mean(np.abs(shuffled - shuffled.mean()) >= abs(found - shuffled.mean()) - 1e-12)
    return (
        f"{found:+.2f}; independent: {expected(series):+.2f} [{low:+.2f}, {high:+.2f}], p {p:.3f} "
        f"({len(series)} series, {sum(map(len, series))} rounds)"
    )


def expected(series):
    """Return the mean lag-1 correlation of independent values in series of these lengths."""
    return -float(np.mean([1 / len(own) for own in series]))


def lag_1_of(series, seed=0):
    """Return the mean lag-1 correlation of some series, and those of shuffled ones."""
    random = np.random.default_rng(seed)
    shuffled = [_lag_1(random.permuted(np.tile(own, (_SHUFFLES, 1)), axis=1)) for own in series]
    return float(np.mean([_lag_1(own) for own in series])), np.mean(shuffled, axis=0)


def _lag_1(values):
    """Return the lag-1 correlation along the last axis, around the mean of each series."""
    away = values - values.mean(-1, keepdims=True)
    return (away[..., 1:] * away[..., :-1]).sum(-1) / (away**2).sum(-1)


if __name__ == "__main__":
    main()
