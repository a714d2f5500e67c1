"""Collect facts through an ssh that answers on this machine.

tests/lab/test_doctor.py has real hosts.
"""

import socket
import sys
import threading
import time

import msgspec
import pytest
from rich.console import Console

from compare import data
from compare.doctor import checkup
from compare.doctor import examine as doctor
from compare.doctor.examine import check_beforehand, examine
from compare.doctor.facts import Examination, Finding
from compare.doctor.report import document_of
from compare.doctor.rules import diagnose
from compare.errors import HostError
from compare.launch.engines import Answer, Carrier
from compare.launch.engines.ssh import Ssh
from compare.report.formats import markdown
from compare.report.formats.terminal import ConsoleDocument
from compare.schema.hostfile import parse_hostfile
from compare.schema.hosts import Host, local_host
from tests.unit.doctor.test_diagnose import HERE, group, well

N1 = Host("n1", 1, source="hosts.txt:1")
LIKE_SSHD = 'for last; do :; done; exec sh -c "$last"'


def look(*hosts, **options):
    return examine(hosts or (local_host(1),), carrier=Ssh(), quick=True, **options)


def test_examine_this_machine_needs_no_ssh(fake_ssh):
    fake_ssh("exit 255")
    found = look()
    (host,) = found.hosts
    assert host.facts.executable == sys.executable
    assert [f for f in found.findings if f.topic == "ringside"] == [], "it is the same Ringside"
    assert abs(host.clock_ahead_seconds) <= host.clock_uncertain_seconds < 5, "it is the same clock"


def test_examine_sends_the_checkup_past_a_talkative_shell(fake_ssh, tmp_path):
    fake_ssh(
        f'echo Welcome; echo "$@" >{tmp_path}/seen; ( {LIKE_SSHD} ); status=$?; '
        'echo "RINGSIDE is nice"; exit $status'
    )
    (host,) = look(N1).hosts
    assert host.facts.python
    assert host.trouble is None
    assert (tmp_path / "seen").read_text().rstrip().endswith(" --quick")


@pytest.mark.parametrize(
    ("most_bytes", "level", "fix"),
    [(1000, "note", "the first run copies the folder"), (10, "problem", "rsync -a {ours}/ n1:{ours}/")],
)
def test_examine_host_without_the_workload_is_found(fake_ssh, tmp_path, monkeypatch, most_bytes, level, fix):
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "train.py").write_text("def make(): ...")
    own = data.own_source(f"{ours}/train.py:make")
    monkeypatch.setattr(data.source, "MOST_BYTES", most_bytes)
    fake_ssh(LIKE_SSHD)
    assert [f for f in look(N1, workload=own).findings if f.topic == "workload"] == [], (
        "it has the same folder"
    )
    fake_ssh(LIKE_SSHD.replace('"$last"', '"$(echo "$last" | sed s:/ours:/theirs:)"'))
    (finding,) = (f for f in look(N1, workload=own).findings if f.topic == "workload")
    assert (finding.level, finding.host) == (level, "n1")
    assert fix.format(ours=ours) in finding.fix


NOT_THE_ANSWER = "The host sent no valid answer to Ringside's examination."


@pytest.mark.parametrize(
    ("script", "what", "found"),
    [
        ("echo This account is currently not available.", NOT_THE_ANSWER, "currently not available"),
        (f"""echo '{checkup.PREFIX}{{"hostname": 1}}'""", NOT_THE_ANSWER, "hostname"),
        ("echo Fatal: no encodings >&2; status=1", "A command failed with status 1.", "no encodings"),
    ],
    ids=["no shell", "facts of another version", "broken Python"],
)
def test_examine_unusable_answer_is_a_problem(fake_ssh, script, what, found):
    fake_ssh(f"{script}; exit $status")
    (finding,) = look(N1).findings
    assert (finding.level, finding.topic, finding.host) == ("problem", "python", "n1")
    assert finding.what == what
    assert found in finding.found


def test_examine_unusable_python_asks_another(fake_ssh, tmp_path):
    """The lab has a host where it is missing."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'SyntaxError: invalid syntax' >&2; exit 1\n")
    python.chmod(0o755)
    fake_ssh(LIKE_SSHD)
    examined = look(N1, python=str(python))
    assert examined.hosts[0].facts.executable != str(python)
    assert examined.hosts[0].software is None
    (finding,) = [f for f in examined.findings if f.topic == "python"]
    assert finding.what == f"{python} is too old for the examination."
    assert "SyntaxError" in finding.found
    assert "Python 3.11 or later" in finding.fix
    assert examined.exit_code == 9


@pytest.mark.parametrize(
    ("host_began", "host_answered", "ahead", "uncertain"),
    # We began at 100, and read the answer at 110.
    [(101.0, 109.0, 0.0, 1.0), (161.0, 169.0, 60.0, 1.0), (100.0, 110.0, 0.0, 0.0), (41.0, 41.0, -64.0, 5.0)],
)
def test_clock_lies_between_our_start_and_our_end(host_began, host_answered, ahead, uncertain):
    facts = msgspec.structs.replace(well().facts, began_at=host_began, answered_at=host_answered)
    line = checkup.PREFIX.encode() + msgspec.json.encode(facts) + b"\n"
    host = doctor._examined_host(Answer(N1, 0, line, b"", 10.0, 100.0), "python", Ssh())
    assert (host.clock_ahead_seconds, host.clock_uncertain_seconds) == (ahead, uncertain)


def test_arguments_pass_names_on_and_no_addresses():
    hosts = parse_hostfile("n1\nlocalhost\n10.0.0.1\n::2\nn2", "x")
    assert doctor._checkup_arguments(hosts, quick=False) == ["--peers", "n1,n2"]
    assert doctor._checkup_arguments(hosts, quick=True) == ["--quick"]
    assert doctor._checkup_arguments(hosts[:1], quick=False) == []


# ---- the check before a run ----


@pytest.fixture
def check_group(monkeypatch):
    """Check three hosts before a run; the third has this defect."""

    def check(**changed):
        hosts = group(**changed)
        monkeypatch.setattr(doctor, "_collect_facts", lambda *_: hosts)
        monkeypatch.setattr(checkup, "ringside_facts", lambda: {"ringside_sources": HERE.sources})
        monkeypatch.setattr(doctor, "__version__", HERE.version)
        return check_beforehand([each.host for each in hosts], carrier=Ssh())(failed=False)

    return check


def test_quick_check_problem_of_some_arms_does_not_raise(check_group):
    found = check_group(resolved=["127.0.1.1"])
    assert [(f.level, f.topic, f.host) for f in found] == [("problem", "hostname", "n3")]


def test_quick_check_two_problems_of_a_host_make_one_error(check_group):
    with pytest.raises(HostError) as raised:
        check_group(ringside="0.9", python="3.12.1")
    what = "Host n3 (hosts.txt:3): Ringside has another version. Python differs from the other hosts."
    assert raised.value.what == what
    assert len(raised.value.remedy.splitlines()) == 2


# ---- the check before a run on this machine ----


@pytest.fixture
def small(monkeypatch):
    """Give this machine little shared memory, and two ranks on one core."""
    real = checkup.collect_facts

    def collect_facts(**options):
        disk = {"path": "/dev/shm", "free_bytes": 2 << 20}  # noqa: S108 -- a name
        return real(**options) | {"disks": [disk], "cores": 1}

    monkeypatch.setattr(checkup, "collect_facts", collect_facts)


@pytest.mark.usefixtures("small")
def test_failure_has_all_findings_and_the_start_those_that_no_table_has():
    found = check_beforehand([local_host(2)], carrier=Carrier())
    assert {each.topic for each in found(failed=True)} == {"disk", "slots"}
    assert [each.topic for each in found(failed=False)] == ["disk"]


def test_dead_name_server_does_not_delay_the_start(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(checkup, "_NAMES_SECONDS", 3.0)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: (never.wait(20), [])[1])
    began = time.monotonic()
    found = check_beforehand([local_host(1)], carrier=Carrier())
    assert found(failed=False) == []
    assert time.monotonic() - began < 2.0
    slow = [each for each in found(failed=True) if each.topic == "hostname"]
    never.set()
    assert "Name lookups are slow." in [each.what for each in slow]


def test_machine_without_defects_has_no_finding_of_its_libraries():
    found = check_beforehand([local_host(1)], carrier=Carrier())(failed=True)
    assert not {"torch", "horovod", "mpi", "ringside", "python"} & {each.topic for each in found}


# ---- the report ----


def examination(hosts, findings=None):
    found = diagnose(hosts, HERE) if findings is None else findings
    return Examination(here=HERE, examined_at="now", hosts=hosts, findings=found)


def printed(shown):
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(ConsoleDocument(document_of(shown)))
    return capture.get()


def test_report_has_a_row_per_host_and_every_finding():
    shown = examination(group(resolved=["127.0.1.1"], open_files=9))
    cells = ["n1", "n2", "n3", "3.11.7", "2.13.0+cpu", "0.28.1 (gloo, mpi)", "Open MPI 4.1.8", "2 on 4"]
    cells += ["10 GiB", "eth0 10.0.0.3/24", "+0.0 ± 0.0 s", "3 hosts examined: 1 problem, 1 warning."]
    for finding in shown.findings:
        cells += [finding.what, finding.found, finding.fix]
    for text in (printed(shown), markdown(document_of(shown))):
        assert [cell for cell in cells if cell not in text] == []


@pytest.mark.parametrize(("changed", "summary"), [({}, "no findings"), ({"open_files": 9}, "1 warning")])
def test_report_without_problems_says_so(changed, summary):
    shown = examination(group(2, at=2, **changed))
    assert f"2 hosts examined: {summary}." in printed(shown)
    assert shown.exit_code == 0


def test_report_equal_findings_of_many_hosts_are_one():
    finding = Finding(level="note", topic="mpi", host="", what="Same.", found="x", fix="y")
    many = [msgspec.structs.replace(finding, host=f"n{number}") for number in range(1, 21)]
    text = printed(examination(group(3), many))
    assert text.count("Same.") == 1
    assert "note: n1, n2, n3, n4, n5, n6 and 14 more: Same." in text
    assert "20 notes" in text


def test_report_unreached_host_has_a_row(fake_ssh):
    fake_ssh("echo No route to host >&2; exit 255")
    shown = look(N1)
    (row,) = [row.split() for row in printed(shown).splitlines() if row.lstrip().startswith("n1")]
    assert row[:3] == ["n1", "NO", "–"]
    assert "| n1 | NO | –" in markdown(document_of(shown))
