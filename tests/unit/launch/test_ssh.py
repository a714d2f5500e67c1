"""The ssh carrier: command lines, errors, and the ``ssh`` for launchers.

Real hosts are in tests/lab.
"""

import shutil
import subprocess

import pytest

from compare.errors import UnavailableError
from compare.launch.engines import Answer, Carrier
from compare.launch.engines.ssh import Ssh
from compare.schema.hosts import Host

HERE = Host(name="localhost", slots=1)
THERE = Host(name="n1", slots=1, source="hosts.txt:3")


def an_answer(status, stderr=b"", host=THERE):
    return Answer(host, status, b"", stderr, 1.0, ran_here=host is HERE)


@pytest.mark.parametrize("carrier", [Carrier(), Ssh(user="alice", port=22022)])
def test_carrier_on_this_machine_is_the_command_itself(carrier):
    assert carrier.argv(HERE, ["a", "b c"]) == ("a", "b c")
    assert carrier.by_hand(HERE) == ""
    assert carrier.explain(an_answer(255, b"Permission denied", HERE)) is None
    assert carrier.remote_shell([HERE]) == ""


def test_ssh_argv_never_asks_and_keeps_alive():
    *argv, command = Ssh().argv(THERE, ["python", "-m", "x"])
    assert " ".join(argv) == (
        "ssh -T -oBatchMode=yes -oForwardAgent=no -oForwardX11=no -oEscapeChar=none -oConnectTimeout=10"
        " -oServerAliveInterval=3 -oServerAliveCountMax=2 -- n1"
    )
    assert command == "python -m x"
    assert Ssh().argv(Host(name="localhost", user="alice", slots=1), ["true"])[0] == "ssh"


def test_ssh_argv_takes_user_port_and_identity():
    carrier = Ssh(user="alice", port=2222, identity="/keys/mine", connect_timeout_seconds=3)
    assert carrier.argv(THERE, ["true"])[6:] == (
        *("-oConnectTimeout=3", "-oServerAliveInterval=3", "-oServerAliveCountMax=2"),
        *("-p2222", "-i/keys/mine", "-lalice", "--", "n1", "true"),
    )
    assert "-lbob" in carrier.argv(Host(name="n1", user="bob", slots=1), ["true"]), "the host's own first"
    assert carrier.argv(Host(name="::1f", slots=1), ["true"])[-2] == "::1f"


def test_ssh_by_hand_has_the_users_flags_alone():
    carrier = Ssh(user="alice", port=2222, identity="/my keys/id")
    assert carrier.by_hand(THERE) == "ssh -p2222 '-i/my keys/id' -lalice n1"
    assert carrier.by_hand(Host(name="n1", user="bob", slots=1)) == "ssh -p2222 '-i/my keys/id' bob@n1"


def test_ssh_that_is_not_installed_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="ssh is not installed"):
        Ssh().argv(THERE, ["true"])
    with pytest.raises(UnavailableError, match="ssh is not installed"):
        Ssh().remote_shell([THERE])


@pytest.mark.parametrize(
    ("printed", "what", "remedy"),
    [
        ("ssh: connect to host n1 port 22: Connection timed out", "cannot be reached", "switched on"),
        ("ssh: connect to host n1 port 22: No route to host", "cannot be reached", "switched on"),
        ("Connection closed by 10.0.0.1 port 22", "cannot be reached", "switched on"),
        ("ssh: connect to host n1 port 22: Connection refused", "has no sshd", "port"),
        ("root@n1: Permission denied (publickey).", "without a password", "ssh-copy-id"),
        ("Host key verification failed.", "not known to ssh", "known_hosts"),
        ("ssh: Could not resolve hostname n1: Name or service not known", "name", "Correct it"),
        ("something new", "ssh failed", "Try `ssh n1`"),
    ],
)
def test_ssh_errors_say_what_to_do(printed, what, remedy):
    error = Ssh().explain(an_answer(255, f"Welcome to n1\n{printed}\r\n".encode()))
    assert "Host n1 (hosts.txt:3)" in error.what
    assert what in error.what
    assert printed in error.found
    assert remedy in error.remedy
    assert error.exit_code == 9
    for status in (1, None):
        assert Ssh().explain(an_answer(status, printed.encode())) is None
    assert Ssh().explain(an_answer(255, b"\x1b[2J\x07evil\n")).found == r"\x1b[2J\x07evil", "as text"


@pytest.mark.parametrize(("host", "user"), [("n1", "alice"), ("n2", r"LAB\bob")])
def test_ssh_of_launchers_logs_in_as_the_carrier_does(fake_ssh, tmp_path, host, user):
    """horovodrun passes StrictHostKeyChecking=no, but the user's own setting counts."""
    fake_ssh(f'exec {shutil.which("ssh")} -G "$@"')  # it prints the configuration that it has read
    program, key = tmp_path / "ssh", tmp_path / "of mine"
    key.touch()
    carrier = Ssh(user=r"LAB\bob", port=2222, identity=str(key))
    program.write_text(carrier.remote_shell([Host("n1", 1, "alice"), Host("n2", 1)]))
    program.chmod(0o700)
    options = ("-x", "-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no")
    read = subprocess.check_output([program, *options, host, "-p", "22", "a 'b' *", "&&", "c"], text=True)
    expected = {"port 2222", f"identityfile {key}", "batchmode yes", "serveraliveinterval 3"}
    expected |= {f"user {user}", f"hostname {host}", "passwordauthentication yes"}
    assert expected <= set(read.splitlines())
    fake_ssh('for last; do :; done; printf %s "$last"')
    assert subprocess.check_output([program, host, "a 'b' *", "&&", "c"], text=True) == "a 'b' * && c"
