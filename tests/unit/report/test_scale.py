"""The table of a scaling series, and its other formats."""

import csv
import io
import json

import msgspec
import pytest

from compare.analysis.runs import Growth, summarise_scale
from compare.report import document_of, of_scale, write
from compare.schema.arms import parse_arm
from compare.schema.hosts import Host, Link, Network
from compare.schema.memory import Unfit
from compare.schema.results import Failure
from tests.unit.factories import noisy
from tests.unit.scales import BENDING, a_scale


def shown(scale, form="table"):
    return write(document_of(scale), form)


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_scale_says_where_an_arm_bends_and_why(form):
    text = shown(a_scale(BENDING, cores=2), form)
    assert "weak scaling · mlp on MNIST · 1, 2, 4 ranks × 1 thread" in text
    assert "batch 64 per rank" in text
    assert "ddp bends at 2 ranks: 50 % (50–50) of the ideal" in text
    assert "+0.40 ms also without communication" in text
    assert "mpi keeps at least 90 % of the ideal up to 2 ranks;" in text


def test_scale_of_two_rounds_calls_its_brackets_a_range():
    """Two rounds have no interval, so a count far below the ideal does not bend yet."""
    of_two = {count: {arm: times[:2] for arm, times in arms.items()} for count, arms in BENDING.items()}
    two = document_of(a_scale(of_two, cores=2))
    assert any("In brackets: the range. 95 % intervals need 3 rounds" in note for note in two.notes)
    assert not any("bends" in line for line in two.lead)
    whole = document_of(a_scale(BENDING, cores=2))
    assert any(note.endswith("In brackets: 95 % intervals.") for note in whole.notes)


def test_scale_of_one_round_has_no_brackets_to_explain():
    of_one = {count: {arm: times[:1] for arm, times in arms.items()} for count, arms in BENDING.items()}
    one = shown(a_scale(of_one, cores=2))
    assert "rackets" not in one
    assert "95 % intervals need 3 rounds, so it is open where arms bend." in " ".join(one.split())


def test_scale_concludes_how_far_each_arm_scales():
    ends = "mpi keeps at least 90 % of the ideal up to 2 ranks; ddp falls below 90 % of the ideal at 2 ranks."
    assert document_of(a_scale(BENDING, cores=2)).conclusion == ends


@pytest.mark.parametrize(
    ("share", "shown_as"),
    [
        (None, "From 1 to 2 ranks it grew by 4.00 ms"),
        (2e-3, "From 1 to 2 ranks it took 4.00 ms beyond its share of 2.00 ms"),
    ],
    ids=["weak", "strong"],
)
def test_scale_lists_what_grew_the_largest_part_first(share, shown_as):
    scale = a_scale(BENDING, cores=2)
    figures = summarise_scale(scale)
    growth = Growth(
        since_ranks=1,
        share_seconds=share,
        step_seconds=4e-3,
        computing_seconds=1e-3,
        waiting_seconds=-5e-4,
        synchronising_seconds=35e-4,
        collective_seconds=2e-3,
    )
    bends = [msgspec.structs.replace(figures.bends[0], growth=growth)]
    text = " ".join(of_scale.statements(msgspec.structs.replace(figures, bends=bends)))
    assert f"{shown_as}: +3.50 ms synchronising, +1.00 ms computing" in text
    assert "−0.50 ms waiting for the slowest rank. Its collectives alone: +2.00 ms." in text


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_scale_beyond_the_cores_is_hollow(form):
    lines = shown(a_scale(BENDING, cores=2), form).splitlines()
    rows = [line for line in lines if line.lstrip("| ").startswith("ddp ") and "bends" not in line]
    assert ["○" in row for row in rows] == [False, False, True]
    assert any("○ 4 ranks with 1 thread each outnumber the cores" in line for line in lines)


def test_scale_headline_names_a_rehearsal_and_a_global_batch():
    changes = {"hosts": [Host("a", 1), Host("b", 1)], "network": Network(rehearsed=Link())}
    text = shown(a_scale(BENDING, mode="strong", cores=1, **changes))
    assert "outnumber the cores that all rehearsed hosts share." in " ".join(text.split())
    assert "batch 64 in all" in text
    assert "REHEARSED: 2 hosts on one machine, no rate limit" in text


def test_scale_of_several_hosts_says_how_many_each_count_used():
    scale = a_scale(BENDING)
    hosts = {1: [Host("a", 1)], 2: [Host("a", 2)], 4: [Host("a", 2), Host("b", 2)]}
    changes = {count: {"hosts": hosts[count], "cores_by_host": [2] * len(hosts[count])} for count in hosts}
    runs = {count: msgspec.structs.replace(run, **changes[count]) for count, run in scale.runs.items()}
    spread = msgspec.structs.replace(scale, runs=runs)
    table = document_of(spread).tables[0]
    column = [one.heading for one in table.columns].index("hosts")
    assert [row.cells[column] for row in table.rows if row.cells[0] == "ddp"] == ["1", "1", "2"]
    assert [row["hosts"] for row in csv.DictReader(io.StringIO(shown(spread, "csv")))][:3] == ["1", "1", "2"]
    assert "hosts" not in [one.heading for one in document_of(scale).tables[0].columns]


def test_scale_names_noisy_rounds_once_and_counts_with_fewer():
    scale = a_scale(BENDING)
    runs = scale.runs | {1: noisy(scale.runs[1], 1), 2: noisy(scale.runs[2], 1), 4: noisy(scale.runs[4], 2)}
    text = " ".join(shown(msgspec.structs.replace(scale, runs=runs)).split())
    assert "of the CPUs in round 1 with 1, 2 ranks; round 2 with 4 ranks. Distrust" in text
    assert text.count("Noisy") == 1
    assert "INCOMPLETE" not in text
    fewer = scale.runs | {4: msgspec.structs.replace(scale.runs[4], launches=scale.runs[4].launches[:-1])}
    assert "INCOMPLETE" in shown(msgspec.structs.replace(scale, runs=fewer))


def test_scale_says_which_arm_did_not_fit_with_how_many_ranks():
    scale = a_scale(BENDING)
    gone = Unfit(arm=parse_arm("fsdp"), round=1, stage="parity", limit_bytes=1 << 30, limit="GPU")
    runs = scale.runs | {4: msgspec.structs.replace(scale.runs[4], unfit=[gone])}
    text = " ".join(shown(msgspec.structs.replace(scale, runs=runs)).split())
    assert "With 4 ranks, fsdp does not fit into 1 GiB of GPU memory, in its proof." in text
    bare = msgspec.structs.replace(gone, arm=parse_arm("mpi"))
    runs = scale.runs | {2: msgspec.structs.replace(scale.runs[2], bare=[bare])}
    text = " ".join(shown(msgspec.structs.replace(scale, runs=runs)).split())
    assert "With 2 ranks, NOT PROVEN: mpi, because a launch with its proof does not fit" in text


def test_scale_that_was_stopped_says_so():
    failure = Failure(arm="mpi", round=2, kind="LaunchError", message="mpi, round 2: rank 1 failed.\nmore")
    text = shown(a_scale(BENDING, complete=False, failure=failure))
    assert "INCOMPLETE" in text
    assert "FAILED with 4 ranks: mpi, round 2: rank 1 failed." in text


def test_scale_csv_and_json_hold_every_point():
    rows = list(csv.DictReader(io.StringIO(shown(a_scale(BENDING), "csv"))))
    assert len(rows) == 9
    row = next(row for row in rows if (row["arm"], row["ranks"]) == ("ddp", "2"))
    assert float(row["efficiency"]) == pytest.approx(0.5)
    assert float(row["efficiency_high"]) == pytest.approx(0.5)
    content = json.loads(shown(a_scale(BENDING), "json"))
    assert content["series"]["counts"] == [1, 2, 4]
    assert len(content["figures"]["points"]) == 9
    assert [run["config"]["ranks"] for run in content["runs"]] == [1, 2, 4]
