"""Test what `ringside verify` prints and its exit code."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from compare.errors import BudgetError, LaunchError, OutputError
from compare.experiment.verify import VERIFICATION_FILE, verify
from compare.report import FORMATS, View, document_of, write
from compare.report.formats.terminal import ConsoleDocument
from compare.schema.results import ArmVerification, Failure, Gate, Verification
from compare.system.files import read_json
from tests.unit.factories import DIGITS, a_launch, a_pass, a_rank, a_run


def an_arm(arm="ddp", outcome="passed", figure=2e-16, **changes):
    told = {"what": f"{arm} is wrong.", "found": "Why.", "remedy": "Fix it."}
    gates = [
        Gate(name="float64", outcome=outcome, figure=figure, limit=1e-12, **told),
        Gate(name="float32", outcome=outcome, figure=3e-8, limit=1e-6),
        Gate(name="ranks", outcome="passed"),
    ]
    return ArmVerification(**{"arm": arm, "gates": gates, "curve": [1e-8] * 20, "seconds": 5.0} | changes)


def exempt(arm="none"):
    gates = [Gate(name=name, outcome="exempt") for name in ("float64", "float32", "ranks")]
    return ArmVerification(arm=arm, gates=gates, seconds=5.0)


def did_not_run(kind="LaunchError"):
    failure = Failure(arm="mpi", round=1, kind=kind, message="mpi, round 1: rank 1 died.")
    return ArmVerification(arm="mpi", failure=failure, seconds=5.0)


def shown(*arms, detail=False, **changes):
    console, found = Console(width=200), Verification(run=a_run(**changes), arms=list(arms))
    with console.capture() as capture:
        console.print(ConsoleDocument(document_of(found, view=View(detail=detail))))
    return capture.get()


def row(text, arm):
    return next(line for line in text.splitlines() if line.strip().startswith(arm))


@pytest.mark.parametrize(
    ("arms", "code"),
    [
        ([], 0),
        ([an_arm(), exempt()], 0),
        ([an_arm(), an_arm(outcome="failed")], 8),
        ([an_arm(), an_arm(outcome="nothing")], 16),
        ([an_arm(), an_arm(outcome="incomparable"), did_not_run()], 6),
        ([did_not_run(), an_arm()], 6),
        ([did_not_run(), did_not_run("StalledError")], 7),
        ([did_not_run(), an_arm(outcome="failed")], 8),
    ],
)
def test_it_ends_with_the_code_of_the_gravest(arms, code):
    assert Verification(run=a_run(), arms=arms).exit_code == code


def test_headline_says_that_ranks_share_gpus():
    config = {"device": "cuda", "shares_gpus": True}
    assert "1 thread, cuda · RANKS SHARE GPUS · " in shown(an_arm(), config=config)
    assert "SHARE" not in shown(an_arm(), config=config | {"shares_gpus": False})


def test_table_has_every_figure_and_under_it_what_failed():
    arms = (an_arm(), an_arm("manual", "failed", 0.5), exempt(), did_not_run())
    text = shown(*arms, detail=True, dataset=DIGITS)
    assert row(text, "ddp").split()[4:7] == ["same", "2e-16", "3e-08"]
    assert "the same training" in row(text, "ddp")
    assert "5e-01 FAILED" in row(text, "manual")
    assert "NOT the same training" in row(text, "manual")
    assert row(text, "none").split() == ["none", *["exempt"] * 4, *"–––––"]
    assert "did not run" in row(text, "mpi")
    below = ("manual is wrong. Why. Fix it.", "rank 1 died", "1e-12 in float64 and 1e-06 in float32")
    assert [part for part in (*below, DIGITS.note) if part not in " ".join(text.split())] == []


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_the_failures(form):
    found = Verification(run=a_run(), arms=[an_arm(), an_arm("manual", "failed", 0.5), did_not_run()])
    text = write(document_of(found, form), form)
    assert "manual" in text
    assert "failed" in text.lower()
    assert "rank 1 died" in text


def test_figures_that_are_no_numbers_are_called_so():
    text = shown(an_arm("manual", "failed", None, curve=[None] * 20), detail=True)
    assert row(text, "manual").count("FAILED") == 2
    assert row(text, "manual").count("not a number") == 4


def test_an_arm_that_rounds_and_ends_too_far_off_has_failed():
    gate = Gate(name="float64", outcome="failed", figure=0.3, what="It ends farther off.", found="1.2 times.")
    text = shown(an_arm(), an_arm("ddp:comm_hook=fp16", gates=[gate]), detail=True)
    assert "3e-01 FAILED" in row(text, "ddp:comm_hook=fp16")
    assert "It ends farther off. 1.2 times." in text
    assert "Rounding allows up to 1e-12 in float64" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        ([], "No arm has finished, so nothing is proven."),
        ([an_arm(), exempt()], "✓ ddp: the same training as in one process."),
        (
            [an_arm(), an_arm("manual", "failed", 0.5), did_not_run(), an_arm("fsdp", "nothing")],
            "✗ manual: NOT the same training as in one process; mpi: did not run; fsdp: not proven.",
        ),
    ],
)
def test_last_line_is_the_conclusion_and_legends_need_detail(arms, words):
    assert shown(*arms).splitlines()[-1] == words
    assert "Rounding allows" not in shown(*arms)
    assert shown(*arms, detail=True).splitlines()[-1] == words


class Silent:
    def __init__(self):
        self.events = []

    def __getattr__(self, name):
        return lambda *event: self.events.append((name, *event))


def pretend(monkeypatch, outcomes):
    """Launch arms in no time: each ends as ``outcomes`` has it."""

    def launch_arm(run, planned, directory, affinity, observer, *, proof, budget_ends_at):
        assert proof == "whole"
        assert budget_ends_at == (affinity.job.ends_at if affinity.job else math.inf)
        outcome = outcomes[planned.arm.label]
        if isinstance(outcome, Exception):
            raise outcome
        return a_launch(planned.arm.label, ranks=outcome)

    monkeypatch.setattr("compare.experiment.verify.launch_arm", launch_arm)


HERE = SimpleNamespace(job=None)
"""A cluster without a scheduler; the stand-in launches nothing on it."""


def right(rank):
    kinds = ("float64", "float32", "as run")
    return a_rank(rank, parity=[a_pass(kind=kind, differences=[1e-16] * 20) for kind in kinds])


def test_an_arm_that_fails_stops_no_other(tmp_path, monkeypatch):
    wrong = [a_rank(0, parity=[]), a_rank(1, parity=[])]
    dead = LaunchError("ddp: rank 0 died.")
    pretend(monkeypatch, {"ddp": dead, "manual": wrong, "mpi": [right(0), right(1)]})
    observer = Silent()
    run = a_run({"ddp": [], "manual": [], "mpi": []}, launches=[], complete=False)
    verification = verify(run, tmp_path, HERE, observer)
    assert [arm.refuted for arm in verification.arms] == [True, True, False]
    assert verification.arms[0].failure.message == "ddp: rank 0 died."
    assert verification.arms[2].curve == [1e-16] * 20
    assert [launch.arm for launch in verification.run.launches] == ["manual", "mpi"]
    assert verification.run.complete
    assert read_json(tmp_path / VERIFICATION_FILE, Verification) == verification
    verified = [arm[0].arm for name, *arm in observer.events if name == "arm_verified"]
    assert verified == ["ddp", "manual", "mpi"]


A_JOB = SimpleNamespace(name="Slurm job 17", ends_at=time.time() + 3600)


@pytest.mark.parametrize(
    ("job", "error", "what", "found"),
    [
        (None, OutputError("The disk is full."), "The disk is full", ""),
        (
            A_JOB,
            BudgetError("The time limit of this run has passed."),
            "The time of Slurm job 17 ran out",
            "1 of 2 arms had run by then.",
        ),
    ],
)
def test_what_would_fail_every_arm_ends_it_and_keeps_what_is_finished(
    tmp_path, monkeypatch, job, error, what, found
):
    pretend(monkeypatch, {"ddp": [right(0)], "manual": error})
    run = a_run({"ddp": [], "manual": []}, launches=[], complete=False)
    with pytest.raises(type(error), match=what) as caught:
        verify(run, tmp_path, SimpleNamespace(job=job), Silent())
    assert caught.value.found == found
    kept = read_json(tmp_path / VERIFICATION_FILE, Verification)
    assert [arm.arm for arm in kept.arms] == ["ddp"]
    assert not kept.run.complete
