"""Nothing wrong is proven, and nothing right is accused."""

from __future__ import annotations

import pytest

from tests.proof import mutations, planted_steps
from tests.proof.case import CASES
from tests.proof.workloads import (
    right_models,
    right_state,
    right_steps,
    right_training,
    wrong_empty,
    wrong_late,
    wrong_parameters,
    wrong_references,
    wrong_steps,
)

RIGHT = (right_models, right_state, right_steps, right_training)
WRONG = (wrong_empty, wrong_late, wrong_parameters, wrong_references, wrong_steps)
FILES = (*RIGHT, *WRONG, mutations, planted_steps)
QUICK = {module.__file__ for module in (*RIGHT, wrong_steps)}


def a_case(case):
    """Return what pytest takes; ``make test`` leaves out most of what trains wrongly."""
    quick = str(case.file) in QUICK and not case.mutation
    name = f"{case.mutation or case.file.stem}-{case}"
    return pytest.param(case, id=name, marks=[] if quick else pytest.mark.faults)


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
