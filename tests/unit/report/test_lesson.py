"""Test the lesson of a run."""

import re

import pytest

from compare.analysis import analyse
from compare.report.formats import terminal, write
from compare.report.of_lesson import document_of
from tests.unit.factories import a_launch, a_rank, a_run
from tests.unit.predictions import a_measured_run
from tests.unit.runs import RUNS, measured


def lesson_of(run, arms=()):
    return terminal.plain_text(document_of(run, analyse(run), arms), 80)


def words_of(run):
    return " ".join(lesson_of(run).split())


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_lesson_of_every_run_fits_80_columns(run):
    text = lesson_of(run)
    assert "nan" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_lesson_keeps_a_figure_beside_its_unit():
    assert not re.search(r"\d\n +(ms|MB|kB|ranks?)\b", lesson_of(RUNS["quiet"]))


def test_lesson_in_markdown_has_its_code_in_fences():
    text = write(document_of(RUNS["quiet"], analyse(RUNS["quiet"])), "markdown")
    assert re.search(r"^`backends/.*`:\n\n```python\n", text, re.MULTILINE)
    assert "| Sends |" in text


def test_lesson_states_bytes_times_and_the_sum():
    run = a_measured_run(ranks=2, arm="manual:mode=flat")
    words = words_of(run)
    for expected in (
        "1 call of 1.05 MB in each step, by TCP over eth0 (torch.distributed gloo)",
        "Among 2 ranks, each sends 1 × 1.05 MB = 1.05 MB, in 2 messages",
        "no bytes were counted",
        "After backward, one call after the other",
        "backends/strategies/reducers.py:",
        "self.all_reduce_(bucket.padded)",
        "dist.all_reduce(tensor)",
    ):
        assert expected in words


def test_lesson_of_four_ranks_counts_a_ring_of_four():
    words = words_of(a_measured_run(ranks=4))
    assert "Among 4 ranks, each sends 1.5 × 1.05 MB = 1.57 MB, in 6 messages" in words


def test_lesson_states_what_was_not_measured():
    words = words_of(a_measured_run())
    assert "The control none has no finished launch, so computing alone was not measured" in words
    rank = a_rank(message_bytes=[], collective_ns=[])
    words = words_of(a_run({"ddp": []}, launches=[a_launch("ddp", ranks=[rank, rank])]))
    assert "The sizes of its messages were not recorded" in words
    assert "their time alone was not measured" in words


def test_small_messages_have_no_known_algorithm():
    assert "How its messages travel is not known" in words_of(a_measured_run(message_bytes=[1024]))


def test_lesson_of_named_arms_has_no_other():
    text = lesson_of(measured(), ["mpi"])
    assert "\nmpi\n" in text
    assert "\nddp\n" not in text


@pytest.mark.parametrize(
    ("units", "gathered", "sent"), [(3, "2 times", "1.5 × 814 kB = 1.22 MB"), (1, "1 time", "1 × 814 kB")]
)
def test_lesson_of_shards_says_what_is_sent(units, gathered, sent):
    attested = {"group": {"transport": "TCP over lo"}, "replica": {"units": units}}
    ranks = [a_rank(rank, message_bytes=[], collective_ns=[], attestation=attested) for rank in range(2)]
    words = words_of(a_run({"fsdp": []}, launches=[a_launch("fsdp", ranks=ranks)]))
    assert f"814 kB of parameters, which are gathered {gathered} in each step" in words
    assert f"among 2 ranks, {sent}" in words
    assert "not known" not in words
    assert "fully_shard(model)" in words
