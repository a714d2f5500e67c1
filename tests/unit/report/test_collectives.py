"""Test what ``ringside collectives`` prints."""

import csv
import io
import json

import msgspec
import pytest

from compare.report import View, document_of, write
from compare.report.formats.terminal import plain_text
from compare.schema.hosts import Host, Network
from compare.schema.results import Failure, MachineUse
from tests.unit.collectives import a_collectives_run, a_sweep_config, a_sweep_launch

GROUPS = ("gloo", "horovod", "horovod_mpi", "mpi", "shared_memory")


def a_run(**changes):
    config = a_sweep_config(*GROUPS, end_bytes=64 << 20)
    ns = [15_000_000, 72_000_000, 80_000_000]
    return a_collectives_run(config, [a_sweep_launch(config, group, ns=ns) for group in GROUPS], **changes)


def troubled():
    config = a_sweep_config(*GROUPS)
    launches = [a_sweep_launch(config, group) for group in GROUPS[2:]]
    launches += [a_sweep_launch(config, "horovod", ns=[], refused="it has no room")]
    launches[0] = a_sweep_launch(config, "horovod_mpi", wrong=2)
    failure = Failure(arm="gloo", round=1, kind="LaunchError", message="gloo, round 1: rank 1 died.")
    return a_collectives_run(config, launches, failures=[failure], left_out={"nccl": "No GPU."})


def shown(run, width=120, **view):
    return plain_text(document_of(run, view=View(**view)), width)


@pytest.mark.parametrize(("width", "is_one_line"), [(120, True), (80, False)])
def test_table_groups_stand_side_by_side_where_there_is_room(width, is_one_line):
    lines = [line for line in shown(a_run(), width).splitlines() if line.split()[:1] == ["67108864"]]
    assert (len(lines) == 1) is is_one_line
    assert lines
    assert lines[0].split()[-1] == "0" or not is_one_line


def test_table_detail_has_the_columns_of_nccl_tests():
    text = shown(a_run(), detail=True)
    for heading in ("size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong"):
        assert text.count(heading) >= len(GROUPS)


def test_table_spread_beyond_ten_percent_is_marked():
    assert "%!" in shown(a_run())
    config = a_sweep_config("gloo")
    calm = a_collectives_run(config, [a_sweep_launch(config, "gloo", ns=[1000, 1001, 1002])])
    assert "%!" not in shown(calm)


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_format_for_people_says_what_is_wrong_and_why(form):
    run = troubled()
    text = shown(run) if form == "table" else write(document_of(run), form)
    text = " ".join(text.split())
    for part in (
        "WRONG RESULTS: horovod_mpi, all_reduce float32 sum at 8, 16",
        "REFUSED: horovod, all_reduce float32 sum: it has no room",
        "FAILED: gloo, round 1: rank 1 died.",
        "nccl did not run: No GPU.",
    ):
        assert part in text
    assert {"refused", "failed"} <= set(text.split())


def test_table_names_the_host_that_has_more_ranks_than_cores():
    line = "3 ranks × 1 thread share 2 cores of a host: ranks wait for cores"
    hosts = {"hosts": [Host("a", 3), Host("b", 1)], "network": Network(interface="eth0")}
    assert line in shown(a_run(**hosts, cores_by_host=[2, 8]))
    assert "wait for cores" not in shown(a_run(**hosts, cores_by_host=[3, 1]))


def test_cores_of_hundreds_of_hosts_are_one_fact():
    hosts = [Host(f"n{number}", 1) for number in range(300)]
    facts = dict(document_of(a_run(hosts=hosts, cores_by_host=[2] * 299 + [8])).facts)
    assert facts["cores of n0, n1, n2, n3, n4, n5 and 293 more"] == "2"
    assert facts["cores of n299"] == "8"


def test_csv_has_a_line_for_every_group_and_size():
    run = troubled()
    lines = list(csv.DictReader(io.StringIO(write(document_of(run), "csv"))))
    assert [line["group"] for line in lines] == [group for group in GROUPS for _ in run.config.measurements]
    assert {line["problem"] for line in lines if line["group"] == "horovod"} == {"it has no room"}
    assert float(lines[-1]["seconds_median"]) == 4e-6


def test_json_holds_figures_and_measurements():
    run = troubled()
    content = json.loads(write(document_of(run), "json"))
    assert len(content["figures"]) == len(GROUPS) * len(run.config.measurements)
    assert content["run"]["left_out"] == {"nccl": "No GPU."}


def conclusion(run):
    return document_of(run).conclusion


def timed(microseconds, *, scatter=(1.0, 1.0, 1.0), busy=0.0, **changes):
    """Return a run with the time of each group in each size, and quartiles that are 1 % apart.

    There is a launch of every group for each factor in ``scatter``. Other processes use a share of ``busy``.
    """
    config = a_sweep_config(*microseconds, end_bytes=32, rounds=len(scatter))

    def of_size(group, factor):
        def at(exchange, size, rank):
            time = int(microseconds[group][config.sizes_of(exchange).index(size)] * 1000 * factor)
            return {"ns": [time, time + time // 200, time + time // 100]}

        return at

    def loaded(launch):
        use = MachineUse(wall_ns=1000, cpus=2, busy_ns=int(2000 * busy), stolen_ns=0)
        ranks = [msgspec.structs.replace(rank, machine=use) for rank in launch.ranks]
        return msgspec.structs.replace(launch, ranks=ranks)

    launches = [
        loaded(a_sweep_launch(config, group, number, of_size=of_size(group, factor)))
        for number, factor in enumerate(scatter, 1)
        for group in microseconds
    ]
    return a_collectives_run(config, launches, **changes)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({"gloo": (50, 60, 70), "mpi": (10, 20, 30)}, "mpi is the quickest at every size."),
        ({"gloo": (50, 60, 70), "mpi": (10, 90, 99)}, "quickest is mpi at 8 B, gloo from 16 B to 32 B."),
        ({"gloo": (50, 60, 70), "mpi": (50, 60, 70)}, "no group is clearly the quickest."),
    ],
)
def test_conclusion_names_the_quickest_group_of_each_size(times, words):
    assert conclusion(timed(times)) == f"all_reduce float32 sum: {words}"


@pytest.mark.parametrize(
    ("scatter", "words"),
    [
        ((1.0, 1.01, 0.99), "mpi is the quickest at every size."),
        ((1.0, 1.8, 0.6), "no group is clearly the quickest."),
        ((1.0, 1.0), "Which group is quickest is open, because one or two launches have no interval"),
    ],
)
def test_conclusion_needs_intervals_of_the_launches_that_are_apart(scatter, words):
    assert words in conclusion(timed({"gloo": (50, 60, 70), "mpi": (30, 40, 50)}, scatter=scatter))


def test_load_of_others_is_named_and_qualifies_the_conclusion():
    times = {"gloo": (50, 60, 70), "mpi": (10, 20, 30)}
    quiet, noisy = timed(times, busy=0.05), timed(times, busy=0.5)
    warning = "Noisy: other processes used more than 10 % of the CPUs in rounds 1–3."
    assert [warning in shown(run) for run in (quiet, noisy)] == [False, True]
    assert conclusion(noisy).endswith("mpi is the quickest at every size (in noisy rounds).")


@pytest.mark.parametrize("detail", [False, True])
def test_legend_explains_only_columns_that_are_shown(detail):
    assert not {"wire", "form", "forms"} & set(shown(a_run(), detail=detail).split())
    hosts = {"hosts": [Host("a", 1), Host("b", 1)], "network": Network(interface="eth0")}
    text = shown(a_run(**hosts, cores_by_host=[2, 2]), detail=detail)
    assert ("forms: " if detail else "form: ") in text
    assert ("form: " in text) is not detail


def test_conclusion_is_empty_for_one_group_or_if_ranks_wait_for_cores():
    assert conclusion(timed({"gloo": (50, 60, 70)})) == ""
    assert conclusion(timed({"gloo": (50, 60, 70), "mpi": (10, 20, 30)}, cores_by_host=[1])) == ""


def test_conclusion_counts_sizes_where_the_quickest_group_changes_often():
    config = a_sweep_config(end_bytes=128, rounds=3)
    launches = [
        a_sweep_launch(
            config,
            group,
            number,
            of_size=lambda _, size, __, odd=odd: {"ns": [1000 + 9000 * (size.bit_length() % 2 == odd)]},
        )
        for number in (1, 2, 3)
        for odd, group in enumerate(config.groups)
    ]
    words = "quickest is mpi at 3 of 5 sizes, gloo at 2 of 5 sizes."
    assert conclusion(a_collectives_run(config, launches)).endswith(words)


def test_bandwidth_of_a_small_message_is_not_zero():
    assert "0.00" not in shown(timed({"gloo": (50, 60, 70), "mpi": (10, 20, 30)}))
    assert "<.01" in shown(timed({"gloo": (50, 60, 70), "mpi": (10, 20, 30)}))
