"""Test how changes are judged, between two runs and within one."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import scipy.stats

from compare.analysis.change import Change, from_verdict, judge_between, outcome_of
from compare.analysis.diff import diff
from compare.analysis.verdict import Sample, judge
from compare.errors import ConditionsError, OutputError
from tests.unit.factories import a_run

OLD, NEW = [0.50, 0.52, 0.49, 0.51, 0.50, 0.53], [0.60, 0.66, 0.58, 0.63, 0.61]
NAMES = ("old", "new")


def costs(*ddp, none=4.0, **changes):
    return a_run({"none": [none] * len(ddp), "ddp": list(ddp)}, **changes)


def test_difference_of_runs_is_that_of_welch():
    theirs = scipy.stats.ttest_ind(NEW, OLD, equal_var=False)
    low, high = theirs.confidence_interval()
    sample = Sample.between([OLD], [NEW])
    assert sample.n[0] - 1 == pytest.approx(theirs.df)
    (change,) = judge_between({"ddp": OLD}, {"ddp": NEW}, limit=0.05).values()
    assert math.log(change.low) == pytest.approx(low)
    assert math.log(change.high) == pytest.approx(high)
    assert (change.kind, change.rounds) == ("slower", (6, 5))


@pytest.mark.parametrize(
    ("shift", "spread", "kind"),
    [
        (0.10, 0.005, "slower"),
        (-0.10, 0.005, "faster"),
        (0.0, 0.005, "not slower"),
        (0.03, 0.005, "not slower"),  # shown to be slower, but less than the limit
        (-0.03, 0.04, "not slower"),  # its lower end is far away, which does not matter
        (0.0, 0.10, "unresolved"),
        (0.06, 0.10, "unresolved"),
    ],
)
def test_change_is_judged_by_its_upper_end(shift, spread, kind):
    base = [-spread, spread, 0.0, -spread / 2, spread / 2, 0.0]
    (change,) = judge_between({"a": base}, {"a": [value + shift for value in base]}, limit=0.05).values()
    assert change.kind == kind
    paired = from_verdict(
        "a", judge({"a": [value - shift for value in base]}, margin=0.05, one_sided=True)["a"]
    )
    assert paired.kind == kind
    assert paired.ratio == pytest.approx(math.exp(shift))


def test_few_rounds_never_pass():
    (change,) = judge_between({"a": [0.0] * 4}, {"a": [0.0] * 9}, limit=0.05).values()
    assert (change.kind, change.passed) == ("unresolved", False)
    assert outcome_of([change]) == "too noisy"


def test_one_slow_arm_decides_and_an_open_one_is_not_green():
    def a_change(kind):
        return Change(arm=kind, kind=kind, ratio=1.0, low=1.0, high=1.0, level=0.95, rounds=(5, 5))

    slower, unsettled, fine = map(a_change, ("slower", "unresolved", "not slower"))
    assert outcome_of([slower, unsettled, fine]) == "slower"
    assert outcome_of([unsettled, fine]) == "too noisy"
    assert outcome_of([fine, a_change("faster")]) == "passed"
    assert outcome_of([]) == "too noisy"


def test_equal_runs_seem_slower_as_seldom_as_promised():
    random = np.random.default_rng(0)
    slower = 0
    for _ in range(1000):
        old, new = ({arm: random.normal(0, 0.05, 5) for arm in "ab"} for _ in range(2))
        slower += outcome_of([*judge_between(old, new, limit=0.001).values()]) == "slower"
    assert slower < 50  # one side of 5 %, over both arms


# ---- two runs ----


def test_diff_compares_costs_and_not_milliseconds():
    """The second machine is twice as slow, and synchronising costs the same."""
    old, new = costs(5.0, 5.1, 5.2, 5.0, 5.1), costs(10.0, 10.2, 10.4, 10.0, 10.2, none=8.0)
    changes = diff(old, new, NAMES, limit=0.05)
    assert (changes.outcome, changes.reference) == ("passed", "none")
    assert changes.changes[0].old.mean == pytest.approx(changes.changes[0].new.mean)
    slower = diff(old, costs(6.0, 6.1, 6.2, 6.0, 6.1), NAMES, limit=0.05)
    assert slower.outcome == "slower"


def test_diff_refuses_unlike_runs_with_the_list():
    old, new = costs(*[5.0] * 5), costs(*[5.0] * 5, config={"batch_size_per_rank": 32}, cores=4)
    with pytest.raises(ConditionsError) as refused:
        diff(old, new, NAMES, limit=0.05)
    assert refused.value.found.splitlines() == [
        "batch_size_per_rank: 64 in old, 32 in new",
        "cores of each host: 2 in old, 4 in new",
    ]
    forced = diff(old, new, NAMES, limit=0.05, force=True)
    assert [one.what for one in forced.unlike] == ["batch_size_per_rank", "cores of each host"]


def with_variables(run, **environment):
    """Return the run as if its ranks attested these variables."""
    launches = []
    for launch in run.launches:
        own = {**launch.ranks[0].attestation, "malloc": {}, "environment": environment}
        ranks = [msgspec.structs.replace(rank, attestation=own) for rank in launch.ranks]
        launches.append(msgspec.structs.replace(launch, ranks=ranks))
    return msgspec.structs.replace(run, launches=launches)


def test_diff_lists_each_variable_that_differs_once():
    run = a_run({"none": [4.0] * 5, "ddp": [5.0] * 5, "manual": [5.0] * 5})
    image = {"NVIDIA_REQUIRE_CUDA": "cuda>=13.0 " * 300, "CUDA_VERSION": "13.0"}
    old = with_variables(run, OMP_NUM_THREADS="1", NCCL_ALGO="Ring", MALLOC_ARENA_MAX="2")
    new = with_variables(run, OMP_NUM_THREADS="1", NCCL_ALGO="Tree", **image)
    with pytest.raises(ConditionsError) as caught:
        diff(old, new, NAMES, limit=0.05)
    assert caught.value.found.splitlines() == [
        "MALLOC_ARENA_MAX: 2 in old, – in new",
        "NCCL_ALGO: Ring in old, Tree in new",
    ]
    assert diff(old, old, NAMES, limit=0.05).unlike == []
    assert diff(with_variables(run, **image), with_variables(run), NAMES, limit=0.05).unlike == []


def test_diff_names_versions_that_changed():
    old, new = costs(*[5.0] * 5), costs(*[5.0] * 5, ringside_version="0.2.0")
    assert [one.what for one in diff(old, new, NAMES, limit=0.05).changed] == ["ringside"]


def test_diff_without_a_control_divides_by_the_baseline():
    old = a_run({"ddp": [5.0] * 5, "manual": [6.0] * 5})
    changes = diff(old, old, NAMES, limit=0.05)
    assert (changes.reference, [change.arm for change in changes.changes]) == ("ddp", ["manual"])


def test_diff_judges_nothing_where_ranks_outnumber_cores():
    run = costs(*[5.0] * 5, cores=1)
    changes = diff(run, run, NAMES, limit=0.05)
    assert changes.outcome == "too noisy"
    assert any("outnumber" in note for note in changes.notes)


def test_diff_needs_an_arm_in_common():
    with pytest.raises(OutputError, match="no arm in common"):
        diff(costs(*[5.0] * 5), a_run({"none": [4.0] * 5, "manual": [5.0] * 5}), NAMES, limit=0.05)
    stopped = msgspec.structs.replace(costs(*[5.0] * 5), launches=[])
    with pytest.raises(OutputError, match="no arm in common"):
        diff(stopped, stopped, NAMES, limit=0.05)
