"""Waiting for hosts that are starting."""

import pytest

from compare.errors import HostError
from compare.launch.engines import AbsentHostError, arrival
from compare.launch.engines.arrival import wait_for_hosts
from compare.launch.engines.ssh import Ssh
from compare.schema.hosts import Host

HOSTS = [Host(f"w{number}", 1, source=f"hostfile:{number}") for number in range(3)]
# It answers as ssh does: by a file for each host, which may be missing, or has what is printed.
SSH = """\
for word do case $word in w[0-9]) host=$word ;; esac; done
[ -e {folder}/$host ] || { echo "ssh: Could not resolve hostname $host: unknown" >&2; exit 255; }
read -r line <{folder}/$host || exit 0
echo "$line" >&2; exit 255
"""


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(arrival, "_PAUSE_SECONDS", 0.02)


@pytest.fixture
def answers(programs, tmp_path):
    programs("ssh", SSH.replace("{folder}", str(tmp_path)))

    def write(name, line=""):
        (tmp_path / name).write_text(line and f"{line}\n")

    return write


def wait(seconds, say=lambda _: None, hosts=HOSTS):
    wait_for_hosts(hosts, carrier=Ssh(), seconds=seconds, say=say)


def test_hosts_that_come_one_by_one_are_named_while_missing(answers):
    lines = []

    def say(line):
        lines.append(line)
        if len(lines) == 1:
            answers("w2", "ssh: connect to host w2 port 22: Connection refused")
        else:
            answers("w1")
            answers("w2")

    answers("w0")
    wait(60, say)
    assert lines[0].startswith("Waiting for 2 of 3 hosts, at most ")
    assert "Host w1 (hostfile:1) has a name that does not resolve. Host w2 (hostfile:2) has" in lines[0]
    assert "Host w2 (hostfile:2) runs no sshd" in lines[1]
    assert lines[2:] == ["All 3 hosts are there"]


def test_hosts_that_are_there_need_no_word(answers):
    for host in HOSTS:
        answers(host.name)
    wait(60, pytest.fail)


def test_hosts_that_never_come_are_named_with_what_to_do(answers):
    answers("w1")
    with pytest.raises(AbsentHostError, match=r"^2 of 3 hosts did not come within 0 s\.") as caught:
        wait(0.1)
    assert "Host w0 (hostfile:0) has a name that does not resolve. ssh: Could not" in caught.value.found
    assert "--exclude w0,w2" in caught.value.remedy
    assert caught.value.exit_code == 9
    many = [Host(f"w{number}", 1) for number in range(9)]
    with pytest.raises(AbsentHostError) as caught:
        wait(0.1, hosts=many)
    assert caught.value.found.endswith("And 4 more.")


def test_launcher_whose_name_begins_to_resolve_is_awaited(answers, monkeypatch):
    """The name is there after ssh failed for want of it."""
    resolved = iter([False])
    monkeypatch.setattr("compare.launch.engines.ssh.is_local", lambda _host: next(resolved, True))
    lines = []
    wait(60, lines.append, HOSTS[:1])
    assert "Host w0 (hostfile:0) has a name that does not resolve." in lines[0]
    assert lines[1:] == ["All 1 hosts are there"]


def test_host_that_refuses_the_login_is_not_awaited(answers):
    answers("w0", "root@w0: Permission denied (publickey).")
    with pytest.raises(HostError, match=r"Host w0 .* does not let you log in") as caught:
        wait(60)
    assert not isinstance(caught.value, AbsentHostError)
