"""Test that no document of any command breaks a word or a number, however narrow the terminal is.

``UPDATE_EXAMPLES=1 pytest tests/unit/report/test_widths.py`` writes the stored examples anew.
"""

import io
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from compare.analysis import analyse
from compare.analysis.change import diff
from compare.analysis.predict import compare_with, forecast
from compare.analysis.runs import entry_of, follow_runs
from compare.doctor import backends_table
from compare.doctor import report as doctor
from compare.doctor.facts import Examination
from compare.doctor.rules import diagnose
from compare.report import (
    View,
    changes,
    document_of,
    of_history,
    of_lesson,
    of_plan,
    of_prediction,
    of_summary,
)
from compare.report.formats.terminal import PLAIN_WIDTH, print_document
from compare.schema.metered import Unswitched
from compare.schema.results import ArmVerification, Gate, Verification
from tests.unit.changes import a_change, a_gate
from tests.unit.collectives import a_collectives_run, a_sweep_config, a_sweep_launch
from tests.unit.doctor.test_diagnose import HERE, group
from tests.unit.factories import a_survey
from tests.unit.metered import a_metered
from tests.unit.predictions import a_measured_run
from tests.unit.report.test_brief import LONG
from tests.unit.report.test_brief import measured as of_six
from tests.unit.report.test_plan import a_plan
from tests.unit.runs import RUNS, measured
from tests.unit.scales import BENDING, a_scale

EXAMPLES = Path(__file__).parent / "examples"
WIDTHS = (60, 80, 100, 120, PLAIN_WIDTH)
STORED_WIDTHS = (60, 80, 120)
SEPARATORS = ":/=,|_."


def a_verification():
    """Return a verification with an arm of each outcome."""

    def an_arm(arm, outcome, figure):
        told = {
            "what": "Its step differs.",
            "found": "They are twice as large.",
            "remedy": "Divide.",
        }
        gates = [
            Gate(name="float64", outcome=outcome, figure=figure, limit=1e-12, **told),
            Gate(name="float32", outcome=outcome, figure=3e-8, limit=1e-6),
            Gate(name="ranks", outcome="passed"),
            Gate(name="end", outcome="passed", figure=2e-16, limit=1e-12),
        ]
        return ArmVerification(arm=arm, gates=gates, curve=[1e-8] * 20, seconds=5.0)

    arms = [
        an_arm("ddp", "passed", 2e-16),
        an_arm("mpi", "failed", 0.5),
        an_arm(list(LONG)[-1], "incomparable", 2e-16),
    ]
    return Verification(run=measured({"none": 4.0, "ddp": 6.0, "mpi": 5.0, list(LONG)[-1]: 6.0}), arms=arms)


def a_sweep(**changes):
    config = a_sweep_config("gloo", "horovod", "horovod_mpi", "mpi", "shared_memory", end_bytes=64 << 20)
    ns = [15_000_000, 72_000_000, 80_000_000]
    launches = [a_sweep_launch(config, group, ns=ns) for group in config.groups]
    return a_collectives_run(config, launches, **changes)


def a_history():
    entries = [entry_of(f"2026-11-2{day}T08-00-00-mlp", RUNS["quiet"]) for day in range(1, 4)]
    return follow_runs(
        entries,
        {"2026-11-24T08-00-00-wide": "It is not a run."},
        {"2026-11-24T08-30-00-train-np2-meter": "a metered script"},
    )


def a_diff():
    runs = measured(), measured(STEPS_OF_ANOTHER_DAY)
    return changes.document_of(diff(*runs, ("runs/monday", "runs/tuesday")))


STEPS_OF_ANOTHER_DAY = {"none": 4.0, "ddp": 6.6, "manual": 5.9, "mpi": 4.2, "localsgd": 4.4}
AN_FSDP = Unswitched(
    name="FullyShardedDataParallel", why="It keeps a part of the model on each rank.", arm="fsdp"
)
MEASURED = a_measured_run()
QUIET = RUNS["quiet"]
DOCUMENTS = {
    "run": lambda: document_of(QUIET, view=View(report_argument="last")),
    "detail": lambda: document_of(QUIET, view=View(detail=True)),
    "detail of long names": lambda: document_of(of_six(LONG), view=View(detail=True)),
    "detail of shards": lambda: document_of(RUNS["shards"], view=View(detail=True)),
    "all noise": lambda: document_of(RUNS["all noise"], view=View(detail=True)),
    "lesson": lambda: of_lesson.document_of(QUIET, analyse(QUIET)),
    "summary": lambda: of_summary.document_of(QUIET, analyse(QUIET)),
    "summary of noise": lambda: of_summary.document_of(RUNS["all noise"], analyse(RUNS["all noise"])),
    "verify": lambda: document_of(a_verification()),
    "verify detail": lambda: document_of(a_verification(), view=View(detail=True)),
    "predict": lambda: of_prediction.document_of(forecast(MEASURED, [2, 4, 8], None, [])),
    "predict against": lambda: of_prediction.document_against(compare_with(MEASURED, MEASURED)),
    "scale": lambda: document_of(a_scale(BENDING)),
    "collectives": lambda: document_of(a_sweep()),
    "collectives detail": lambda: document_of(a_sweep(), view=View(detail=True)),
    "meter": lambda: document_of(a_metered(local=(6.3e-3, 8e-3))),
    "meter without figures": lambda: document_of(
        a_metered(pairs=0, blocks=[], unswitched=[AN_FSDP], notes=["It evaluates after every epoch."])
    ),
    "doctor": lambda: doctor.document_of(
        Examination(here=HERE, examined_at="now", hosts=group(open_files=9), findings=diagnose(group(), HERE))
    ),
    "backends": lambda: backends_table.document_of(a_survey(missing=["horovod"])),
    "history": lambda: of_history.document_of(a_history(), "runs"),
    "diff": a_diff,
    "dry run": lambda: of_plan.document_of(a_plan()),
    "gate": lambda: changes.document_of(
        a_gate(a_change("ddp", "slower", 1.1), a_change(list(LONG)[-1], "open", 1.5), a_change("mpi"))
    ),
}
"""Functions that make a document of every kind, because some take a while."""


def printed(document, width):
    console = Console(file=io.StringIO(), width=width, highlight=False, _environ={})
    print_document(document, console)
    return console.file.getvalue()


def words_of(document):
    """Return every word of a document, as it is written when nothing is broken."""
    texts = [*document.alerts, document.title, *document.failures, *document.warnings, *document.lead]
    texts += [*document.statements, *document.notes, document.conclusion]
    for table in document.tables:
        texts += [table.title, *(column.heading for column in table.columns)]
        texts += [cell for row in table.rows for cell in row.cells]
        texts += [text for listing in table.listings for text in (listing.place, listing.text)]
    return {word for text in texts for word in text.split()}


def without_charts(document):
    """Return a document without its plots, whose marks are no words; test_plot.py tests their width."""
    return replace(document, tables=[replace(table, chart=None) for table in document.tables])


def is_whole(word, words, width):
    """Return whether a printed word is one of the document's, a bar, or a part of one without room."""
    if word in words or set(word) <= set("█#\\"):
        return True
    return any(
        word in whole and (word[-1] in SEPARATORS or whole.endswith(word))
        for whole in words
        if cell_len(whole) > 24
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_no_document_breaks_a_word_or_a_number(kind, width):
    document = without_charts(DOCUMENTS[kind]())
    text, words = printed(document, width), words_of(document)
    assert [word for word in text.split() if not is_whole(word, words, width)] == []
    assert not re.search(r"\d\n *(?:ms|µs|[kMG]B|GB/s|bytes|ranks?)\b|\d\n *%", text)
    texts = [listing.text for table in document.tables for listing in table.listings]
    whole = {part for code in texts for part in (*code.splitlines(), *code.split())}
    too_long = [line for line in text.splitlines() if cell_len(line) > width]
    assert [line for line in too_long if line.removesuffix("\\").strip() not in whole] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_shell_reads_a_printed_command_as_it_was(width):
    document = of_plan.document_of(a_plan(), verbose=True)
    text = printed(document, width)
    listings = [listing for listing in document.tables[-1].listings if listing.language == "sh"]
    for listing in listings:
        lines = text.partition(f"  {listing.place}\n")[2].partition("\n\n")[0]
        words = shlex.split(lines.replace("\\\n", ""))
        assert words == shlex.split(listing.text.replace("\\\n", ""))


@pytest.mark.parametrize("width", STORED_WIDTHS)
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_document_is_the_stored_example(kind, width):
    stored = EXAMPLES / f"{kind.replace(' ', '-')}-{width}.txt"
    text = printed(DOCUMENTS[kind](), width)
    if os.environ.get("UPDATE_EXAMPLES"):
        stored.write_text(text)
    assert text == stored.read_text()


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_no_line_of_a_document_begins_as_an_error_of_the_program_does(kind):
    document = DOCUMENTS[kind]()
    lines = [*document.lead, *document.statements, *document.notes, document.conclusion]
    assert [line for line in lines if line.lower().startswith("error")] == []
