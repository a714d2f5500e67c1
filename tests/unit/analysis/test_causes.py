"""Why synchronising costs what it costs: each cause found where it is made up, and not where it is not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.analysis import analyse
from compare.analysis.causes import find_causes
from compare.analysis.cost_model import fit_line, split_collectives
from compare.analysis.summary import summarise
from compare.report import render
from compare.schema.hosts import Host
from compare.schema.results import MachineUse, Sweep
from tests.unit.factories import a_block, a_launch, a_rank, a_run

JITTER = (0.99, 1.0, 1.02)
ROUNDS = (1, 2, 3)
KIB, MB = 1 << 10, 1_000_000


def a_sweep(latency, bandwidth, factor=1.0):
    """An all-reduce that takes ``latency`` seconds and passes ``bandwidth`` bytes a second."""
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
    """One launch, times in milliseconds; ``slower`` is what each rank computes longer."""
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
    return [(reason.key, reason.arm) for reason in find_causes(run, summarise(run))]


def said(run):
    return " ".join(render(run, analyse(run), "table").split())


# Each has its cause; a quiet arm has none.
CAUSES = {
    "little_compute": {"step": 5.0, "reference": 1.0, "alone": 4.0},
    "latency": {"step": 12.0, "alone": 2.0, "messages": [2500] * 4, "latency": 5e-4},
    "bandwidth": {"step": 12.0, "alone": 2.0, "messages": [814_120], "bandwidth": 4e8},
    "straggler": {"slower": (0.0, 3.0)},
}
# It costs something, half by latency and half by bandwidth.
EVEN = {"step": 12.0, "alone": 2.0, "messages": [MB], "latency": 1e-3, "bandwidth": 1e9}


def test_where_nothing_is_the_matter_nothing_is_said():
    run = a_measured_run({"ddp": {}, "manual": {}}, control=9.9)
    assert keys(run) == []
    assert "Why:" not in said(run)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_named_in_the_arm_that_has_it_and_in_no_other(cause):
    run = a_measured_run({"ddp": CAUSES[cause], "manual": {}})
    assert (cause, "ddp") in keys(run)
    assert [arm for _, arm in keys(run) if arm != "ddp"] == []


@pytest.mark.parametrize("cause", ["latency", "bandwidth", "straggler"])
def test_a_cause_brings_no_other_with_it(cause):
    assert keys(a_measured_run({"ddp": CAUSES[cause]})) == [(cause, "ddp")]


@pytest.mark.parametrize("rounds", [(1,), (1, 2)])
@pytest.mark.parametrize("cause", [*CAUSES, "background", "transport"])
def test_fewer_than_three_rounds_prove_nothing(cause, rounds):
    arms = {
        "background": {"ddp": {"step": 13.0, "reference": 12.9}, "manual": {}},
        "transport": {"ddp": EVEN, "mpi": SHARING},
    }.get(cause) or {"ddp": CAUSES[cause], "manual": {}}
    control = 9.9 if cause == "background" else None
    assert keys(a_measured_run(arms, control=control, rounds=rounds)) == []
    assert cause in {key for key, _ in keys(a_measured_run(arms, control=control))}


# ---- each sentence, with its evidence ----


def test_too_little_compute_tells_what_is_computed_and_what_the_collectives_take():
    text = said(a_measured_run({"ddp": CAUSES["little_compute"]}))
    assert "too little compute per step: ddp computes for 1.00 ms" in text
    assert "its collectives alone take 4.01 ms" in text


def test_latency_tells_calls_bytes_and_what_does_not_depend_on_size():
    text = said(a_measured_run({"ddp": CAUSES["latency"]}))
    assert "latency of each call: ddp's 4 calls of 0.0025 MB on average take 2.01 ms, of which 2.0" in text
    assert "do not depend on their size. Fewer, larger messages would help." in text


def test_bandwidth_tells_what_grows():
    text = said(a_measured_run({"ddp": CAUSES["bandwidth"]}))
    assert "bandwidth: ddp's 1 call of 0.81 MB takes 2.01 ms, of which 2.00 ms grow with their size" in text


def test_neither_is_named_where_neither_prevails():
    assert keys(a_measured_run({"ddp": EVEN})) == []


@pytest.mark.parametrize("cause", ["little_compute", "latency", "bandwidth"])
def test_of_one_rank_nothing_travels_so_collectives_are_no_reason(cause):
    """What a library takes to find out that it is alone was timed all the same."""
    pair = a_measured_run({"ddp": CAUSES[cause]})
    launches = [msgspec.structs.replace(launch, ranks=launch.ranks[:1]) for launch in pair.launches]
    alone = a_run({"ddp": [1.0]}, launches=launches, config={"ranks": 1})
    assert (cause, "ddp") in keys(pair)
    assert keys(alone) == []


def test_no_split_without_a_sweep():
    """Memory that ranks share is not reached through the group, so the sweep says nothing of it."""
    launch = a_measured_launch("manual:mode=shared_memory", 1)
    bare = [msgspec.structs.replace(rank, sweep=[]) for rank in launch.ranks]
    assert split_collectives(msgspec.structs.replace(launch, ranks=bare)) is None


def test_hidden_communication_needs_no_reason():
    hidden = CAUSES["bandwidth"] | {"step": 9.9}
    assert keys(a_measured_run({"ddp": hidden})) == []


def test_background_tax_is_computing_that_is_slower_beside_the_library():
    taxed = {"step": 12.0, "reference": 11.9}
    run = a_measured_run({"horovod": taxed, "manual": {}}, control=9.9)
    assert keys(run) == [("background", "horovod")]
    assert "background tax: computing alone takes 11.94 ms beside horovod, 9.93 ms beside nothing" in said(
        run
    )


def test_background_tax_within_the_noise_is_not_told():
    launches = [a_control(r, t) for r, t in zip(ROUNDS, (7.0, 9.0, 12.0), strict=True)]
    launches += [a_measured_launch("ddp", r, step=10.4, reference=10.3) for r in ROUNDS]
    assert keys(a_run({"none": [1.0], "ddp": [1.0]}, launches=launches)) == []


def test_a_straggler_is_named_with_its_rank_and_host():
    text = said(a_measured_run({"ddp": CAUSES["straggler"]}))
    assert "straggler: rank 1 on localhost computes for 12.94 ms, 1.50 ms longer than the mean" in text


def test_ranks_that_are_slower_in_turn_are_no_straggler():
    launches = [a_measured_launch("ddp", r, slower=(0, 3) if r % 2 else (3, 0)) for r in ROUNDS]
    assert keys(a_run({"ddp": [1.0]}, launches=launches)) == []


def of_ranks(*rounds):
    """A run of the reference's milliseconds of every rank, round by round."""
    launches = [
        a_launch(
            "ddp",
            number,
            ranks=[a_rank(rank, milliseconds=20.0, reference=time) for rank, time in enumerate(times)],
        )
        for number, times in enumerate(rounds, start=1)
    ]
    return a_run({"ddp": [1.0]}, launches=launches, config={"ranks": len(rounds[0])}, cores=len(rounds[0]))


def test_a_straggler_is_the_same_rank_in_every_launch():
    """In the last round the other one is slower, by a hair; on average rank 1 is slower beyond noise."""
    always = of_ranks((10, 12), (10, 12.1), (10, 11.9), (10, 11.8), (10, 12), (10, 12.1))
    assert keys(always) == [("straggler", "ddp")]
    but_once = of_ranks((10, 12), (10, 12.1), (10, 11.9), (10, 11.8), (10, 12), (10.1, 10))
    assert keys(but_once) == []


def test_more_ranks_need_more_evidence_for_a_straggler():
    """The largest of eight noisy times is more often far above their mean than the larger of two."""
    excesses = (1.6, 2.0, 2.6)
    two = of_ranks(*((10.0, 10.0 + 2 * excess) for excess in excesses))
    eight = of_ranks(*((*[10.0] * 7, 10.0 + 8 / 7 * excess) for excess in excesses))
    assert keys(two) == [("straggler", "ddp")]
    assert keys(eight) == []


def test_one_rank_is_no_straggler():
    assert keys(of_ranks((10.0,), (10.1,), (10.2,))) == []


def test_ranks_that_share_cores_are_told_with_both_numbers_and_nothing_else_is():
    arms = {"ddp": CAUSES["latency"]}
    run = a_measured_run(arms, cores=1)
    assert keys(run) == [("oversubscription", "")]
    assert "Why: oversubscription: 2 ranks × 1 thread on 1 core wait for each other." in said(run)
    assert ("oversubscription", "") not in keys(a_measured_run(arms, cores=2))
    assert keys(a_measured_run(arms, cores=1, rounds=(1,))) == [("oversubscription", "")]


SHARING = {"transport": "shared memory", "alone": 0.02}


def test_tcp_on_one_host_is_named_beside_shared_memory_with_both_bandwidths():
    run = a_measured_run({"ddp": EVEN, "mpi": SHARING})
    assert keys(run) == [("transport", "ddp")]
    text = said(run)
    assert "transport: ddp moves 0.50 GB/s by TCP over lo, mpi 40.58 GB/s by shared memory" in text


def test_transport_is_no_reason_where_it_makes_no_difference_or_there_is_but_one():
    assert keys(a_measured_run({"ddp": EVEN, "manual": EVEN})) == []
    assert keys(a_measured_run({"ddp": EVEN, "mpi": SHARING | {"messages": [8140]}})) == []
    far = a_measured_run({"ddp": EVEN, "mpi": SHARING}, hosts=[Host("a", 1), Host("b", 1)])
    assert keys(far) == []


@pytest.mark.parametrize(
    ("tcp", "sharing"),
    [
        (EVEN | {"step": 9.9}, SHARING),  # all of it is hidden
        (EVEN | {"alone": 0.5}, SHARING),  # whatever the cost is, it is not the bytes on their way
        (EVEN, SHARING | {"step": 12.5, "reference": 12.4}),  # quicker for all that
    ],
    ids=["costs nothing", "collectives take little", "faster"],
)
def test_transport_is_no_reason_where_it_slows_nothing_down(tcp, sharing):
    assert ("transport", "ddp") in keys(a_measured_run({"ddp": EVEN, "mpi": SHARING}))
    assert keys(a_measured_run({"ddp": tcp, "mpi": sharing})) == []


def disturbed(run, rounds):
    """Others use two thirds of the two cores in these rounds."""
    launches = [
        msgspec.structs.replace(
            launch,
            ranks=[
                msgspec.structs.replace(
                    rank,
                    cpu_ns=0,
                    machine=MachineUse(busy_ns=4_000_000, cpus=2, wall_ns=3_000_000, stolen_ns=0),
                )
                for rank in launch.ranks
            ],
        )
        if launch.round in rounds
        else launch
        for launch in run.launches
    ]
    return msgspec.structs.replace(run, launches=launches)


@pytest.mark.parametrize("form", ["table", "markdown"])
@pytest.mark.parametrize("rounds", [(2,), ROUNDS])
def test_what_was_measured_while_others_used_the_machine_is_said_to_be(form, rounds):
    quiet = a_measured_run({"ddp": CAUSES["latency"], "mpi": SHARING | {"slower": (0.0, 3.0)}})
    run = disturbed(quiet, rounds)
    assert summarise(run).disturbed_rounds == list(rounds)
    text = " ".join(render(run, analyse(run), form).split())
    assert (
        text.count("Why: ")
        == text.count("Why: measured while others used the machine: ")
        == len({key for key, _ in keys(run)})
    )
    assert "Why: measured while others used the machine: latency of each call: ddp's" in text
    assert "measured while others" not in render(quiet, analyse(quiet), form)


def test_ranks_that_share_cores_do_so_whoever_else_uses_the_machine():
    run = disturbed(a_measured_run({"ddp": CAUSES["latency"]}, cores=1), ROUNDS)
    assert summarise(run).disturbed_rounds == list(ROUNDS)
    assert "Why: oversubscription: 2 ranks" in said(run)


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_reasons_stand_under_every_table_for_people(form):
    run = a_measured_run({"ddp": CAUSES["latency"]})
    assert "latency of each call" in " ".join(render(run, analyse(run), form).split())


def test_json_holds_key_arm_and_evidence():
    run = a_measured_run({"ddp": CAUSES["latency"]})
    (why,) = msgspec.json.decode(render(run, analyse(run), "json"))["summary"]["causes"]
    assert (why["key"], why["arm"], why["evidence"]["calls"]) == ("latency", "ddp", 4)
    assert why["evidence"]["fixed_seconds"] == pytest.approx(0.002, rel=0.05)


# ---- time over bytes ----


@settings(deadline=None)
@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e11))
def test_a_line_is_found_again(latency, bandwidth):
    points = [(size, latency + size / bandwidth) for size in (1e3, 3e4, 1e6)]
    found, per_byte = fit_line(points)
    assert found == pytest.approx(latency, rel=1e-3, abs=1e-9)
    assert per_byte == pytest.approx(1 / bandwidth, rel=1e-3, abs=latency * 1e-9)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1e-7, 10)), min_size=1, max_size=5))
def test_neither_part_of_a_line_is_negative(points):
    latency, per_byte = fit_line(points)
    assert latency >= 0
    assert per_byte >= 0


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.3, 2.0])
def test_a_sweep_that_was_slower_throughout_favours_neither_part(factor):
    """Half the time is latency: to take all bytes at the slow sweep's bandwidth from it would leave less."""
    launch = a_measured_launch("ddp", 2, alone=2.0, messages=[MB])
    ranks = [msgspec.structs.replace(rank, sweep=a_sweep(1e-3, 1e9, factor)) for rank in launch.ranks]
    parts = split_collectives(msgspec.structs.replace(launch, ranks=ranks))
    assert parts.seconds == pytest.approx(0.002)
    assert parts.fixed_seconds == pytest.approx(0.001, rel=0.01)


@settings(deadline=None)
@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e11), st.floats(1e-3, 1e3), st.integers(1, 50))
def test_the_fixed_part_is_never_more_than_the_whole_nor_than_a_latency_a_call(latency, bandwidth, ms, calls):
    launch = a_measured_launch(
        "ddp", 2, alone=ms, messages=[20_000] * calls, latency=latency, bandwidth=bandwidth
    )
    parts = split_collectives(launch)
    assert 0 <= parts.fixed_seconds <= parts.seconds
    assert parts.fixed_seconds <= calls * latency * 1.01 + 1e-8


def test_where_a_library_fuses_calls_nothing_is_said_of_latency():
    """Four requests may travel as one message, or as two: nobody tells."""
    fused = a_measured_launch("horovod", 2, alone=2.0, messages=[MB // 4] * 4, latency=1e-3, bandwidth=1e9)
    assert split_collectives(fused) is not None
    for rank in fused.ranks:
        rank.attestation["group"]["fusion_bytes"] = 128 << 20
    assert split_collectives(fused) is None


def test_large_messages_that_pass_slower_than_the_sweep_are_not_taken_for_latency():
    wide = a_measured_launch("ddp", 2, alone=160.0, messages=[80 * MB], latency=2e-4, bandwidth=1e9)
    assert split_collectives(wide).fixed_seconds == pytest.approx(2e-4, rel=0.01)
