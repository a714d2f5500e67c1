"""Count collectives on the wire: the form that really ran is named."""

from __future__ import annotations

import json

import pytest

from compare.analysis.collectives import FORMS
from tests.comparing import compare
from tests.lab.hosts import why_no_rate_limit

pytestmark = pytest.mark.lab

TRUE_FORMS = {"gloo": "ring", "mpi": "Rabenseifner"}
"""Of an all-reduce of 2 MiB."""


@pytest.mark.timed
@pytest.mark.parametrize(
    "hosts", [pytest.param(2, marks=pytest.mark.rest), 3, pytest.param(4, marks=pytest.mark.rest)]
)
def test_forms_name_the_true_one_and_at_three_hosts_no_other(tmp_path, requires_lab, requires_backend, hosts):
    requires_backend("mpi")
    if reason := why_no_rate_limit():
        pytest.skip(reason)
    done = compare(
        *("collectives", "--engine", f"rehearsal:hosts={hosts},rate=200mbit"),
        *("--group", ",".join(TRUE_FORMS)),
        *("--collective", "all_reduce,broadcast" if hosts == 3 else "all_reduce"),
        *("-b", "2M", "-e", "2M", "-n", 2, "--repeats", 1, "--threads", 1, "--detail"),
        *("--output", tmp_path / "run", "--export", tmp_path / "out.json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "out.json").read_text())["figures"]
    forms = {row["group"]: row["forms"] for row in figures if row["collective"] == "all_reduce"}
    if hosts == 2:
        assert set(forms["gloo"]) == set(forms["mpi"]) == {form.name for form in FORMS["all_reduce"]}
    elif hosts == 3:
        assert forms == {group: [form] for group, form in TRUE_FORMS.items()}
        marked = {(row["collective"], row["group"]) for row in figures if row["other_form"]}
        assert {("all_reduce", "mpi"), ("broadcast", "gloo")} <= marked
        assert ("all_reduce", "gloo") not in marked
        broadcasts = {row["group"]: row["forms"] for row in figures if row["collective"] == "broadcast"}
        assert "binomial tree" in broadcasts["gloo"]
    else:
        assert all(form in forms[group] for group, form in TRUE_FORMS.items())
        assert "linear" not in forms["gloo"] + forms["mpi"]
    assert all(row["wrong"] == 0 for row in figures)
    assert all(form in done.stdout for form in TRUE_FORMS.values())
