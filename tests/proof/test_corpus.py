"""Nothing wrong is proven, and nothing right is accused."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.e2e import planted
from tests.proof.case import CASES, WORKLOADS, wrong

for _module in ("mutations", *sorted(f"workloads.{file.stem}" for file in WORKLOADS.glob("*.py"))):
    import_module(f"tests.proof.{_module}")

CAUSES = {
    planted.sums: "a sum in place of the mean",
    planted.clips: "they are scaled or clipped before the average",
    planted.scales: "It is 1.5 times the right one: gradients or the learning rate are scaled or clipped",
    planted.steps_twice: "wrong from step 5: 2.weight is off by 5.4e-02. It calls optimizer.step() 2 times",
}
for _factory, _cause in CAUSES.items():
    wrong(origin="own", ends="failed", names=_cause, batch_size_per_rank=8)(_factory)


def a_case(case):
    """Return what pytest takes.

    ``make test`` leaves out most of what trains wrongly. It tries the plain workload by every arm, and each
    other one by its first, because the contract suite takes every arm through all kinds of steps. So
    ``.ci/run`` leaves out workloads by another arm than their first. Of our faults among four ranks it takes
    those of replicas of shards, because two ranks show the others as well.
    """
    by_this_arm = case.is_first or case.name == "plain"
    quick = (case.is_right or case.file.stem == "wrong_steps") and by_this_arm and not case.mutation
    is_shown_by_two = case.settings.get("ranks", 2) > 2 and "replicate" not in case.arm
    in_ci = (case.is_first or case.mutation) and not is_shown_by_two
    marks = [pytest.mark.faults, *([] if in_ci else [pytest.mark.rest])]
    name = f"{case.mutation or case.file.stem}-{case}"
    return pytest.param(case, id=name, marks=[] if quick else marks)


@pytest.mark.parametrize("case", [a_case(case) for case in CASES])
def test_proof_of_the_case_ends_as_it_must(prove, case):
    verdict = prove(case)
    allowed = (*case.ends, *(["passed"] if case.or_names else []))
    assert verdict.outcome in allowed, f"{verdict.words}\n{verdict.logs}"
    for text in case.names:
        assert text in verdict.words
    if verdict.outcome == "passed":
        for text in case.or_names:
            assert text in verdict.words, verdict.words
