"""Test the summary of a run, which claims no more than is known."""

import msgspec
import pytest

from compare.analysis import analyse
from compare.report.formats import write
from compare.report.of_summary import document_of
from compare.schema.arms import parse_arm
from compare.schema.memory import Unfit
from compare.schema.results import Failure
from tests.unit.factories import a_pass, noisy
from tests.unit.report.test_brief import with_ranks
from tests.unit.runs import RUNS, STEPS, measured

EXACT = {name: step for name, step in STEPS.items() if name != "localsgd"}
SAME = measured({"none": 4.0, "ddp": 6.0, "manual": 5.9})
NOISY = noisy(measured(EXACT), 2)


def answers_of(run):
    """Return the sentences of a summary, by the question that they answer."""
    (table,) = document_of(run, analyse(run)).tables
    return {row.cells[0]: row.cells[1] for row in table.rows}


def test_summary_names_the_fastest_way_and_what_an_hour_becomes():
    answers = answers_of(measured(EXACT))
    assert answers["In short"] == (
        "mpi is the fastest of 3 ways here. Steps that take 1 h with ddp take 50 min (50–51) with it."
    )
    assert answers["What is known"].startswith("All trained what a single process trains, in 20 steps")
    assert "With mpi, a step takes 5.00 ms; 20 % of it is synchronising (" in answers["What is known"]
    assert answers["What to do"].startswith("Use mpi, if speed decides")
    assert "Whether one process alone would train faster" in answers["What is not known"]


def test_summary_of_another_training_says_so_beside_its_speed():
    answers = answers_of(RUNS["quiet"])
    assert "By design it does not train exactly what the others train." in answers["In short"]
    assert "localsgd did not train exactly the same: the loss on the test set" in answers["What is known"]
    assert "and its loss is good enough" in answers["What to do"]


@pytest.mark.parametrize(
    ("run", "answer", "advice"),
    [
        (
            RUNS["all noise"],
            "noise on the machine may explain every difference",
            "--budget 360, which is 6 min.",
        ),
        (RUNS["oversubscribed"], "because the processes outnumbered the cores", "no more processes"),
        (RUNS["no launch"], "Nothing was measured", ""),
        (RUNS["one round"], "It is open which way is the fastest", "5 rounds are the least"),
        (RUNS["one arm"], "One way alone was measured", "name several ways"),
        (SAME, "manual and ddp are the fastest of 2 ways here, and equal within 3 %", "what else matters"),
        (NOISY, "Other programs took CPU time from this run", "Use mpi"),
    ],
    ids=["noise", "oversubscribed", "no launch", "one round", "one arm", "same", "noisy"],
)
def test_summary_says_why_there_is_no_answer_and_what_to_do(run, answer, advice):
    answers = answers_of(run)
    assert answer in answers["In short"]
    assert advice in answers["What to do"]


@pytest.mark.parametrize("name", ["all noise", "oversubscribed", "one round", "one arm", "no launch"])
def test_summary_of_a_run_that_ranks_nothing_compares_no_speeds(name):
    text = " ".join(answers_of(RUNS[name]).values())
    assert "Speed in relation" not in text
    assert "as fast as" not in text
    assert "Use " not in text


def test_summary_of_a_wrong_model_gives_no_answer():
    run = with_ranks(measured(EXACT), "mpi", parity=[a_pass(differences=[0.5] * 20)])
    answers = answers_of(run)
    assert answers["In short"] == "There is no answer, because mpi trained a wrong model."
    assert "mpi TRAINED A WRONG MODEL" in answers["What is known"]
    assert answers["What to do"].startswith("Find out why a way trains a wrong model")


def test_summary_names_what_was_not_measured_or_not_proven():
    absent = {"horovod": "it is not installed"}
    run = msgspec.structs.replace(measured(EXACT), left_out=absent, complete=False)
    answers = answers_of(with_ranks(run, "manual", parity=[]))
    for expected in (
        "The run was stopped before its end.",
        "horovod: did not run, because it is not installed.",
        "Whether manual trained the right model.",
    ):
        assert expected in answers["What is not known"]


def test_summary_says_what_sharding_saves_and_takes():
    known = answers_of(RUNS["shards"])["What is known"]
    assert "fsdp holds" in known
    assert "its time" in known
    assert "Use fsdp, if memory decides" in answers_of(RUNS["shards"])["What to do"]


def test_summary_says_where_shared_memory_can_be_used():
    run = measured({"none": 4.0, "ddp": 6.0, "manual:mode=shared_memory": 4.2})
    assert (
        "if speed decides and all processes are on the CPUs of one machine." in answers_of(run)["What to do"]
    )


def test_summary_names_what_does_not_fit_and_what_is_left():
    unfit = Unfit(arm=parse_arm("ddp"), round=1, limit="control group", limit_bytes=1 << 30, stage="train")
    answers = answers_of(msgspec.structs.replace(measured(EXACT), unfit=[unfit]))
    assert answers["In short"].endswith("Memory ran out in the processes of ddp.")
    assert "Each was started, and each that fits was timed 5 times" in answers["What was compared"]
    assert "ddp does not fit" in answers["What is known"]
    alone = answers_of(msgspec.structs.replace(measured({"none": 4.0, "fsdp": 6.0}), unfit=[unfit]))
    assert alone["What to do"] == "Give the processes more memory and measure again, or use fsdp."
    stopped = answers_of(msgspec.structs.replace(RUNS["no launch"], unfit=[unfit]))
    assert stopped["In short"].startswith("Nothing was measured")
    failure = Failure(arm="mpi", round=1, kind="MemoryShortError", message="No arm fits into memory.")
    none = answers_of(msgspec.structs.replace(RUNS["no launch"], unfit=[unfit], failure=failure))
    assert none["In short"] == "None of these ways fits into memory, so there is no answer."
    assert none["What to do"].startswith("Give the processes more memory")


def test_summary_says_of_a_proof_that_does_not_fit_what_is_not_known():
    proof = Unfit(arm=parse_arm("ddp"), round=1, limit="control group", limit_bytes=1 << 30, stage="parity")
    answers = answers_of(msgspec.structs.replace(RUNS["quiet"], bare=[proof]))
    told = "Whether ddp trained the right model, because a launch that checks it does not fit into memory."
    assert told in answers["What is not known"]
    assert "ddp" not in answers["What is known"].split("trained what a single process trains")[0]


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_summary_can_be_written_in_every_format_for_people(form):
    run = RUNS["quiet"]
    assert "localsgd is the fastest" in " ".join(write(document_of(run, analyse(run)), form).split())


def test_summary_of_a_failed_run_says_what_failed_and_not_to_wait():
    failure = Failure(arm="mpi", round=1, kind="LaunchError", message="mpi: rank 1 failed.")
    run = msgspec.structs.replace(RUNS["no launch"], failure=failure, complete=False)
    answers = answers_of(run)
    assert "The run failed: mpi, round 1: mpi: rank 1 failed." in answers["What is not known"]
    assert answers["What to do"].startswith("Fix what failed")


def test_summary_advises_no_way_that_diverged():
    run = measured(EXACT)
    launches = [
        msgspec.structs.replace(
            launch,
            ranks=[
                msgspec.structs.replace(
                    rank, evaluation=msgspec.structs.replace(rank.evaluation, loss_sum=None)
                )
                for rank in launch.ranks
            ],
        )
        for launch in run.launches
    ]
    answers = answers_of(msgspec.structs.replace(run, launches=launches))
    assert "because the loss is no longer a number" in answers["What is not known"]
    assert answers["What to do"].startswith("Measure again with a smaller learning rate")


def test_summary_does_not_call_the_control_a_way_that_did_not_fit():
    unfit = Unfit(arm=parse_arm("none"), round=1, limit="host", limit_bytes=1 << 30, stage="train")
    assert (
        "did not fit" not in answers_of(msgspec.structs.replace(measured(EXACT), unfit=[unfit]))["In short"]
    )
