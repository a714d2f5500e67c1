"""A run goes on without an arm that gets no more memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from compare.errors import LaunchError
from compare.experiment import rounds
from compare.experiment.schedule import launch_order, next_launches
from compare.launch.monitor import MemoryShortError
from compare.schema.memory import Shortage
from compare.schema.results import Interleaved
from tests.unit.factories import a_launch, a_run

ARMS = "none,ddp,mpi,manual"


def short_of(limit, stage="parity"):
    shortage = Shortage(limit_bytes=1 << 30, limit=limit, needed_bytes=3 << 29)
    return MemoryShortError("No memory.", found="It asks.", remedy="", shortage=shortage, stage=stage)


def going(
    monkeypatch,
    folder,
    *,
    unfit=("mpi",),
    with_proof=(),
    limit="address space",
    stage="parity",
    beside=True,
    launches=(),
    **config,
):
    """Return a run and what the user is shown.

    The arms ``unfit`` get no more memory, and the arms ``with_proof`` none for a proof.
    """
    shown = []

    def fits(run, arm):
        return arm.label not in unfit and (arm.label not in with_proof or run.is_bare(arm))

    class Cohort:
        side_by_side = beside

        def __init__(self, run, *_given, **_more):
            self.run, self.current = run, None

        def carry_out(self, planned, _turns):
            for each in planned:
                if not fits(self.run, each.arm):
                    self.current = each
                    raise short_of(limit, stage)
            return [a_launch(each.arm.label, each.round, number=each.number) for each in planned]

    def launch_arm(run, planned, *_rest, **_more):
        if not fits(run, planned.arm):
            raise short_of(limit, stage)
        return a_launch(planned.arm.label, planned.round, number=planned.number)

    monkeypatch.setattr(rounds, "Cohort", Cohort)
    monkeypatch.setattr(rounds, "launch_arm", launch_arm)
    monkeypatch.setattr(rounds, "check_launches", lambda *_: None)
    monkeypatch.setattr(rounds, "check_interpreter", lambda *_, **__: None)
    mode = "launches" if config.get("interleave", "").startswith("launches") else "blocks"
    run = a_run(
        {arm: [] for arm in ARMS.split(",")},
        config={"baseline": "ddp", "rounds": 2} | config,
        interleaved=Interleaved(mode=mode),
        launches=list(launches),
        complete=False,
    )
    observer = SimpleNamespace(
        not_in_turns=shown.append,
        arm_goes_bare=lambda planned, why: shown.append(f"{planned.label} bare: {why}"),
        arm_left_out=lambda planned, why: shown.append(f"{planned.label}: {why}"),
        launch_ended=lambda *_: None,
        round_repeats=lambda *_: None,
        rounds_done=lambda *_: None,
    )
    return rounds.Rounds(run, folder, SimpleNamespace(job=None), observer), shown


def to_the_end(run):
    for _ in range(20):
        if planned := next_launches(run.run):
            run.carry_out(planned)
    return run.run


def labels(run):
    return [arm.label for arm in run.config.arms]


@pytest.mark.parametrize("interleave", ["blocks", "launches"])
def test_arm_without_memory_is_left_out_and_all_others_have_every_round(monkeypatch, tmp_path, interleave):
    found, shown = going(monkeypatch, tmp_path, interleave=interleave)
    run = to_the_end(found)
    assert labels(run) == ["none", "ddp", "manual"]
    assert sorted((one.round, one.arm) for one in run.launches) == [
        (round_, arm) for round_ in (1, 2) for arm in ("ddp", "manual", "none")
    ]
    (unfit,) = run.unfit
    assert (unfit.arm.label, unfit.stage, unfit.limit_bytes) == ("mpi", "parity", 1 << 30)
    assert not unfit.beside_others
    assert shown == ["mpi bare: No memory. It asks.", "mpi: No memory. It asks."]
    assert not run.bare


@pytest.mark.parametrize("interleave", ["blocks", "launches"])
def test_arm_whose_proof_alone_does_not_fit_is_timed_without(monkeypatch, tmp_path, interleave):
    found, shown = going(monkeypatch, tmp_path, unfit=(), with_proof=("mpi",), interleave=interleave)
    run = to_the_end(found)
    assert labels(run) == ARMS.split(",")
    assert len(run.launches) == 2 * len(labels(run))
    assert not run.unfit
    assert [(bare.arm.label, bare.stage) for bare in run.bare] == [("mpi", "parity")]
    assert shown == ["mpi bare: No memory. It asks."]
    mpi = next(arm for arm in run.config.arms if arm.label == "mpi")
    assert run.proven(mpi) == [], "a bare launch proves nothing for a later one"


@pytest.mark.parametrize(("stage", "goes_bare"), [("data", False), ("parity", True), ("collectives", True)])
def test_arm_goes_bare_where_its_launch_holds_more_than_its_training(monkeypatch, tmp_path, stage, goes_bare):
    found, shown = going(monkeypatch, tmp_path, stage=stage, interleave="launches")
    assert "mpi" not in [arm.label for arm in to_the_end(found).config.arms]
    assert [line.startswith("mpi bare") for line in shown] == ([True, False] if goes_bare else [False])


def test_next_launches_go_on_with_a_round_that_an_arm_has_left(monkeypatch, tmp_path):
    order = [arm.label for arm in launch_order(going(monkeypatch, tmp_path)[0].run.config, 1)]
    found, _ = going(monkeypatch, tmp_path, unfit=(order[1],), interleave="launches")
    while not found.run.unfit:
        found.carry_out(next_launches(found.run))
    assert [one.arm for one in found.run.launches] == order[:1]
    assert next_launches(found.run)[0].arm.label in order[2:]


def test_baseline_without_memory_is_replaced_by_the_next_arm(monkeypatch, tmp_path):
    found, _ = going(monkeypatch, tmp_path, unfit=("ddp",))
    assert to_the_end(found).config.baseline == "mpi"


def test_control_without_memory_leaves_a_run_without_control(monkeypatch, tmp_path):
    found, _ = going(monkeypatch, tmp_path, unfit=("none",))
    assert to_the_end(found).config.control is None


def test_launches_of_earlier_rounds_go_with_their_arm(monkeypatch, tmp_path):
    launches = [a_launch(arm, 1) for arm in ARMS.split(",")]
    found, _ = going(monkeypatch, tmp_path, launches=launches)
    run = to_the_end(found)
    assert "mpi" not in {one.arm for one in run.launches}
    assert run.unfit[0].round == 2


@pytest.mark.parametrize("arm", ["none", "ddp", "mpi", "manual"])
@pytest.mark.parametrize("interleave", ["blocks", "launches"])
def test_no_launch_gets_the_number_of_an_earlier_one(monkeypatch, tmp_path, arm, interleave):
    """A launch has a folder of its number and its arm, and none may exist before."""
    order = launch_order(going(monkeypatch, tmp_path)[0].run.config, 1)
    launches = [a_launch(one.label, 1, number=number) for number, one in enumerate(order, start=1)]
    found, _ = going(monkeypatch, tmp_path, unfit=(arm,), launches=launches, interleave=interleave)
    run = to_the_end(found)
    assert run.unfit
    assert len({(one.number, one.arm) for one in run.launches}) == len(run.launches)


def test_run_fails_if_no_arm_fits_that_synchronises(monkeypatch, tmp_path):
    found, _ = going(monkeypatch, tmp_path, unfit=("ddp", "mpi", "manual"))
    with pytest.raises(LaunchError, match="No arm fits into memory"):
        to_the_end(found)


def test_arm_beside_others_is_tried_alone_where_they_share_the_limit(monkeypatch, tmp_path):
    found, shown = going(monkeypatch, tmp_path, limit="control group", interleave="auto")
    run = to_the_end(found)
    assert run.interleaved.mode == "launches"
    assert [one.beside_others for one in run.unfit] == [False]
    assert shown[0] == "Beside other arms: No memory. It asks."


def test_arm_beside_others_in_turns_by_request_is_left_out_as_such(monkeypatch, tmp_path):
    found, _ = going(monkeypatch, tmp_path, limit="control group", interleave="blocks")
    assert [one.beside_others for one in to_the_end(found).unfit] == [True]


def test_gate_fails_where_one_of_its_arms_has_no_memory(monkeypatch, tmp_path):
    found, _ = going(monkeypatch, tmp_path, slower_limit=0.1)
    with pytest.raises(MemoryShortError):
        found.carry_out(next_launches(found.run))
