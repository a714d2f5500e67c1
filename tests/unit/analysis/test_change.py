"""Test how changes are judged, between two runs and within one."""

from __future__ import annotations

import math

import msgspec
import pytest
import scipy.stats

from compare.analysis import analyse
from compare.analysis.budget import elapsed_seconds
from compare.analysis.causes import check_interpreter
from compare.analysis.change import (
    Change,
    Difference,
    diff,
    from_verdict,
    judge_between,
    outcome_of,
    with_twins,
)
from compare.analysis.verdict import Sample, judge
from compare.errors import ConditionsError, OutputError
from compare.experiment.schedule import is_settled
from compare.schema.arms import Interpreter, parse_arm
from tests.unit.factories import a_config, a_launch, a_rank, a_run, beside

OLD, NEW = [0.50, 0.52, 0.49, 0.51, 0.50, 0.53], [0.60, 0.66, 0.58, 0.63, 0.61]
NAMES = ("old", "new")


def costs(*ddp, none=4.0, **changes):
    return a_run({"none": [none] * len(ddp), "ddp": list(ddp)}, **changes)


def test_difference_of_runs_is_that_of_welch():
    theirs = scipy.stats.ttest_ind(NEW, OLD, equal_var=False)
    low, high = theirs.confidence_interval()
    sample = Sample.between([OLD], [NEW])
    assert sample.n[0] - 1 == pytest.approx(theirs.df)
    (change,) = judge_between({"ddp": OLD}, {"ddp": NEW}).values()
    assert math.log(change.low) == pytest.approx(low)
    assert math.log(change.high) == pytest.approx(high)
    assert (change.kind, change.rounds) == ("faster", (6, 5))


def with_mean(shift, spread):
    """Return six values with this mean, and about this spread."""
    return [value + shift for value in (-spread, spread, 0.0, -spread / 2, spread / 2, 0.0)]


@pytest.mark.parametrize(
    ("shift", "spread", "kind"),
    [
        (0.10, 0.005, "slower"),
        (-0.10, 0.005, "faster"),
        (0.0, 0.005, "not slower"),
        (0.03, 0.005, "not slower"),  # shown to be slower, but less than the limit
        (-0.03, 0.04, "not slower"),  # its lower end is far away, which does not matter
        (0.0, 0.055, "not slower"),  # its two-sided interval ends above the limit
        (0.0, 0.10, "open"),
        (0.06, 0.10, "open"),
    ],
)
def test_gate_passes_by_one_end_alone(shift, spread, kind):
    change = gated({"a": with_mean(shift, spread)})["a"]
    assert (change.kind, change.speed_ratio) == (kind, pytest.approx(math.exp(-shift)))
    assert change.passed == (kind in {"faster", "not slower"}) == (change.least > 1 / 1.05)


def gated(slowdowns):
    """Judge log slowdowns as a gate with a limit of 5 % does."""
    ratios = {arm: [-value for value in values] for arm, values in slowdowns.items()}
    return {
        arm: from_verdict(arm, verdict) for arm, verdict in judge(ratios, margin=0.05, one_sided=True).items()
    }


def test_gate_of_many_arms_passes_each_as_if_it_were_alone():
    values = with_mean(0.0, 0.05)
    alone, among = gated({"a": values})["a"], gated(dict.fromkeys("abcd", values))["a"]
    theirs = scipy.stats.ttest_1samp(values, 0, alternative="less").confidence_interval()
    assert -math.log(alone.least) == pytest.approx(theirs.high)
    assert (among.least, among.kind) == (alone.least, "not slower")
    assert among.low < 1 / 1.05 < alone.low  # what calls an arm slower is shared among them


@pytest.mark.parametrize(
    ("shift", "kind"), [(0.03, "faster"), (-0.03, "slower"), (0.0, "open"), (0.002, "open")]
)
def test_difference_of_runs_is_named_by_its_interval_alone(shift, kind):
    old, new = with_mean(0.0, 0.005), with_mean(shift, 0.005)
    (change,) = judge_between({"a": old}, {"a": new}).values()
    assert (change.kind, change.least) == (kind, None)
    assert (change.low > 1 or change.high < 1) == (kind != "open")
    assert judge_between({"a": old[:4]}, {"a": new})["a"].kind == "open", "four rounds name nothing"


def test_one_slow_arm_decides_and_an_open_one_is_not_green():
    def a_change(kind):
        return Change(arm=kind, kind=kind, speed_ratio=1.0, low=1.0, high=1.0, level=0.95, rounds=(5, 5))

    slower, unsettled, fine = map(a_change, ("slower", "open", "not slower"))
    assert outcome_of([slower, unsettled, fine]) == "slower"
    assert outcome_of([unsettled, fine]) == "too noisy"
    assert outcome_of([fine, a_change("faster")]) == "passed"
    assert outcome_of([]) == "too noisy"


# ---- two runs ----


def test_diff_compares_costs_and_not_milliseconds_and_decides_nothing():
    """The second machine is twice as slow, and synchronising costs the same."""
    old, new = costs(5.0, 5.1, 5.2, 5.0, 5.1), costs(10.0, 10.2, 10.4, 10.0, 10.2, none=8.0)
    changes = diff(old, new, NAMES)
    (change,) = changes.changes
    assert (change.kind, changes.reference) == ("open", "none")
    assert change.old.mean == pytest.approx(change.new.mean)
    changes = diff(old, costs(6.0, 6.1, 6.2, 6.0, 6.1), NAMES)
    (change,) = changes.changes
    assert (change.kind, change.speed_ratio < 1) == ("slower", True)
    assert change.speed_ratio == pytest.approx(change.new.mean / change.old.mean), "both are speeds"
    assert (changes.limit, changes.outcome) == (None, None)


def test_diff_of_unlike_runs_lists_what_differs():
    old, new = costs(*[5.0] * 5), costs(*[5.0] * 5, config={"batch_size_per_rank": 32}, cores=4)
    assert diff(old, new, NAMES).unlike == [
        Difference("batch_size_per_rank", "64", "32"),
        Difference("cores of each host", "2", "4"),
    ]


def with_variables(run, **environment):
    """Return the run as if its ranks attested these variables."""
    own = {**run.launches[0].ranks[0].attestation, "malloc": {}, "environment": environment}
    ranks = [msgspec.structs.replace(rank, attestation=own) for rank in run.launches[0].ranks]
    launches = [msgspec.structs.replace(launch, ranks=ranks) for launch in run.launches]
    return msgspec.structs.replace(run, launches=launches)


def test_diff_lists_each_variable_that_differs_once():
    run = a_run({"none": [4.0] * 5, "ddp": [5.0] * 5, "manual": [5.0] * 5})
    image = {"NVIDIA_REQUIRE_CUDA": "cuda>=13.0 " * 300, "CUDA_VERSION": "13.0"}
    old = with_variables(run, OMP_NUM_THREADS="1", NCCL_ALGO="Ring", MALLOC_ARENA_MAX="2")
    new = with_variables(run, OMP_NUM_THREADS="1", NCCL_ALGO="Tree", **image)
    assert diff(old, new, NAMES).unlike == [
        Difference("MALLOC_ARENA_MAX", "2", "–"),
        Difference("NCCL_ALGO", "Ring", "Tree"),
    ]
    assert diff(old, old, NAMES).unlike == []
    assert diff(with_variables(run, **image), with_variables(run), NAMES).unlike == []


def test_diff_names_versions_that_changed():
    old, new = costs(*[5.0] * 5), costs(*[5.0] * 5, ringside_version="0.2.0")
    assert [one.what for one in diff(old, new, NAMES).changed] == ["ringside"]


def test_diff_without_a_control_divides_by_the_baseline():
    old = a_run({"ddp": [5.0] * 5, "manual": [6.0] * 5})
    changes = diff(old, old, NAMES)
    assert (changes.reference, [change.arm for change in changes.changes]) == ("ddp", ["manual"])


def test_diff_names_no_change_where_ranks_outnumber_cores():
    changes = diff(costs(*[5.0] * 5, cores=1), costs(*[6.0] * 5, cores=1), NAMES)
    assert [change.kind for change in changes.changes] == ["open"]
    assert any("outnumber" in note for note in changes.notes)


def test_diff_needs_an_arm_in_common():
    with pytest.raises(OutputError, match="no arm in common"):
        diff(costs(*[5.0] * 5), a_run({"none": [4.0] * 5, "manual": [5.0] * 5}), NAMES)
    stopped = msgspec.structs.replace(costs(*[5.0] * 5), launches=[])
    with pytest.raises(OutputError, match="no arm in common"):
        diff(stopped, stopped, NAMES)


# ---- gates: arms under two interpreters in one run ----

OTHER = Interpreter(
    executable="/old/bin/python",
    prefix="/old",
    python="3.11.7",
    torch="2.12.0",
    ringside="0.1.0",
    sources="/old/lib",
    own_sources=True,
)


def attesting(torch, **changes):
    return {"group": {"transport": "TCP over lo"}, "threads": 1, "torch": torch} | changes


def a_gate(new, old, **changes):
    arms = with_twins([parse_arm("ddp:bucket_cap_mb=1")], OTHER)
    config = msgspec.structs.replace(a_config("ddp"), arms=arms, baseline=arms[1].label, slower_limit=0.05)
    launches = []
    for arm, times, torch in ((arms[0], new, "2.13.0"), (arms[1], old, "2.12.0")):
        for round_, time in enumerate(times, start=1):
            ranks = [a_rank(r, milliseconds=time, attestation=attesting(torch)) for r in range(2)]
            launches.append(a_launch(arm.label, round_, ranks=ranks))
    return msgspec.structs.replace(a_run({"ddp": [1.0]}), config=config, launches=launches, **changes)


STEPS = [5.0, 6.0, 5.5, 5.2, 5.1]


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.10, "slower"), (1.0, "passed"), (1.02, "passed"), (0.9, "passed")]
)
def test_gate_compares_twins_round_by_round(factor, outcome):
    times = [time * factor * (1 + 0.002 * (-1) ** i) for i, time in enumerate(STEPS)]
    gate = analyse(a_gate(times, STEPS)).gate
    assert gate.outcome == outcome
    assert gate.changes[0].arm == "ddp:bucket_cap_mb=1"
    assert gate.changes[0].speed_ratio == pytest.approx(1 / factor, rel=0.002)


def test_gate_without_enough_rounds_or_cores_is_open():
    assert analyse(a_gate(STEPS[:4], STEPS[:4])).gate.outcome == "too noisy"
    assert analyse(a_gate([], [])).gate.outcome == "too noisy"
    assert analyse(a_gate(STEPS, STEPS, cores=1)).gate.outcome == "too noisy"
    assert analyse(a_run()).gate is None


def test_open_gate_says_how_many_rounds_would_decide_it():
    """Who reads "too noisy" has to know which budget to give."""
    few = analyse(a_gate(STEPS[:4], STEPS[:4])).gate
    assert (few.rounds, few.needed_rounds) == (4, 5)
    noisy = analyse(a_gate([4.0, 7.0, 5.0, 6.0, 4.5], STEPS)).gate
    assert noisy.needed_rounds > noisy.rounds == 5
    run = a_gate([4.0, 7.0, 5.0, 6.0, 4.5], STEPS)
    assert noisy.needed_seconds == pytest.approx(elapsed_seconds(run) / 5 * noisy.needed_rounds)
    for undecidable in (a_gate(STEPS, STEPS, cores=1), a_gate([], []), a_gate(STEPS, STEPS)):
        assert analyse(undecidable).gate.needed_rounds is None


def test_gate_withheld_because_of_uneven_load_keeps_the_two_loads():
    """The load beside the new side may explain that it is slower, so neither noise nor more rounds matter."""
    slower = a_gate([time * 1.1 for time in STEPS], STEPS)
    assert analyse(slower).gate.outcome == "slower"
    new, old = (arm.label for arm in slower.config.arms)
    withheld = analyse(beside(slower, **{new: 1.0, old: 0.25})).gate
    assert withheld.outcome == "too noisy"
    assert withheld.changes[0].uneven_load == (1.0, 0.25)
    assert (withheld.needed_rounds, withheld.beyond_cores) == (None, False)
    assert analyse(a_gate(STEPS, STEPS, cores=1)).gate.beyond_cores


def test_gate_run_ends_when_every_arm_is_settled():
    assert is_settled(a_gate(STEPS, STEPS))
    assert not is_settled(a_gate([4.0, 7.0, 5.0, 6.0, 4.5], STEPS))


def test_gate_names_its_versions_and_declares_the_difference():
    run = a_gate(STEPS, STEPS)
    assert [arm.label for arm in run.config.arms] == ["ddp:bucket_cap_mb=1", "ddp:bucket_cap_mb=1@against"]
    (one,) = analyse(run).gate.changed
    assert (one.what, one.old, one.new) == ("torch", "2.12.0", "2.13.0")
    torch = next(found for found in analyse(run).conditions if found.item == "torch")
    assert (torch.kind, "another interpreter" in torch.why) == ("declared", True)


def test_rank_of_another_environment_is_refused():
    run = a_gate(STEPS, STEPS)
    new, old = run.config.arms
    there = a_rank(attestation=attesting("2.12.0", prefix="/old", sources="/old/lib"))
    check_interpreter(run, old, [there], here="/new")
    elsewhere = a_rank(attestation=attesting("2.13.0", prefix="/new", sources="/old/lib"))
    with pytest.raises(ConditionsError, match="rank 0 did not run in its arm"):
        check_interpreter(run, old, [there, elsewhere], here="/new")
    check_interpreter(run, new, [elsewhere], here="/new")
    with pytest.raises(ConditionsError, match="rank 0 did not run in its arm"):
        check_interpreter(run, new, [there], here="/new")
    check_interpreter(a_run(), new, [there], here="/new")  # no gate
