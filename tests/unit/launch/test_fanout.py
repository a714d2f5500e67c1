"""Reaching hosts: how ssh is called, what its failures mean, and many at once. Real ones: tests/lab."""

import os
import resource
import shlex
import stat
import subprocess
import sys
import time

import pytest

from compare.errors import HostError, UnavailableError
from compare.launch.engines.fanout import Answer, Reach, command, get, put, require, run_everywhere, trouble
from compare.schema.hosts import Host, parse_hostfile

HERE = Host(name="localhost", slots=1)
THERE = Host(name="n1", slots=1, source="hosts.txt:3")


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """Put an ssh on PATH that notes its arguments and does what a shell script says."""

    def install(script):
        program = tmp_path / "bin" / "ssh"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return install


def an_answer(status, stderr=b"", host=THERE):
    return Answer(host, status, b"", stderr, 1.0)


def test_this_machine_is_reached_without_ssh():
    assert command(HERE, ["a", "b c"], Reach()) == ("a", "b c")


def test_ssh_is_called_like_this():
    assert command(THERE, ["python", "-m", "x"], Reach()) == (
        "ssh",
        "-T",
        "-oBatchMode=yes",
        "-oForwardAgent=no",
        "-oForwardX11=no",
        "-oEscapeChar=none",
        "-oConnectTimeout=10",
        "-oServerAliveInterval=3",
        "-oServerAliveCountMax=2",
        "--",
        "n1",
        "python -m x",
    )


def test_user_port_and_identity_are_handed_on():
    reach = Reach(user="alice", port=2222, identity="/keys/mine", connect_timeout_seconds=3)
    made = command(THERE, ["true"], reach)
    assert made[6:] == (
        *("-oConnectTimeout=3", "-oServerAliveInterval=3", "-oServerAliveCountMax=2"),
        *("-p2222", "-i/keys/mine", "-lalice", "--", "n1", "true"),
    )
    assert "-lbob" in command(Host(name="n1", user="bob", slots=1), ["true"], reach), "the host's own first"
    assert command(Host(name="::1f", slots=1), ["true"], reach)[-2] == "::1f"


def test_whoever_wrote_a_user_before_localhost_wants_a_login():
    assert command(Host(name="localhost", user="alice", slots=1), ["true"], Reach())[0] == "ssh"


@pytest.mark.parametrize("word", ["a b", "$HOME", "`id`", "'", '"', "a\nb", "", ";rm -rf x", "*", "é"])
def test_the_shell_at_the_other_end_changes_nothing(fake_ssh, word):
    # As sshd does it: one string, given to the user's shell.
    fake_ssh('for last; do :; done; exec sh -c "$last"')
    argv = [sys.executable, "-c", "import sys; sys.stdout.write(sys.argv[1])", word]
    (answer,) = run_everywhere([THERE], argv, reach=Reach(), timeout_seconds=20)
    assert answer.status == 0
    assert answer.stdout.decode() == word


def test_bytes_come_and_go_as_they_are():
    data = bytes(range(256)) * 4096 + b"no newline\r\n\r"
    (answer,) = run_everywhere([HERE], ["cat"], reach=Reach(), timeout_seconds=20, stdin=data)
    assert (answer.status, answer.stdout, answer.stderr) == (0, data, b"")


def test_output_and_errors_are_kept_apart_and_the_status_is_the_commands():
    argv = ["sh", "-c", "echo out; echo err >&2; exit 7"]
    (answer,) = run_everywhere([HERE], argv, reach=Reach(), timeout_seconds=20)
    assert (answer.status, answer.stdout, answer.stderr) == (7, b"out\n", b"err\n")


def test_input_that_nobody_reads_is_no_failure(capfd):
    (answer,) = run_everywhere([HERE], ["true"], reach=Reach(), timeout_seconds=20, stdin=bytes(1 << 22))
    assert answer.status == 0
    assert capfd.readouterr().err == ""


def test_no_hosts_give_no_answers():
    assert run_everywhere([], ["true"], reach=Reach(), timeout_seconds=1) == []


def test_a_host_that_does_not_answer_is_given_up_and_the_others_are_not(fake_ssh):
    fake_ssh('case "$*" in *slow*) exec sleep 30;; *) echo fine;; esac')
    began = time.monotonic()
    hosts = [Host(name=name, slots=1) for name in ("quick", "slow", "other")]
    answers = run_everywhere(hosts, ["true"], reach=Reach(), timeout_seconds=1)
    assert time.monotonic() - began < 10
    assert [answer.status for answer in answers] == [0, None, 0]
    assert [answer.host for answer in answers] == hosts
    with pytest.raises(HostError, match="Host slow did not answer within 1 s"):
        require(answers)


@pytest.mark.timed
def test_five_hundred_hosts_take_about_as_long_as_the_slowest(fake_ssh):
    fake_ssh('case "$*" in *n77*) sleep 6;; *) sleep 5;; esac')
    hosts = parse_hostfile("n[1-500]\n", "hosts.txt")
    assert len(hosts) == 500
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    began = time.monotonic()
    answers = run_everywhere(hosts, ["true"], reach=Reach(), timeout_seconds=60)
    seconds = time.monotonic() - began
    assert {answer.status for answer in answers} == {0}
    # Two batches would take ten seconds of sleep alone, 64 at a time forty; the rest is 500 processes.
    assert seconds < 30
    slowest = max(answer.seconds for answer in answers)
    assert seconds < slowest + 15
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


FEW_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from compare.launch.engines.fanout import Reach, run_everywhere
from compare.schema.hosts import Host
hosts = [Host(name=f"n{number}", slots=1) for number in range(30)]
answers = run_everywhere(hosts, ["true"], reach=Reach(), timeout_seconds=60, stdin=b"x")
print([answer.stdout for answer in answers] == [b"x"] * 30)
"""


def test_few_open_files_make_it_slower_and_not_wrong(fake_ssh):
    fake_ssh("exec cat")
    child = subprocess.run(
        [sys.executable, "-c", FEW_FILES], capture_output=True, text=True, check=False, timeout=120
    )
    assert child.stdout == "True\n", child.stderr


def test_without_ssh_other_hosts_are_out_of_reach(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="ssh"):
        run_everywhere([THERE], ["true"], reach=Reach(), timeout_seconds=1)


@pytest.mark.parametrize(
    ("said", "what", "remedy"),
    [
        ("ssh: connect to host n1 port 22: Connection timed out", "cannot be reached", "switched on"),
        ("ssh: connect to host n1 port 22: No route to host", "cannot be reached", "switched on"),
        ("Connection closed by 10.0.0.1 port 22", "cannot be reached", "switched on"),
        ("ssh: connect to host n1 port 22: Connection refused", "runs no sshd", "port"),
        ("root@n1: Permission denied (publickey).", "without a password", "ssh-copy-id"),
        ("Host key verification failed.", "not known to ssh", "known_hosts"),
        ("ssh: Could not resolve hostname n1: Name or service not known", "name", "Correct the name"),
        ("something new", "ssh failed", "Try `ssh n1`"),
    ],
)
def test_what_ssh_says_becomes_what_to_do(said, what, remedy):
    error = trouble(an_answer(255, f"Welcome to n1\n{said}\r\n".encode()))
    assert "Host n1 (hosts.txt:3)" in error.what
    assert what in error.what
    assert said in error.found
    assert remedy in error.remedy
    assert error.exit_code == 9


def test_a_wrong_python_is_told_from_an_ssh_that_failed():
    error = trouble(an_answer(127, b"bash: line 1: /opt/py/bin/python: No such file or directory\n"))
    assert "/opt/py/bin/python" in error.found
    assert "same path on every host" in error.remedy
    error = trouble(an_answer(1, b"/usr/bin/python: No module named 'compare'\n"))
    assert "Is Ringside installed there" in error.remedy


def test_a_status_of_255_of_this_machine_is_not_sshs():
    assert "status 255" in trouble(an_answer(255, b"Permission denied", HERE)).what


def test_many_troubles_are_told_together():
    answers = [
        an_answer(255, b"Connection refused", Host(name=f"n{number}", slots=1)) for number in range(20)
    ]
    require([an_answer(0)])
    with pytest.raises(HostError) as raised:
        require([*answers, an_answer(0)])
    assert raised.value.what == "20 of 21 hosts cannot be used."
    assert "Host n7 " in raised.value.found
    assert "and 12 more" in raised.value.found
    assert raised.value.remedy.count("Start sshd") == 1


def test_a_folder_that_was_put_can_be_got_and_is_its_owners_alone(tmp_path):
    files = {"job.json": b"{}", "secret": bytes(range(256))}
    folder = tmp_path / "a 'folder'"
    require(put([HERE], str(folder), files, reach=Reach(), timeout_seconds=20))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    ((answer, got),) = get([HERE], str(folder), reach=Reach(), timeout_seconds=20)
    assert (answer.status, got) == (0, files)


def test_a_folder_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("precious")
    (answer,) = put([HERE], str(tmp_path / "there"), {"x": b""}, reach=Reach(), timeout_seconds=20)
    assert answer.status != 0
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "mine"]


def test_a_folder_that_is_not_there_gives_no_files(tmp_path):
    ((answer, got),) = get([HERE], str(tmp_path / "no"), reach=Reach(), timeout_seconds=20)
    assert answer.status != 0
    assert got == {}


def test_what_is_put_never_shows_in_arguments(fake_ssh, tmp_path):
    fake_ssh(f'echo "$@" >>{shlex.quote(str(tmp_path / "seen"))}; cat >/dev/null')
    require(put([THERE], "/x", {"environment": b"hunter2"}, reach=Reach(), timeout_seconds=20))
    assert "hunter2" not in (tmp_path / "seen").read_text()
