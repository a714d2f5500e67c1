"""Nothing wrong is proven, and nothing right is accused."""

from __future__ import annotations

import pytest

from tests.proof import mutations
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
FILES = (*RIGHT, *WRONG, mutations)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.mutation or case.file.stem}-{case}")
def test_proof_of_the_case_ends_as_it_must(prove, case):
    verdict = prove(case)
    allowed = (*case.ends, *(["passed"] if case.or_names else []))
    assert verdict.outcome in allowed, f"{verdict.words}\n{verdict.logs}"
    for text in case.names:
        assert text in verdict.words
    if verdict.outcome == "passed":
        for text in case.or_names:
            assert text in verdict.words, verdict.words
