"""Parsers return a value or the error that they declare.

``make fuzz`` gives each of them FUZZ_EXAMPLES examples. What failed once stays here as an example.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
from datetime import timedelta

import msgspec
import pytest
import typer
import typer.main
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backends import BACKENDS
from backends.launchers import LAUNCHERS, read_placement
from compare.analysis import analyse
from compare.cli.main import app
from compare.cli.options import read_seconds
from compare.cli.output import as_output_error
from compare.cli.settings import _every_command, read_settings, settings_for
from compare.data.own import own_source
from compare.doctor import checkup, examine
from compare.doctor.facts import Facts
from compare.errors import OutputError, RingsideError, UsageError
from compare.experiment import allocation
from compare.launch.agent.connection import Connection, LaunchLink
from compare.launch.agent.mirror import ReceivedFiles
from compare.launch.agent.protocol import FileData, Message, MessagePipe, ProtocolError, Refused
from compare.launch.engines import Answer, slurm
from compare.launch.engines.detect import STARTERS
from compare.launch.engines.schedulers import SCHEDULERS
from compare.launch.engines.ssh import Ssh
from compare.launch.failures import read_crash_log
from compare.report import FORMATS
from compare.schema.arms import parse_arms
from compare.schema.collectives import parse_size
from compare.schema.environment import read_env_flags
from compare.schema.hostfile import parse_hosts, read_hostfile
from compare.schema.hosts import Host, parse_link
from compare.schema.job import RankExit, RankFailure, read_progress
from compare.schema.launch_files import LaunchFiles
from compare.schema.scale import read_counts
from compare.schema.store import read_run
from compare.system.files import read_json
from tests.unit.factories import a_run
from tests.unit.pages import render

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "50"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=timedelta(seconds=20),  # a parser that takes this long hangs
    suppress_health_check=list(HealthCheck),
)
TEXT = st.text(max_size=200)
"""Any text; files and variables may hold bytes that are none."""
BYTES = st.binary(max_size=400)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def pieces(*words):
    """Return texts that are nearly right, and other text."""
    return st.lists(st.sampled_from(words) | st.text(max_size=4), max_size=16).map("".join) | TEXT


def changed(draw, value, depth=0):
    """Change one value somewhere in JSON."""
    if isinstance(value, dict) and value and (depth == 0 or draw(st.integers(0, 5))):
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.integers(0, 9)):
            value[key] = changed(draw, value[key], depth + 1)
        else:
            del value[key]
        return value
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        index = draw(st.integers(0, len(value) - 1))
        if kind := draw(st.integers(0, 9)):
            value[index] = changed(draw, value[index], depth + 1)
        else:
            value[index : index + 1] = [copy.deepcopy(value[index])] * (2 * (kind % 2))
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        numbers = st.sampled_from([-value, 0, value * 10**30, 10**18, 2**63, -1, 1, 1e308, 5e-324])
        return draw(numbers | JSON)
    if isinstance(value, str):
        return draw(st.sampled_from([value + "\x1b[2J", "", value * 2, f"\n{value}", f"={value}"]) | JSON)
    return draw(JSON)


@st.composite
def changed_runs(draw):
    run = json.loads(msgspec.json.encode(RUN))
    for _ in range(draw(st.integers(1, 3))):
        run = changed(draw, run)
    return json.dumps(run)


def places_of_texts(value):
    """Yield each object or list of JSON that holds a text, with the key or index of the text."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, str):
            yield value, key
        elif isinstance(inner, dict | list):
            yield from places_of_texts(inner)


@st.composite
def runs_with_other_texts(draw):
    run = json.loads(msgspec.json.encode(RUN))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(list(places_of_texts(run))))
        holder[key] = draw(TEXT | st.sampled_from([holder[key] + "\x1b[2J", f"\n{holder[key]}", "=1", ""]))
    return json.dumps(run)


RUN = a_run({"none": [4.0, 4.1], "ddp": [5.0, 5.1]})


@pytest.fixture(scope="module")
def shared_file(tmp_path_factory):
    """A file that every example writes anew."""
    return tmp_path_factory.mktemp("fuzz") / "foreign"


# ---- files of hosts and of runs ----


@fuzz
@given(
    BYTES
    | pieces("node", "[1-4]", "[::1]", ":2", "@", " slots=", "2", "max_slots=", "\n", "#", ",").map(
        lambda text: text.encode(errors="surrogatepass")
    )
)
@example(b"\xef\xbb\xbfnode1 slots=2\r\n")
@example(b"node\x00 slots=2")
def test_hostfile_of_any_bytes_gives_hosts_or_a_place(shared_file, content):
    shared_file.write_bytes(content)
    with contextlib.suppress(UsageError):
        assert all(host.slots >= 1 for host in read_hostfile(shared_file))


@fuzz
@given(BYTES | changed_runs().map(lambda text: text.encode(errors="surrogatepass")))
@example(b"[" * 100_000)
@example(b'{"schema_version": [3], "run": 1}')
def test_results_of_any_bytes_give_a_run_or_an_error(shared_file, content):
    shared_file.write_bytes(content)
    with contextlib.suppress(OutputError):
        read_run(shared_file)


@settings(fuzz, max_examples=max(20, EXAMPLES // 10))
@given(runs_with_other_texts())
def test_results_with_any_texts_can_be_shown_in_every_format(shared_file, content):
    """A tenth of the examples: each analyses a run."""
    shared_file.write_bytes(content.encode(errors="surrogatepass"))
    with contextlib.suppress(OutputError), as_output_error(shared_file):
        run = read_run(shared_file)
        analysis = analyse(run)
        for form in FORMATS:
            assert "\x1b" not in render(run, analysis, form, detail=True)


@fuzz
@given(BYTES | JSON.map(lambda value: json.dumps(value).encode(errors="surrogatepass")))
@example(b'{"step": 1, "at": 1e999}\n')
@example(b'{"stage": "\xff"}\n')
def test_records_of_ranks_of_any_bytes_are_read_or_refused(shared_file, content):
    files = LaunchFiles(shared_file.parent)
    files.progress(0).write_bytes(content)
    read_progress(files, 0)
    for kind in (RankExit, RankFailure):
        with contextlib.suppress(OutputError):
            read_json(files.progress(0), kind)


# ---- flags ----


@fuzz
@given(
    st.lists(
        pieces(*BACKENDS, ":", "=", ",", "{", "}", "mode", "env.A", "bucket_cap_mb", "1e400"), max_size=4
    )
)
@example(["ddp:bucket_cap_mb=1_0"])
@example(["ddp:=", "::", "="])
def test_arms_of_any_text_are_arms_or_a_usage_error(texts):
    with contextlib.suppress(UsageError):
        arms = parse_arms(texts)
        assert parse_arms([arm.label for arm in arms]) == arms


HOSTS = pieces("n", "[1-2]", "[::1]", ":", "@", ",", "4", "-", "/")


@fuzz
@given(HOSTS | pieces("1", "0.5", "g", "mbit", ",", "ms", "K", "GiB", "-x", "=", "/", ".py", ":make"))
@example("٣bit")
@example("9" * 400 + "gbit")
@example("a\x00b.py:make")
def test_values_of_flags_of_any_text_are_read_or_a_usage_error(text):
    for read in (
        parse_hosts,
        parse_link,
        lambda text: parse_size("-b", text),
        read_counts,
        own_source,
        lambda text: read_env_flags([text], {}),
        read_seconds,
    ):
        with contextlib.suppress(UsageError, typer.BadParameter):
            read(text)


SETTINGS = pieces("[run]", "\n", "steps", "backend", " = ", "60", "'ddp'", "[", "]", "{", "}", "a.")
FLAGS_OF = dict(_every_command(typer.main.get_command(app)))


@fuzz
@given(BYTES | SETTINGS.map(lambda text: text.encode(errors="surrogatepass")))
@example(b"a = " + b"[" * 100_000)
@example(b"steps = " + b"9" * 5_000)
@example(b"steps = 1e400")
def test_settings_of_any_bytes_are_read_or_a_usage_error(shared_file, content):
    shared_file.write_bytes(content)
    with contextlib.suppress(UsageError):
        settings_for(shared_file, read_settings(shared_file), "run", FLAGS_OF)


# ---- other programs ----


@pytest.fixture(scope="module")
def pipe():
    """A pipe whose other end anything may write to."""
    read, write = os.pipe()
    kept = os.open(os.devnull, os.O_WRONLY)
    yield MessagePipe(read, kept), write
    for descriptor in (read, write, kept):
        os.close(descriptor)


def _encoded(message):
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(4) + data


NEARLY_MESSAGES = st.dictionaries(
    st.sampled_from(["type", "name", "offset", "data", "status", "ranks", "what", "kind"]),
    st.sampled_from(["FileData", "Ready", "Exited", "Waiting", "Refused"]) | JSON | BYTES,
    max_size=5,
).map(lambda fields: _encoded({k: v for k, v in fields.items() if not _too_large(v)}))


def _too_large(value):
    """Return whether MessagePack has no form for a value."""
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return True
    return False


@fuzz
@given(st.lists(BYTES | NEARLY_MESSAGES, max_size=4).map(b"".join))
@example((5).to_bytes(4) + b"\x81\xa1\xff\x01\x00")
@example((100_000).to_bytes(4) + b"\x91" * 100_000)
@example((1 << 31).to_bytes(4) + b"spam")
def test_protocol_of_any_bytes_gives_messages_or_its_error(pipe, content):
    messages, write = pipe
    messages._received, messages._preamble_seen = bytearray(), True
    os.write(write, content[:60_000])
    with contextlib.suppress(ProtocolError):
        for message in messages.receive():
            assert isinstance(message, Message)


@fuzz
@given(
    st.builds(FileData, TEXT | st.just("rank-0.log"), BYTES, st.none() | st.integers(-(2**63), 2**63 - 1))
    | st.builds(Refused, kind=TEXT, what=TEXT, found=TEXT)
)
@example(FileData("results.json", b"\xff"))
@example(FileData("a\x00b", b"", 0))
@example(FileData("rank-0.log", b"x", -1))
@example(FileData("../escape", b"x", 0))
@example(FileData("x" * 300, b"x", 0))
@example(Refused(kind="OutputError", what="", found=""))
def test_agent_of_a_host_writes_in_its_folder_or_is_refused(shared_file, message):
    connection = Connection.__new__(Connection)
    folder = shared_file.parent / "of-an-agent"
    folder.mkdir(exist_ok=True)
    connection.host = Host("n1", 1)
    link = LaunchLink("a launch", connection, [0], lambda _: None)
    link._received = ReceivedFiles(connection.host, LaunchFiles(folder), [0])
    before = set(shared_file.parent.iterdir())
    with contextlib.suppress(ProtocolError, RingsideError):
        link.handle(message)
        assert isinstance(link.error, RingsideError | None)
    assert set(shared_file.parent.iterdir()) == before
    for path in folder.iterdir():
        path.unlink()


VALUES = st.text(
    st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12
) | st.sampled_from(["0", "1", "-1", "2(x2),1", "99999999999", "٣", "n[1-4]", "n1,n2", "n1 2 n2 2", ""])
SLURM = [
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
    *("SLURM_TASKS_PER_NODE", "SLURM_HET_SIZE", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_NODELIST"),
    *(variable for each in SCHEDULERS for variable in (*each.files, *dict(each.lists))),
    *(sign.partition("=")[0] for scheduler in (*SCHEDULERS, *STARTERS) for sign in scheduler.signs),
]
SHOWN = pieces(
    *(
        "UserId=",
        "a(0)",
        " JobState=",
        "RUNNING",
        " NodeList=",
        "n[1-2]",
        " NumTasks=",
        "2",
        " CPUs/Task=",
        "0",
        " TimeLimit=",
    ),
    *("1-00:00:00", " RunTime=", "UNLIMITED", " Nodes=", "n1", " CPU_IDs=", "0-3", " Mem=1 GRES=gpu:2"),
)


@fuzz
@given(st.dictionaries(st.sampled_from(SLURM), VALUES), SHOWN)
@example({"SLURM_JOB_ID": "1"}, "UserId=a(99999999999999999999) NumTasks=²")
@example({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"}, "NodeList=n1")
@example({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "two"}, "")
@example({"SLURM_JOB_ID": "1"}, "NodeList=n1 Nodes=n1 CPU_IDs=0- Mem=1 GRES=")
@example({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, "NodeList=n1 NumTasks=x")
@example({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "9(x99999999999)"}, "NodeList=n1")
def test_variables_of_schedulers_give_hosts_or_an_error(environ, shown):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slurm, "show_job", lambda *_, **__: shown)
        with contextlib.suppress(RingsideError):
            assert allocation.find_allocation("auto", {}, None, None, environ=environ).hosts


RANKS = [
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK"),
    *("HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK"),
    *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
]


@fuzz
@given(st.sampled_from(sorted(LAUNCHERS)), st.dictionaries(st.sampled_from(RANKS), VALUES))
def test_variables_of_launchers_give_a_placement_or_an_error(launcher, environ):
    with contextlib.suppress(KeyError, ValueError):
        placement = read_placement(launcher, environ)
        assert isinstance(placement.rank, int)


@fuzz
@given(
    pieces(
        *(
            "Fatal Python error: ",
            "Segmentation fault",
            "\n",
            "Current thread 0x1:",
            '  File "x", line 3 in f',
        ),
        *("Timeout (0:00:01)!", "\x1b[31m", "#1 ", "frame ", "*** Process received signal ***", " " * 50),
    )
)
@example("Fatal Python error\n" * 300)
def test_log_of_any_text_is_read_and_harmless(log):
    assert all(text.isprintable() for text in read_crash_log(log * 20))


@fuzz
@given(BYTES | JSON.map(lambda value: json.dumps(value).encode(errors="surrogatepass")))
@example(b"[" * 100_000)
@example(b'"\xff"')
def test_facts_of_a_host_of_any_bytes_are_refused(content):
    answer = Answer(Host("n1", 1), 0, checkup.PREFIX.encode() + content, b"", 0.1, 0.0, "")
    found = examine._examined_host(answer, "python", Ssh())
    assert found.trouble or isinstance(found.facts, Facts)


@fuzz
@given(st.integers(0, 255), BYTES, BYTES)
def test_answer_of_a_host_is_explained_in_printable_lines(status, out, err):
    answer = Answer(Host("n1", 1), status, out, err, 0.1, 0.0, "")
    found = Ssh().explain(answer)
    assert re.fullmatch(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f]*", answer.last_lines)
    assert found is None or found.what
