"""Commands on hosts: their input, their answers, folders put there, and hosts that are starting."""

import subprocess
import sys
import time

import psutil
import pytest

from compare.errors import HostError
from compare.launch.engines import STREAM_BYTES, AbsentHostError, Answer, Carrier, commands
from compare.launch.engines.commands import (
    host_error,
    join_errors,
    run_everywhere,
    run_script,
    wait_for_hosts,
)
from compare.launch.engines.ssh import Ssh
from compare.schema.hosts import Host
from tests.waiting import wait_until

HERE = Host(name="localhost", slots=1)
THERE = Host(name="n1", slots=1, source="hosts.txt:3")


def an_answer(status, stderr=b"", host=THERE, **more):
    return Answer(host, status, b"", stderr, 1.0, ran_here=host is HERE, **more)


def run_here(argv, stdin=b""):
    (answer,) = run_everywhere([HERE], argv, carrier=Carrier(), timeout_seconds=20, stdin=stdin)
    return answer


# As sshd does it: one string, given to the user's shell.
LIKE_SSHD = 'for last; do :; done; exec sh -c "$last"'


@pytest.mark.parametrize("word", ["a b", "$HOME", "`id`", "'", '"', "a\nb", "", ";rm -rf x", "*", "é"])
def test_command_through_a_remote_shell_is_unchanged(fake_ssh, word):
    fake_ssh(LIKE_SSHD)
    argv = [sys.executable, "-c", "import sys; sys.stdout.write(sys.argv[1])", word]
    (answer,) = run_everywhere([THERE], argv, carrier=Ssh(), timeout_seconds=20)
    assert (answer.status, answer.stdout.decode()) == (0, word)


def test_command_answer_has_both_streams_as_bytes_and_the_status(capfd):
    data = (bytes(range(256)) * 4096)[: STREAM_BYTES - 13] + b"no newline\r\n\r"
    answer = run_here(["sh", "-c", "cat; echo err >&2; exit 7"], data)
    assert (answer.status, answer.stdout, answer.stderr) == (7, data, b"err\n")
    assert run_here(["true"], bytes(1 << 22)).status == 0, "it reads no input"
    assert capfd.readouterr().err == ""


ASK = """
import sys
from compare.launch.engines.commands import run_script
from compare.launch.engines.ssh import Ssh
from compare.schema.hosts import Host
script = f"import time; open({sys.argv[2]!r}, 'w'); time.sleep(60)".encode()
run_script([Host(sys.argv[1], 1)], sys.executable, script, sys.argv[2], carrier=Ssh(), timeout_seconds=60)
"""


@pytest.mark.parametrize("host", [HERE, THERE], ids=["here", "there"])
def test_script_on_a_host_has_arguments_and_ringside(fake_ssh, host):
    fake_ssh(LIKE_SSHD)
    script = b"import sys, compare; print(__name__, sys.argv[1:], compare.__doc__ is not None); sys.exit(7)"
    words = ("a b", "--quick")
    (answer,) = run_script([host], sys.executable, script, *words, carrier=Ssh(), timeout_seconds=20)
    assert (answer.status, answer.stderr) == (7, b"")
    assert answer.stdout.decode() == "__main__ ['a b', '--quick'] True\n"


@pytest.mark.parametrize("host", [HERE, THERE], ids=["here", "there"])
def test_script_ends_with_the_program_that_asked(fake_ssh, tmp_path, host):
    fake_ssh(LIKE_SSHD)
    mark = tmp_path / "begun"
    asking = subprocess.Popen([sys.executable, "-c", ASK, host.name, mark])
    try:
        wait_until(mark.exists)
    finally:
        asking.kill()
        asking.wait()
    wait_until(lambda: not [line for line in command_lines() if str(mark) in line], seconds=5)


def command_lines():
    return [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            an_answer(127, b"bash: line 1: /opt/py/bin/python: No such file or directory\n"),
            ["/opt/py/bin/python", "same path on every host"],
        ),
        (an_answer(1, b"/usr/bin/python: No module named 'compare'\n"), ["same version of Ringside there"]),
        (an_answer(255, b"Permission denied", HERE), ["status 255"]),  # not ssh's
        (an_answer(None), ["Host n1 (hosts.txt:3) did not answer within 1 s.\n", "`ssh -p2222 n1`"]),
    ],
)
def test_host_error_says_what_failed_and_what_to_do(answer, says):
    error = str(host_error(answer, Ssh(port=2222)))
    assert [part for part in says if part not in error] == []
    assert "`" not in host_error(an_answer(None, host=HERE), Carrier()).remedy


def test_errors_of_many_hosts_are_joined_in_one():
    hosts = [Host(name=f"n{number}", slots=1) for number in range(20)]
    errors = [host_error(an_answer(255, b"Connection refused", host), Ssh()) for host in hosts]
    joined = join_errors(errors, of=21)
    assert joined.what == "20 of 21 hosts cannot be used."
    assert "Host n7 " in joined.found
    assert "and 12 more" in joined.found
    assert joined.remedy.count("Start sshd") == 1


# ---- hosts that are starting ----

STARTING = [Host(f"w{number}", 1, source=f"hostfile:{number}") for number in range(3)]
# It answers as ssh does: by a file for each host, which may be missing, or has what is printed.
SSH = """\
for word do case $word in w[0-9]) host=$word ;; esac; done
[ -e {folder}/$host ] || { echo "ssh: Could not resolve hostname $host: unknown" >&2; exit 255; }
read -r line <{folder}/$host || exit 0
echo "$line" >&2; exit 255
"""


@pytest.fixture
def answers(programs, tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "_PAUSE_SECONDS", 0.02)
    programs("ssh", SSH.replace("{folder}", str(tmp_path)))

    def write(name, line=""):
        (tmp_path / name).write_text(line and f"{line}\n")

    return write


def wait(seconds, say=lambda _: None, hosts=STARTING):
    wait_for_hosts(hosts, carrier=Ssh(), seconds=seconds, say=say)


def test_hosts_that_are_there_need_no_word(answers):
    for host in STARTING:
        answers(host.name)
    wait(60, pytest.fail)


def test_launcher_whose_name_begins_to_resolve_is_awaited(answers, monkeypatch):
    """The name is there after ssh failed for want of it."""
    resolved = iter([False])
    monkeypatch.setattr("compare.launch.engines.is_local", lambda _host: next(resolved, True))
    lines = []
    wait(60, lines.append, STARTING[:1])
    assert "Host w0 (hostfile:0) has a name that does not resolve." in lines[0]
    assert lines[1:] == ["All 1 hosts answer"]


def test_host_that_refuses_the_login_is_not_awaited(answers):
    answers("w0", "root@w0: Permission denied (publickey).")
    with pytest.raises(HostError, match=r"Host w0 .* does not let you log in") as caught:
        wait(60)
    assert not isinstance(caught.value, AbsentHostError)


def test_hosts_that_are_asked_one_after_another_share_the_time(programs, monkeypatch):
    monkeypatch.setattr(commands, "OPENED_AT_ONCE", 1)
    monkeypatch.setattr(commands, "_LEAST_ATTEMPT_SECONDS", 0.1)
    programs("ssh", "exec sleep 60\n")
    began = time.monotonic()
    with pytest.raises(AbsentHostError, match="3 of 3 hosts did not answer within 3 s"):
        wait(3.0)
    assert time.monotonic() - began < 6, "each host alone may take 3 s"
