"""Collecting facts from hosts, with an ssh that answers here; real hosts: tests/lab/test_doctor.py."""

import json
import os
import sys

import msgspec
import pytest

from compare.doctor import checkup
from compare.doctor import examine as doctor
from compare.doctor.diagnose import Facts, Finding
from compare.doctor.examine import examine, exit_code, quick_check
from compare.doctor.report import DoctorReport, markdown
from compare.errors import HostError
from compare.launch.engines import Answer
from compare.launch.engines.ssh import Ssh
from compare.schema.hosts import Host, local_host, parse_hostfile
from tests.unit.doctor.test_diagnose import HERE, ward, well

N1 = Host("n1", 1, source="hosts.txt:1")
LIKE_SSHD = 'for last; do :; done; exec sh -c "$last"'


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """Put an ssh on PATH that does what a shell script says."""

    def install(script):
        program = tmp_path / "bin" / "ssh"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return install


def look(*hosts, **options):
    return examine(hosts or (local_host(1),), carrier=Ssh(), quick=True, **options)


def test_this_machine_alone_is_examined_without_ssh(fake_ssh):
    fake_ssh("exit 255")
    found = look()
    assert found.hosts[0].facts.executable == sys.executable
    assert [f for f in found.findings if f.topic == "ringside"] == [], "it is the one that asks"
    seen = found.hosts[0]
    assert abs(seen.clock_ahead_seconds) <= seen.clock_uncertain_seconds < 5, "there is but one clock"


def test_hosts_are_asked_over_ssh_and_login_shells_may_greet(fake_ssh):
    fake_ssh(f'echo Welcome; echo; ( {LIKE_SSHD} ); status=$?; echo "RINGSIDE is nice"; exit $status')
    found = look(N1)
    assert found.hosts[0].facts.python
    assert found.hosts[0].trouble is None


def test_the_examination_is_no_argument(fake_ssh, tmp_path):
    fake_ssh(f'echo "$@" >{tmp_path}/seen; {LIKE_SSHD}')
    assert look(N1).hosts[0].facts
    seen = (tmp_path / "seen").read_text()
    assert seen.rstrip().endswith(f"{sys.executable} - --quick")


def test_whatever_else_answers_is_told(fake_ssh):
    fake_ssh("echo This account is currently not available.; cat >/dev/null")
    (finding,) = look(N1).findings
    assert (finding.level, finding.topic) == ("problem", "python")
    assert "currently not available" in finding.found


def test_a_program_that_fails_there_is_told(fake_ssh):
    fake_ssh("echo Fatal Python error: no encodings >&2; cat >/dev/null; exit 1")
    (finding,) = look(N1).findings
    assert (finding.level, finding.topic, finding.host) == ("problem", "python", "n1")
    assert finding.what == "A command failed with status 1."
    assert "no encodings" in finding.found


def test_a_python_of_long_ago_is_told_and_the_rest_is_seen_by_another(fake_ssh, tmp_path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\ncat >/dev/null; echo 'SyntaxError: invalid syntax' >&2; exit 1\n")
    old.chmod(0o755)
    fake_ssh(LIKE_SSHD)
    found = look(N1, python=str(old))
    assert found.hosts[0].facts is not None
    (finding,) = [f for f in found.findings if f.topic == "python"]
    assert finding.what == f"Its {old} is too old even to examine it."
    assert "Python 3.11 or later" in finding.fix


def test_facts_of_another_version_are_not_believed(fake_ssh):
    fake_ssh(f"""cat >/dev/null; echo '{checkup.PREFIX}{{"hostname": 1}}'""")
    assert [f.what for f in look(N1).findings] == ["Something else than the examination answered."]


def test_a_host_without_the_right_python_is_seen_by_another(fake_ssh):
    fake_ssh(LIKE_SSHD)
    found = look(N1, python="/no/such/python")
    assert found.hosts[0].facts.executable != "/no/such/python"
    assert found.hosts[0].software is None
    (finding,) = [f for f in found.findings if f.topic == "python"]
    assert finding.what == "There is no /no/such/python."
    assert "No such file" in finding.found
    assert "--python" in finding.fix
    assert exit_code(found) == 9


def test_all_meet_at_a_port_of_the_first(fake_ssh, monkeypatch):
    fake_ssh(LIKE_SSHD)
    monkeypatch.setattr(doctor, "_address", lambda _: "127.0.0.1")
    found = look(N1, ports=True)
    (seen,) = found.hosts
    assert (seen.met.role, seen.met.problem) == ("listens", "")
    assert [f for f in found.findings if f.topic == "ports"] == []


@pytest.mark.parametrize(
    ("host_began", "host_answered", "ahead", "uncertain"),
    # We began at 100, and had the answer at 110.
    [(101.0, 109.0, 0.0, 1.0), (161.0, 169.0, 60.0, 1.0), (100.0, 110.0, 0.0, 0.0), (41.0, 41.0, -64.0, 5.0)],
)
def test_a_clock_lies_between_our_beginning_and_our_end(host_began, host_answered, ahead, uncertain):
    facts = msgspec.structs.replace(well().facts, began_at=host_began, answered_at=host_answered)
    line = checkup.PREFIX.encode() + msgspec.json.encode(facts) + b"\n"
    seen = doctor._seen(Answer(N1, 0, line, b"", 10.0, 100.0), "python", Ssh())
    assert (seen.clock_ahead_seconds, seen.clock_uncertain_seconds) == (ahead, uncertain)


def test_names_are_handed_on_to_be_looked_up():
    hosts = parse_hostfile("n1\nlocalhost\n10.0.0.1\n::2\nn2", "x")
    assert doctor._arguments(hosts, quick=False) == ["--peers", "n1,n2"]
    assert doctor._arguments(hosts, quick=True) == ["--quick"]
    assert doctor._arguments(hosts[:1], quick=False) == []


# ---- before a run ----


def test_before_a_run_what_is_well_costs_a_warning_at_most():
    host = local_host(4096)
    examination, found = quick_check([host], carrier=Ssh())
    assert examination.hosts[0].facts.quick
    assert ("slots", "warning") in [(f.topic, f.level) for f in found]
    assert "note" not in [f.level for f in found]


def test_before_a_run_a_host_that_cannot_be_used_is_named_with_its_line(fake_ssh):
    fake_ssh("echo Permission denied >&2; exit 255")
    with pytest.raises(HostError) as raised:
        quick_check([N1], carrier=Ssh())
    assert raised.value.what == "Host n1 (hosts.txt:1): Does not let you log in without a password."
    assert "ssh-copy-id" in raised.value.remedy
    assert raised.value.exit_code == 9


def test_before_a_run_what_breaks_some_arms_only_does_not_stop_it(monkeypatch):
    seen = ward(resolved=["127.0.1.1"])
    monkeypatch.setattr(doctor, "_look", lambda *_: seen)
    monkeypatch.setattr(checkup, "ringside", lambda: {"ringside_sources": HERE.sources})
    monkeypatch.setattr(doctor, "__version__", HERE.version)
    _, found = quick_check([each.host for each in seen], carrier=Ssh())
    assert [(f.level, f.topic, f.host) for f in found] == [("problem", "hostname", "n3")]


def test_before_a_run_many_that_cannot_be_used_are_named_together(fake_ssh):
    fake_ssh("echo Connection refused >&2; exit 255")
    hosts = parse_hostfile("n[1-20]", "hosts.txt")
    with pytest.raises(HostError) as raised:
        quick_check(hosts, carrier=Ssh())
    assert raised.value.what == "20 of 20 hosts cannot be used."
    assert raised.value.found.startswith(
        "Host n1 (hosts.txt:1): Runs no sshd at this port. Connection refused"
    )
    assert raised.value.found.endswith("and 12 more")
    assert raised.value.remedy.count("Start sshd") == 1


# ---- what is printed ----


def examination(seen, findings=None):
    found = doctor.diagnose(seen, HERE) if findings is None else findings
    return doctor.Examination(here=HERE, examined_at="now", hosts=seen, findings=found)


def printed(shown, width=200):
    from rich.console import Console

    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(DoctorReport(shown))
    return capture.get()


def test_every_host_has_a_row_and_every_finding_its_fix():
    shown = examination(ward(resolved=["127.0.1.1"], open_files=9))
    for text in (printed(shown), markdown(shown)):
        for part in (
            "n1",
            "n2",
            "n3",
            "3.11.7",
            "2.13.0+cpu",
            "0.28.1 (gloo, mpi)",
            "Open MPI 4.1.8",
            "2 on 4",
        ):
            assert part in text
        for part in ("10.7 GB", "eth0 10.0.0.3/24", "+0.0 ± 0.0 s", "1 problem, 1 warning."):
            assert part in text
        for finding in shown.findings:
            for part in (finding.what, finding.found, finding.fix):
                assert part in text


def test_a_narrow_terminal_gets_two_tables_and_loses_nothing():
    shown = examination(ward(2))
    assert printed(shown).count("n2") == 1
    narrow = printed(shown, width=100)
    assert narrow.count("n2") == 2
    for part in ("Open MPI 4.1.8", "0.28.1 (gloo, mpi)", "eth0 10.0.0.2/24", "2 on 4"):
        assert part in narrow


def test_what_many_have_in_common_is_said_once():
    finding = Finding(level="note", topic="mpi", host="", what="Same.", found="x", fix="y")
    many = [msgspec.structs.replace(finding, host=f"n{number}") for number in range(1, 21)]
    text = printed(examination(ward(3), many))
    assert text.count("Same.") == 1
    assert "note: n1, n2, n3, n4, n5, n6 and 14 more: Same." in text
    assert "20 notes" in text


def test_a_host_that_was_not_reached_has_a_row_too(fake_ssh):
    fake_ssh("echo No route to host >&2; exit 255")
    shown = look(N1)
    (row,) = [row.split() for row in printed(shown).splitlines() if row.lstrip().startswith("n1")]
    assert row[:3] == ["n1", "NO", "–"]
    assert "| n1 | NO | –" in markdown(shown)


def test_all_is_well():
    shown = examination(ward(2))
    assert "2 hosts examined: nothing to complain of." in printed(shown)
    assert exit_code(shown) == 0


def test_warnings_are_no_problems():
    shown = examination(ward(2, at=2, open_files=9))
    assert shown.of("warning")
    assert exit_code(shown) == 0


def test_it_is_kept_whole_as_json():
    shown = examination(ward(2, at=2, resolved=["127.0.1.1"]))
    again = msgspec.json.decode(msgspec.json.encode(shown), type=doctor.Examination)
    assert again == shown
    assert json.loads(msgspec.json.encode(shown))["findings"][0]["fix"]
    assert set(Facts.__struct_fields__) == set(msgspec.to_builtins(shown)["hosts"][0]["facts"])
