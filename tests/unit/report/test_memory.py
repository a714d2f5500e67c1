"""Memory in tables, sentences, records and pictures."""

from __future__ import annotations

import msgspec
import pytest

from compare.analysis import analyse
from compare.errors import OutputError
from compare.report import View, document_of
from compare.report.formats.html import pictures_of
from compare.report.memory import memory_sentences
from compare.report.of_prediction import document_of_memory
from compare.report.of_run import brief
from compare.schema.arms import parse_arm
from compare.schema.memory import Unfit
from tests.unit.factories import noisy
from tests.unit.runs import OF_SHARDS, RUNS, attesting, measured

RUN = RUNS["shards"]


def sentences(run):
    return list(memory_sentences(run, analyse(run).summary))


def table_of(run):
    tables = document_of(run, view=View(detail=True)).tables
    return next((table for table in tables if table.title.startswith("Memory")), None)


def test_conclusion_says_what_shards_save_and_what_they_take():
    # The first rank of ZeRO has the state of the weight, and so nearly all of it.
    zero, fsdp = sentences(RUN)
    assert zero == "zero holds 8.02 of ddp's 8.03 MB a rank, and takes 1.10× (1.10–1.10) its time."
    assert fsdp == "fsdp holds 4.82 of ddp's 8.03 MB a rank, and takes 1.33× (1.32–1.35) its time."
    assert document_of(RUN).conclusion.endswith(f" {zero} {fsdp}")


def test_sentences_leave_the_library_out_unless_it_is_known_of_both():
    unknown = attesting(measured(OF_SHARDS), library_bytes=None)
    assert sentences(unknown)[1].startswith("fsdp holds 3.21 of ddp's 6.42 MB a rank")


def test_sentences_tell_no_time_where_nothing_is_ranked():
    oversubscribed = attesting(measured(OF_SHARDS, cores=1))
    assert sentences(oversubscribed)[1] == "fsdp holds 4.82 of ddp's 8.03 MB a rank."


@pytest.mark.parametrize("steps", [{"none": 4.0, "ddp": 6.0}, {"zero": 4.0, "fsdp": 6.0}])
def test_no_sentence_without_an_arm_that_shards_and_one_that_does_not(steps):
    assert sentences(attesting(measured(steps))) == []


def test_older_results_have_neither_table_nor_sentence_nor_picture():
    old = measured(OF_SHARDS)
    assert sentences(old) == []
    assert table_of(old) is None
    assert "frontier" not in pictures_of([document_of(old, "html")])


def test_table_shows_what_is_not_known_as_such():
    rows = {row.cells[0]: row.cells for row in table_of(RUN).rows}
    headings = [column.heading for column in table_of(RUN).columns]
    assert rows["horovod"][headings.index("library")] == "–"
    assert rows["ddp"][headings.index("by arithmetic")] == "1.61 + 1.61 + 3.21"


def test_records_have_the_same_columns_with_and_without_memory():
    old, new = (document_of(run).records() for run in (measured(OF_SHARDS), RUN))
    assert {tuple(row) for row in old} == {tuple(row) for row in new}
    of_fsdp = next(row for row in new if row["arm"] == "fsdp")
    assert of_fsdp["held_parameter_bytes"] == of_fsdp["predicted_parameter_bytes"] == 4 * 501 * 401


def test_content_of_results_can_be_read_again():
    summary = msgspec.json.decode(msgspec.json.encode(document_of(RUN).content()))["summary"]
    memory = {arm["arm"]: arm["memory"] for arm in summary["arms"]}
    assert memory["fsdp"]["held"] == memory["fsdp"]["predicted"]


def test_frontier_has_a_hollow_dot_for_an_arm_that_is_beaten_in_both():
    beaten = attesting(measured(OF_SHARDS | {"zero": 9.0}))
    drawn = pictures_of([document_of(beaten, "html")])["frontier"]
    assert "dot hole" in drawn
    assert "dot hole" not in pictures_of([document_of(RUN, "html")])["frontier"]
    assert "hollow" in drawn


def test_frontier_is_drawn_only_where_an_arm_shards():
    alike = attesting(measured({"none": 4.0, "ddp": 6.0, "horovod": 7.0}))
    assert "frontier" not in pictures_of([document_of(alike, "html")])


def test_conclusion_has_the_memory_in_noise_as_well():
    assert "fsdp holds" in document_of(noisy(RUN, 2)).conclusion


# ---- arms that do not fit ----


def unfit(**changes):
    fields = {"round": 1, "stage": "parity", "limit_bytes": 8 << 30, "limit": "GPU"}
    return msgspec.structs.replace(RUN, unfit=[Unfit(arm=parse_arm("manual"), **fields | changes)])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"needed_bytes": 9 << 30}, ": it needs at least 9 of 8 GiB of GPU memory, in its proof."),
        ({"needed_bytes": 1 << 30}, " into 8 GiB of GPU memory, in its proof."),
        ({"limit": "host", "stage": "test"}, " into 8 GiB of memory of its host."),
        ({"beside_others": True}, " beside the other arms into 8 GiB of GPU memory, in its proof."),
    ],
)
def test_arm_that_does_not_fit_has_a_row_and_a_sentence(changes, told):
    document = brief(unfit(**changes), analyse(unfit(**changes)), View())
    assert f"manual does not fit{told}" in document.lead
    assert document.tables[0].rows[-1].cells == ("manual", "–", "–", "does not fit")
    assert f"manual does not fit{told}" in document_of(unfit(**changes)).lead


def test_prediction_of_memory_states_what_it_assumes():
    document = document_of_memory(RUN, 4.0, [2, 4])
    assert "every parameter has 4 times its elements" in document.notes[0]
    assert [row.cells[:2] for row in document.tables[0].rows][:2] == [("none", "2"), ("none", "4")]


def test_prediction_of_memory_needs_results_that_attest_it():
    with pytest.raises(OutputError, match="cannot be computed"):
        document_of_memory(measured(OF_SHARDS), 4.0)
