"""Test the figures of collectives alone, and their forms against counted bytes and simulated exchanges."""

from __future__ import annotations

import pytest

from compare.analysis.collectives import FORMS, bus_factor, fitting_forms, summarise_sweeps
from compare.schema.hosts import Host
from compare.schema.results import Failure
from tests.unit.collectives import a_collectives_run, a_sweep_config, a_sweep_launch


def test_bus_factor_is_that_of_nccl_tests():
    def factors(collective):
        return [bus_factor(collective, ranks) for ranks in (1, 2, 4, 8)]

    assert factors("all_reduce") == [0.0, 1.0, 1.5, 1.75]
    for collective in ("all_gather", "reduce_scatter", "all_to_all"):
        assert factors(collective) == [0.0, 0.5, 0.75, 0.875]
    for collective in ("broadcast", "reduce", "send_recv"):
        assert factors(collective) == [1.0] * 4


def test_summarise_takes_the_slowest_rank_and_the_median():
    config = a_sweep_config("gloo", ranks=4, begin_bytes=1 << 20, end_bytes=1 << 20, rounds=2)
    launches = [a_sweep_launch(config, "gloo", number) for number in (1, 2)]
    (row,) = summarise_sweeps(a_collectives_run(config, launches))
    assert (row.count, row.dtype, row.operation) == (1 << 18, "float32", "sum")
    assert row.seconds.median == 8e-6, "rank 3 takes four times as long as rank 0"
    assert (row.seconds.minimum, row.seconds.n) == (4e-6, 6)
    assert row.seconds.low < row.seconds.median < row.seconds.high
    assert row.algorithm_bandwidth == pytest.approx((1 << 20) / 8e-6)
    assert row.bus_bandwidth == pytest.approx(1.5 * (1 << 20) / 8e-6)


def test_summarise_adds_wrong_elements_of_all_ranks():
    config = a_sweep_config("gloo", "mpi")
    launches = [a_sweep_launch(config, "gloo", wrong=3), a_sweep_launch(config, "mpi")]
    run = a_collectives_run(config, launches)
    assert [row.wrong for row in summarise_sweeps(run)] == [6, 6, 0, 0]
    assert run.exit_code == 8


def test_summarise_keeps_every_reason_in_place_of_a_gap():
    config = a_sweep_config("gloo", "mpi", "horovod")
    failure = Failure(arm="mpi", round=1, kind="LaunchError", message="mpi, round 1: rank 1 died.")
    launches = [a_sweep_launch(config, "gloo", ns=[], refused="no room")]
    run = a_collectives_run(config, launches, failures=[failure], complete=False)
    rows = summarise_sweeps(run)
    assert [row.problem for row in rows[:4]] == ["no room"] * 2 + [failure.message] * 2
    assert [row.status for row in rows] == ["refused"] * 2 + ["failed"] * 2 + ["not run"] * 2
    assert run.exit_code == 6


def over_hosts(group, sent, received, *, size=1 << 20, slots=(1, 1, 1), first=None, counted=None, **changes):
    """Return the row of a run over hosts; the last counted most, and ``first`` is what rank 0 counted."""
    config = a_sweep_config(group, ranks=sum(slots), begin_bytes=size, end_bytes=size, **changes)

    def of_size(exchange, nbytes, rank):
        share = 1 if rank == config.ranks - 1 else 0.9
        out, back = first if first and rank == 0 else (share * sent, share * received)
        return {"sent_bytes": out * nbytes, "received_bytes": back * nbytes} | (counted or {})

    hosts = [Host(f"n{number}", slots=count) for number, count in enumerate(slots)]
    run = a_collectives_run(config, [a_sweep_launch(config, group, of_size=of_size)], hosts=hosts)
    (row,) = summarise_sweeps(run)
    return row


@pytest.mark.parametrize(
    ("wire", "forms", "other"),
    [((1.34, 1.34), ["ring"], False), ((2.5, 2.01), ["Rabenseifner"], True), ((9, 9), [], True)],
)
def test_summarise_over_hosts_names_forms_and_marks_busbw(wire, forms, other):
    row = over_hosts("mpi", *wire)
    assert (row.wire.sent, row.wire.received) == pytest.approx(wire)
    assert (row.forms, row.other_form) == (forms, other)


def test_summarise_takes_headers_off_before_it_names_a_form():
    """A ring over small packets, whose headers are more than 5 %."""
    packets = {"sent_packets": 1.333 * (1 << 20) / 1000, "received_packets": 1.333 * (1 << 20) / 1000}
    row = over_hosts("gloo", 1.333 * 1.066, 1.333 * 1.066, counted=packets)
    assert (row.forms, row.other_form) == (["ring"], False)
    assert row.wire.sent == pytest.approx(1.421, abs=0.001)


@pytest.mark.parametrize("first", [(1.0, 0.001), (1.001, 0.0)])
def test_summarise_two_hosts_count_the_root_of_a_broadcast(first):
    """Both hosts move as many bytes; forms are those of the root."""
    row = over_hosts("gloo", 0.002, 1.002, first=first, slots=(1, 1), collectives=("broadcast",))
    assert "binomial tree" in row.forms


def test_summarise_small_message_or_shared_host_or_one_host_names_no_form():
    assert over_hosts("gloo", 1.34, 1.34, size=1200).forms == []
    shared = over_hosts("gloo", 1.34, 1.34, slots=(2, 1))
    assert (shared.forms, shared.other_form) == ([], False)
    assert shared.wire is not None
    config = a_sweep_config("gloo", end_bytes=8)
    (row,) = summarise_sweeps(a_collectives_run(config, [a_sweep_launch(config, "gloo", ns=[1000])]))
    assert (row.wire, row.forms, row.other_form) == (None, [], False)
    assert row.seconds.share == 0, "one iteration has no spread"


def test_summarise_several_exchanges_come_one_after_another():
    config = a_sweep_config(
        "gloo", "mpi", ranks=4, collectives=("reduce_scatter", "broadcast", "barrier"), end_bytes=32
    )
    launches = [a_sweep_launch(config, group) for group in config.groups]
    rows = summarise_sweeps(a_collectives_run(config, launches))
    assert [(row.collective, row.group, row.message_bytes, row.count, row.root) for row in rows[::2]] == [
        ("reduce_scatter", "gloo", 16, 1, -1),
        ("reduce_scatter", "mpi", 16, 1, -1),
        ("broadcast", "gloo", 8, 2, 0),
        ("broadcast", "gloo", 32, 8, 0),
        ("broadcast", "mpi", 16, 4, 0),
        ("barrier", "gloo", 0, 0, -1),
    ]
    assert (rows[-1].bus_bandwidth, rows[-1].wrong, rows[-1].operation) == (None, None, "none")
    assert rows[-1].seconds.median > 0


# ---- forms ----

COUNTED = [
    ("all_reduce", 2, 1.00, 1.00, "ring"),
    ("all_reduce", 3, 1.34, 1.34, "ring"),
    ("all_reduce", 4, 1.50, 1.50, "ring"),
    ("reduce_scatter", 2, 1.00, 1.00, "ring all-reduce"),
    ("reduce_scatter", 3, 1.34, 1.34, "ring all-reduce"),
    ("reduce_scatter", 4, 1.50, 1.50, "ring all-reduce"),
    ("broadcast", 2, 1.00, 0.01, "binomial tree"),
    ("broadcast", 3, 2.00, 0.01, "binomial tree"),
    ("broadcast", 4, 2.00, 0.01, "binomial tree"),
    ("reduce", 4, 0.01, 3.00, "linear"),
    ("all_gather", 3, 0.67, 0.67, "ring"),
    ("all_to_all", 4, 0.75, 0.75, "pairwise"),
]
"""Bytes that the kernel counted of known libraries, over the message."""


@pytest.mark.parametrize(("collective", "n", "sent", "received", "form"), COUNTED)
def test_fitting_counted_bytes_names_the_true_form(collective, n, sent, received, form):
    assert form in [found.name for found in fitting_forms(collective, n, sent, received)]


@pytest.mark.parametrize(
    ("n", "sent", "received", "forms"),
    [
        (2, 1.00, 1.00, [form.name for form in FORMS["all_reduce"]]),
        (3, 1.34, 1.34, ["ring"]),
        (3, 2.50, 2.01, ["Rabenseifner"]),
        (4, 5.00, 5.00, []),
    ],
)
def test_fitting_an_all_reduce_names_all_one_or_none(n, sent, received, forms):
    assert [found.name for found in fitting_forms("all_reduce", n, sent, received)] == forms


def test_form_that_needs_a_power_of_two_fits_no_other_number():
    names = [[form.name for form in fitting_forms("all_gather", n, 1 - 1 / n, 1 - 1 / n)] for n in (3, 4)]
    assert "recursive doubling" not in names[0]
    assert "recursive doubling" in names[1]


AMONG = (2, 3, 4, 5, 6, 7, 8, 11)
SIMULATED = {
    ("all_reduce", "Rabenseifner"): (
        [1, 2.5, 1.5, 3, 3, 3, 1.75, 3.25],
        [1, 2, 1.5, 2.5, 2.5, 2.5, 1.75, 2.75],
    ),
    ("broadcast", "binomial tree"): ([1, 2, 2, 3, 3, 3, 3, 4], [0] * 8),
    ("all_to_all", "Bruck"): ([1 / 2, 2 / 3, 1, 1, 7 / 6, 9 / 7, 3 / 2, 17 / 11],) * 2,
}
"""What the busiest of so many ranks sends and receives, added up over the messages of each algorithm."""


@pytest.mark.parametrize(("collective", "name"), SIMULATED)
def test_form_among_any_number_has_the_bytes_of_its_messages(collective, name):
    (form,) = [form for form in FORMS[collective] if form.name == name]
    sent, received = SIMULATED[collective, name]
    assert [form.sent(n) for n in AMONG] == pytest.approx(sent)
    assert [form.received(n) for n in AMONG] == pytest.approx(received)
