"""Test the first table, against stored examples too.

``UPDATE_EXAMPLES=1 pytest tests/unit/report/test_brief.py`` writes the examples anew.
"""

import io
import math
import os
import random
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from compare.analysis import analyse
from compare.report import View, document_of
from compare.report.cells import cut_in_the_middle
from compare.report.formats.terminal import ConsoleDocument
from compare.report.of_run import arrange
from compare.schema.results import Interleaved
from tests.unit.factories import a_launch, a_pass, a_rank, a_run, noisy
from tests.unit.pages import render

EXAMPLES = Path(__file__).parent / "examples"
IN_TURNS = {"interleaved": Interleaved(mode="blocks")}


def measured(steps, *, rounds=5, noise=0.01, **changes):
    """Return a run in turns with computation and collectives alone."""
    chance = random.Random(2)
    launches = [
        a_launch(
            arm,
            round_,
            ranks=[
                a_rank(
                    rank,
                    milliseconds=step * math.exp(noise * factor),
                    reference=[1.35] if arm != "none" else [],
                    collective_ns=[2_500_000],
                )
                for rank in range(2)
            ],
        )
        for round_ in range(1, rounds + 1)
        for arm, step in steps.items()
        for factor in [chance.gauss()]
    ]
    return a_run({arm: [] for arm in steps}, launches=launches, **IN_TURNS | changes)


SIX = {
    "none": 1.31,
    "ddp": 5.62,
    "manual": 5.5,
    "manual:mode=shared_memory": 1.72,
    "horovod": 6.35,
    "mpi": 1.96,
}
LONG = {
    "none": 4.0,
    "manual:mode=reduce_scatter:process_group=gloo:env.OMP_WAIT_POLICY=passive": 5.0,
    "manual:mode=per_parameter:process_group=gloo:env.OMP_WAIT_POLICY=passive": 7.0,
    "manual:mode=overlap:bucket_mb=0.25:process_group=gloo:env.OMP_WAIT_POLICY=passive:env.GLOO_A=1": 8.0,
}
RISING = {"none": 4.0, "ddp": 5.0, "mpi": 6.0}
OTHER = {"none": 4.0, "ddp": 6.0, "localsgd": 4.4, "ddp:comm_hook=fp16": 5.1}
RUNS = {
    "quiet": measured(SIX),
    "busy": noisy(measured(SIX), 2, 3),
    "noise": measured(dict.fromkeys(SIX, 5.0), noise=0.6),
    "long": measured(LONG),
    "other training": measured(OTHER),
    "one round": measured(SIX, rounds=1),
    "no launch": measured(SIX, rounds=0, complete=False),
    "oversubscribed": measured(SIX, cores=1),
}


def printed(run, width, *, terminal=None, environment=None):
    console = Console(
        file=io.StringIO(), width=width, force_terminal=terminal, highlight=False, _environ=environment or {}
    )
    console.print(ConsoleDocument(document_of(run, view=View(report_argument="last"))))
    return console.file.getvalue()


WAYS = {
    "80": lambda run: printed(run, 80),
    "120": lambda run: printed(run, 120),
    "pipe": lambda run: render(run, analyse(run), "table") + "\n",
    "colours": lambda run: printed(run, 80, terminal=True, environment={"TERM": "xterm"}),
    "no-color": lambda run: printed(run, 80, terminal=True, environment={"TERM": "xterm", "NO_COLOR": "1"}),
}
STORED = [("quiet", way) for way in WAYS] + [(name, "80") for name in RUNS if name != "quiet"]


@pytest.mark.parametrize(("name", "way"), STORED)
def test_first_table_is_the_stored_example(name, way):
    stored = EXAMPLES / f"{name.replace(' ', '-')}-{way}.txt"
    text = WAYS[way](RUNS[name]).replace("\x1b", "\\e")
    if os.environ.get("UPDATE_EXAMPLES"):
        stored.write_text(text)
    assert text == stored.read_text()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_first_table_fits_the_terminal(run, width):
    lines = printed(run, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= 24 or width < 80


NOISE_ALONE = {
    "one round": noisy(measured(SIX, rounds=1), 1),
    "two rounds": noisy(measured(SIX, rounds=2), 1, 2),
}


@pytest.mark.parametrize("shown", [{}, {"detail": True}])
@pytest.mark.parametrize("name", NOISE_ALONE)
def test_few_rounds_that_are_all_noisy_show_neither_cost_nor_ratio(name, shown):
    run = NOISE_ALONE[name]
    text = render(run, analyse(run), "table", **shown)
    assert text.startswith("NOTHING CAN BE RANKED: other processes used more than 10 % of the CPUs in every")
    rows = [line for line in text.splitlines() if line.split() and line.split()[0] in SIX and "×" in line]
    assert [row for row in rows if "×" in row.replace("1.00×", "")] == []
    for arm in arrange(analyse(run)).summary.arms:
        detail = arm.detail
        costs = (arm.sync_seconds, arm.sync_share, detail.exposed_seconds, detail.communication_seconds)
        assert costs == (None, None, None, None)
    assert [arm for arm in analyse(run).summary.arms if arm.sync_seconds], "programs get all figures"


@pytest.mark.parametrize("width", range(1, 30))
def test_cut_in_the_middle_keeps_both_ends(width):
    name = "manual:模式=重叠:bucket_mb=25"
    cut = cut_in_the_middle(name, width)
    assert cell_len(cut) <= width
    assert width < 5 or (cut[0], cut[-1]) == ("m", "5")
    assert cut_in_the_middle("ddp", 3) == "ddp"


# ---- the last lines ----


def with_ranks(run, arm, **changes):
    """Return the run with changes in all ranks of one arm."""

    def changed(launch):
        ranks = [msgspec.structs.replace(rank, **changes) for rank in launch.ranks]
        return msgspec.structs.replace(launch, ranks=ranks) if launch.arm == arm else launch

    return msgspec.structs.replace(run, launches=[changed(launch) for launch in run.launches])


def without(run, arm):
    return msgspec.structs.replace(run, launches=[one for one in run.launches if one.arm != arm])


def words_of(run, **shown):
    return " ".join(render(run, analyse(run), "table", **shown).split())


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (
            measured(RISING, rounds=4, config={"budget_seconds": 60.0}),
            "Fastest here: open until round 5; this is round 4. Give it a longer --budget.",
        ),
        (
            measured({"none": 4.0, "ddp": 5.0}, noise=0.0),
            "A step of ddp takes 5.00 ms; 1.00 ms of it, 20 %, is sync cost.",
        ),
        (measured({"ddp": 5.0}, noise=0.0), "A step of ddp takes 5.00 ms."),
        (measured(RISING), "Fastest here: ddp, the baseline."),
        (measured(RISING, complete=False), "So far: Fastest here: ddp, the baseline."),
        (measured({"none": 4.0, "ddp": 5.0, "mpi": 5.0}), "Fastest here: mpi, ddp, the same within 3 %."),
        (
            a_run({"ddp": [5.0, 5.2, 5.1, 5.0, 5.1], "mpi": [4.9, 5.3, 4.7, 5.3, 5.0]}),
            "Fastest here: mpi or ddp. About 22 more rounds would tell: --budget 120.",
        ),
    ],
)
def test_conclusion_is_the_last_line(run, line):
    assert printed(run, 200).splitlines()[-1] == line


def test_proof_that_failed_or_is_missing_is_shown():
    run = measured({"none": 4.0, "ddp": 6.0, "mpi": 5.0})
    failed = printed(with_ranks(run, "mpi", parity=[a_pass(differences=[0.5] * 20)]), 200)
    assert "✗ PROOF FAILED: mpi did not train what one process trains." in failed
    missing = printed(with_ranks(run, "mpi", parity=[]), 200)
    assert "NOT PROVEN: a launch of mpi has no proof of its training." in missing
    assert "✓ ddp trained what one process trains: proven for 20 steps." in missing


def test_proof_of_later_rounds_names_their_hashes():
    run = measured({"ddp": 4.0, "mpi": 5.0})
    later = with_ranks(with_ranks(run, "ddp", parity=[]), "mpi", parity=[]).launches
    repeated = msgspec.structs.replace(run, launches=run.launches[:2] + later[2:])
    line = "trained the same model: proven for 20 steps, in later rounds by their hashes, equal bit for bit."
    assert line in printed(repeated, 200)
    detailed = render(repeated, analyse(repeated), "markdown")
    assert f"| mpi | the same | 20 | 2e-16 | {run.launches[-1].round - 1} |" in detailed
    one = without(repeated, "mpi")
    assert "proven for 20 steps, in later rounds by its hash." in printed(one, 200)


def test_why_leaves_out_an_arm_that_costs_little():
    """The collectives of the costly arm are not measured alone."""
    run = with_ranks(measured({"none": 4.0, "ddp": 9.0, "mpi": 4.8}), "ddp", collective_ns=[])
    assert {cause.arm for cause in analyse(run).causes} == {"mpi"}
    assert "Why" not in printed(run, 200)


def test_proof_claims_equal_bits_of_whole_parameters_alone():
    shown = words_of(measured({"ddp": 4.0, "manual": 5.0, "fsdp": 6.0}))
    assert "proven for 20 steps; ddp, manual equal bit for bit." in shown


@pytest.mark.parametrize(
    ("apart", "says"),
    [(1e-6, "apart from rounding (1e-06 of their way)."), (0.03, "BUT THEY ENDED 0.03 of their way apart")],
)
def test_proof_says_how_far_apart_arms_ended(apart, says):
    run = measured({"ddp": 4.0, "manual": 5.0})
    for arm, sketch in {"ddp": [1.0, 0.0], "manual": [1.0, apart]}.items():
        run = with_ranks(run, arm, sketch=sketch, final_hash=arm)
    assert says in words_of(run)


def test_proof_that_is_empty_or_has_no_measure_names_its_reason():
    untold = {"alone": ["0.weight"], "sum": [], "none": []}
    empty = a_pass(trainable=1, shards=2, untold=untold)
    text = words_of(with_ranks(measured({"ddp": 4.0, "manual": 5.0}), "manual", parity=[empty]))
    assert "NOTHING TO PROVE: manual: each rank's own gradient is already the mean" in text
    assert "✓ ddp trained what one process trains" in text


def test_proof_names_its_arms_where_one_has_not_finished():
    text = words_of(without(measured({"ddp": 4.0, "manual": 5.0, "mpi": 6.0}, complete=False), "mpi"))
    assert "All arms" not in text
    assert "ddp, manual trained the same model" in text


def test_conclusion_with_one_finished_arm_of_several_compares_nothing():
    run = without(measured({"ddp": 4.0, "mpi": 6.0}, complete=False), "mpi")
    assert "only ddp has finished" in words_of(run)


def test_full_table_of_an_oversubscribed_run_shows_no_ratio():
    text = words_of(RUNS["oversubscribed"], detail=True)
    assert "not ranked" in text
    assert "×" not in text.replace("ranks ×", "").replace("rank ×", "")


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_noisy_rounds_come_first_in_full_formats(form):
    run = RUNS["busy"]
    lines = render(run, analyse(run), form, detail=form == "table").splitlines()
    assert lines[0].lstrip("*").startswith("Noisy:")
    assert sum("Noisy:" in line for line in lines) == 1
