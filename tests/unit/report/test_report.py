"""Every format: all arms, all warnings, figures in the unit that is promised, and syntax that parses."""

from __future__ import annotations

import csv
import io
import json
import re

import msgspec
import pytest
from rich.console import Console

from compare.analysis import analyse
from compare.analysis.summary import ArmSummary, Detail, Summary, summarise
from compare.report import RENDERERS, render
from compare.report.table import RunTable
from compare.schema.results import Failure, MachineUse, Run
from tests.unit.factories import DIGITS, a_block, a_launch, a_pass, a_phased_block, a_rank, a_run

FOR_PROGRAMS = ("csv", "json")
FOR_PEOPLE = [form for form in RENDERERS if form not in FOR_PROGRAMS]
MEASURED = {
    "none": [4.0, 4.0, 4.0],
    "ddp:bucket_cap_mb=1": [5.0, 5.1, 5.2],
    "manual:mode=overlap": [6.0, 6.1, 6.2],
    "horovod:controller=mpi": [7.0, 7.5, 8.0],
}


def shown(run, form):
    return render(run, analyse(run), form)


def unfolded(text):
    """Without the line breaks that a terminal's width makes."""
    return re.sub(r"\s+", " ", text)


def rows_of(run):
    return list(csv.DictReader(io.StringIO(shown(run, "csv"))))


# ---- every format ----


@pytest.mark.parametrize("form", RENDERERS)
def test_every_arm_is_shown_by_its_label(form):
    text = shown(a_run(MEASURED), form)
    for arm in MEASURED:
        assert arm in text


@pytest.mark.parametrize("form", RENDERERS)
def test_a_run_without_a_launch_can_be_shown(form):
    assert shown(a_run({"none": [], "ddp": []}, complete=False), form)


@pytest.mark.parametrize("form", RENDERERS)
def test_a_run_cut_short_in_the_middle_of_a_round_can_be_shown(form):
    text = shown(a_run({"none": [], "ddp": [5.0, 5.0], "mpi": [6.0]}, complete=False), form)
    assert "ddp" in text
    assert "mpi" in text


@pytest.mark.parametrize("form", RENDERERS)
def test_text_is_plain_and_ends_without_a_newline(form):
    text = shown(a_run(MEASURED), form)
    assert text == text.rstrip()
    assert "\x1b" not in text


def test_an_unknown_format_is_an_error():
    with pytest.raises(KeyError):
        shown(a_run(), "carrier-pigeon")


# ---- what people are told ----


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_what_was_measured_stands_in_the_headline(form):
    run = a_run(
        MEASURED, config={"model": "convnet", "optimizer": "adam", "learning_rate": 0.001, "steps": 77}
    )
    text = unfolded(shown(run, form))
    for fact in (
        "convnet on MNIST",
        "2 ranks × 1 thread",
        "cpu",
        "batch 64 per rank",
        "adam lr 0.001",
        "77 steps",
    ):
        assert fact in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_epochs_are_named_where_steps_are_not(form):
    text = unfolded(shown(a_run(MEASURED, config={"steps": None, "epochs": 2, "threads_per_rank": 3}), form))
    assert "2 epochs" in text
    assert "3 threads" in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_a_whole_run_on_mnist_carries_no_warning(form):
    text = shown(a_run(MEASURED), form)
    for word in ("INCOMPLETE", "NOT MNIST", "Oversubscribed", "did not run"):
        assert word not in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_digits_are_stamped(form):
    text = unfolded(shown(a_run(MEASURED, dataset=DIGITS), form))
    assert "digits (NOT MNIST)" in text
    assert DIGITS.note in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_digits_that_were_asked_for_are_stamped_too(form):
    asked_for = msgspec.structs.replace(DIGITS, requested="digits", note="")
    assert "NOT MNIST" in shown(a_run(MEASURED, dataset=asked_for), form)


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_a_run_that_goes_on_is_stamped(form):
    assert "INCOMPLETE" in shown(a_run(MEASURED, complete=False), form)


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_a_run_that_failed_is_stamped_with_the_reason(form):
    failure = Failure(
        arm="mpi", round=2, kind="LaunchError", message="mpi, round 2: rank 1 on a failed.\nmore"
    )
    text = unfolded(shown(a_run(MEASURED, complete=False, failure=failure), form))
    assert "INCOMPLETE" in text
    assert "round 2" in text
    assert "rank 1 on a failed." in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_ranks_that_share_cores_are_stamped(form):
    text = shown(a_run(MEASURED, cores=1), form)
    assert "Oversubscribed" in text
    assert "◀" not in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_what_could_not_run_is_named_with_the_reason(form):
    left_out = {"horovod": "horovod is not installed; install it with: compare install horovod"}
    text = unfolded(shown(a_run(MEASURED, left_out=left_out), form))
    assert "horovod did not run: horovod is not installed" in text
    assert "compare install horovod" in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_the_fastest_arm_is_marked_where_there_is_one(form):
    text = shown(a_run({arm: [*times, *times[:2]] for arm, times in MEASURED.items()}), form)
    assert "ddp:bucket_cap_mb=1 ◀ fastest" in text
    marked = [line for line in text.splitlines() if "◀" in line]
    assert all("ddp:bucket_cap_mb=1" in line for line in marked)
    assert "◀" not in shown(a_run({"none": [4.0], "ddp": [5.0], "mpi": [6.0]}), form)


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_it_is_said_what_stands_in_brackets_and_what_sync_cost_is(form):
    text = unfolded(shown(a_run(MEASURED), form))
    assert "Means over 3 rounds (95 % interval by t)." in text
    assert "step time minus" in text
    text = unfolded(shown(a_run({"ddp": [5.0, 5.1], "mpi": [6.0, 6.1]}), form))
    assert "Means over 2 rounds (smallest–largest)." in text
    assert "no sync cost" in text
    assert "Means over 1 round " in unfolded(shown(a_run({"ddp": [5.0], "mpi": [6.0]}), form))


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_the_noise_floor_is_told_where_it_is_known(form):
    run = a_run(MEASURED)
    noise = f"{summarise(run).noise:.1%}"
    assert noise == "5.9%"
    assert f"two arms that do not differ would seem to by up to {noise}." in unfolded(shown(run, form))
    assert "Noise floor" not in shown(a_run({"ddp": [5.0], "mpi": [6.0]}), form)


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_what_others_disturbed_is_told_and_what_was_done_about_it(form):
    quiet = a_run(MEASURED)
    busy = MachineUse(wall_ns=10**9, cpus=2, busy_ns=10**9, stolen_ns=0)
    noisy = [
        msgspec.structs.replace(launch, ranks=[a_rank(r, cpu_ns=0, machine=busy) for r in range(2)])
        if launch.round in {1, 3}
        else launch
        for launch in quiet.launches
    ]
    for run, again, disturbed in (
        (quiet, False, False),
        (msgspec.structs.replace(quiet, set_aside=noisy[: len(MEASURED)]), True, False),
        (msgspec.structs.replace(quiet, launches=noisy), False, True),
    ):
        text = unfolded(shown(run, form))
        assert ("1 round had to be taken again" in text) is again
        assert ("Others used more than 10% of the CPUs during rounds 1, 3" in text) is disturbed


# ---- where the cost goes ----

COST = ("= exposed", "+ background", "blocked", "forward", "backward", "optimizer", "imbalance", "skew")
COLLECTIVES = (
    "gradient MB",
    "calls",
    "alone ms",
    "algbw GB/s",
    "busbw GB/s",
    "hiding",
    "cores/rank",
    "whole peak MiB",
    "others",
)


def a_detailed_run():
    """One round; every figure of it is worked out in ``test_stats.py``."""
    phases = {"forward": [1.0], "backward": [2.0], "sync": [0.0], "step": [1.0]}
    synchronised = {"forward": [1.5], "backward": [2.0], "sync": [4.0], "step": [0.75]}
    ranks = [
        a_rank(
            rank,
            blocks=[
                a_block(10.0),
                a_block(reference, mode="reference"),
                a_phased_block(**synchronised),
                a_phased_block("reference", **phases | {"forward": [1.0 + rank]}),
            ],
            message_bytes=[600_000, 200_000],
            collective_ns=[9_000_000],
            gradient_bytes=800_000,
        )
        for rank, reference in enumerate([5.0, 6.0])
    ]
    control = [a_rank(rank, milliseconds=time) for rank, time in enumerate([2.0, 4.0])]
    launches = [a_launch("none", ranks=control), a_launch("ddp", ranks=ranks)]
    return a_run({"none": [], "ddp": []}, launches=launches)


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_where_the_cost_goes_is_shown_where_it_is_asked_for(form):
    run = a_detailed_run()
    text, detailed = shown(run, form), render(run, analyse(run), form, detail=True)
    for heading in (*COST, *COLLECTIVES):
        assert heading in detailed
    assert "Where the cost goes" not in text
    assert "+ background" not in text
    # What is shown without stands there as well, every line of it.
    assert {line for line in text.splitlines() if line} <= set(detailed.splitlines())


def the_rows_of_the_detail(detailed, arm):
    """Cells by heading: an arm has a row in each of the tables under the title."""
    after = detailed[detailed.index("Where the cost goes") :].splitlines()
    found = {}
    for index, line in enumerate(after):
        if line.startswith("| arm"):
            row = next(other for other in after[index:] if other.startswith(f"| {arm}"))
            names, cells = ([cell.strip() for cell in cells_of(text)] for text in (line, row))
            found |= dict(zip(names, cells, strict=True))
    return found


def test_the_detail_is_in_milliseconds_and_gigabytes():
    run = a_detailed_run()
    detailed = render(run, analyse(run), "markdown", detail=True)
    assert the_rows_of_the_detail(detailed, "ddp") == {
        "arm": "ddp",
        "sync ms": "7.00",
        "= exposed": "4.50",
        "+ background": "2.50",
        "T_R ms": "5.50",
        "blocked": "+4.00",
        "forward": "+0.00",  # 1.5 ms, of which the reference took 1 and 2
        "backward": "+0.00",
        "optimizer": "-0.25",
        "communication": "+6.00",
        "imbalance": "+1.00",
        "skew": "+0.50",
        "slowest rank": "1",
        "gradient MB": "0.8",
        "calls": "2",
        "alone ms": "9.00",
        "algbw GB/s": "0.09",
        "busbw GB/s": "0.09",
        "hiding": "50%",
        "cores/rank": "1.00",
        "whole peak MiB": "300",
        "others": "0%",
    }
    control = the_rows_of_the_detail(detailed, "none")
    assert {control[name] for name in ("sync ms", *COST, "hiding")} == {"–"}


@pytest.mark.parametrize("width", [80, 100, 132, 200])
def test_the_detail_fits_its_terminal_and_still_shows_everything(width):
    run = a_detailed_run()
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(RunTable(run, analyse(run), detail=True))
    assert max(map(len, capture.get().splitlines())) <= width
    text = unfolded(capture.get())
    for figure in ("4.50", "2.50", "+4.00", "-0.25", "+0.50", "9.00", "0.09", "50%"):
        assert figure in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_an_arm_that_rounds_on_purpose_does_not_hide_that_the_others_trained_one_model(form):
    run = a_run({"ddp": [5.0], "mpi": [6.0], "ddp:comm_hook=fp16": []})
    other = [a_rank(rank, final_hash="9" * 64, milliseconds=6.0) for rank in range(2)]
    run = msgspec.structs.replace(run, launches=[*run.launches, a_launch("ddp:comm_hook=fp16", ranks=other)])
    text = unfolded(shown(run, form))
    assert "All ranks of ddp, mpi ended with bitwise the same parameters (abcdef012345)" in text
    assert "ddp:comm_hook=fp16 changes the arithmetic by its own choice" in text
    assert "of their own (999999999999)" in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_it_is_said_whether_the_arms_trained_the_same_model(form):
    assert "bitwise the same parameters (abcdef012345)" in unfolded(shown(a_run(MEASURED), form))
    other = [a_rank(rank, final_hash="9" * 64, milliseconds=6.0) for rank in range(2)]
    run = a_run({"ddp": [5.0], "mpi": []})
    run = msgspec.structs.replace(run, launches=[*run.launches, a_launch("mpi", ranks=other)])
    text = unfolded(shown(run, form))
    assert "bitwise the same parameters" not in text
    assert "ddp abcdef012345" in text
    assert "mpi 999999999999" in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_figures_are_in_the_units_of_their_headings(form):
    text = shown(a_run({"none": [4.0, 5.0], "ddp": [5.0, 10.0]}), form)
    line = next(line for line in text.splitlines() if re.match(r"[\W]*ddp", line))
    for figure in (
        "19,200",  # the mean of 128 samples in 5 ms and in 10
        "7.50 (5.00–10.00)",
        "3.00 (1.00–5.00)",
        "35%",
        "65%",
        "98.00%",
        "200",
        "2.5",
        "TCP over lo",
    ):
        assert figure in line
    for heading in ("samples/s", "step ms", "sync ms", "efficiency", "accuracy", "peak MiB", "start-up s"):
        assert heading in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_a_range_of_one_launch_is_none(form):
    text = shown(a_run({"none": [4.0], "ddp": [5.0]}), form)
    assert "5.00 (" not in text
    assert re.search(r"\b5\.00\b", text)


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_what_is_not_known_is_a_dash_and_not_a_zero(form):
    text = shown(a_run({"ddp": [5.0]}), form)
    line = next(line for line in text.splitlines() if re.match(r"[\W]*ddp", line))
    assert line.count("–") >= 3
    assert "0%" not in line.replace("98.00%", "")


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_text_from_outside_is_shown_as_it_is(form):
    """Nothing that a library or an error says is read as markup."""
    rank = a_rank(attestation={"group": {"transport": "[red]TCP[/red]"}})
    run = a_run({"ddp": []}, launches=[a_launch(ranks=[rank])], left_out={"mpi": "[/] no [bold]mpirun"})
    text = shown(run, form)
    assert "[red]TCP[/red]" in text
    assert "[/] no [bold]mpirun" in unfolded(text)


# ---- the terminal ----


@pytest.mark.parametrize("rounds", [3, 4])
@pytest.mark.parametrize("width", [60, 80, 100, 132, 200])
def test_a_table_fits_its_terminal_and_still_shows_everything(width, rounds):
    """Four rounds make the longest verdicts."""
    run = a_run({arm: [*times, *times][:rounds] for arm, times in MEASURED.items()}, complete=False)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(RunTable(run, analyse(run)))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    text = unfolded(capture.get())
    for heading in ("samples/s", "accuracy", "transport", "INCOMPLETE"):
        assert heading in text or width < 80
    if width >= 80:
        for arm in MEASURED:
            assert arm in text


def test_a_long_arm_is_not_broken_in_the_plain_table():
    arm = "manual:mode=overlap:bucket_mb=0.25:process_group=gloo"
    assert arm in shown(a_run({"none": [4.0], arm: [5.0]}), "table")


# ---- Markdown ----


def table_of(text):
    return [line for line in text.splitlines() if line.startswith("|")]


def cells_of(line):
    return re.split(r"(?<!\\)\|", line.strip())[1:-1]


def test_every_row_of_markdown_has_as_many_cells():
    lines = table_of(shown(a_run(MEASURED), "markdown"))
    assert len(lines) == 2 + len(MEASURED)
    assert len({len(cells_of(line)) for line in lines}) == 1
    assert all(re.fullmatch(r" :?-+:? ", cell) for cell in cells_of(lines[1]))


def test_a_pipe_in_a_cell_does_not_end_it():
    rank = a_rank(attestation={"group": {"transport": "TCP | lo"}})
    lines = table_of(shown(a_run({"ddp": []}, launches=[a_launch(ranks=[rank])]), "markdown"))
    assert len({len(cells_of(line)) for line in lines}) == 1
    assert cells_of(lines[2])[-1].strip() == r"TCP \| lo"


def test_the_parts_of_markdown_are_parted_by_blank_lines():
    lines = shown(a_run(MEASURED, dataset=DIGITS), "markdown").splitlines()
    table = [index for index, line in enumerate(lines) if line.startswith("|")]
    assert table == list(range(table[0], table[-1] + 1))
    assert lines[table[0] - 1] == lines[table[-1] + 1] == ""
    assert all(line.startswith("- ") for line in lines[table[-1] + 2 :])


# ---- CSV ----


def test_csv_is_in_seconds_and_bytes():
    control, ddp = rows_of(a_run({"none": [4.0, 5.0], "ddp": [5.0, 10.0]}))
    assert (control["arm"], ddp["arm"]) == ("none", "ddp")
    for name, value in {
        "step_seconds": 0.0075,
        "step_seconds_low": 0.005,
        "step_seconds_high": 0.010,
        "samples_per_second": 19_200,
        "sync_seconds": 0.003,
        "sync_seconds_high": 0.005,
        "sync_share": 0.35,
        "efficiency": 0.65,
        "speed_against_baseline": 1.0,
        "accuracy": 0.98,
        "peak_memory_bytes": 200 * 2**20,
        "start_up_seconds": 2.5,
    }.items():
        assert float(ddp[name]) == pytest.approx(value), name
    assert control["sync_seconds"] == control["sync_share_low"] == ""


def test_csv_stamps_how_near_to_a_single_process_an_arm_was():
    (row,) = rows_of(a_run({"ddp": [5.0]}))
    assert (row["parity"], row["parity_steps"], row["parity_difference"]) == ("passed", "20", "2e-16")


def test_every_field_of_the_summary_is_in_csv():
    (row,) = rows_of(a_run({"ddp": [5.0]}))
    assert set(ArmSummary.__struct_fields__) - {"detail"} <= set(row)
    assert {f"detail_{name}" for name in Detail.__struct_fields__} <= set(row)
    assert None not in row
    assert None not in row.values()


def test_every_arm_has_the_same_columns_in_csv_whatever_could_be_measured():
    control, ddp = rows_of(a_detailed_run())
    assert set(control) == set(ddp)
    for name, value in {
        "detail_exposed_seconds": 0.0045,
        "detail_exposed_seconds_low": 0.0045,
        "detail_step_seconds": -0.00025,
        "detail_bus_bandwidth": 800_000 / 0.009,
        "detail_hiding_high": 0.5,
        "detail_gradient_bytes": 800_000,
        "detail_slowest_rank": 1,
    }.items():
        assert float(ddp[name]) == pytest.approx(value), name
    assert ddp["detail_message_bytes"] == "600000 200000"
    assert control["detail_exposed_seconds"] == control["detail_hiding_low"] == ""


@pytest.mark.parametrize("form", FOR_PROGRAMS)
def test_formats_for_programs_always_show_every_detail(form):
    run = a_detailed_run()
    analysis = analyse(run)
    assert render(run, analysis, form, detail=True) == render(run, analysis, form)


def test_csv_says_what_the_figures_are_worth():
    (row,) = rows_of(a_run({"ddp": [5.0]}, dataset=DIGITS, complete=False))
    assert (row["dataset"], row["complete"]) == ("digits", "False")


def test_commas_and_quotes_come_back_from_csv():
    transport = 'shared memory, "TCP" over lo'
    rank = a_rank(attestation={"group": {"transport": transport}})
    (row,) = rows_of(a_run({"ddp": []}, launches=[a_launch(ranks=[rank])]))
    assert row["transport"] == transport


# ---- JSON ----


def test_json_holds_the_whole_run_and_its_summary():
    run = a_run(MEASURED, dataset=DIGITS, complete=False)
    text = shown(run, "json")
    read = json.loads(text)
    assert set(read) == {"summary", "run"}
    assert msgspec.json.decode(json.dumps(read["run"]), type=Run) == run
    assert msgspec.json.decode(json.dumps(read["summary"]), type=Summary) == summarise(run)
    assert read["summary"]["arms"][1]["step_seconds"] == pytest.approx(
        # 5, 5.1 and 5.2 ms: 4.302653 x 0.1 / sqrt(3) on either side.
        {"mean": 0.0051, "low": 0.00485159, "high": 0.00534841, "n": 3, "method": "t"}
    )


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_how_near_to_a_single_process_the_arms_were_is_said(form):
    worse = a_launch("mpi", ranks=[a_rank(0, parity=[a_pass(steps=5, differences=[3e-15])]), a_rank(1)])
    run = a_run({"none": [4.0], "mpi": []}, config={"rounds": 1})
    run = msgspec.structs.replace(run, launches=[*run.launches, worse])
    text = unfolded(shown(run, form))
    assert "Before training, every arm took 5 float64 steps beside a single process" in text
    assert "ended within 3e-15 of it" in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_which_arms_were_held_against_a_single_process_is_said_where_not_all_were(form):
    run = a_run({"none": [], "ddp": [], "manual": [], "mpi": []}, config={"rounds": 1})
    without = [a_rank(0, parity=[]), a_rank(1, parity=[])]

    def said(*missing):
        launches = [
            a_launch(arm.label, ranks=without if arm.label in missing else None) for arm in run.config.arms
        ]
        return unfolded(shown(msgspec.structs.replace(run, launches=launches), form))

    assert "Before training, every arm that synchronises took 20 float64 steps" in said("none")
    assert "Before training, ddp, mpi took 20 float64 steps" in said("none", "manual")
    assert "Before training" not in said("none", "ddp", "manual", "mpi")


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_what_too_few_rounds_leave_open_is_said_with_what_would_settle_it(form):
    text = unfolded(shown(a_run({"none": [4.0, 4.0], "ddp": [5.0, 5.1], "mpi": [9.0, 2.0]}), form))
    assert "unresolved: 2 of 5 rounds" in text
    assert "Fewer than 5 rounds settle no verdict: take --repeats 5, or a --budget." in text
    assert "either way" not in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
@pytest.mark.parametrize(
    ("mpi", "said"),
    [
        ([6.0], "unresolved: 1 of 5 rounds"),
        ([6.0, 2.0], "unresolved: 2 of 5 rounds"),
        ([6.0, 6.3, 5.9, 6.2], "unresolved: ±3.1 % (4 of 5 rounds)"),
        ([6.0, 6.3, 5.9, 6.2, 6.1], "21 % slower [18, 24]"),
    ],
)
def test_before_the_fifth_round_the_width_is_told_and_how_many_rounds_there_are(form, mpi, said):
    text = unfolded(shown(a_run({"ddp": [5.0, 5.1, 5.0, 5.1, 5.0][: len(mpi)], "mpi": mpi}), form))
    assert said in text
    assert "either way" not in text


@pytest.mark.parametrize("form", FOR_PEOPLE)
@pytest.mark.parametrize(
    ("manual", "rounds", "why"),
    [
        ([9.0, 9.1, 9.0, 9.2, 9.1], 99, "5 rounds: every verdict was settled"),
        ([5.0, 9.0, 3.0, 8.0, 4.0], 99, "5 rounds: no other fitted into --budget 60"),
        ([5.0, 9.0, 3.0, 8.0, 4.0], 5, "5 rounds: --repeats allows no more"),
        ([], 99, "5 rounds: there is no verdict to settle"),
    ],
)
def test_why_a_run_under_a_budget_ended_is_said(form, manual, rounds, why):
    times = {"ddp": [5.0] * 5} | ({"manual": manual} if manual else {})
    run = a_run(times, config={"rounds": rounds, "budget_seconds": 60.0})
    assert f"Ended after {why}." in unfolded(shown(run, form))


@pytest.mark.parametrize("form", FOR_PEOPLE)
@pytest.mark.parametrize(
    ("rounds", "why"),
    [
        (4, "no other fitted into --budget 60"),
        (5, "more would not help, because arms whose ranks wait for each other's cores are not judged"),
    ],
)
def test_a_run_under_a_budget_that_could_judge_nothing_says_so(form, rounds, why):
    times = {"ddp": [5.0] * rounds, "mpi": [6.0] * rounds}
    run = a_run(times, config={"rounds": 99, "budget_seconds": 60.0}, cores=1)
    assert f"Ended after {rounds} rounds: {why}." in unfolded(shown(run, form))


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_how_far_an_arm_that_rounds_is_from_a_single_process_is_said_apart(form):
    def launch(arm, difference):
        return a_launch(arm, ranks=[a_rank(0, parity=[a_pass(differences=[difference])]), a_rank(1)])

    arms = ("ddp", "manual", "ddp:comm_hook=fp16")
    run = a_run({arm: [] for arm in arms}, config={"rounds": 1})
    launches = [launch(arm, off) for arm, off in zip(arms, (2e-16, 3e-16, 4e-4), strict=True)]
    text = unfolded(shown(msgspec.structs.replace(run, launches=launches), form))
    assert (
        "ddp, manual ended within 3e-16 of it; ddp:comm_hook=fp16, which changes the arithmetic, 4e-04 away."
        in text
    )


@pytest.mark.parametrize("form", FOR_PEOPLE)
def test_where_nothing_differed_the_detail_says_so_and_shows_no_empty_table(form):
    run = a_run({"ddp": [5.0, 5.1]})
    detailed = render(run, analyse(run), form, detail=True)
    assert "Nothing that was compared differed." in detailed
    assert "what it is" not in detailed
