"""Test ``--interleave blocks``: real launchers alive side by side, on real data."""

from __future__ import annotations

import pytest

from compare.analysis import analyse
from compare.schema.store import read_run
from tests.comparing import RUN, compare

ARMS = ("horovod", "mpi")
STEPS, TURNS = 300, 4


@pytest.fixture(scope="module")
def cohort(tmp_path_factory, mnist_dir, every_backend):
    """Run two cohorts of an arm with a thread of its own and one that polls."""
    folder = tmp_path_factory.mktemp("cohort") / "run"
    done = compare(
        *(*RUN, "--interleave", "blocks", "--repeats", 2, "--steps", STEPS, "--backend", ",".join(ARMS)),
        "--no-control",
        *("--data", mnist_dir, "--output", folder),
    )
    assert done.returncode == 0, done.stderr
    return read_run(folder), done


def test_every_arm_takes_every_turn(cohort):
    run, _ = cohort
    for launch in run.launches:
        for rank in launch.ranks:
            assert {block.turn for block in rank.blocks} == set(range(1, TURNS + 1)), launch.arm


def test_all_arms_train_the_same_steps_and_more_for_timing(cohort):
    run, done = cohort
    arms = {arm.arm: arm for arm in analyse(run).summary.arms}
    assert len({arms[name].final_hash for name in ARMS}) == 1
    assert len({arms[name].accuracy for name in ARMS}) == 1
    for launch in run.launches:
        assert {rank.trained_steps >= STEPS for rank in launch.ranks} == {True}
        assert len({rank.trained_steps for rank in launch.ranks}) == 1
    assert "CONDITIONS DIFFER" not in done.stdout


def test_arm_is_proven_once_and_then_by_its_hashes(cohort):
    run, done = cohort
    for launch in run.launches:
        assert {len(rank.parity) for rank in launch.ranks} == {1 if launch.round == 1 else 0}
        assert all(rank.end for rank in launch.ranks)
    line = "20 steps and one at the end, in later rounds by their hashes, equal bit for bit."
    assert line in " ".join(done.stdout.split())


def test_only_the_first_round_starts_its_launches_alone(cohort):
    run, _ = cohort
    assert {launch.started_alone for launch in run.launches if launch.round == 1} == {True}
    assert {launch.started_alone for launch in run.launches if launch.round == 2} == {False}


def test_arms_wait_while_others_train(cohort):
    run, _ = cohort
    for round_ in (run.launches[: len(ARMS)], run.launches[len(ARMS) :]):
        trained_ns = {launch.arm: sum(block.wall_ns for block in launch.ranks[0].blocks) for launch in round_}
        for launch in round_:
            others_ns = sum(trained_ns.values()) - trained_ns[launch.arm]
            assert all(rank.waited_ns > 0.8 * others_ns for rank in launch.ranks), launch.arm


def test_stopped_arms_take_hardly_any_cpu_time(cohort):
    run, _ = cohort
    for launch in run.launches:
        taken = sum(rank.waited_cpu_ns / rank.waited_ns for rank in launch.ranks)
        assert taken < 0.05, launch.arm
