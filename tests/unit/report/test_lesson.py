"""Test the lesson of a run."""

import re

import msgspec
import pytest

from compare.analysis import analyse
from compare.report.formats import terminal, write
from compare.report.of_lesson import document_of
from compare.schema.results import StepCall
from tests.unit.factories import a_launch, a_rank, a_run, noisy
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
    assert "Its calls were not timed alone" in words


def test_lesson_of_a_noisy_run_does_not_split_the_time_of_its_calls():
    run = a_measured_run(ranks=2, arm="manual:mode=flat")
    assert "does not depend on the size" in words_of(run)
    loud = words_of(noisy(run, 1))
    assert "Alone, without training, it takes" in loud
    assert "does not depend on the size" not in loud


def test_small_messages_have_no_known_algorithm():
    assert "How its messages travel is not known" in words_of(a_measured_run(message_bytes=[1024]))


def test_lesson_of_named_arms_has_no_other():
    text = lesson_of(measured(), ["mpi"])
    assert "\nmpi\n" in text
    assert "\nddp\n" not in text


GATHER = StepCall(collective="all_gather", message_bytes=500_000)
SCATTER = StepCall(collective="reduce_scatter", message_bytes=400_000)
REDUCE = StepCall(collective="all_reduce", message_bytes=400_000)
SEND = StepCall(collective="broadcast", message_bytes=100_000)


def words_of_calls(arm, calls, hosts, library="torch.distributed gloo"):
    """Return the words of a lesson on an arm whose step was recorded, with a rank on each of ``hosts``."""
    attested = {"group": {"transport": "TCP over lo", "library": library}, "replica": {}}
    sizes = [call.message_bytes for call in calls]
    ranks = [
        a_rank(
            rank, host=host, message_bytes=sizes, calls=calls, gradient_bytes=400_000, attestation=attested
        )
        for rank, host in enumerate(hosts)
    ]
    return words_of(a_run({arm: []}, launches=[a_launch(arm, ranks=ranks)]))


@pytest.mark.parametrize(
    ("library", "hosts", "sent"),
    [
        ("torch.distributed gloo", "ab", "0.5 × 1 MB + 1 × 400 kB = 900 kB"),
        ("torch.distributed gloo", "abcd", "0.75 × 1 MB + 1.5 × 400 kB = 1.35 MB"),
        ("torch.distributed nccl", "ab", "0.5 × 1 MB + 0.5 × 400 kB = 700 kB"),
    ],
)
def test_lesson_of_shards_says_what_is_sent(library, hosts, sent):
    words = words_of_calls("fsdp", [GATHER, GATHER, SCATTER], hosts, library)
    assert "2 all-gathers of 1 MB and 1 reduce-scatter of 400 kB in each step, by TCP over lo" in words
    assert f"Among {len(hosts)} ranks, each sends {sent}" in words
    assert ("a whole ring all-reduce" in words) == ("gloo" in library)
    assert "in forward and in backward" in words
    assert "not known" not in words
    assert "fully_shard(" in words


def test_lesson_of_replicated_shards_says_what_stays_on_a_host():
    calls = [
        msgspec.structs.replace(GATHER, ranks=[0, 1]),
        msgspec.structs.replace(SCATTER, ranks=[0, 1]),
        msgspec.structs.replace(REDUCE, message_bytes=200_000, ranks=[0, 2]),
    ]
    words = words_of_calls("fsdp", calls, "aabb")
    assert (
        "1 all-gather of 500 kB, 1 reduce-scatter of 400 kB and 1 all-reduce of 200 kB, each among 2" in words
    )
    assert "0.5 × 500 kB + 1 × 400 kB + 1 × 200 kB = 850 kB" in words
    assert "Of that, 650 kB stay on its host" in words
    assert "in forward, and after its backward. Replicas average their shards then." in words


def test_lesson_of_replicas_without_shards_has_all_reduces_alone():
    calls = [msgspec.structs.replace(REDUCE, message_bytes=200_000, ranks=[0, 1])]
    assert "All-reduces during backward. " in words_of_calls("fsdp", calls, "aa")


def test_lesson_of_a_sharded_optimizer_counts_what_a_rank_sends_on_average():
    words = words_of_calls("zero", [REDUCE, SEND, SEND], "ab")
    assert "1 all-reduce of 400 kB and 2 broadcasts of 200 kB" in words
    assert "each sends 1 × 400 kB + 0.5 × 200 kB = 500 kB on average" in words
    assert "broadcasts after each rank has updated its part" in words
