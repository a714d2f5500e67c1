"""Test commands on real hosts over ssh, and their errors."""

import json
import sys
import time

import pytest

pytestmark = pytest.mark.lab

# In the private /tmp of a host.
BEGUN = "/tmp/begun"  # noqa: S108
THERE = "/tmp/there"  # noqa: S108

PROGRAM = """
import json, sys
from compare.errors import HostError
from compare.launch.engines.commands import *
from compare.launch.engines.ssh import Ssh
from compare.schema.hostfile import parse_hostfile
asked = json.loads(sys.argv[1])
hosts = parse_hostfile(asked["hosts"], "hosts.txt")
carrier = Ssh()
if asked["what"] == "put":
    files = {"a": b"1", "b": b"2"}
    require_success(put(hosts, "/tmp/there", files, carrier=carrier, timeout_seconds=20), carrier)
else:
    answers = run_everywhere(hosts, asked["argv"], carrier=carrier, timeout_seconds=asked.get("timeout", 20))
    try:
        require_success(answers, carrier)
        print(json.dumps([answer.stdout.decode() for answer in answers]))
    except HostError as error:
        print(json.dumps(str(error)))
"""


def ask(lab, **asked):
    """Run a command on hosts from the login; return result and seconds."""
    began = time.monotonic()
    done = lab.login.run([sys.executable, "-c", PROGRAM, json.dumps(asked)], timeout_seconds=60)
    assert done.returncode == 0, done.stderr
    return (json.loads(done.stdout) if done.stdout else None), time.monotonic() - began


def test_commands_answer_in_the_order_of_the_hosts(lab):
    answer, _ = ask(lab, what="run", hosts="n2\nn1\n10.77.0.11\n", argv=["hostname"])
    assert answer == ["n2\n", "n1\n", "n1\n"]


def test_commands_on_the_login_itself_need_no_ssh(lab):
    answer, _ = ask(lab, what="run", hosts="login\nn1", argv=["hostname"])
    assert answer == ["login\n", "n1\n"]


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("down", "Host down (hosts.txt:2) cannot be reached", "switched on"),
        ("silent", "Host silent (hosts.txt:2) cannot be reached", "switched on"),
        ("nowhere", "Host nowhere (hosts.txt:2) has a name that does not resolve", "Correct the name"),
        ("10.77.0.1", "Host 10.77.0.1 (hosts.txt:2) runs no sshd", "Start sshd"),
    ],
)
def test_commands_name_an_unreachable_host_within_fifteen_seconds(lab, name, what, remedy):
    answer, seconds = ask(lab, what="run", hosts=f"n1\n{name}", argv=["true"])
    assert what in answer
    assert remedy in answer
    assert seconds < 15


def test_commands_name_a_host_that_refuses_the_key(make_lab):
    lab = make_lab(1)
    (lab.folder / "keys" / "login.pub").write_text("")
    answer, seconds = ask(lab, what="run", hosts="n1", argv=["true"])
    assert "Host n1 (hosts.txt:1) does not let you log in without a password" in answer
    assert "ssh-copy-id" in answer
    assert seconds < 15


@pytest.mark.parametrize("known", ["", "n1,10.77.0.11 {other}"])
def test_commands_name_a_host_whose_key_is_unknown(make_lab, known):
    lab = make_lab(2)
    other = (lab.folder / "keys" / "n2.pub").read_text()
    (lab.folder / "known_hosts").write_text(known.format(other=other))
    answer, _ = ask(lab, what="run", hosts="n1", argv=["true"])
    assert "Host n1 (hosts.txt:1) is not known to ssh, or its host key has changed" in answer
    assert "known_hosts" in answer


def test_commands_name_a_host_with_a_wrong_interpreter(lab):
    answer, _ = ask(lab, what="run", hosts="n1", argv=["/no/such/python", "-m", "compare.worker"])
    assert "Host n1 (hosts.txt:1) cannot execute the command" in answer
    assert "/no/such/python" in answer


def test_commands_give_up_a_host_that_no_longer_answers(make_lab):
    lab = make_lab(1)
    lab.login.run(["ssh", "n1", "true"])
    program = [sys.executable, "-c", PROGRAM]
    asked = {"what": "run", "hosts": "n1", "argv": ["sh", "-c", f"touch {BEGUN}; sleep 60"], "timeout": 60}
    waiting = lab.login.start([*program, json.dumps(asked)], stdout=-1)
    (host,) = lab.hosts
    while host.run(["test", "-e", BEGUN]).returncode:
        time.sleep(0.05)
    host.link_down()
    began = time.monotonic()
    answer = waiting.communicate(timeout=30)[0]
    assert "Host n1 (hosts.txt:1) cannot be reached" in answer
    assert time.monotonic() - began < 15


def test_put_writes_folders_on_all_hosts(make_lab):
    lab = make_lab(2)
    ask(lab, what="put", hosts="n1\nn2")
    for host in lab.hosts:
        assert host.run(["tail", "-n+1", f"{THERE}/a", f"{THERE}/b"]).stdout.split() == [
            *("==>", f"{THERE}/a", "<==", "1", "==>", f"{THERE}/b", "<==", "2")
        ]
        assert host.run(["stat", "-c", "%a", THERE, f"{THERE}/a"]).stdout.split() == ["700", "600"]
