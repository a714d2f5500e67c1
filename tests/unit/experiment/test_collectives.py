"""Test which groups ``ringside collectives`` launches, and in which order."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace

import pytest

from backends import GROUPS
from compare.errors import BudgetError, LaunchError, UnavailableError, UsageError
from compare.experiment import collectives
from compare.experiment.collectives import plan_sweeps, refusal_of, require_memory, settle_sweep, sweep_groups
from compare.schema.collectives import COLLECTIVES_FILE, CollectivesRun
from compare.schema.hosts import Host
from compare.system.files import read_json
from tests.unit.collectives import a_collectives_run, a_sweep_config, a_sweep_launch
from tests.unit.factories import a_cluster, a_survey


def a_request(*groups):
    flags = dict.fromkeys(["allocation", "output"])
    return collectives.SweepRequest(groups=groups, exported={}, threads_per_rank=1, config={}, **flags)


def test_plan_sweeps_every_round_reverses_the_one_before():
    planned = plan_sweeps(a_sweep_config("gloo", "mpi", rounds=3))
    assert [one.label for one in planned] == ["gloo", "mpi", "mpi", "gloo", "gloo", "mpi"]
    assert [(one.number, one.round) for one in planned] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)]


def test_outlook_states_the_launches_and_the_least_time():
    line = collectives.outlook(a_sweep_config("gloo", "mpi", end_bytes=64, rounds=3, iterations=5))
    assert line.startswith("2 groups × 3 rounds × 4 sizes: at least 19 s")


@pytest.mark.parametrize(
    ("group", "device", "survey", "one_host", "reason"),
    [
        ("nccl", "cpu", {}, True, "GPU memory"),
        ("mpi", "cuda", {}, True, "host memory"),
        ("mpi", "cpu", {"missing": ["mpi"]}, True, "not installed"),
        ("horovod_mpi", "cpu", {"controllers": ["gloo"]}, True, "It has: gloo"),
        ("shared_memory", "cpu", {}, False, "one host"),
    ],
)
def test_refusal_of_group_that_cannot_run_has_a_reason(group, device, survey, one_host, reason):
    error = refusal_of(group, device, a_survey(**survey), one_host=one_host)
    assert reason in error.found
    assert error.remedy


@pytest.mark.parametrize("missing", [[], ["mpi"]])
def test_settle_takes_every_group_that_can_run_and_says_why_not_the_others(monkeypatch, missing):
    monkeypatch.setattr(collectives.availability, "survey", lambda _: a_survey(missing=missing))
    config, left_out = settle_sweep(a_request(), a_cluster(), print)
    assert set(left_out) == {"nccl", *missing}
    assert config.groups == tuple(group for group in GROUPS if group not in left_out)
    assert all(left_out.values())


def test_settle_named_group_that_cannot_run_is_refused(monkeypatch):
    monkeypatch.setattr(collectives.availability, "survey", lambda _: a_survey())
    with pytest.raises(UnavailableError, match="nccl cannot run here"):
        settle_sweep(a_request("gloo", "nccl"), a_cluster(), print)


GIB = 1 << 30


ON_TWO = {"n1": 64 * GIB, "n2": 4 * GIB}


@pytest.mark.parametrize(
    ("collective", "end", "left", "words"),
    [
        (
            *("all_reduce", 64 * GIB, {"n1": 24 * GIB}),
            ["host n1", "all_reduce float32 sum of 64 GiB", "640 GiB for 2", "-e 2G."],
        ),
        (
            *("all_to_all", 2 * GIB, {"n1": 23 * GIB}),
            ["2 GiB", "12 GiB", "24 GiB for 2 ranks. 23 GiB is free", "-e 1G."],
        ),
        ("reduce_scatter", 1 << 20, {"n1": 1 << 20}, ["3 MiB", "-e 128K."]),
        ("all_reduce", GIB, ON_TWO, ["host n2"]),
    ],
)
def test_size_beyond_memory_is_refused_with_the_need_and_what_fits(collective, end, left, words):
    config = a_sweep_config("gloo", collectives=(collective,), begin_bytes=8, end_bytes=end)
    hosts = [Host(name, 2 // len(left)) for name in left]
    with pytest.raises(UsageError, match="does not fit into the memory of host") as caught:
        require_memory(config, hosts, list(left.values()))
    assert [text for text in words if text not in str(caught.value)] == []


@pytest.mark.parametrize(("collective", "end", "left"), [("all_reduce", GIB, 10 * GIB), ("barrier", 8, 0)])
def test_size_that_fits_is_not_refused(collective, end, left):
    config = a_sweep_config("gloo", collectives=(collective,), begin_bytes=8, end_bytes=end)
    require_memory(config, [Host("n1", 2)], [left])


HERE = SimpleNamespace(job=None)


class _Silent:
    def __getattr__(self, name):
        return lambda *event: None


def test_sweep_group_that_fails_stops_no_other(tmp_path, monkeypatch):
    config = a_sweep_config("gloo", "mpi", rounds=2)

    def launch(config, planned, *_, budget_ends_at):
        assert budget_ends_at == math.inf
        if planned.group == "gloo":
            raise LaunchError("gloo, round 1: rank 0 died.")
        return a_sweep_launch(config, planned.group, planned.number)

    monkeypatch.setattr(collectives, "launch_sweep", launch)
    skipped = []
    observer = _Silent()
    observer.sweep_skipped = lambda: skipped.append("gloo")
    run = sweep_groups(a_collectives_run(config, [], complete=False), tmp_path, HERE, observer)
    assert [launch.group for launch in run.launches] == ["mpi", "mpi"]
    assert skipped == ["gloo"], "the bar expects it no more"
    assert [failure.arm for failure in run.failures] == ["gloo"], "it is not launched again"
    assert run.complete
    assert read_json(tmp_path / COLLECTIVES_FILE, CollectivesRun) == run


def test_sweep_in_a_job_ends_with_its_time(tmp_path, monkeypatch):
    """The job ends after three launches."""
    config = a_sweep_config("gloo", "mpi", rounds=2)

    def launch(config, planned, *_, budget_ends_at):
        assert budget_ends_at < math.inf
        if planned.number > 3:
            raise BudgetError("The time limit of this run has passed.")
        return a_sweep_launch(config, planned.group, planned.number)

    monkeypatch.setattr(collectives, "launch_sweep", launch)
    job = SimpleNamespace(name="Slurm job 17", ends_at=time.time() + 60)
    run = a_collectives_run(config, [], complete=False)
    run = sweep_groups(run, tmp_path, SimpleNamespace(job=job), _Silent())
    assert [launch.group for launch in run.launches] == ["gloo", "mpi", "mpi"]
    assert not run.complete
    assert read_json(tmp_path / COLLECTIVES_FILE, CollectivesRun) == run
