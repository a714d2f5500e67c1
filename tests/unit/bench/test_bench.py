"""Test the benches' statistics and verdicts on known numbers."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from compare.analysis.estimate import Estimate as LaunchEstimate
from tests.bench import cost, false_differences, other_programs, pairs, record, report
from tests.bench.estimate import Estimate, Row, Section, at_least, at_most, estimate, reaches
from tests.bench.machine import OTHER_LOAD_LIMIT, Load, LoadMeter, busy_seconds
from tests.bench.pairs import Turn


def test_estimate_of_few_pairs_has_the_paired_t_interval():
    # ln ratios -0.1, 0, 0.1, 0.2: mean 0.05, sd 0.1291, t(3) 3.1824 -> half-width 0.20543.
    found = estimate([math.exp(x) for x in (-0.1, 0.0, 0.1, 0.2)])
    assert found.ratio == pytest.approx(math.exp(0.05))
    assert math.log(found.low) == pytest.approx(0.05 - 0.20543, abs=1e-4)
    assert math.log(found.high) == pytest.approx(0.05 + 0.20543, abs=1e-4)
    assert found.n == 4


def test_estimate_of_many_pairs_resists_one_outlier():
    calm = [1.0 + 0.001 * k for k in range(-10, 11)]
    found = estimate([*calm, 50.0])
    assert 0.99 < found.low < 1.0 < found.high < 1.01


def test_estimate_interval_covers_the_true_ratio_often_enough():
    chance = random.Random(1)
    for pairs_each in (5, 12):
        draws = [estimate([math.exp(chance.gauss(0.2, 0.1)) for _ in range(pairs_each)]) for _ in range(200)]
        share = sum(e.low <= math.exp(0.2) <= e.high for e in draws) / len(draws)
        assert share > 0.88


def test_estimate_of_one_pair_is_an_error():
    with pytest.raises(ValueError, match="1 pairs"):
        estimate([1.0])


@pytest.mark.parametrize(
    ("target", "found", "verdict"),
    [
        (at_least(7), (7.5, 7.2, 7.8), "holds"),
        (at_least(7), (7.1, 6.8, 7.8), "holds, within noise"),
        (at_least(7), (6.9, 6.8, 7.1), "MISSED, within noise"),
        (at_least(7), (6.0, 5.8, 6.2), "MISSED"),
        (at_most(1.02), (1.01, 1.0, 1.015), "holds"),
        (at_most(1.02), (1.05, 1.03, 1.07), "MISSED"),
        (reaches(1), (0.98, 0.95, 1.001), "holds, within noise"),
        (reaches(1), (1.01, 0.95, 1.1), "holds"),
        (reaches(1), (0.98, 0.95, 0.999), "MISSED"),
    ],
)
def test_target_is_judged_by_median_and_qualified_by_interval(target, found, verdict):
    assert Row("x", Estimate(*found, n=5), target).verdict == verdict


@pytest.mark.parametrize(
    ("nbytes", "found", "verdict"),
    [
        (1 << 16, (1.02, 0.90, 1.12), "holds"),
        (1 << 16, (1.03, 0.55, 3.29), "holds, within noise"),
        (1 << 16, (1.26, 0.89, 1.46), "MISSED, within noise"),
        (1 << 16, (0.70, 0.60, 0.80), "MISSED"),
        (1 << 10, (3.90, 3.80, 3.95), "holds"),
        (1 << 10, (4.20, 4.10, 4.30), "MISSED"),
    ],
)
def test_other_programs_are_judged_on_both_sides_with_their_noise(nbytes, found, verdict):
    """Below 32 KiB the limit is 3 µs more than 1 µs."""
    assert other_programs.judge(nbytes, 1.0, Estimate(*found, n=5)) == verdict


def test_load_of_others_is_the_busy_time_that_is_not_ours():
    assert Load(busy_seconds=0.5, own_seconds=0.7, wall_seconds=1.0).others == 0
    cores = Load(busy_seconds=1.0, own_seconds=0.0, wall_seconds=1.0).others ** -1
    assert cores == round(cores) >= 1


def test_load_meter_reads_the_time_of_the_machine():
    meter = LoadMeter()
    since = busy_seconds()
    sum(range(3_000_000))
    load = meter.read()
    assert load.wall_seconds > 0
    assert load.own_seconds > 0
    assert busy_seconds() >= since > 0


def turn(others, one=2.0, other=1.0):
    return Turn({"step_seconds": {"one": one, "other": other}}, others)


def test_turns_keep_the_least_noisy_in_their_order():
    loud, quiet, silent = turn(0.9), turn(OTHER_LOAD_LIMIT, one=4.0), turn(0.0, one=3.0)
    kept = pairs._keep([loud, quiet, silent], 2)
    assert kept.kept == [quiet, silent]
    assert kept.repeated == 1
    assert kept.ratio("one", "other").ratio == pytest.approx(math.sqrt(12))
    assert "noisy" not in kept.conditions
    assert "noisy" in pairs._keep([loud, quiet], 2).conditions


def palindrome(one, other, busy=0.0):
    figures = {"one": one, "other": other}
    return {
        "step_seconds": figures,
        "step_cpu_seconds": figures,
        "busy_seconds": busy,
        "own_seconds": 0.0,
        "wall_seconds": 1.0,
    }


def test_launch_with_many_palindromes_counts_once(monkeypatch):
    monkeypatch.setattr(pairs, "await_quiet", lambda: None)
    measured = [
        [palindrome(4.0, 1.0), palindrome(1.0, 1.0)],  # twice, as a geometric mean of paired ratios
        [palindrome(2.0, 1.0), palindrome(9.0, 1.0, busy=1e6)],  # others used the machine: repeated
        [palindrome(30.0, 10.0), palindrome(30.0, 10.0)],
    ]
    numbers = []

    def start(folder, number):
        numbers.append(number)
        for rank in range(2):
            (Path(folder) / f"rank-{rank}.json").write_text(json.dumps(measured[number]))

    found = pairs.take_palindromes(start, 2, ranks=2)
    assert numbers == [0, 1, 2]
    assert found.repeated == 1
    ratio = found.ratio("one", "other")
    assert (ratio.n, ratio.ratio) == (2, pytest.approx(math.sqrt(2 * 3)))


def launch_estimate(milliseconds, half):
    middle, half = milliseconds / 1e3, half / 1e3
    return LaunchEstimate(middle, middle - half, middle + half, 3, "t")


def test_cost_table_lists_ranks_and_sizes_with_intervals(monkeypatch):
    monkeypatch.setattr(cost, "_cores", lambda: 2)
    points = [
        cost.Point(arm, ranks, 80.2, launch_estimate(step, 1.0), sync)
        for ranks in (4, 2)
        for arm, step, sync in (("mpi", 480.04, launch_estimate(312.4, 20.0)), ("none", 167.6, None))
    ]
    lines = cost._table(points, figure=None).splitlines()
    assert lines[:4] == [
        "| ms a step, of it sync | `none` | `mpi` |",
        "| --- | ---: | ---: |",
        "| 2 × 80.2 MB | 167.6 | 480, 312 [292, 332] |",
        "| 4 × 80.2 MB\\* | 167.6 | 480, 312 [292, 332] |",
    ]


# ---- the record of earlier runs ----


def a_section(title, ratio=1.0):
    return Section(title, "How.", [Row("what", Estimate(ratio, 0.9, 1.1, 5), at_most(2.0))], ["quiet"])


def test_record_keeps_sections_of_other_runs_on_the_same_machine(tmp_path):
    output, order = tmp_path / "bench.md", ["first", "second"]
    record.write(output, "second", a_section("Second", 1.25), "bench --only second", order=order)
    record.write(output, "first", a_section("First"), "bench --only first", order=order)
    text = output.read_text()
    assert text.index("## First") < text.index("`bench --only first`") < text.index("## Second")
    assert "`bench --only second`" in text
    assert "| what | 1.250 | 0.900 – 1.100 | 5 | ≤ 2.00 | holds |" in text
    record.write(output, "second", a_section("Second", 1.5), "bench", order=order)
    assert "1.250" not in output.read_text()
    assert "## First" in output.read_text()


def test_record_keeps_a_section_when_its_next_run_fails(tmp_path):
    output, order = tmp_path / "bench.md", ["first"]
    failed = Section("first", "Could not be measured.", [], [], failed=True)
    record.write(output, "first", failed, "bench", order=order)
    assert "Could not be measured" in output.read_text()
    record.write(output, "first", a_section("First", 1.25), "bench", order=order)
    record.write(output, "first", failed, "bench", order=order)
    assert "| 1.250 |" in output.read_text()
    assert "Could not be measured" not in output.read_text()


def test_record_drops_sections_of_another_machine(tmp_path, monkeypatch):
    output, order = tmp_path / "bench.md", ["first", "second"]
    record.write(output, "first", a_section("First"), "bench", order=order)
    monkeypatch.setattr(report, "describe", lambda: "another machine")
    record.write(output, "second", a_section("Second"), "bench", order=order)
    assert "## First" not in output.read_text()
    assert "- another machine" in output.read_text()


def test_false_differences_are_counted_by_arm_mode_and_load(tmp_path):
    record = tmp_path / "record.jsonl"
    alike = {"mode": "blocks", "load": "none", "step_seconds": [[1.0, 1.01], [1.0, 0.99]] * 4}
    entries = [alike | {"arm": "mpi", "kind": kind} for kind in ("faster", *["unresolved"] * 9)]
    entries.append(alike | {"arm": "ddp", "kind": "equivalent"})
    record.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    of_ddp, of_mpi = false_differences.summary(record)
    assert of_ddp.startswith("ddp, blocks, load none, turns of equal length: 0 of 1 false")
    assert of_mpi.startswith(
        "mpi, blocks, load none, turns of equal length: 1 of 10 false [0.3%, 44.5%]; resampled 0.0%"
    )
    assert false_differences.summary(tmp_path / "no record") == []
