"""Test that a run names the causes that it has."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.analysis import analyse
from compare.analysis.causes import Cause
from compare.analysis.cost_model import Curve, split_collectives
from compare.analysis.figures import LaunchFigures
from compare.report.causes import CAUSES as WORDS
from compare.report.causes import explain
from compare.schema.hosts import Host
from compare.schema.results import Sweep
from tests.unit.factories import a_block, a_launch, a_rank, a_run, noisy
from tests.unit.pages import render
from tests.unit.runs import RUNS

JITTER = (0.99, 1.0, 1.02)
ROUNDS = (1, 2, 3)
KIB, MB = 1 << 10, 1_000_000


def a_sweep(latency, bandwidth, factor=1.0):
    """Return the times of an all-reduce with this latency and bandwidth."""
    return [
        Sweep(message_bytes=size, ns=[round(1e9 * factor * (latency + size / bandwidth))] * 3)
        for size in (KIB, 32 * KIB, 1 << 20)
    ]


def a_measured_launch(
    arm,
    round_,
    *,
    step=10.0,
    reference=9.9,
    alone=0.1,
    messages=(814_120,),
    latency=1e-5,
    bandwidth=1e10,
    transport="TCP over lo",
    slower=(0.0, 0.0),
):
    """Return a launch in milliseconds; ``slower`` is each rank's extra time."""
    factor = JITTER[round_ - 1]
    ranks = [
        a_rank(
            rank,
            blocks=[
                a_block(factor * (step + max(slower))),
                a_block(factor * (reference + slower[rank]), mode="reference"),
            ],
            message_bytes=list(messages),
            collective_ns=[round(alone * factor * 1e6)] * 3,
            sweep=a_sweep(latency, bandwidth, factor),
            attestation={"group": {"transport": transport}},
        )
        for rank in (0, 1)
    ]
    return a_launch(arm, round_, ranks=ranks)


def a_control(round_, milliseconds=9.9):
    blocks = [a_block(milliseconds * JITTER[round_ - 1])]
    ranks = [a_rank(r, blocks=blocks, message_bytes=[], collective_ns=[]) for r in (0, 1)]
    return a_launch("none", round_, ranks=ranks)


def a_measured_run(arms, *, control=None, rounds=ROUNDS, **changes):
    launches = [a_control(r, control) for r in rounds] if control else []
    launches += [a_measured_launch(arm, r, **made) for arm, made in arms.items() for r in rounds]
    labels = ([] if not control else ["none"]) + list(arms)
    return a_run({label: [1.0] for label in labels}, launches=launches, **changes)


def keys(run):
    return [(cause.key, cause.arm) for cause in analyse(run).causes]


def shown(run, form="table"):
    return " ".join(render(run, analyse(run), form, detail=True).split())


# Each arm has its cause, and an arm without settings has none.
CAUSES = {
    "little_compute": {"step": 5.0, "reference": 1.0, "alone": 4.0},
    "latency": {"step": 12.0, "alone": 2.0, "messages": [2500] * 4, "latency": 5e-4},
    "bandwidth": {"step": 12.0, "alone": 2.0, "messages": [814_120], "bandwidth": 4e8},
    "straggler": {"slower": (0.0, 3.0)},
}
# It has a sync cost, half from latency and half from bandwidth.
EVEN = {"step": 12.0, "alone": 2.0, "messages": [MB], "latency": 1e-3, "bandwidth": 1e9}
SHARING = {"transport": "shared memory", "alone": 0.02}
TAXED = {"step": 12.0, "reference": 11.9}


LATENCY = {"ddp": CAUSES["latency"]}
NAMED = {
    "little compute": (
        {"ddp": CAUSES["little_compute"], "manual": {}},
        {},
        [("little_compute", "ddp"), ("bandwidth", "ddp")],
        (
            "too little computation per step: ddp's own computing takes 1.00 ms; "
            "its collectives alone take 4.01 ms."
        ),
    ),
    "latency": (
        LATENCY | {"manual": {}},
        {},
        [("latency", "ddp")],
        "latency of each call: ddp's 4 calls of 0.0025 MB on average take 2.01 ms, 2.01 ms of it independent",
    ),
    "bandwidth": (
        {"ddp": CAUSES["bandwidth"], "manual": {}},
        {},
        [("bandwidth", "ddp")],
        "bandwidth: ddp's 1 call of 0.81 MB takes 2.01 ms, 2.00 ms of it proportional to size. Fewer bytes",
    ),
    "straggler": (
        {"ddp": CAUSES["straggler"], "manual": {}},
        {},
        [("straggler", "ddp")],
        "straggler: rank 1 on localhost computes for 12.94 ms, 1.50 ms longer than the mean",
    ),
    "background": (
        {"horovod": TAXED, "manual": {}},
        {"control": 9.9},
        [("background", "horovod")],
        "background tax: horovod's own computing takes 11.94 ms, and a bare step of none 9.93 ms",
    ),
    "transport": (
        {"ddp": EVEN, "mpi": SHARING},
        {},
        [("transport", "ddp")],
        "transport: ddp moves 0.50 GB/s by TCP over lo, mpi 40.57 GB/s by shared memory (algbw)",
    ),
    "oversubscription": (
        LATENCY,
        {"cores": 1},
        [("oversubscription", "")],
        "oversubscription: 2 ranks × 1 thread wait for 1 core.",
    ),
}
"""The arms of a run, its other settings, the causes that it has, and what a report says of one."""


@pytest.mark.parametrize("form", ["table", "markdown"])
@pytest.mark.parametrize("case", NAMED)
def test_causes_of_a_run_are_named_with_their_evidence(case, form):
    arms, changes, causes, sentence = NAMED[case]
    run = a_measured_run(arms, **changes)
    assert keys(run) == causes
    assert f"Why: {sentence}" in shown(run, form)


@pytest.mark.parametrize("rounds", [(1,), (1, 2)])
@pytest.mark.parametrize("case", NAMED)
def test_causes_that_are_measured_need_three_rounds(case, rounds):
    arms, changes, causes, _ = NAMED[case]
    counted = causes if case == "oversubscription" else []
    assert keys(a_measured_run(arms, rounds=rounds, **changes)) == counted


UNNAMED = {
    "no cost": ({"ddp": {}, "manual": {}}, {"control": 9.9}),
    "neither latency nor bandwidth dominates": ({"ddp": EVEN}, {}),
    "all is overlapped": ({"ddp": CAUSES["bandwidth"] | {"step": 9.9}}, {}),
    "one transport": ({"ddp": EVEN, "manual": EVEN}, {}),
    "the other has less bandwidth": ({"ddp": EVEN, "mpi": SHARING | {"messages": [8140]}}, {}),
    "two hosts": ({"ddp": EVEN, "mpi": SHARING}, {"hosts": [Host("a", 1), Host("b", 1)]}),
    "TCP costs nothing": ({"ddp": EVEN | {"step": 9.9}, "mpi": SHARING}, {}),
    "short collectives": ({"ddp": EVEN | {"alone": 0.5}, "mpi": SHARING}, {}),
    "TCP is faster": ({"ddp": EVEN, "mpi": SHARING | {"step": 12.5, "reference": 12.4}}, {}),
}


@pytest.mark.parametrize("case", UNNAMED)
def test_causes_are_not_named_without_proof(case):
    arms, changes = UNNAMED[case]
    run = a_measured_run(arms, **changes)
    assert keys(run) == []
    assert "Why:" not in shown(run)


@pytest.mark.parametrize("cause", ["little_compute", "latency", "bandwidth"])
def test_causes_of_one_rank_hold_no_collectives(cause):
    """One rank sends nothing, although its calls take time. Among two ranks the cause is named."""
    pair = a_measured_run({"ddp": CAUSES[cause]})
    launches = [msgspec.structs.replace(launch, ranks=launch.ranks[:1]) for launch in pair.launches]
    alone = a_run({"ddp": [1.0]}, launches=launches, config={"ranks": 1})
    assert keys(alone) == [("lone_rank", "ddp")]


def test_background_within_the_noise_is_not_named():
    launches = [a_control(r, t) for r, t in zip(ROUNDS, (7.0, 9.0, 12.0), strict=True)]
    launches += [a_measured_launch("ddp", r, step=10.4, reference=10.3) for r in ROUNDS]
    assert keys(a_run({"none": [1.0], "ddp": [1.0]}, launches=launches)) == []


@pytest.mark.parametrize("cause", CAUSES)
def test_causes_do_not_explain_a_cost_below_noise(cause):
    """The arm has a cause, but is faster than the control."""
    arms = {"ddp": CAUSES[cause]}
    assert (cause, "ddp") in keys(a_measured_run(arms, control=0.5))
    assert keys(a_measured_run(arms, control=20.0)) == []


# ---- stragglers ----


def of_ranks(*rounds):
    """Return a run with each rank's reference in milliseconds, by round."""
    launches = []
    for number, times in enumerate(rounds, start=1):
        ranks = [a_rank(rank, milliseconds=20.0, reference=time) for rank, time in enumerate(times)]
        launches.append(a_launch("ddp", number, ranks=ranks))
    return a_run({"ddp": [1.0]}, launches=launches, config={"ranks": len(rounds[0])}, cores=len(rounds[0]))


EXCESSES = (1.6, 2.0, 2.6)


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (of_ranks((10, 12), (10, 12.1), (10, 11.9), (10, 11.8), (10, 12), (10, 12.1)), True),
        (of_ranks((10, 12), (10, 12.1), (10, 11.9), (10, 11.8), (10, 12), (10.1, 10)), False),
        (of_ranks((10, 13), (13, 10), (10, 13)), False),
        (of_ranks((10.0,), (10.1,), (10.2,)), False),
        (of_ranks(*((10.0, 10.0 + 2 * excess) for excess in EXCESSES)), True),
        (of_ranks(*((*[10.0] * 7, 10.0 + 8 / 7 * excess) for excess in EXCESSES)), False),
    ],
    ids=["always", "not in the last round", "in turn", "one rank", "two ranks", "eight ranks"],
)
def test_straggler_is_one_rank_beyond_noise(run, named):
    """The largest of eight times is often further above the mean."""
    assert [key for key in keys(run) if key[0] != "lone_rank"] == ([("straggler", "ddp")] if named else [])


def test_lone_rank_pays_for_the_librarys_own_work():
    assert "Why: one rank sends nothing: ddp costs 9.9" in shown(of_ranks((10.0,), (10.1,), (10.2,)))
    assert keys(of_ranks((20.0,), (20.1,), (19.9,))) == []


@pytest.mark.parametrize("form", ["table", "markdown"])
@pytest.mark.parametrize("rounds", [(2,), ROUNDS])
def test_render_causes_of_noisy_rounds_are_marked(form, rounds):
    quiet = a_measured_run({"ddp": CAUSES["latency"], "mpi": SHARING | {"slower": (0.0, 3.0)}})
    run = noisy(quiet, *rounds)
    assert analyse(run).summary.noisy_rounds == list(rounds)
    text = shown(run, form)
    marks = text.count(" (measured in noisy rounds): ")
    assert text.count("Why: ") == marks == len({key for key, _ in keys(run)})
    assert "Why: latency of each call (measured in noisy rounds): ddp's" in text
    assert "noisy rounds" not in shown(quiet, form)


def test_render_oversubscription_needs_no_quiet_machine():
    run = noisy(a_measured_run({"ddp": CAUSES["latency"]}, cores=1), *ROUNDS)
    assert analyse(run).summary.noisy_rounds == list(ROUNDS)
    assert "Why: oversubscription: 2 ranks" in shown(run)


# ---- the cost model ----


@settings(deadline=None)
@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e11))
def test_curve_finds_latency_and_bandwidth(latency, bandwidth):
    curve = Curve(tuple((size, latency + size / bandwidth) for size in (1e3, 3e4, 1e6)))
    assert curve.latency == pytest.approx(latency, rel=1e-3, abs=1e-9)
    assert curve.seconds_per_byte == pytest.approx(1 / bandwidth, rel=1e-3, abs=latency * 1e-9)


def split(launch):
    return split_collectives(LaunchFigures(launch))


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.3, 2.0])
def test_split_slow_sweep_favours_neither_part(factor):
    """Half the time is latency, for any speed of the sweep."""
    launch = a_measured_launch("ddp", 2, alone=2.0, messages=[MB])
    ranks = [msgspec.structs.replace(rank, sweep=a_sweep(1e-3, 1e9, factor)) for rank in launch.ranks]
    parts = split(msgspec.structs.replace(launch, ranks=ranks))
    assert parts.seconds == pytest.approx(0.002)
    assert parts.latency == pytest.approx(0.001, rel=0.01)


@settings(deadline=None)
@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e11), st.floats(1e-3, 1e3), st.integers(1, 50))
def test_split_fixed_part_has_upper_limits(latency, bandwidth, ms, calls):
    launch = a_measured_launch(
        "ddp", 2, alone=ms, messages=[20_000] * calls, latency=latency, bandwidth=bandwidth
    )
    parts = split(launch)
    assert 0 <= parts.latency <= parts.seconds
    assert parts.latency <= calls * latency * 1.01 + 1e-8


def test_split_without_a_sweep_or_a_number_of_calls_has_no_answer():
    """An arm that shares memory does not use its group, and a library that fuses does not tell its calls."""
    launch = a_measured_launch("horovod", 2, alone=2.0, messages=[MB // 4] * 4)
    bare = [msgspec.structs.replace(rank, sweep=[]) for rank in launch.ranks]
    assert split(msgspec.structs.replace(launch, ranks=bare)) is None
    assert split(launch) is not None
    for rank in launch.ranks:
        rank.attestation["group"]["fusion_bytes"] = 128 << 20
    assert split(launch) is None


# ---- what is advised, and what a run that ranks nothing says ----


@pytest.mark.parametrize(
    ("key", "evidence", "advised"),
    [
        ("latency", {"calls": 1}, []),
        ("latency", {"calls": 2}, ["Fewer, larger messages would help."]),
        ("bandwidth", {"transport": "shared memory"}, ["Fewer bytes would help."]),
        (
            "bandwidth",
            {"transport": "TCP over lo"},
            ["Fewer bytes would help.", "A faster transport would help."],
        ),
        ("little_compute", {"overlaps": True}, ["communication more to overlap with."]),
        ("little_compute", {"overlaps": False}, ["computes longer for the same communication."]),
    ],
)
def test_advice_is_given_only_where_it_can_be_followed(key, evidence, advised):
    given = [advice.text for advice in WORDS[key].advice if advice.holds(evidence)]
    assert len(given) == len(advised)
    assert all(text.endswith(end) for text, end in zip(given, advised, strict=True))


def test_advice_names_the_arms_for_which_it_holds_alone():
    def a_cause(arm, calls):
        times = dict.fromkeys(("collective_seconds", "fixed_seconds"), 1e-3)
        evidence = {"calls": calls, "message_bytes": 8 * calls} | times
        return Cause(key="latency", arm=arm, evidence=evidence)

    (line,) = explain([a_cause("ddp", 1), a_cause("mpi", 9)])
    assert line.endswith("For mpi: Fewer, larger messages would help.")


@pytest.mark.parametrize("name", ["all noise", "oversubscribed"])
def test_run_that_ranks_nothing_names_no_cause_that_may_be_noise(name):
    analysis = analyse(RUNS[name])
    assert analysis.summary.ranks_nothing
    assert analysis.summary.lead is None
    assert not any(arm.fastest for arm in analysis.summary.arms)
    assert {cause.key for cause in analysis.causes} <= {"oversubscription"}
    assert analysis.load_dependence == []
