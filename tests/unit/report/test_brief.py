"""Test the first table, against stored examples too.

``UPDATE_EXAMPLES=1 pytest tests/unit/report/test_brief.py`` writes the examples anew.
"""

from __future__ import annotations

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
from compare.report import View, document_of, render
from compare.report.formats.terminal import Shown
from compare.report.of_run import arrange
from compare.report.rows import cut_in_the_middle
from compare.schema.results import Interleaved
from tests.unit.factories import a_launch, a_pass, a_rank, a_run, noisy

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


def busy_beside(run, arm):
    """Return the run with other processes beside one arm alone."""
    pairs = zip(run.launches, noisy(run, 1).launches, strict=True)
    return msgspec.structs.replace(run, launches=[busy if own.arm == arm else own for own, busy in pairs])


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
    console.print(Shown(document_of(run, view=View(again="last"))))
    return console.file.getvalue()


WAYS = {
    "80": lambda run: printed(run, 80),
    "120": lambda run: printed(run, 120),
    "200": lambda run: printed(run, 200),
    "pipe": lambda run: render(run, analyse(run), "table") + "\n",
    "colours": lambda run: printed(run, 80, terminal=True, environment={"TERM": "xterm"}),
    "no-color": lambda run: printed(run, 80, terminal=True, environment={"TERM": "xterm", "NO_COLOR": "1"}),
    "dumb": lambda run: printed(run, 80, terminal=True, environment={"TERM": "dumb"}),
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


@pytest.mark.parametrize("way", ["pipe", "dumb", "80"])
def test_first_table_without_a_terminal_is_plain(way):
    text = WAYS[way](RUNS["quiet"])
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_first_table_without_colours_has_none():
    codes = set(WAYS["no-color"](RUNS["quiet"]).split("\x1b[")[1:])
    assert {code.split("m")[0] for code in codes} <= {"0", "1", "2"}, "bold and dim are no colours"


@pytest.mark.parametrize("name", ["busy", "noise"])
def test_first_table_of_a_noisy_run_says_so_first(name):
    first = printed(RUNS[name], 200).splitlines()[0]
    assert first.startswith(("Noisy: ", "NOTHING CAN BE RANKED: "))
    assert "quieter machine" in first or "--budget" in first


def test_first_table_of_noise_alone_has_no_ratio():
    text = printed(RUNS["noise"], 200)
    assert "faster" not in text
    assert "slower" not in text
    assert text.splitlines()[-1].startswith("No arm is ranked: the noise")


NOISE_ALONE = {
    "one round": noisy(measured(SIX, rounds=1), 1),
    "two rounds": noisy(measured(SIX, rounds=2), 1, 2),
    "the control alone": busy_beside(measured(SIX, rounds=1), "none"),
    "one arm alone": busy_beside(measured(SIX, rounds=1), "ddp"),
}


@pytest.mark.parametrize("shown", [{}, {"wide": True}, {"detail": True}])
@pytest.mark.parametrize("name", NOISE_ALONE)
def test_few_rounds_that_are_all_noisy_show_neither_cost_nor_ratio(name, shown):
    run = NOISE_ALONE[name]
    text = render(run, analyse(run), "table", **shown)
    assert text.startswith("NOTHING CAN BE RANKED: other processes used more than 10 % of the CPUs in every")
    rows = [line for line in text.splitlines() if line.split() and line.split()[0] in SIX and "×" in line]
    assert [row for row in rows if "×" in row.replace("1.00×", "")] == []
    for arm in arrange(analyse(run), None).summary.arms:
        detail = arm.detail
        costs = (arm.sync_seconds, arm.sync_share, detail.exposed_seconds, detail.communication_seconds)
        assert costs == (None, None, None, None)
    assert [arm for arm in analyse(run).summary.arms if arm.sync_seconds], "programs get all figures"


def test_one_arm_has_nothing_to_compare_so_noise_hides_nothing():
    run = noisy(measured({"ddp": 5.0}, rounds=1), 1)
    assert not analyse(run).summary.noise_hides_all


def test_two_rounds_with_a_quiet_one_have_costs():
    run = noisy(measured(SIX, rounds=2), 1)
    assert not analyse(run).summary.noise_hides_all
    assert all(arm.sync_share for arm in analyse(run).summary.arms if arm.arm != "none")


def test_first_table_puts_shared_options_into_the_headline():
    first, *rest = printed(RUNS["long"], 200).splitlines()
    assert "all arms: process_group=gloo:env.OMP_WAIT_POLICY=passive" in first
    assert [line for line in rest if "passive" in line and line.startswith(" ")] == []


def test_first_table_names_arms_that_are_cut_to_the_same():
    names = [f"manual:mode=overlap:env.NCCL_{'X' * 40}={value}:env.TAIL_{'Y' * 30}=9" for value in "AB"]
    run = measured({"none": 4.0, names[0]: 5.0, names[1]: 6.0, "ddp": 7.0})
    text = printed(run, 80).replace("\n", "")
    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize("width", range(1, 30))
def test_cut_in_the_middle_keeps_both_ends(width):
    name = "manual:模式=重叠:bucket_mb=25"
    cut = cut_in_the_middle(name, width)
    assert cell_len(cut) <= width
    assert width < 5 or (cut[0], cut[-1]) == ("m", "5")
    assert cut_in_the_middle("ddp", 3) == "ddp"


# ---- the last lines ----


def last_line(run):
    return printed(run, 200).splitlines()[-1]


def reached(outcome, **changes):
    """Return a run whose arm mpi has another outcome of its proof."""
    run = measured({"none": 4.0, "ddp": 6.0, "mpi": 5.0})
    passes = {
        "failed": [a_pass(differences=[0.5] * 20)],
        "none": [],
    }[outcome]
    launches = [
        msgspec.structs.replace(
            launch, ranks=[msgspec.structs.replace(rank, parity=passes) for rank in launch.ranks]
        )
        if launch.arm == "mpi"
        else launch
        for launch in run.launches
    ]
    return msgspec.structs.replace(run, launches=launches, **changes)


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (RUNS["quiet"], "Fastest here: manual:mode=shared_memory, 3.3× faster than ddp [3.2, 3.4]."),
        (RUNS["one round"], "Fastest here: open until round 5; this is round 1. Leave --repeats out."),
        (
            measured({"none": 4.0, "ddp": 5.0, "mpi": 6.0}, rounds=4, config={"budget_seconds": 60.0}),
            "Fastest here: open until round 5; this is round 4. Give it a longer --budget.",
        ),
        (RUNS["oversubscribed"], "No arm is ranked: ranks and threads outnumber the cores."),
        (RUNS["no launch"], "No launch has finished, so there is nothing to compare."),
        (
            measured({"none": 4.0, "ddp": 5.0}, noise=0.0),
            "A step of ddp takes 5.00 ms; 1.00 ms of it, 20%, is sync cost.",
        ),
        (measured({"ddp": 5.0}, noise=0.0), "A step of ddp takes 5.00 ms."),
        (measured({"none": 4.0, "ddp": 5.0, "mpi": 6.0}), "Fastest here: ddp, the baseline."),
        (
            measured({"none": 4.0, "ddp": 5.0, "mpi": 6.0}, complete=False),
            "So far: Fastest here: ddp, the baseline.",
        ),
        (
            measured({"none": 4.0, "ddp": 5.0, "mpi": 5.0}),
            "Fastest here: mpi, ddp, equivalent within 3 %.",
        ),
        (
            a_run({"ddp": [5.0, 5.2, 5.1, 5.0, 5.1], "mpi": [4.9, 5.3, 4.7, 5.3, 5.0]}),
            "Fastest here: mpi or ddp. About 22 more rounds would tell: --budget 120.",
        ),
    ],
)
def test_conclusion_is_the_last_line(run, line):
    assert last_line(run) == line


def test_conclusion_names_an_arm_that_trains_something_else():
    text = printed(RUNS["other training"], 200)
    assert "localsgd *" in text
    assert "* the same training at period 1 alone. Test loss: localsgd 0.1, ddp 0.1." in text
    assert "* rounds or compresses by design. Test loss: ddp:comm_hook=fp16 0.1, ddp 0.1." in text
    assert text.rstrip().endswith(", * the same training at period 1 alone.")


def test_proof_that_failed_or_is_missing_is_shown():
    assert "✗ PROOF FAILED: mpi did not train what one process trains." in printed(reached("failed"), 200)
    text = printed(reached("none"), 200)
    assert "NOT PROVEN: a launch of mpi has no proof of its training." in text
    assert "✓ ddp trained what one process trains: proven for 20 steps." in text


def test_proof_of_later_rounds_names_their_hashes():
    run = measured({"ddp": 4.0, "mpi": 5.0})
    later = [
        launch
        if launch.round == 1
        else msgspec.structs.replace(
            launch, ranks=[msgspec.structs.replace(rank, parity=[]) for rank in launch.ranks]
        )
        for launch in run.launches
    ]
    repeated = msgspec.structs.replace(run, launches=later)
    line = "trained the same model: proven for 20 steps, in later rounds by their hashes, equal bit for bit."
    assert line in printed(repeated, 200)
    detailed = render(repeated, analyse(repeated), "table", wide=True)
    rounds = run.launches[-1].round - 1
    assert f"equal to those of a proven launch: {rounds} rounds of ddp, {rounds} rounds of mpi." in detailed
    one = msgspec.structs.replace(repeated, launches=[la for la in later if la.arm == "ddp"])
    assert "proven for 20 steps, in later rounds by its hash." in printed(one, 200)


def test_why_leaves_out_an_arm_that_costs_little():
    """The collectives of the costly arm are not measured alone."""
    run = measured({"none": 4.0, "ddp": 9.0, "mpi": 4.8})
    plain = [
        msgspec.structs.replace(
            launch, ranks=[msgspec.structs.replace(rank, collective_ns=[]) for rank in launch.ranks]
        )
        if launch.arm == "ddp"
        else launch
        for launch in run.launches
    ]
    run = msgspec.structs.replace(run, launches=plain)
    assert {cause.arm for cause in analyse(run).causes} == {"mpi"}
    assert "Why" not in printed(run, 200)


def test_why_names_the_main_cause_of_the_baseline():
    text = printed(RUNS["quiet"], 200)
    assert "Why ddp costs 4.3" in text
    assert "1.35 ms of computing cannot hide 2.50 ms of communication (TCP over lo)." in text


def test_proof_claims_equal_bits_of_whole_parameters_alone():
    run = measured({"ddp": 4.0, "manual": 5.0, "fsdp": 6.0})
    text = render(run, analyse(run), "table")
    assert "proven for 20 steps; ddp, manual equal bit for bit." in " ".join(text.split())


@pytest.mark.parametrize(
    ("apart", "says"),
    [(1e-6, "apart from rounding (1e-06 of their way)."), (0.03, "BUT THEY ENDED 0.03 of their way apart")],
)
def test_proof_says_how_far_apart_arms_ended(apart, says):
    run = measured({"ddp": 4.0, "manual": 5.0})
    sketches = {"ddp": [1.0, 0.0], "manual": [1.0, apart]}
    ended = [
        msgspec.structs.replace(
            launch,
            ranks=[
                msgspec.structs.replace(rank, sketch=sketches[launch.arm], final_hash=launch.arm)
                for rank in launch.ranks
            ],
        )
        for launch in run.launches
        if launch.arm in sketches
    ]
    run = msgspec.structs.replace(run, launches=ended)
    assert says in " ".join(render(run, analyse(run), "table").split())


def test_proof_that_is_empty_or_has_no_measure_names_its_reason():
    untold = {"alone": ["0.weight"], "sum": [], "none": []}
    empty = a_pass(trainable=1, shards=2, untold=untold)
    run = measured({"ddp": 4.0, "manual": 5.0})
    ended = [
        msgspec.structs.replace(
            launch, ranks=[msgspec.structs.replace(rank, parity=[empty]) for rank in launch.ranks]
        )
        if launch.arm == "manual"
        else launch
        for launch in run.launches
    ]
    text = " ".join(render(r := msgspec.structs.replace(run, launches=ended), analyse(r), "table").split())
    assert "NOTHING TO PROVE: manual: each rank's own gradient is already the mean" in text
    assert "✓ ddp trained what one process trains" in text


def test_proof_names_its_arms_where_one_has_not_finished():
    run = measured({"ddp": 4.0, "manual": 5.0, "mpi": 6.0}, complete=False)
    run = msgspec.structs.replace(run, launches=[one for one in run.launches if one.arm != "mpi"])
    text = " ".join(render(run, analyse(run), "table").split())
    assert "All arms" not in text
    assert "ddp, manual trained the same model" in text


def test_conclusion_with_one_finished_arm_of_several_compares_nothing():
    run = measured({"ddp": 4.0, "mpi": 6.0}, complete=False)
    run = msgspec.structs.replace(run, launches=[one for one in run.launches if one.arm != "mpi"])
    assert "only ddp has finished" in render(run, analyse(run), "table")


def test_wide_table_of_an_oversubscribed_run_shows_no_ratio():
    run = RUNS["oversubscribed"]
    text = render(run, analyse(run), "table", wide=True)
    assert "not ranked" in text
    assert "×" not in text.replace("ranks ×", "").replace("rank ×", "")


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_noisy_rounds_come_first_in_wide_formats(form):
    run = RUNS["busy"]
    lines = render(run, analyse(run), form, wide=form == "table").splitlines()
    assert lines[0].lstrip("*").startswith("Noisy:")
    assert sum("Noisy:" in line for line in lines) == 1
