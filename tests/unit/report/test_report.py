"""Test every format: arms, warnings, notes, units and syntax."""

import csv
import io
import json
import re

import msgspec
import pytest

from compare.analysis import Analysis, analyse
from compare.analysis.summary import ArmSummary, Detail, Summary
from compare.report import FORMATS, View, document_of
from compare.report.formats.terminal import plain_text
from compare.report.origin import warnings
from compare.schema.results import Failure, Run
from tests.unit.factories import DIGITS, a_block, a_launch, a_pass, a_phased_block, a_rank, a_run, noisy
from tests.unit.pages import render, text_of
from tests.unit.runs import RUNS

FOR_PROGRAMS = ("csv", "json")
FULL = "full table"
MEASURED = {
    "none": [4.0, 4.0, 4.0],
    "ddp:bucket_cap_mb=1": [5.0, 5.1, 5.2],
    "manual:mode=overlap": [6.0, 6.1, 6.2],
    "horovod:controller=mpi": [7.0, 7.5, 8.0],
}
every_form = pytest.mark.parametrize("form", [*FORMATS, FULL])


def shown(run, form, *, detail=False):
    chosen = "table" if form == FULL else form
    text = render(run, analyse(run), chosen, detail=detail or form == FULL)
    return text_of(text) if form == "html" else text


def unfolded(text):
    """Remove the line breaks that a terminal's width makes."""
    return re.sub(r"\s+", " ", text)


def rows_of(run):
    return list(csv.DictReader(io.StringIO(shown(run, "csv"))))


def cells_of(run, *, detail=False):
    """Return the cells of each arm in all tables of the full view, by their headings."""
    found = {}
    for table in document_of(run, "markdown", View(detail=detail)).tables:
        headings = [column.heading for column in table.columns]
        for row in table.rows:
            found.setdefault(row.cells[0], {}).update(zip(headings, row.cells, strict=True))
    return found


def launched(milliseconds, *launches, **changes):
    """Return a run with more launches than the step times give."""
    run = a_run(milliseconds, **changes)
    return msgspec.structs.replace(run, launches=[*run.launches, *launches])


def through(transport, **changes):
    """Return a run of one rank that attests this transport."""
    rank = a_rank(attestation={"group": {"transport": transport}})
    return a_run({"ddp": []}, launches=[a_launch(ranks=[rank])], **changes)


def ended(arm, final_hash):
    """Return a launch of an arm that ended with other parameters."""
    return a_launch(arm, ranks=[a_rank(rank, final_hash=final_hash, milliseconds=6.0) for rank in range(2)])


# ---- every format ----


@every_form
def test_render_shows_every_arm_in_plain_text_without_an_end_of_line(form):
    text = shown(a_run(MEASURED), form)
    assert all(arm in text for arm in MEASURED)
    assert text == text.rstrip()
    assert "\x1b" not in text


@every_form
def test_render_run_without_or_with_some_launches_is_shown(form):
    assert shown(a_run({"none": [], "ddp": []}, complete=False), form)
    text = shown(a_run({"none": [], "ddp": [5.0, 5.0], "mpi": [6.0]}, complete=False), form)
    assert "ddp" in text
    assert "mpi" in text


# ---- headline, warnings and notes ----

QUIET = a_run(MEASURED)
FAILED = Failure(arm="mpi", round=2, kind="LaunchError", message="mpi, round 2: rank 1 on a failed.\nits log")
HOROVOD = {"horovod": "horovod is not installed; run: ringside setup horovod"}
CONVNET = {"model": "convnet", "optimizer": "adam", "learning_rate": 0.001, "steps": 77}
EPOCHS = {"steps": None, "epochs": 2, "threads_per_rank": 3}
LOSSY = "ddp:comm_hook=fp16"
ONE_ROUND = {"rounds": 1}


def budget(arms, rounds=99, **changes):
    return a_run(arms, config={"rounds": rounds, "budget_seconds": 60.0}, **changes)


def settling(arms, **changes):
    """Return a run of neither --repeats nor --budget."""
    return a_run(arms, config={"rounds": 1000, "settle_seconds": 300.0}, **changes)


def with_buffers(arm, *hashes, broadcasts=False):
    """Return a launch whose ranks end with these hashes of buffers."""
    attested = {"group": {"transport": "TCP over lo"}, "replica": {"broadcasts_buffers": broadcasts}}
    return a_launch(
        arm, ranks=[a_rank(n, buffer_hash=held, attestation=attested) for n, held in enumerate(hashes)]
    )


def compiled(arm, graphs, breaks):
    """Return a launch whose ranks compiled so many graphs."""
    attested = {"group": {"transport": "TCP"}, "compiled_graphs": graphs, "graph_breaks": breaks}
    return a_launch(arm, ranks=[a_rank(n, attestation=attested) for n in range(2)])


BUFFERS = launched(
    {"none": [], "ddp": [], "manual": [], "mpi": [], "horovod": []},
    with_buffers("none", "a", "b"),
    with_buffers("ddp", "a", "b", broadcasts=True),
    with_buffers("manual", "a", "b"),
    with_buffers("mpi", "a", "a"),
    with_buffers("horovod", "b", "c"),
    config=ONE_ROUND,
)
FIVE = [5.0, 9.0, 3.0, 8.0, 4.0]
OPEN = {"ddp": [5.0] * 5, "manual": FIVE}
SETTLED = {"ddp": [5.0] * 5, "manual": [9.0, 9.1, 9.0, 9.2, 9.1]}
ENDINGS = {
    "5 rounds: every verdict is settled": settling(SETTLED),
    "5 rounds: --budget 60 leaves no time for another": budget(OPEN),
    "6 rounds: 5 min leave no time for another": settling({"ddp": [5.0] * 6, "manual": [*FIVE, 5.0]}),
    "5 rounds: --repeats allows no more": budget(OPEN, 5),
    "5 rounds: there is no verdict to settle": budget({"ddp": [5.0] * 5}),
    "4 rounds: --budget 60 leaves no time for another": budget({"ddp": [5.0] * 4, "mpi": [6.0] * 4}, cores=1),
    "5 rounds: more would not help, because oversubscribed arms are not ranked": budget(
        {"ddp": [5.0] * 5, "mpi": [6.0] * 5}, cores=1
    ),
}
LINES = {
    "buffers": (
        BUFFERS,
        ["differ between the ranks of manual, horovod. The test used rank 0's on every rank."],
    ),
    "no buffers": (QUIET, [], "Buffers", "ompiled", "graphs"),
    "compiled": (
        launched(
            {"none": [], "ddp": [], "manual": [], "mpi": []},
            *(compiled(arm, 1, 0) for arm in ("none", "ddp")),
            compiled("manual", 3, 2),
            compiled("mpi", 0, 0),
            config=ONE_ROUND | {"compile": True, "precision": "bf16-autocast"},
        ),
        [
            ", cpu · bf16-autocast · compiled · batch 64",
            *("graphs (breaks)", "1 (0)", "3 (2)"),
            "Not compiled: mpi. --compile compiles calls of the model",
        ],
    ),
    "a complete run": (
        a_run(MEASURED, config=CONVNET),
        [
            "convnet on MNIST · 2 ranks × 1 thread, cpu · batch 64 per rank · adam lr 0.001 · 77 steps",
            "Geometric means over 3 rounds (Student's 95 % interval of the mean).",
            "Sync cost: step time minus that of none",
            "Its interval is that of its share, at the mean step time.",
            "All verdicts together, at every look, find a difference where there is none in at most",
            "All arms trained the same model: proven for 20 steps, equal bit for bit.",
        ],
        *("INCOMPLETE", "NOT MNIST", "Oversubscribed", "did not run", "repeated", "Noisy", "◀"),
    ),
    "epochs": (a_run(MEASURED, config=EPOCHS), ["2 epochs", "3 threads"]),
    "digits by default": (a_run(MEASURED, dataset=DIGITS), ["digits (NOT MNIST)", DIGITS.note]),
    "a failed run": (
        a_run(MEASURED, complete=False, failure=FAILED),
        ["INCOMPLETE: mpi, round 2: rank 1 on a failed."],
        "its log",
    ),
    "oversubscribed": (
        a_run(MEASURED, cores=1),
        ["Oversubscribed: 2 ranks × 1 thread wait for 1 core of a host"],
        "◀",
    ),
    "a backend that is left out": (
        a_run(MEASURED, left_out=HOROVOD),
        ["horovod did not run: horovod is not installed", "ringside setup horovod"],
    ),
    "two rounds": (
        a_run({"ddp": [5.0, 5.1], "mpi": [6.0, 6.1]}),
        ["means over 2 rounds (smallest–largest).", "No sync cost", "this is round 2. Leave --repeats out."],
    ),
    "a repeated round": (
        msgspec.structs.replace(QUIET, discarded=noisy(QUIET, 1).launches[: len(MEASURED)]),
        ["1 noisy round was repeated."],
        "Noisy: ",
    ),
    "noisy rounds": (
        noisy(QUIET, 1, 3),
        ["Noisy: other processes used more than 10 % of the CPUs in rounds 1, 3."],
        "repeated",
    ),
    "other parameters by design": (
        launched({"ddp": [5.0], "mpi": [6.0], LOSSY: []}, ended(LOSSY, "9" * 64)),
        ["All but * trained the same model: proven for 20 steps, equal bit for bit.", f"{LOSSY} *"],
    ),
    "other parameters": (
        launched({"ddp": [5.0], "mpi": []}, ended("mpi", "9" * 64)),
        ["All arms trained the same model", "how far apart they ended is not recorded"],
        "bit for bit",
    ),
    "too few rounds": (
        a_run({"none": [4.0, 4.0], "ddp": [5.0, 5.1], "mpi": [9.0, 2.0]}),
        ["open (2 of 5 rounds)"],
        "either way",
    ),
    "too few rounds of the default length": (
        settling({"ddp": [5.0] * 3, "mpi": [9.0, 2.0, 5.0]}, complete=False),
        ["So far: Fastest here: open until round 5; this is round 3."],
        *("--repeats", "Ended"),
    ),
    **{
        line: (a_run({"ddp": [5.0, 5.1, 5.0, 5.1, 5.0][: len(mpi)], "mpi": mpi}), [line], "either way")
        for line, mpi in {
            "open (1 of 5 rounds)": [6.0],
            "80 of 100 such runs would have seen a ratio of 1.06× in mpi.": [5.1, 5.5, 4.9, 5.3, 5.2],
            "open (4 of 5 rounds)": [6.0, 6.3, 5.9, 6.2],
            "Fastest is judged apart, with the quickest arm as the baseline": [6.0, 6.3, 5.9, 6.2, 6.2],
            "0.83× (0.81–0.84)": [6.0, 6.3, 5.9, 6.2, 6.1],
        }.items()
    },
    **{f"ended after {line}": (run, [f"Ended after {line}."]) for line, run in ENDINGS.items()},
}
"""A run, what its report states, and what it must not contain."""


@pytest.mark.parametrize("form", [FULL, "markdown", "html"])
@pytest.mark.parametrize("case", LINES)
def test_render_lines_around_the_table(case, form):
    run, lines, *absent = LINES[case]
    text = unfolded(shown(run, form))
    assert [line for line in lines if line not in text] == []
    assert [line for line in absent if line in text] == []


def test_fastest_arm_is_marked():
    names = cells_of(a_run({arm: [*times, *times[:2]] for arm, times in MEASURED.items()}))
    assert [name for name in names if "◀" in name] == ["ddp:bucket_cap_mb=1 ◀ fastest"]
    assert not any("◀" in name for name in cells_of(a_run({"none": [4.0], "ddp": [5.0], "mpi": [6.0]})))


def test_markup_of_other_programs_is_not_read():
    text = shown(through("[red]TCP[/red]", left_out={"mpi": "[/] no [bold]mpirun"}), FULL)
    assert "[red]TCP[/red]" in text
    assert "[/] no [bold]mpirun" in unfolded(text)


# ---- figures ----


def test_figures_have_the_units_of_their_headings():
    found = cells_of(a_run({"none": [4.0, 5.0], "ddp": [5.0, 10.0]}))["ddp"]
    expected = {
        "samples/s": "18,102",  # 128 samples in 7.07 ms
        "step ms": "7.07 (5.00–10.00)",  # the geometric mean
        "sync ms": "2.60 (1.41–3.54)",  # 7.07 less 4.47 of the control; 20 % of 7.07, and 50 %
        "share": "37 %",
        "efficiency": "63 %",
        "accuracy": "98.00 %",
        "peak MB": "210",
        "start-up s": "2.5",
        "transport": "TCP over lo",
    }
    assert {name: found[name] for name in expected} == expected
    assert "GPU MB" not in found
    on_gpu = [a_rank(peak_device_memory_bytes=287 << 20)]
    assert cells_of(a_run({"ddp": []}, launches=[a_launch(ranks=on_gpu)]))["ddp"]["GPU MB"] == "301"


def test_cost_below_noise_has_no_negative_figure():
    milliseconds = {"none": [4.0, 6.0, 5.0], "ddp": [4.1, 4.0, 4.2], "mpi": [30.0, 41.0, 35.0]}
    found = cells_of(a_run(milliseconds), detail=True)
    assert [found["ddp"][name] for name in ("sync ms", "share")] == ["below noise"] * 2
    assert found["ddp"]["efficiency"] == "120 %", "it is a ratio"
    assert "below noise" not in {found["mpi"][name] for name in ("sync ms", "share")}


ALL_NOISE = RUNS["all noise"]


@every_form
def test_render_run_that_can_rank_nothing_states_it(form):
    text = unfolded(shown(ALL_NOISE, form))
    if form in FOR_PROGRAMS:
        assert all(row["noise_hides_all"] == "True" for row in rows_of(ALL_NOISE))
        assert json.loads(shown(ALL_NOISE, "json"))["summary"]["noise_hides_all"] is True
        return
    first, *_ = text.strip("* ").partition("either way.")
    assert first.startswith("NOTHING CAN BE RANKED: every verdict is open, and the narrowest interval")
    assert "either way. Measure on a quieter machine, or measure longer: --budget " in text
    assert "would have seen" not in text
    assert "NOTHING CAN BE RANKED" not in shown(QUIET, form)


def test_run_that_can_rank_nothing_has_no_ratio():
    ratios = {arm: cells["against ddp"] for arm, cells in cells_of(ALL_NOISE).items()}
    assert ratios == {"none": "", "ddp": "baseline", "mpi": "open"}


def test_one_launch_has_no_range_and_dashes_for_unknown_figures():
    found = cells_of(a_run({"ddp": [5.0]}))["ddp"]
    unknown = ("sync ms", "share", "efficiency")
    assert [found[name] for name in ("step ms", *unknown)] == ["5.00", *"–––"]


TRAINED = {
    "ddp": ([0.0] * 2, {}, "the same | 2 | 0 | – | abcdef012345"),
    "mpi": ([None] * 2, {"final_hash": "9" * 64}, "the same | 2 | not a number | – | 999999999999"),
    LOSSY: ([4e-4] * 2, {}, "rounds or compresses by design | 2 | 4e-04 | – | abcdef012345"),
}
"""Differences from a single process, other facts of an arm's ranks, and the arm's row."""


def test_full_view_shows_what_each_arm_trained_and_how_that_is_proven():
    launches = [
        a_launch(arm, ranks=[a_rank(n, parity=[a_pass(steps=2, differences=ends)], **facts) for n in (0, 1)])
        for arm, (ends, facts, _) in TRAINED.items()
    ]
    text = shown(a_run({arm: [] for arm in TRAINED}, launches=launches), "markdown")
    assert [row for *_, row in TRAINED.values() if f"| {row} |" not in text] == []
    assert f"| {LOSSY} * |" in text
    assert "PROOF FAILED: mpi" in text


# ---- the detail ----

COST = ("= exposed", "+ background", "blocked", "forward", "backward", "optimizer", "imbalance", "skew")


def a_detailed_run():
    """One round; ``test_summary.py`` computes each figure by hand."""
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


def test_detail_adds_lines_and_drops_none():
    run = a_detailed_run()
    text, detailed = shown(run, "markdown"), shown(run, "markdown", detail=True)
    assert "Where the sync cost goes" in detailed
    assert "Where the sync cost goes" not in text
    assert "+ background" not in text
    assert {line for line in text.splitlines() if line} <= set(detailed.splitlines())


def test_detail_is_in_milliseconds_and_gigabytes():
    found = cells_of(a_detailed_run(), detail=True)
    expected = {
        "sync ms": "7.00",
        "= exposed": "4.50",
        "+ background": "2.50",
        "own computing": "5.50",
        "blocked": "+4.00",
        "forward": "+0.00",  # 1.5 ms; the reference took 1 and 2
        "backward": "+0.00",
        "optimizer": "−0.25",
        "communication": "+6.00",
        "imbalance": "+1.00",
        "skew": "+0.50",
        "slowest rank": "1",
        "gradient MB": "0.8",
        "calls": "2",
        "T_iso ms": "9.00",
        "algbw GB/s": "0.09",
        "busbw GB/s": "0.09",
        "overlap": "50 %",
        "cores/rank": "1.00",
        "whole peak MB": "315",
        "other load": "0 %",
    }
    assert {name: found["ddp"][name] for name in expected} == expected
    assert {found["none"][name] for name in ("sync ms", *COST, "overlap")} == {"–"}


@pytest.mark.parametrize(
    ("steps", "cell"),
    [
        pytest.param([5.1, 5.1, 5.1], "75 (75–75) %", id="hidden in part"),
        pytest.param([4.9, 4.9, 4.9], "100 (100–100) %", id="all is hidden"),
        pytest.param([4.9, 5.3, 5.1], "below noise", id="about as long as the collectives"),
        pytest.param([4.0, 9.0, 6.0], "below noise", id="below zero within noise"),
        pytest.param([5.8, 5.8, 5.8], "none", id="longer than the collectives"),
        pytest.param([5.8], "none", id="longer, in one round"),
        pytest.param([5.1], "75 %", id="one round has no interval"),
    ],
)
def test_detail_shows_no_overlap_below_zero(steps, cell):
    """T_R is 5 ms, and T_iso 0.4 ms."""
    launches = [
        a_launch(
            round_=round_,
            ranks=[
                a_rank(rank, milliseconds=step, reference=5.0, collective_ns=[400_000]) for rank in range(2)
            ],
        )
        for round_, step in enumerate(steps, start=1)
    ]
    run = a_run({"ddp": []}, launches=launches)
    assert cells_of(run, detail=True)["ddp"]["overlap"] == cell
    if cell == "none":  # CSV keeps the sign
        (row,) = rows_of(run)
        assert float(row["detail_overlap"]) == pytest.approx(-1)


def test_detail_without_a_difference_has_no_empty_table():
    detailed = shown(a_run({"ddp": [5.0, 5.1]}), "markdown", detail=True)
    assert "All conditions are the same." in detailed
    assert "value in each arm" not in detailed


# ---- the terminal ----


@pytest.mark.parametrize("run", [run for run, *_ in LINES.values()], ids=LINES)
def test_first_table_shows_every_warning(run):
    """Only the values of a condition may be missing: --detail has them."""
    text = unfolded(shown(run, "table"))
    assert [line for line in warnings(run, analyse(run)) if unfolded(line) not in text] == []


FOUR_ROUNDS = a_run({arm: [*times, times[0]] for arm, times in MEASURED.items()}, complete=False)
"""Four rounds make the longest verdicts."""


@pytest.mark.parametrize("width", [60, 80, 100, 132, 200])
@pytest.mark.parametrize(
    ("run", "words"),
    [
        (a_detailed_run(), ("4.50", "2.50", "+4.00", "−0.25", "+0.50", "9.00", "0.09", "50 %")),
        (FOUR_ROUNDS, ("samples/s", "accuracy", "transport", "INCOMPLETE", *MEASURED)),
    ],
    ids=["detail", "4 rounds"],
)
def test_table_fits_the_terminal_and_shows_all(run, words, width):
    text = plain_text(document_of(run, view=View(detail=True)), width)
    assert max(map(len, text.splitlines())) <= width
    assert width < 80 or [word for word in words if word not in unfolded(text)] == []


# ---- Markdown ----


def test_markdown_tables_have_equal_rows_and_escaped_pipes():
    text = shown(through("TCP | lo"), "markdown")
    title, speed, heading, trained, lines = text.split("\n\n")
    assert r"| TCP \| lo |" in speed
    for table in (speed, trained):
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()]
        assert len({*map(len, rows)}) == 1
        assert all(re.fullmatch(r" :?-+:? ", cell) for cell in rows[1])
    assert all(line.startswith("**") for line in (title, heading))
    assert all(line.startswith("- ") for line in lines.splitlines())


# ---- CSV ----


def test_csv_has_the_figures_of_the_summary_and_what_they_are_worth():
    run = msgspec.structs.replace(a_detailed_run(), dataset=DIGITS, complete=False)
    for arm, row in zip(analyse(run).summary.arms, rows_of(run), strict=True):
        assert set(ArmSummary.__struct_fields__) - {"detail", "memory"} <= set(row)
        assert {f"detail_{name}" for name in Detail.__struct_fields__} <= set(row)
        assert not {None} & {*row, *row.values()}
        estimates = {"step_seconds": arm.step_seconds, "sync_share": arm.sync_share}
        estimates |= {f"detail_{name}": getattr(arm.detail, name) for name in ("exposed_seconds", "overlap")}
        for name, own in estimates.items():
            ends = ("", "", "") if own is None else tuple(map(str, (own.mean, own.low, own.high)))
            assert (row[name], row[f"{name}_low"], row[f"{name}_high"]) == ends
    assert (row["peak_memory_bytes"], row["detail_message_bytes"]) == (str(200 << 20), "600000 200000")
    assert (row["dataset"], row["complete"], row["noise_hides_all"]) == ("digits", "False", "False")
    assert (row["parity"], row["parity_steps"], row["parity_difference"]) == ("passed", "20", "2e-16")


# ---- JSON ----


@pytest.mark.parametrize("form", FOR_PROGRAMS)
def test_formats_for_programs_always_show_every_detail(form):
    run = a_detailed_run()
    assert shown(run, form, detail=True) == shown(run, form)


def test_json_holds_the_whole_run_and_its_analysis():
    run = a_run(MEASURED, dataset=DIGITS, complete=False)
    read = json.loads(shown(run, "json"))
    analysis = analyse(run)
    assert set(read) == {"summary", "run"}
    assert msgspec.convert(read["run"], Run) == run
    assert msgspec.convert(read["summary"], Summary) == analysis.summary
    assert msgspec.convert(read["summary"] | {"summary": read["summary"]}, Analysis) == analysis
    assert read["summary"]["arms"][1]["step_seconds"] == pytest.approx(
        # The logarithms of 5, 5.1 and 5.2 ms: 4.302653 x 0.0196107 / sqrt(3) on either side.
        {"mean": 0.00509935, "low": 0.00485688, "high": 0.00535391, "n": 3, "method": "t"}
    )
