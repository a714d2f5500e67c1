"""Test the order of launches: shuffled, seeded, every arm once a round.

Also test which rounds are repeated: whole noisy ones, a limited number of times.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.analysis.budget import FIRST_LOOK
from compare.analysis.figures import Figures
from compare.errors import BudgetError, OutputError
from compare.experiment import rounds
from compare.experiment.run import carry_out
from compare.experiment.schedule import MOST_IN_A_ROW, discard_noisy, is_settled, launch_order, next_launches
from compare.launch.arm import Observer
from compare.schema.results import MachineUse
from compare.schema.store import read_run
from compare.system import files
from tests.unit.factories import a_block, a_cluster, a_config, a_launch, a_rank, a_run

ARMS = ["none", "ddp", "manual", "manual:mode=overlap", "horovod", "mpi"]

TURNS = {"ddp": [5.0, 9.0, 3.0, 8.0, 4.0] * 2, "mpi": [9.0, 5.0, 8.0, 3.0, 6.0] * 2}
"""Arms that lead by turns stay unresolved."""

ALONE = SimpleNamespace(job=None)
"""The cluster of a run outside any scheduler."""

CONFIGS = st.builds(
    lambda arms, rounds, seed: a_config(",".join(arms), rounds=rounds, seed=seed),
    st.lists(st.sampled_from(ARMS), min_size=1, unique=True),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
)


def a_beginning(config):
    return msgspec.structs.replace(a_run(), config=config, launches=[], complete=False)


def next_launch(run):
    return next(iter(next_launches(run)), None)


def launched(planned, *, noisy=False):
    """Return a launch, during which others used a CPU or nothing."""
    busy = 10**9 if noisy else 0
    machine = MachineUse(wall_ns=10**9, cpus=3, busy_ns=busy, stolen_ns=0)
    ranks = [a_rank(0, cpu_ns=0, machine=machine), a_rank(1, cpu_ns=0)]
    return a_launch(planned.arm.label, planned.round, number=planned.number, ranks=ranks)


def carried_out(config, is_noisy=lambda planned: False):
    """Launch to the end; return the run and all planned launches."""
    run, history = a_beginning(config), []
    while planned := next_launch(run):
        history.append(planned)
        assert len(history) < 1000
        launch = launched(planned, noisy=is_noisy(planned))
        run = discard_noisy(msgspec.structs.replace(run, launches=[*run.launches, launch]))
    return run, history


@settings(deadline=None)
@given(CONFIGS, st.integers(0, 50))
def test_every_second_round_is_the_one_before_in_reverse(config, pair):
    first, second = (launch_order(config, round_) for round_ in (2 * pair + 1, 2 * pair + 2))
    assert second == first[::-1]


def test_orders_differ_by_round_and_seed_and_every_arm_leads():
    config = a_config("none,ddp,manual,mpi", rounds=100)
    orders = [launch_order(config, round_) for round_ in range(1, 101)]
    of_seeds = [launch_order(msgspec.structs.replace(config, seed=seed), 1) for seed in range(20)]
    for found in (orders[:20], of_seeds):
        assert len({tuple(arm.label for arm in order) for order in found}) > 5
    first = Counter(order[0].label for order in orders)
    assert min(first[arm.label] for arm in config.arms) > 10


def test_the_order_of_a_seed_never_changes():
    # Written down: a run from last year, repeated with its seed, launches in the same order.
    config = a_config("none,ddp,manual,mpi", seed=0)
    assert [[arm.label for arm in launch_order(config, round_)] for round_ in (1, 2, 3)] == [
        ["none", "mpi", "ddp", "manual"],
        ["manual", "ddp", "mpi", "none"],
        ["none", "ddp", "manual", "mpi"],
    ]


# ---- rounds that are repeated ----


def numbers(launches):
    return [launch.number for launch in launches]


@pytest.mark.parametrize(("most", "repeated"), [(0, []), (1, [1]), (3, [1, 1, 2]), (99, [1, 1, 2, 2, 3, 3])])
def test_on_a_machine_that_is_never_quiet_a_run_comes_to_an_end(most, repeated):
    """No round is repeated more than twice; the third attempt counts."""
    config = a_config("none,ddp", rounds=3, max_reruns=most)
    run, history = carried_out(config, lambda planned: True)
    assert [launch.round for launch in run.discarded[::2]] == repeated
    assert len(run.launches) == config.total_launches
    assert len(history) == config.total_launches + 2 * len(repeated)
    assert Figures(run).noisy_rounds == [1, 2, 3]


@settings(deadline=None)
@given(CONFIGS, st.sets(st.integers(1, 40)), st.integers(0, 5))
def test_every_round_is_whole_and_in_its_order_with_any_noise(config, noisy, most):
    """A repeated round keeps its order, or it would not be the reverse of its neighbour any more."""
    config = msgspec.structs.replace(config, max_reruns=most)
    run, history = carried_out(config, lambda planned: planned.number in noisy)
    width = len(config.arms)
    assert [planned.number for planned in history] == list(range(1, len(history) + 1))
    assert sorted(numbers([*run.launches, *run.discarded])) == [planned.number for planned in history]
    rounds = [planned.round for planned in history[::width]]
    assert sorted(set(rounds)) == list(range(1, config.rounds + 1))
    assert rounds == sorted(rounds)
    assert [(p.round, p.arm) for p in history] == [
        (r, arm) for r in rounds for arm in launch_order(config, r)
    ]
    assert len(run.launches) == config.total_launches == config.rounds * width
    assert [la.round for la in run.launches[::width]] == list(range(1, config.rounds + 1))
    labels = sorted(arm.label for arm in config.arms)
    assert all(sorted(arm.label for arm in launch_order(config, round_)) == labels for round_ in rounds)
    assert len(run.discarded) <= width * most
    attempts = [run.discarded[first : first + width] for first in range(0, len(run.discarded), width)]
    for attempt in attempts:
        assert sorted(launch.arm for launch in attempt) == labels
        assert len({launch.round for launch in attempt}) == 1
        assert noisy & {launch.number for launch in attempt}
    assert all(times <= MOST_IN_A_ROW for times in Counter(each[0].round for each in attempts).values())
    assert next_launch(msgspec.structs.replace(run, launches=run.launches[:-1])) is not None


# ---- carried out ----


class Listening(Observer):
    """Records which rounds were repeated, and how busy others were."""

    def __init__(self):
        self.repeated = []
        self.rounds = []

    def round_repeats(self, round_, other_load):
        self.repeated.append((round_, other_load))

    def rounds_done(self, run):
        self.rounds.append(numbers(run.launches))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OutputError("Nobody reads")])
def test_a_launch_is_kept_although_its_event_cannot_be_printed(monkeypatch, tmp_path, error):
    class Deaf(Observer):
        def launch_ended(self, *_):
            raise error

    monkeypatch.setattr("compare.experiment.rounds.launch_arm", over_after(9))
    with pytest.raises(type(error)):
        carry_out(a_beginning(a_config("none,ddp", rounds=2)), tmp_path, ALONE, Deaf())
    kept = read_run(tmp_path)
    assert (numbers(kept.launches), kept.failure.kind) == ([1], type(error).__name__)


def test_a_launch_is_kept_although_saving_it_was_interrupted(monkeypatch, tmp_path):
    write, written = files.write_json, []

    def interrupted_once(path, value):
        written.append(path)
        if len(written) == 2:  # after the first launch
            raise KeyboardInterrupt
        write(path, value)

    monkeypatch.setattr("compare.experiment.rounds.launch_arm", over_after(9))
    monkeypatch.setattr("compare.experiment.rounds.write_json", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        carry_out(a_beginning(a_config("none,ddp", rounds=2)), tmp_path, ALONE, Listening())
    assert numbers(read_run(tmp_path).launches) == [1, 2]


def over_after(launches, noisy=()):
    """A launch that finds the budget over after so many others."""

    def launch(run, planned, directory, affinity, observer, **budget):
        if planned.number > launches:
            raise BudgetError("over")
        return launched(planned, noisy=planned.number in noisy)

    return launch


@pytest.mark.parametrize(
    ("done", "noisy", "counted", "discarded"),
    [
        (2, (), [1, 2], []),
        (3, (), [1, 2], [3]),
        (4, (), [1, 2, 3, 4], []),
        (5, (4, 6), [1, 2, 3, 4], [5]),
        (7, (4, 6), [1, 2, 5, 6], [3, 4, 7]),
    ],
)
def test_a_round_that_the_budget_cuts_short_is_discarded(
    monkeypatch, tmp_path, done, noisy, counted, discarded
):
    """If it repeats a noisy round, the last whole attempt counts."""
    monkeypatch.setattr("compare.experiment.rounds.launch_arm", over_after(done, noisy))
    config = a_config("none,ddp", rounds=9, budget_seconds=1e6)
    run = carry_out(a_beginning(config), tmp_path, ALONE, Listening())
    assert run.complete
    assert (numbers(run.launches), numbers(run.discarded)) == (counted, discarded)
    assert Figures(run).noisy_rounds == ([2] if noisy else [])
    assert read_run(tmp_path) == run


@pytest.mark.parametrize("limit", ["budget_seconds", "settle_seconds"])
@pytest.mark.parametrize(("cores", "rounds"), [(2, 9), (1, FIRST_LOOK)])
def test_time_buys_no_rounds_where_no_verdict_will_be_shown(cores, rounds, limit):
    """Oversubscribed arms get no verdict."""
    for done in range(1, 10):
        run = a_run(
            {arm: own[:done] for arm, own in TURNS.items()},
            config={"rounds": 9, limit: 1e6},
            cores=cores,
            complete=False,
        )
        assert (next_launch(run) is None) is (done >= rounds)


def run_at_pace(seconds, *, is_noisy=lambda planned: False, **config):
    """Carry out a run at a pace; return it and its time."""
    clock = 0.0
    run = a_beginning(a_config("ddp,mpi", rounds=1000, **config))
    while planned := next_launch(run):
        launch = launched(planned, noisy=is_noisy(planned))
        blocks = [a_block(TURNS[launch.arm][planned.round % 10])]
        ranks = [msgspec.structs.replace(rank, blocks=blocks) for rank in launch.ranks]
        launch = msgspec.structs.replace(launch, ranks=ranks, started_at=clock, seconds=seconds)
        clock += seconds
        run = discard_noisy(msgspec.structs.replace(run, launches=[*run.launches, launch]))
    return run, clock


@settings(deadline=None, max_examples=30)
@given(st.floats(0.5, 200), st.floats(1, 300))
def test_run_of_default_length_has_five_rounds_or_fills_its_time(seconds, limit):
    run, took = run_at_pace(seconds, settle_seconds=limit)
    rounds = len(run.launches) // 2
    # Another round would not have fitted, or was not needed.
    assert rounds >= FIRST_LOOK
    assert rounds == FIRST_LOOK or took <= limit + 1e-6
    assert took + 2 * seconds > limit - 1e-6 or is_settled(run)


def test_first_five_rounds_of_the_default_length_repeat_in_any_time():
    """Later rounds are repeated only while there is time."""
    run, _ = run_at_pace(60, settle_seconds=300, is_noisy=lambda planned: planned.number in {3, 11})
    assert [launch.round for launch in run.discarded] == [2, 2, 5, 5]
    assert len(run.launches) == 2 * FIRST_LOOK
    run, _ = run_at_pace(21, settle_seconds=300, is_noisy=lambda planned: planned.round == 7)
    assert [len(run.launches), len(run.discarded)] == [14, 0]


A_JOB = SimpleNamespace(name="Slurm job 17", ends_at=time.time() + 3600)


@pytest.mark.parametrize(
    ("done", "budget", "job", "what", "found"),
    [
        (0, {"budget_seconds": 3}, None, "--budget 3", "No arm had run"),
        (1, {"budget_seconds": 3}, None, "--budget 3", "1 of 2 arms had run"),
        (1, {}, A_JOB, "The time of Slurm job 17", "1 of 2 arms had run"),
    ],
)
def test_time_that_ends_in_the_first_round_loses_nothing(
    monkeypatch, tmp_path, done, budget, job, what, found
):
    monkeypatch.setattr("compare.experiment.rounds.launch_arm", over_after(done))
    run = a_beginning(a_config("none,ddp", rounds=9, **budget))
    with pytest.raises(BudgetError, match=f"{what} ran out before every arm had run once") as caught:
        carry_out(run, tmp_path, SimpleNamespace(job=job), Listening())
    assert found in caught.value.found
    kept = read_run(tmp_path)
    assert not kept.complete
    assert kept.failure.kind == "BudgetError"
    assert len(kept.launches) == done


def test_a_run_saves_and_reports_what_it_discards(monkeypatch, tmp_path):
    saved = []

    def launch(run, planned, directory, affinity, observer, **budget):
        saved.append(read_run(directory))
        return launched(planned, noisy=planned.number in {2, 5})

    monkeypatch.setattr("compare.experiment.rounds.launch_arm", launch)
    # However slow the disk is, each launch is saved.
    monkeypatch.setattr("compare.experiment.rounds._QUICK_SECONDS", math.inf)
    observer = Listening()
    config = a_config("none,ddp", rounds=2)
    done = carry_out(a_beginning(config), tmp_path, ALONE, observer)
    assert observer.repeated == [(1, pytest.approx(1 / 3)), (2, pytest.approx(1 / 3))]
    assert observer.rounds == [[], [3, 4], [3, 4, 7, 8]]
    assert done.complete
    assert read_run(tmp_path) == done
    # After every launch the file holds all there is, each launch in one of the two lists.
    assert [(numbers(run.discarded), numbers(run.launches)) for run in [*saved, done]] == [
        ([], []),
        ([], [1]),
        ([1, 2], []),
        ([1, 2], [3]),
        ([1, 2], [3, 4]),
        ([1, 2], [3, 4, 5]),
        ([1, 2, 5, 6], [3, 4]),
        ([1, 2, 5, 6], [3, 4, 7]),
        ([1, 2, 5, 6], [3, 4, 7, 8]),
    ]


# ---- how often a run is saved ----


def saves_of(launches, folder, monkeypatch, *, seconds):
    """Return how many launches each save had, and the time in all.

    A launch takes 50 s, and a save takes that many seconds for every launch in it.
    """
    now, counts = [0.0], []

    def write(_file, run):
        counts.append(len(run.launches))
        now[0] += seconds * len(run.launches)

    monkeypatch.setattr(rounds, "write_json", write)
    monkeypatch.setattr(rounds, "discard_noisy", lambda run: run)
    monkeypatch.setattr(rounds.time, "monotonic", lambda: now[0])
    going = rounds.Rounds(a_run({"ddp": []}), folder, a_cluster(), None)
    for number in range(1, launches + 1):
        now[0] += 50
        going._keep([a_launch("ddp", number)])
    return counts, now[0]


def test_saving_takes_a_hundredth_of_a_long_run(tmp_path, monkeypatch):
    assert saves_of(5, tmp_path, monkeypatch, seconds=0)[0] == [1, 2, 3, 4, 5]
    counts, took = saves_of(400, tmp_path, monkeypatch, seconds=1)
    assert counts[:3] == [1, 3, 9]
    assert sum(counts) < 0.025 * took, "the last save may be the largest"
