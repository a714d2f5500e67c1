"""``compare doctor`` on real hosts, healthy ones and ones made sick, each in a way of its own."""

import json
import sys
import time

import pytest

from tests.lab.hosts import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# On every host, whose /run is its own.
PYTHON = "/run/python"
SAME = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
# Another version of Python and torch, and a clock that is wrong: seen first, before the real ones.
OTHER = f'#!/bin/sh\nexec env PYTHONPATH="/run/other:$PYTHONPATH" {sys.executable} "$@"\n'
OTHER_SITE = """\
import platform, time
platform.python_version = lambda: "3.12.1"
right = time.time
time.time = lambda: right() - 100
"""
OTHER_TORCH = "Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n"
# A Python of the same version, in which nothing is installed.
BARE = f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n'


def write(machine, path, text, mode="644"):
    done = machine.run(
        ["sh", "-c", 'mkdir -p "${1%/*}" && cat >"$1" && chmod "$2" "$1"', "sh", path, mode], stdin=text
    )
    assert done.returncode == 0, done.stderr


def do(machine, *argv):
    done = machine.run(argv)
    assert done.returncode == 0, done.stderr


def doctor(lab, *options):
    """Let the login examine hosts; return what came of it, what was found, and in how many seconds."""
    began = time.monotonic()
    report = "/run/lab/report.json"
    done = lab.login.run([sys.executable, "-m", "compare", "doctor", *options, "--export-json", report])
    seconds = time.monotonic() - began
    assert done.returncode in {0, 9}, done.stderr
    return done, json.loads((lab.folder / "report.json").read_text()), seconds


def test_two_healthy_hosts(lab):
    hosts = "n1:1,n2:1"
    done, report, _ = doctor(lab, "-H", hosts, "--ports", "--export-markdown", "/run/lab/report.md")
    assert done.returncode == 0, done.stdout
    assert [f for f in report["findings"] if f["level"] != "note"] == []
    assert [host["facts"]["hostname"] for host in report["hosts"]] == ["n1", "n2"]
    one, two = (host["facts"] for host in report["hosts"])
    assert one["resolved"] == ["10.77.0.11"]
    assert two["peers"] == {"n1": ["10.77.0.11"], "n2": ["10.77.0.12"]}
    assert one["libraries"].keys() == {"torch", "horovod", "mpi4py"}
    assert not [name for name, library in one["libraries"].items() if library.get("problem")]
    met = [host["met"] for host in report["hosts"]]
    assert met == [
        {"role": "listens", "problem": "", "came": 1},
        {"role": "connects", "problem": "", "came": 0},
    ]
    assert report["hosts"][0]["met_at"].startswith("10.77.0.11:")
    assert "| n1 |" in (lab.folder / "report.md").read_text()
    for host in lab.hosts:
        assert host.command_lines() == [], "nothing is left running"


@pytest.fixture(scope="module")
def examined(requires_lab):
    """Examine a lab in which hardly a host is well."""
    with Lab(7) as lab:
        well, greedy, other, misnamed, locked, no_python, bare = lab.hosts
        for host in (well, greedy, misnamed, locked):
            write(host, PYTHON, SAME, "755")
        write(other, PYTHON, OTHER, "755")
        write(other, "/run/other/sitecustomize.py", OTHER_SITE)
        write(other, "/run/other/torch-1.2.3.dist-info/METADATA", OTHER_TORCH)
        write(misnamed, "/run/hosts", f"127.0.0.1 localhost\n127.0.1.1 {misnamed.name}\n")
        do(misnamed, "mount", "--bind", "/run/hosts", "/etc/hosts")
        do(misnamed, "mount", "-o", "remount,size=1m", "/dev/shm")  # noqa: S108 -- the host's own
        do(misnamed, "ip", "link", "set", "eth0", "mtu", "1400")
        do(locked, "mount", "--bind", "/dev/null", "/run/lab/keys/login.pub")
        assert no_python.run(["test", "-e", PYTHON]).returncode == 1
        write(bare, PYTHON, BARE, "755")
        rows = [f"{host.name} slots=1" for host in lab.hosts] + ["down"]
        rows[1] = f"{greedy.name} slots=999"
        (lab.folder / "hosts.txt").write_text("\n".join(rows) + "\n")
        yield doctor(lab, "--hostfile", "/run/lab/hosts.txt", "--quick", "--python", PYTHON)


def findings(examined, host, topic):
    _, report, _ = examined
    return [f for f in report["findings"] if (f["host"], f["topic"]) == (host, topic)]


def test_the_exit_code_says_that_there_are_problems(examined):
    done, report, _ = examined
    assert done.returncode == 9
    for host in report["hosts"]:
        assert host["host"]["name"] in done.stdout
    for finding in report["findings"]:
        assert finding["fix"]
        assert finding["fix"].splitlines()[0] in done.stdout


def test_a_host_that_is_well_is_left_in_peace(examined):
    _, report, _ = examined
    assert [f for f in report["findings"] if f["host"] == "n1"] == []


@pytest.mark.parametrize(
    ("host", "topic", "level", "what", "found", "fix"),
    [
        ("n2", "slots", "warning", "more slots than cores", "999 slots", "Give it"),
        ("n3", "python", "problem", "another Python", "3.12.1", "Make the environment there with Python"),
        ("n3", "torch", "problem", "another torch", "1.2.3, usually", "pip install torch=="),
        ("n3", "clock", "warning", "clock is wrong", "s behind the one here", "NTP"),
        (
            "n4",
            "hostname",
            "problem",
            "leads to its loopback",
            "n4 stands for 127.0.1.1",
            "give n4 10.77.0.14",
        ),
        ("n4", "disk", "problem", "full", "1.0 MB free", "--shm-size"),
        ("n4", "network", "warning", "another MTU", "1400 on eth0", "mtu 1500"),
        (
            "n5",
            "reach",
            "problem",
            "Does not let you log in without a password",
            "Permission denied",
            "ssh-copy-id",
        ),
        ("n6", "python", "problem", f"There is no {PYTHON}", PYTHON, "--python"),
        ("n7", "ringside", "problem", "Ringside is not there", "finds no module", "pip install ringside=="),
        ("n7", "torch", "problem", "torch is not installed", "The others have", "pip install torch=="),
        ("down", "reach", "problem", "Cannot be reached", "No route to host", "switched on"),
    ],
)
def test_what_is_wrong_is_found_and_how_to_mend_it(examined, host, topic, level, what, found, fix):
    (finding,) = findings(examined, host, topic)
    assert finding["level"] == level
    assert what in finding["what"]
    assert found in finding["found"]
    assert fix in finding["fix"]


def test_a_host_without_the_right_python_is_examined_by_another(examined):
    _, report, _ = examined
    (host,) = [host for host in report["hosts"] if host["host"]["name"] == "n6"]
    assert host["facts"]["hostname"] == "n6"


CHECK = """
import sys
from compare.doctor.examine import quick_check
from compare.errors import HostError
from compare.launch.engines.ssh import Ssh
from compare.schema.hosts import parse_hosts
try:
    _, found = quick_check(parse_hosts(sys.argv[1]), carrier=Ssh())
    print("well:", *(f"{finding.host}: {finding.what}" for finding in found))
except HostError as error:
    print(error)
"""


def check(lab, hosts):
    began = time.monotonic()
    done = lab.login.run([sys.executable, "-c", CHECK, hosts])
    assert done.returncode == 0, done.stderr
    return done.stdout, time.monotonic() - began


def test_before_a_run_hosts_that_are_well_take_a_second_or_two(lab):
    said, seconds = check(lab, "n1:1,n2:999")
    assert said == "well: n2: It has more slots than cores.\n"
    assert seconds < 10


def test_before_a_run_a_host_that_is_down_is_named(lab):
    said, seconds = check(lab, "n1:1,down:1")
    assert said.startswith("Host down (-H:2): Cannot be reached.\n")
    assert seconds < 15


def test_before_a_run_all_hosts_that_cannot_be_used_are_named_within_fifteen_seconds(lab):
    said, seconds = check(lab, "down,n1,nowhere,silent")
    assert said.startswith("3 of 4 hosts cannot be used.\nHost down (-H:1): Cannot be reached.")
    assert "Host nowhere (-H:3): Has a name that does not resolve." in said
    assert "Host silent (-H:4): Cannot be reached." in said
    assert seconds < 15
