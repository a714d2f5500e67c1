"""Test that a mistake ends in three lines and an exit code."""

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
import typer

from backends import BACKENDS
from compare import data, errors
from compare.analysis import analyse
from compare.cli import main as cli
from compare.cli.help import EXAMPLES, GROUPS, SUMMARIES
from compare.data import mnist
from compare.data.catalogue import FILES, TRAIN_IMAGES
from compare.doctor import availability
from compare.doctor import examine as doctor
from compare.doctor.facts import Installation
from compare.experiment import collectives as sweeping
from compare.experiment import run
from compare.experiment import scale as scaling
from compare.experiment import verify as verification
from compare.launch import arm as launching
from compare.launch.engines.ssh import Ssh
from compare.report import FORMATS
from compare.schema.job import Job
from compare.schema.results import ArmVerification, Failure, Gate, Verification
from compare.schema.store import RESULTS_FILE
from compare.system.files import read_json, write_json
from tests.unit.factories import MNIST, a_run, a_survey
from tests.unit.pages import render

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"torch", "horovod", "mpi4py", "numpy", "scipy", "sklearn", "matplotlib"}

USAGE, DATA, UNAVAILABLE, OUTPUT, LAUNCH, STALLED, PARITY, HOST, INTERRUPTED = 2, 3, 4, 5, 6, 7, 8, 9, 130

LONG_NAME = "x" * 300
REFUSED_NAME = "File name too long. Choose another path, or change its permissions."
SEE_HELP = ["`ringside report --help` shows every flag and its choices."]
RESOLVE = data.resolve
SURVEY = a_survey(missing=["mpi"], controllers=["gloo"])


HERE = "Hosts: this machine, because no hosts are named and no scheduler's job was found\n"


_CHECK = re.compile(r"^Checking which (arms|groups) can run here …\n")


class Outcome:
    """Exit code and output of a call of the program."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def parts(self):
        """Return the three parts of an error; the hosts and the check of arms may stand before."""
        first, *rest = _CHECK.sub("", self.err.removeprefix(HERE)).splitlines()
        assert first.startswith("error: "), self.err
        assert rest, self.err
        assert all(line.startswith("  ") for line in rest), self.err
        return [first.removeprefix("error: "), *(line.removeprefix("  ") for line in rest)]


def survey_of(wanted=(), *_, **__):
    """Return the survey of these backends, or of all."""
    backends = {name: SURVEY.backends[name] for name in list(wanted) or SURVEY.backends}
    return msgspec.structs.replace(SURVEY, backends=backends)


@pytest.fixture
def compare(monkeypatch, capfd, tmp_path):
    """Call the program in an empty folder, without GPUs, mpi4py and a check of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # what reads from a pipe is no terminal of some width
    monkeypatch.setattr(availability, "survey", survey_of)
    monkeypatch.setattr(launching, "find_launcher", lambda name, _python: Path("/opt/env/bin") / name)
    monkeypatch.setattr(data, "resolve", lambda *_arguments, **_options: MNIST)
    monkeypatch.setattr(run, "check_beforehand", lambda *_, **__: lambda *, failed: [])

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ringside", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return Outcome(ended.value.code or 0, out, err)

    return call


@pytest.fixture
def carried_out(monkeypatch):
    """Let a run end at once, in a result or an error."""

    def carry_out(result):
        if isinstance(result, BaseException):
            raise result
        return result

    return lambda result: monkeypatch.setattr(run, "carry_out", lambda *_: carry_out(result))


# ---- bad input ----


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("--backend dpp", USAGE, ["'dpp'", "Did you mean ddp?", "none, ddp, manual, horovod, mpi"]),
        ("--backend allreduce", USAGE, ["'allreduce'", "Did you mean manual?"]),
        ("--backend gloo", USAGE, ["Did you mean ddp:process_group=gloo?"]),
        ("--backend ddp --nproc-per-node 2", USAGE, ["earlier version", "ringside run --backend ddp -np 2"]),
        ("--backend ddp -q -v", USAGE, ["--quiet and --verbose exclude each other"]),
        ("--backend ddp:bucket=1", USAGE, ["'bucket'", "ddp:bucket=1", "bucket_cap_mb"]),
        ("--backend ddp:process_group=mpi", USAGE, ["'mpi'", "auto or nccl or gloo"]),
        ("--backend ddp,ddp,mpi", USAGE, ["named twice", "--repeats", "A/A test"]),
        ("verify --backend ddp,ddp", USAGE, ["named twice"]),
        ("--backend ddp --baseline horovod", USAGE, ["--baseline cannot be horovod", "none or ddp"]),
        ("--backend ddp --steps 10:warmup=30", USAGE, ["left to time", "10 training steps", "warmup=N"]),
        *(
            (f"--backend ddp {flag} {value}", USAGE, [f"{flag} cannot be {value}"])
            for flag, value in (
                *((flag, "0") for flag in ("--steps", "--repeats", "--batch-size")),
                ("--seed", "-1"),
                *(("--steps", "1" + 20 * "0"), ("--batch-size", "60000")),
                *(("--timeout", "inf"), ("--threads", "0")),
            )
        ),
        *(
            (f"--backend ddp {flag}", USAGE, [says])
            for flag, says in (
                ("--steps 0epochs", "epochs of --steps cannot be 0"),
                ("--steps soon", "--steps cannot be 'soon'"),
                ("--optimizer sgd:lr=nan", "lr of --optimizer cannot be nan"),
                ("--optimizer lion", "--optimizer cannot be lion"),
                ("--timeout 5m:stall=soon", "stall cannot be 'soon'"),
                ("--timeout soon", "--timeout cannot be 'soon'"),
                ("--interleave launches:reruns=-1", "reruns of --interleave cannot be -1"),
                ("--interleave turns", "--interleave cannot be turns"),
                ("--data digits:where=x", "no option 'where'"),
                ("--data nosuch", "--data cannot be 'nosuch'. Use mnist, digits or a folder that exists"),
                ("--export run.pdf", "no suffix that names a format"),
            )
        ),
        ("--backend ddp --model resnet", USAGE, ["--model cannot be resnet", "mlp or wide or convnet"]),
        ("--backend ddp --device tpu", USAGE, ["--device", "'tpu'", "'cpu', 'cuda'"]),
        ("--backend ddp --budget soon", USAGE, ["'--budget'", "'soon' is not a length of time", "5m"]),
        *((f"-np {value}", USAGE, ["-np"]) for value in ("0", "two")),
        *(
            (wrong, USAGE, [wrong.split()[0]])
            for wrong in ("--no-such-flag", "--batch-size x", "rnu", "--seed")
        ),
        ("--strict=1", USAGE, ["--strict", "does not take a value"]),
        ("--backend ,", USAGE, ["--backend names no arm"]),
        ("-H localhost:1 -np 2", USAGE, ["2 ranks do not fit", "-np 1"]),
        ("-H localhost:two", USAGE, ["-H:1: "]),
        ("--hostfile gone", USAGE, ["gone: the hostfile cannot be read", "No such file"]),
        ("--backend mpi", UNAVAILABLE, ["mpi cannot run here", "mpi4py is not installed", "pip install"]),
        (
            "--backend horovod:controller=mpi",
            UNAVAILABLE,
            ["without its mpi controller", "ringside setup horovod"],
        ),
        (
            "--backend ddp --device cuda",
            UNAVAILABLE,
            ["localhost has too few GPUs for 2 ranks", "--device cpu"],
        ),
        *(
            (
                f"{command} --device cuda:shared",
                USAGE,
                ["--device cuda:shared cannot be timed", "ringside verify --device cuda:shared"],
            )
            for command in (
                "--backend ddp",
                "--backend ddp --dry-run",
                "scale --backend ddp -np 1,2",
                "gate --backend ddp --against python3",
                "collectives",
            )
        ),
        *(
            (
                f"{command} --engine rehearsal --device {device}",
                USAGE,
                [
                    f"--device {device} cannot be timed in a rehearsal",
                    f"`ringside verify --engine rehearsal --device {device}`, or use --device cpu.",
                ],
            )
            for device in ("cuda", "cuda:shared")
            for command in ("--backend ddp --dry-run", "scale --backend ddp -np 1,2", "collectives")
        ),
        (
            "verify --backend ddp --device cuda:shared",
            UNAVAILABLE,
            ["localhost has no GPU to share", "--device cpu"],
        ),
        ("--backend ddp --export gone/run.json", OUTPUT, ["gone/run.json cannot be written"]),
        (
            "--backend ddp --export -.csv --export -",
            USAGE,
            ["Two formats cannot both go to standard output."],
        ),
        *(
            (f"--backend {arms} --data digits {more}", USAGE, [says])
            for arms, more, says in (
                ("none,none", "", "An A/A test needs an arm that synchronises"),
                ("ddp,ddp", "--repeats 7", "--repeats of an A/A test cannot be 7"),
                ("ddp,ddp", "--budget 60", "--budget of an A/A test"),
            )
        ),
        ("scale --backend ddp", USAGE, ["needs numbers of ranks", "-np 1,2,4"]),
        ("scale --backend ddp -np 2", USAGE, ["-np/--num-proc cannot be 2", "two or more"]),
        ("scale --backend ddp -np 1,3 --strong", USAGE, ["3 ranks cannot share a global batch of 64"]),
        ("collectives --group ring", USAGE, ["--group cannot be ring", "gloo or nccl"]),
        ("collectives --group ,", USAGE, ["--group names nothing"]),
        ("collectives --group horovod_mpi", UNAVAILABLE, ["It has: gloo", "ringside setup horovod"]),
        ("collectives --group nccl", UNAVAILABLE, ["GPU memory", "--device cuda"]),
        ("collectives --collective gossip", USAGE, ["--collective cannot be gossip", "all_to_all"]),
        ("collectives --dtype float31", USAGE, ["--dtype cannot be float31", "bfloat16"]),
        ("collectives -b 8Q", USAGE, ["-b/--begin cannot be '8Q'", "64M"]),
        ("collectives -b 1M -e 1K", USAGE, ["-b/--begin cannot be 1048576", "1024"]),
        ("doctor -H ^localhost", USAGE, ["-H ^localhost leaves hosts out, and none are named"]),
        ("doctor --export gone/x.json", OUTPUT, ["gone/x.json cannot be written"]),
        ("report . --format pdf", USAGE, ["--format", "'pdf'", *FORMATS, *SEE_HELP]),
        *((f"report {path}", OUTPUT, ["no run", "ringside run"]) for path in ("gone", ".")),
        *(
            (f"{command}{LONG_NAME}.json", OUTPUT, [REFUSED_NAME])
            for command in ("report ", "--backend ddp --export ", "doctor --export ")
        ),
    ],
)
def test_command_with_a_mistake_prints_three_parts_and_starts_nothing(
    compare, carried_out, monkeypatch, arguments, code, says
):
    carried_out(AssertionError("nothing may be started"))
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: pytest.fail("no host may be examined"))
    ended = compare(*shlex.split(arguments if arguments[0] != "-" else f"run {arguments}"))
    assert ended.code == code
    for part in says:
        assert part in " ".join(ended.parts)
    assert list(Path.cwd().iterdir()) == []


@pytest.fixture(autouse=True)
def _signals_as_they_were():
    """Restore the signals: an interrupted command ignores further interrupts."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("output", "what", "remedy"),
    [("notes/run", "notes/run", "choose another path"), ("old", "old is not empty", "")],
)
def test_run_into_an_unfit_output_folder_exits_with_5(compare, carried_out, output, what, remedy):
    carried_out(AssertionError("nothing may be started"))
    for path in (Path("notes"), Path("old/notes")):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    ended = compare("run", "--backend", "ddp", "--output", output)
    assert ended.code == OUTPUT
    assert what in ended.parts[0]
    assert remedy in ended.parts[-1]
    assert [path.name for path in Path("old").iterdir()] == ["notes"]


def test_run_with_damaged_data_exits_with_3(compare, carried_out, monkeypatch):
    carried_out(AssertionError("nothing may be started"))
    monkeypatch.setattr(data, "resolve", RESOLVE)
    monkeypatch.setenv(mnist.MIRRORS_VARIABLE, "http://127.0.0.1:9/")
    Path("data/MNIST/raw").mkdir(parents=True)
    for name in FILES:
        (Path("data/MNIST/raw") / name).write_bytes(b"damaged")
    ended = compare("run", "--backend", "ddp", "--data", "mnist:folder=data")
    assert ended.code == DATA
    assert TRAIN_IMAGES in " ".join(ended.parts)
    assert compare("setup", "data", "--check", "--data", "data").code == DATA


@pytest.mark.parametrize(
    ("end", "flags", "named"),
    [(None, ["--export", "gone/table.md"], "gone/table.md"), (99, [], RESULTS_FILE)],
    ids=["no such folder", "truncated file"],
)
def test_report_from_or_to_an_unfit_file_exits_with_5(compare, end, flags, named):
    write_json(Path(RESULTS_FILE), a_run())
    Path(RESULTS_FILE).write_text(Path(RESULTS_FILE).read_text()[:end])
    ended = compare("report", ".", *flags)
    assert ended.code == OUTPUT
    assert named in ended.parts[0]


def test_report_last_shows_the_newest_run(compare):
    ended = compare("report", "last")
    assert ended.code == OUTPUT
    assert ended.parts[0] == "There is no last run."
    for age, model in enumerate(["wide", "mlp", "convnet"]):
        folder = Path("runs") / model
        folder.mkdir(parents=True)
        write_json(folder / RESULTS_FILE, a_run(config={"model": model}))
        os.utime(folder / RESULTS_FILE, (1_700_000_000 - age,) * 2)
    shown = compare("report", "last").out
    assert shown.startswith("wide on MNIST")
    assert "More: ringside report last --detail" in shown


def test_report_puts_several_runs_on_one_page_with_pictures(compare):
    for name, milliseconds in (("one", 5.0), ("two", 7.0)):
        Path(name).mkdir()
        write_json(Path(name, RESULTS_FILE), a_run({"none": [4.0] * 5, "ddp": [milliseconds] * 5}))
    flags = ["--export", "both.html", "--pictures", "shown/here"]
    shown = compare("report", "one", "two", *flags)
    assert shown.code == 0
    assert Path("both.html").read_text().count("<article") == 3, "the comparison, then both runs"
    drawn = {path.name: path.read_text() for path in Path("shown/here").iterdir()}
    assert set(drawn) == {f"{number}-{name}.svg" for number in (2, 3) for name in ("time", "turns", "memory")}
    assert all(text.startswith("<svg xmlns=") and "<style>" in text for text in drawn.values())
    assert all(f"Picture: shown/here/{name}" in shown.err for name in drawn)
    assert compare("report", "one", "two", "one").parts[0] == "The format table shows two runs."
    three = compare("report", "one", "two", "one", "--export", "three.html")
    assert (three.code, three.out) == (0, ""), "a page alone"
    assert Path("three.html").read_text().count("<article") == 3
    assert compare("report", "one", "two", "--format", "csv").parts[0] == "The format csv shows one run."


def test_report_opens_its_page_in_the_browser(compare, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda page: opened.append(page) or len(opened) == 1)
    write_json(Path(RESULTS_FILE), a_run())
    shown = compare("report", ".", "--open")
    (page,) = opened
    assert "browser" not in shown.err
    assert (
        "No browser could be started here, so open this file in one."
        in compare("report", ".", ".", ".", "--open").err
    )
    assert "mlp on MNIST" in shown.out
    assert f"Page: {page.removeprefix('file://')}" in shown.err
    assert "<article" in Path(page.removeprefix("file://")).read_text()


def test_report_prints_a_lesson_of_the_arms(compare):
    write_json(Path(RESULTS_FILE), a_run({"none": [4.0] * 3, "ddp": [6.0] * 3, "mpi": [5.0] * 3}))
    lesson = compare("report", ".", "--format", "lesson").out
    assert "backends/strategies/ddp.py:" in lesson
    assert "backends/groups/mpi_group.py:" in lesson
    lesson = ("report", ".", "--format", "lesson", "--arm")
    assert "```python" in compare(*lesson, "mpi", "--export", "-.md").out
    assert compare(*lesson, "zero").parts[1] == "Use one of: ddp, mpi."
    assert compare("report", "--format", "lesson").parts[0] == "The format lesson shows one run."
    assert "--format lesson" in compare("report", ".", "--arm", "mpi").parts[1]


def test_report_prints_a_summary_of_one_run(compare):
    write_json(Path(RESULTS_FILE), a_run({"none": [4.0] * 5, "ddp": [6.0] * 5, "mpi": [5.0] * 5}))
    shown = compare("report", ".", "--format", "summary", "--export", "boss.md")
    assert "mpi is the fastest of 2 ways here." in " ".join(shown.out.split())
    assert "mpi is the fastest of 2 ways here." in Path("boss.md").read_text()
    assert compare("report", ".", ".", "--format", "summary").parts[0] == "The format summary shows one run."


def test_report_says_that_nothing_can_be_drawn(compare):
    write_json(Path(RESULTS_FILE), a_run({"none": [], "ddp": []}))
    assert "Pictures: none, because" in compare("report", ".", "--pictures", "drawn").err
    assert not Path("drawn").exists()


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_in_a_narrow_terminal_breaks_no_word(compare, monkeypatch, command):
    texts = []
    for columns in ("60", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        texts.append(compare(*command.split(), "--help").out)
    narrow, usual = texts
    assert set(narrow.split()) <= {*usual.split(), "nccl-tests."}
    assert max(map(len, usual.splitlines())) <= 80


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_groups_the_flags_and_ends_with_examples(compare, command):
    shown = compare(*command.split(), "--help").out
    assert shown.count("  ringside ") == 2
    for line in EXAMPLES[command]:
        assert f"\n  {line}\n" in shown
        assert line.startswith(f"ringside {command}")
        flags = re.findall(r"(?<= )--?[a-z][a-z-]*", line.partition(" -- ")[0])
        assert [flag for flag in flags if not re.search(rf"(^|[ ,/]){flag}\b", shown, re.MULTILINE)] == []


def test_every_command_has_examples_and_every_long_help_has_groups(compare):
    members = ["setup horovod", "setup mpich", "setup data", "setup workload"]
    assert {*SUMMARIES, *members} - {"setup"} == set(EXAMPLES)
    shown = compare("run", "--help").out
    first = shown.partition("\nMost used:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^  (?:-\w+, )?--([a-z-]+)", first, re.MULTILINE) == [
        *("backend", "model", "workload", "data", "steps", "budget", "num-proc", "hosts", "export", "dry-run")
    ]
    for group in ("Arms:", "Training:", "Time:", "Ranks and hosts:", "Output:", "Options:", "Examples:"):
        assert f"\n{group}\n" in shown
    assert re.search(r"^Options:\n  -h, --help .*\n\n", shown, re.MULTILINE), "every flag is in a group"


def test_summaries_of_the_commands_are_theirs():
    program = typer.main.get_command(cli.app)
    assert {name: own.help.splitlines()[0] for name, own in program.commands.items()} == SUMMARIES


def test_help_of_the_program_loads_no_command():
    script = """
import sys
sys.argv = ["compare", "--help"]
from compare.cli.main import main
try:
    main()
except SystemExit:
    assert not {"compare.cli.options", "compare.cli.run", "rich", "msgspec"} & set(sys.modules)
"""
    done = execute(["-c", script])
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^  ([a-z]+)  ", done.stdout, re.MULTILINE) == [*SUMMARIES]
    assert [name for name in GROUPS if f"\n{name}:\n" not in done.stdout] == []
    assert "It runs on Linux." in done.stdout


def test_help_in_place_of_a_command_is_no_error(compare):
    ended = compare()
    assert ended.code == USAGE
    assert "error:" not in ended.err
    assert "Compare:" in ended.err


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("run --device ", ["auto", "cpu", "cuda", "cuda:shared"]),
        ("collectives --format ", ["table", "markdown", "html", "csv", "json"]),
        ("run --backend none,ho", ["none,horovod"]),
        ("collectives --op max,a", ["max,avg"]),
        ("pre", ["predict"]),
    ],
)
def test_shells_complete_commands_and_choices(words, completed):
    asked = {
        "_RINGSIDE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"ringside {words}",
        "COMP_CWORD": str(len(words.split(" "))),
    }
    assert execute(["-m", "compare"], **asked).stdout.split() == completed


# ---- exports ----


EXPORTS = {"json": "out.json", "csv": "out.csv", "markdown": "out.md", "html": "out.html"}
EXPORT_FLAGS = [text for name in EXPORTS.values() for text in ("--export", name)]


@pytest.mark.parametrize("folder", ["out", "out [bold]", "out [/]"])
def test_run_that_succeeds_prints_its_table_and_exports_every_format(compare, carried_out, folder):
    carried_out(a_run())
    ended = compare("run", "--backend", "ddp", "--output", folder, *EXPORT_FLAGS)
    assert ended.code == 0
    assert "mlp on MNIST" in ended.out
    assert str(Path(folder).absolute()) in ended.out
    texts = [Path(name).read_text().lower() for name in EXPORTS.values()]
    for text, start in zip(texts, ["{", "arm,", "**mlp", "<!doctype html>"], strict=True):
        assert text.startswith(start)
    assert json.loads(texts[0])["run"]["complete"] is True


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (errors.OutputError("The disk is full."), OUTPUT)]
)
@pytest.mark.parametrize(
    ("command", "module", "name", "starts"),
    [
        ("verify --backend ddp", verification, "verify", ["{", "arm", "**verification", "<!doctype"]),
        ("collectives --group gloo", sweeping, "sweep_groups", ["{", "group", "**2 ranks", "<!doctype"]),
        ("scale --backend ddp -np 1,2", scaling, "carry_out", ["{", "arm", "**weak", "<!doctype"]),
    ],
)
def test_command_that_ends_early_exports_every_format(
    compare, monkeypatch, command, module, name, starts, error, code
):
    """Before the first launch, too: the files say that it is incomplete."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(module, name, fail)
    ended = compare(*command.split(), "--output", "out", *EXPORT_FLAGS)
    assert ended.code == code
    assert "could not be" not in ended.err
    assert str(Path("out").absolute()) in ended.err
    texts = [Path(name).read_text() for name in EXPORTS.values()]
    assert all(text.startswith(start) for text, start in zip(texts, starts, strict=True))
    assert [text for text in texts[2:] if "INCOMPLETE" not in text] == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (errors.LaunchError("ddp, round 1: rank 1 failed."), LAUNCH)],
)
@pytest.mark.parametrize("command", ["run", f"gate --against {sys.executable} --export out.xml"])
def test_run_that_ends_early_exports_what_is_kept(compare, monkeypatch, command, error, code):
    failed = isinstance(error, errors.LaunchError)
    failure = Failure(arm="ddp", round=1, kind="LaunchError", message=str(error)) if failed else None

    def carry_out(run_, directory, *_):
        kept = msgspec.structs.replace(run_, launches=a_run({"ddp": [5.0]}).launches, failure=failure)
        write_json(directory / RESULTS_FILE, kept)
        raise error

    monkeypatch.setattr(run, "carry_out", carry_out)
    ended = compare(*command.split(), "--backend", "ddp", "--output", "out", *EXPORT_FLAGS)
    assert ended.code == code
    assert ("Interrupted" in ended.err) is (code == INTERRUPTED)
    assert "could not be" not in ended.err
    assert "ringside report" in ended.err
    assert json.loads(Path("out.json").read_text())["run"]["complete"] is False
    assert "INCOMPLETE" in Path("out.md").read_text()
    if command != "run":
        suite = ET.fromstring(Path("out.xml").read_text())
        assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
        message = suite.find("testcase/error").get("message")
        assert message == f"INCOMPLETE: {error if failed else 'It ended before its last round.'}"


@pytest.mark.parametrize(
    ("form", "place"), [("json", "-"), ("csv", "-.csv"), ("markdown", "-.md"), ("html", "-.html")]
)
def test_run_export_to_standard_output_is_alone_there(compare, carried_out, form, place):
    carried_out(a_run())
    ended = compare("run", "--backend", "ddp", "--output", "out", "--export", place)
    assert ended.code == 0
    assert ended.out.rstrip("\n") == render(a_run(), analyse(a_run()), form)
    assert "Results: " in ended.err
    assert "A step of ddp takes" in ended.err
    assert not Path(place).exists()


def test_listing_commands_print_json(compare):
    arms = json.loads(compare("backends", "--format", "json").out)
    assert {entry["arm"] for entry in arms} >= set(BACKENDS)
    assert all(entry["available"] is not bool(entry["problem"]) for entry in arms)
    files = compare("setup", "data", "--check", "--data", "none", "--format", "json")
    assert (files.code, {file["form"] for file in json.loads(files.out)}) == (DATA, {"missing"})
    assert json.loads(compare("doctor", "--quick", "--format", "json").out)["hosts"]


# ---- how a run ends ----


def test_run_without_a_free_descriptor_exits_with_4(compare, carried_out):
    carried_out(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    ended = compare("run", "--backend", "ddp", "--output", "out")
    assert ended.code == UNAVAILABLE
    assert ended.parts[0] == "The system refuses to start another process or to open another file."


@pytest.mark.parametrize(("kind", "code"), [(errors.StalledError, STALLED), (errors.ParityError, PARITY)])
@pytest.mark.parametrize(
    ("kept", "says"),
    [({"ddp": [5.0]}, "kept: ringside report"), ({}, "No launch has finished. The logs of the run:")],
)
def test_run_that_fails_exits_with_its_code_and_what_is_kept(compare, monkeypatch, kept, says, kind, code):
    def carry_out(run_, directory, *_):
        launches = a_run(kept).launches if kept else []
        write_json(directory / RESULTS_FILE, msgspec.structs.replace(run_, launches=launches))
        raise kind("what", remedy="remedy")

    monkeypatch.setattr(run, "carry_out", carry_out)
    ended = compare("run", "--backend", "ddp", "--output", "out")
    assert ended.code == code
    assert f"{says} {Path('out').absolute()}" in " ".join(ended.err.split())
    assert "error: what\n  remedy\n" in ended.err


@pytest.mark.parametrize(("outcome", "code"), [("passed", 0), ("failed", PARITY)])
def test_verify_prints_its_table_and_exits_with_its_code(compare, monkeypatch, outcome, code):
    asked = []

    def verify(run, directory, *_):
        asked.append(run.config)
        gates = [Gate(name="ranks", outcome=outcome)]
        return Verification(run=run, arms=[ArmVerification(arm="ddp", gates=gates, seconds=1.0)])

    monkeypatch.setattr(verification, "verify", verify)
    ended = compare(*("verify", "--backend", "ddp", "-np", 3, "--output", "out", "--export", "v.json"))
    assert ended.code == code
    assert "the same training" in ended.out.replace("NOT ", "")
    assert ("NOT" in ended.out) == (outcome == "failed")
    assert str(Path("out").absolute()) in ended.out
    assert read_json(Path("v.json"), Verification).arms[0].gates[0].outcome == outcome
    (config,) = asked
    assert (config.ranks, config.total_steps, [arm.label for arm in config.arms]) == (3, 20, ["ddp"])


def test_an_interrupt_before_the_first_launch_exits_with_130(compare, monkeypatch):
    asked = []

    def survey(wanted, **_):
        asked.append([*wanted])
        raise KeyboardInterrupt

    monkeypatch.setattr(availability, "survey", survey)
    ended = compare("run", "--backend", "ddp")
    assert (ended.code, ended.err.endswith("Interrupted.\n")) == (INTERRUPTED, True)
    assert asked == [["ddp"]], "nothing is loaded for backends that were not named"


@pytest.mark.parametrize(
    ("arguments", "length"),
    [
        ("run", (1000, None, 300)),
        ("run --repeats 7", (7, None, None)),
        ("run --budget 60", (1000, 60, None)),
        ("run --repeats 7 --budget 60", (7, 60, None)),
        ("run --backend ddp,ddp", (50, None, None)),
        ("run --backend ddp,ddp --repeats 20", (20, None, None)),
    ],
)
def test_run_without_a_length_takes_five_minutes_to_settle(compare, monkeypatch, arguments, length):
    found = []

    def carry_out(run_, *_):
        config = run_.config
        found.append((config.rounds, config.budget_seconds, config.settle_seconds))
        return a_run()

    monkeypatch.setattr(run, "carry_out", carry_out)
    arms = () if "--backend" in arguments else ("--backend", "ddp")
    assert compare(*arguments.split(), *arms, "--output", "out").code == 0
    assert found == [length]


def test_a_defect_of_ours_keeps_its_traceback(compare, carried_out, monkeypatch):
    carried_out(ZeroDivisionError("ours"))
    monkeypatch.setattr(sys, "argv", ["ringside", "run", "--backend", "ddp", "--output", "out"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


# ---- what is printed ----


def dry_run(compare, *arguments):
    """Return the command lines, by their titles."""
    ended = compare("run", "--dry-run", *arguments)
    assert ended.code == 0, ended.err
    assert list(Path.cwd().iterdir()) == []
    for shown in (r"Dry run: mlp on ", r"\n hosts +\S", r"\n data +\S", r"\n length +5 rounds of "):
        assert re.search(shown, ended.out)
    return listings(ended.out)


def listings(shown):
    """Return the commands of a printed dry run as words, by their titles, as a shell reads their lines."""
    found = re.findall(r"^  (\S.*)\n((?:    .*\n)+)", shown, re.MULTILINE)
    return {title: shlex.split(lines.replace("\\\n", " ")) for title, lines in found}


def test_dry_run_prints_one_command_an_arm_and_starts_nothing(compare):
    commands = dry_run(compare, "--backend", "ddp,manual:mode=overlap,horovod", "--output", "out")
    assert set(commands) == {"none", "ddp", "manual:mode=overlap", "horovod"}
    assert commands["ddp"][0] == "/opt/env/bin/torchrun"
    assert commands["horovod"][0] == "/opt/env/bin/horovodrun"


def test_dry_run_warns_of_ranks_that_outnumber_the_cores(compare):
    ranks = len(os.sched_getaffinity(0)) + 1
    planned = compare("run", "--dry-run", "--backend", "ddp", "-np", str(ranks)).out
    assert "so no arm can be ranked" in " ".join(planned.split())


def test_verbose_dry_run_prints_environment_and_job_without_secrets(compare, tmp_path_factory):
    folder = tmp_path_factory.mktemp("its folder's") / "my runs"
    asked = ("--backend", "ddp", "--no-control", "--output", folder, "-x", "KEY=hunter2")
    shown = compare("run", "--dry-run", "-v", *asked).out
    command = listings(shown)["ddp"]
    assert "GLOO_SOCKET_IFNAME=lo" in command[: command.index("/opt/env/bin/torchrun")]
    assert command[-1] == f"{folder}/launches/01-ddp/job.json"
    (job,) = re.findall(r"^  job.json of ddp\n    (.*)$", shown, re.MULTILINE)
    job = msgspec.json.decode(job, type=Job)
    assert (job.config.ranks, job.exported) == (2, ["KEY"])
    assert "hunter2" not in shown


def test_dry_run_of_scale_shows_the_commands_of_the_most_ranks(compare):
    asked = ("--backend", "ddp", "--no-control", "--strong", "--batch-size", "64", "-np", "1,2")
    ended = compare("scale", "--dry-run", *asked)
    assert (ended.code, list(Path.cwd().iterdir())) == (0, []), ended.err
    assert "each round takes 1, 2 in turn. The commands below are those of 2 ranks." in " ".join(
        ended.out.split()
    )
    assert "batch 32" in ended.out
    command = listings(ended.out)["ddp"]
    assert "--nproc_per_node=2" in command
    # The series has a folder for each number of ranks.
    assert re.search(r"/runs/\S+-np2-strong/np2/launches/01-ddp/job\.json$", command[-1])


def test_dry_run_writes_its_plan_to_a_file(compare, tmp_path_factory):
    written = tmp_path_factory.mktemp("plans") / "plan.json"
    done = compare("run", "--dry-run", "--backend", "ddp", "--no-control", "--export", written)
    assert done.code == 0, done.err
    plan = json.loads(written.read_text())
    (launch,) = plan["launches"]
    assert launch["job"]["arm"]["backend"] == "ddp"
    assert launch["commands"][0]["argv"] == listings(done.out)["ddp"]
    assert plan["run"]["launches"] == []


def test_dry_run_announces_the_check_of_arms_unless_quiet(compare):
    asked = ("run", "--dry-run", "--backend", "ddp")
    assert compare(*asked).err == "Checking which arms can run here …\n"
    assert compare(*asked, "-q").err == ""


def test_dry_run_prints_the_source_of_its_hosts(compare, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("LSB_JOBID", "8")
    monkeypatch.setenv("LSB_HOSTS", "nosuchhost-a nosuchhost-a nosuchhost-b")
    shown = compare("run", "--dry-run", "--backend", "ddp").out
    assert re.search(r"\n hosts +2 of LSF job 8, from LSB_HOSTS\n", shown)
    assert re.search(r"\n nosuchhost-a +2 +\S", shown)
    monkeypatch.delenv("LSB_HOSTS")
    refused = compare("run", "--dry-run", "--backend", "ddp")
    assert refused.code == USAGE
    assert refused.parts[0] == "Ringside runs in LSF job 8, but does not know its hosts."
    hostfile = tmp_path_factory.mktemp("hosts") / "two\nlines"
    hostfile.write_text("nosuchhost-a\n")
    shown = compare("run", "--dry-run", "--backend", "ddp", "--hostfile", hostfile).out
    assert re.search(rf"\n hosts +1 of {hostfile.parent}/two\\nlines\n", shown)


def test_dry_run_asks_no_host(compare, tmp_path_factory):
    hostfile = tmp_path_factory.mktemp("hosts") / "hosts"
    hostfile.write_text("nosuchhost-a slots=2\nnosuchhost-b slots=1\n")
    commands = dry_run(compare, "--backend", "ddp,horovod", "--no-control", "--hostfile", hostfile)
    assert "--master_addr=nosuchhost-a" in commands["ddp on nosuchhost-a"]
    asked = ("--backend", "ddp,manual", "--hostfile", hostfile)
    shown = compare("run", "--dry-run", *asked).out
    assert shown.count("except that nosuchhost-b has --nproc_per_node=1 --node_rank=1.\n") == 1
    assert "nosuchhost-a:2,nosuchhost-b:1" in commands["horovod"]
    for interface, given in (("INTERFACE", ()), ("eth0", ("--engine", "auto:interface=eth0"))):
        asked = ("--backend", "ddp", "-H", "nosuchhost-a,localhost", *given)
        shown = compare("run", "--dry-run", "-v", *asked).out
        assert f"GLOO_SOCKET_IFNAME={interface}" in listings(shown)["ddp on nosuchhost-a"]
    on_gpus = dry_run(compare, "--backend", "ddp", "-H", "nosuchhost-a:4", "--device", "cuda")
    assert "--nproc_per_node=4" in on_gpus["ddp on nosuchhost-a"]


def test_run_without_a_backend_takes_all_that_can_run(compare):
    expected = {"none", "ddp", "manual", "manual:mode=shared_memory", "horovod"}
    assert set(dry_run(compare)) == expected
    assert set(dry_run(compare, "-H", "localhost:2")) == expected


@pytest.mark.parametrize("spelling", ["-np 3", "--num-proc 3", "--num_proc=3"])
def test_flags_may_be_spelled_with_dashes_or_underscores(compare, spelling):
    asked = ("--backend", "ddp", "--no_control", "--batch_size", "32", *spelling.split())
    (command,) = dry_run(compare, *asked).values()
    assert "--nproc_per_node=3" in command


@pytest.mark.parametrize(("form", "file"), [("markdown", "shown.md"), ("csv", "shown.csv")])
def test_report_writes_to_a_file_what_it_prints(compare, form, file):
    write_json(Path(RESULTS_FILE), a_run(complete=False))
    printed = compare("report", ".", "--format", form)
    assert "ddp" in printed.out
    written = compare("report", ".", "--format", form, "--export", file)
    assert (printed.code, written.code, written.out) == (0, 0, printed.out)
    assert Path(file).read_text().split() == printed.out.split()
    alone = compare("report", ".", "--export", f"-.{file.partition('.')[2]}")
    assert alone.out == printed.out
    assert "mlp on MNIST" in alone.err
    assert compare("report", ".", "--export", RESULTS_FILE).code == USAGE
    assert "names a format" in compare("report", ".", "--export", "shown.pdf").parts[0]


def test_backends_lists_every_option_and_why_one_is_missing(compare):
    shown = " ".join(compare("backends").out.split())
    options = [f"{own.name}:{option.name}=" for own in BACKENDS.values() for option in own.options]
    expected = [*BACKENDS, *options, "mpi4py is not installed", "env.NCCL_ALGO=Ring"]
    assert [text for text in expected if text not in shown] == []


def test_backends_shows_those_that_are_named(compare):
    shown = compare("backends", "zero", "fsdp:units=layers").out
    assert {"zero:bucket_cap_mb=25", "fsdp:units=blocks|layers|model"} <= set(shown.split())
    assert "2 of 2 arms can run here" in shown
    assert "ddp" not in shown.replace("over DDP", "").split()
    assert compare("backends", "fdsp").parts[0] == "There is no backend called 'fdsp'."


# ---- help ----


def test_doctor_without_hosts_examines_this_machine(compare):
    ended = compare("doctor", "--quick", "--export", "found.json", "--export", "found.md")
    found = json.loads(Path("found.json").read_text())
    assert ended.code == (HOST if any(f["level"] == "problem" for f in found["findings"]) else 0)
    assert [host["host"]["name"] for host in found["hosts"]] == ["localhost"]
    assert "1 host examined" in ended.out
    assert "| localhost |" in Path("found.md").read_text()


def test_doctor_that_finds_a_problem_exits_with_9(compare):
    ended = compare("doctor", "--quick", "--python", "/no/such/python")
    assert ended.code == HOST
    assert "/no/such/python does not exist, or cannot" in ended.out
    assert ended.err == HERE.replace("Hosts", "Examining 1 host")


def test_doctor_logs_in_with_the_given_flags(compare, monkeypatch):
    Path("key").touch()
    asked = {}
    here = Installation(version="", sources="")
    shown = doctor.Examination(here=here, examined_at="", hosts=[], findings=[])
    monkeypatch.setattr(
        doctor, "examine", lambda hosts, **options: asked.update(options, hosts=hosts) or shown
    )
    logins = ["-H", "a:2,b", "--engine", "ssh:user=me,port=22022,identity=key"]
    ended = compare("doctor", *logins, "--ports")
    assert ended.code == 0
    assert [(host.name, host.slots) for host in asked["hosts"]] == [("a", 2), ("b", 1)]
    assert asked["carrier"] == Ssh(user="me", port=22022, identity=str(Path("key").absolute()))
    assert (asked["ports"], asked["quick"], asked["python"]) == (True, False, sys.executable)


def test_help_of_every_command_loads_no_heavy_library():
    script = f"""
import sys
from compare.cli.main import main
for arguments in ["-h", "--help", *(f"{{name}} --help" for name in {[*SUMMARIES, *EXAMPLES]!r})]:
    sys.argv = ["compare", *arguments.split()]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, arguments
    loaded = sorted(set(sys.modules) & {HEAVY!r})
    assert not loaded, (arguments, loaded)
"""
    done = execute(["-c", script])
    assert done.returncode == 0, done.stderr
    for flag in ("--backend", "--num-proc", "--hostfile", "--format", "--data", "--force"):
        assert flag in done.stdout


def test_ctrl_c_while_modules_are_loaded_prints_no_traceback():
    script = """
import runpy, sys
class Pressed:
    def find_spec(name, *_):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed)
runpy.run_module("compare", run_name="__main__", alter_sys=True)
"""
    done = execute(["-c", script])
    assert (done.returncode, done.stderr) == (130, "")


def test_another_system_is_refused_before_anything_is_loaded():
    script = """
import runpy, sys
sys.platform = "darwin"
try:
    runpy.run_module("compare", run_name="__main__", alter_sys=True)
finally:
    assert not {"typer", "rich", "msgspec", "compare.cli.main"} & set(sys.modules)
"""
    done = execute(["-c", script])
    assert done.returncode == UNAVAILABLE
    assert done.stderr.splitlines() == [
        "error: Ringside runs on Linux only.",
        "  This system is darwin.",
        "  Use a machine with Linux, a container, or WSL 2 on Windows.",
    ]


def execute(arguments, stdout=subprocess.PIPE, cwd=ROOT, **environment):
    """Start the program as a process of its own."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | environment,
        cwd=cwd,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["setup", "data", "--check"]])
def test_output_that_cannot_be_printed_exits_with_5(arguments):
    with Path("/dev/full").open("w") as full:
        done = execute(["-m", "compare", *arguments], full)
    assert done.returncode == OUTPUT
    what, found, remedy = done.stderr.splitlines()
    assert what == "error: Standard output cannot be written."
    assert (found, remedy) == ("  No space left on device.", "  Redirect it to another file or terminal.")


@pytest.mark.parametrize("arguments", [["--help"], ["setup", "data", "--check"]])
def test_a_closed_pipe_prints_no_message(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = execute(["-m", "compare", *arguments], writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (OUTPUT, "")


def test_every_exit_code_is_documented_and_unique():
    def branches(kind):
        return [kind, *(leaf for branch in kind.__subclasses__() for leaf in branches(branch))]

    known = [kind for kind in branches(errors.RingsideError) if kind.__module__ == errors.__name__]
    codes = {kind.__name__: kind.exit_code for kind in known}
    assert len(set(codes.values())) == len(codes)
    for name, code in codes.items():
        assert name == "RingsideError" or f"{code} " in cli.app.info.epilog
    assert "130 " in cli.app.info.epilog
