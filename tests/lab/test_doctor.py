"""``ringside doctor`` on real hosts: healthy ones, and ones with a defect each."""

import json
import sys
import time

import pytest

from tests.lab.hosts import Lab
from tests.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# On every host, whose /run is its own.
PYTHON = "/run/python"
SAME = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
# Another version of Python and torch, and a wrong clock; its folder comes before the real ones.
OTHER = f'#!/bin/sh\nexec env PYTHONPATH="/run/other:$PYTHONPATH" {sys.executable} "$@"\n'
OTHER_MACHINE = """\
import platform, time
platform.python_version = lambda: "3.12.1"
right = time.time
time.time = lambda: right() - 100
"""
OTHER_TORCH = "Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n"
# A Python of the same version without packages.
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
    """Run the doctor on the login host; return process, report and seconds."""
    began = time.monotonic()
    report = "/run/lab/report.json"
    done = lab.login.run([sys.executable, "-m", "compare", "doctor", *options, "--export", report])
    seconds = time.monotonic() - began
    assert done.returncode in {0, 9}, done.stderr
    return done, json.loads((lab.folder / "report.json").read_text()), seconds


def test_doctor_healthy_hosts_have_no_findings(lab):
    hosts = "n1:1,n2:1"
    done, report, _ = doctor(lab, "-H", hosts, "--ports", "--export", "/run/lab/report.md")
    assert done.returncode == 0, done.stdout
    assert [f for f in report["findings"] if f["level"] != "note"] == []
    assert [host["facts"]["hostname"] for host in report["hosts"]] == ["n1", "n2"]
    one, two = (host["facts"] for host in report["hosts"])
    assert one["resolved"] == ["10.77.0.11"]
    assert two["peers"] == {"n1": ["10.77.0.11"], "n2": ["10.77.0.12"]}
    assert one["libraries"].keys() == {"torch", "horovod", "mpi4py", "mpich"}
    assert not [name for name, library in one["libraries"].items() if library.get("problem")]
    trials = [host["port_trial"] for host in report["hosts"]]
    assert trials == [
        {"role": "listens", "problem": "", "connected": 1},
        {"role": "connects", "problem": "", "connected": 0},
    ]
    assert report["hosts"][0]["port_address"].startswith("10.77.0.11:")
    assert "| n1 |" in (lab.folder / "report.md").read_text()
    for host in lab.hosts:
        assert host.command_lines() == [], "no process is left"


@pytest.fixture(scope="module")
def examined(requires_lab):
    """Examine a lab whose hosts have defects, all but the first."""
    with Lab(7) as lab:
        well, greedy, other, misnamed, locked, no_python, bare = lab.hosts
        for host in (well, greedy, misnamed, locked):
            write(host, PYTHON, SAME, "755")
        write(other, PYTHON, OTHER, "755")
        write(other, "/run/other/sitecustomize.py", OTHER_MACHINE)
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


def test_doctor_problems_exit_with_9_and_print_every_fix(examined):
    done, report, _ = examined
    assert done.returncode == 9
    for host in report["hosts"]:
        assert host["host"]["name"] in done.stdout
    for finding in report["findings"]:
        assert finding["fix"]
        assert finding["fix"].splitlines()[0] in done.stdout


def test_doctor_healthy_host_among_others_has_no_findings(examined):
    _, report, _ = examined
    found = [f for f in report["findings"] if f["host"] == "n1"]
    assert [f for f in found if f["topic"] != "load"] == [], "other tests may keep the machine busy"


@pytest.mark.parametrize(
    ("host", "topic", "level", "what", "found", "fix"),
    [
        ("n2", "slots", "warning", "more slots than cores", "999 slots", "Give the host"),
        ("n3", "python", "problem", "Python differs", "3.12.1", "Recreate the environment there with Python"),
        ("n3", "torch", "problem", "torch differs", "1.2.3 here, but", "pip install torch=="),
        ("n3", "clock", "warning", "clocks differ", "s behind the clock of this machine", "NTP"),
        ("n4", "hostname", "problem", "to its loopback", "n4 resolves to 127.0.1.1", "address 10.77.0.14"),
        ("n4", "disk", "problem", "full", "/dev/shm: 1", "--shm-size"),  # noqa: S108 -- a name
        ("n4", "network", "warning", "another MTU", "1400 on eth0", "mtu 1500"),
        (
            "n5",
            "reach",
            "problem",
            "Does not let you log in without a password",
            "Permission denied",
            "ssh-copy-id",
        ),
        ("n6", "python", "problem", f"{PYTHON} does not exist", PYTHON, "--python"),
        ("n7", "ringside", "problem", "not installed", "finds no module", "the wheel of Ringside"),
        ("n7", "torch", "problem", "torch is not installed", "The others have", "pip install torch=="),
        ("down", "reach", "problem", "Cannot be reached", "No route to host", "switched on"),
    ],
)
def test_doctor_defect_is_found_with_its_fix(examined, host, topic, level, what, found, fix):
    (finding,) = findings(examined, host, topic)
    assert finding["level"] == level
    assert what in finding["what"]
    assert found in finding["found"]
    assert fix in finding["fix"]


def test_doctor_missing_python_is_replaced_by_another(examined):
    _, report, _ = examined
    (host,) = [host for host in report["hosts"] if host["host"]["name"] == "n6"]
    assert host["facts"]["hostname"] == "n6"


def test_doctor_killed_leaves_no_process_on_any_host(lab):
    asking = lab.login.start([sys.executable, "-m", "compare", "doctor", "-H", "n1,n2"])
    probes = ["backends.probe torch", "ssh"]
    for machine, word in ((lab.hosts[0], probes[0]), (lab.hosts[1], probes[0]), (lab.login, probes[1])):
        wait_until(lambda: any(word in line for line in machine.command_lines()), seconds=20)  # noqa: B023
    (program,) = [process for process in lab.login.processes() if "doctor" in process.cmdline()]
    program.kill()
    asking.wait()
    wait_until(lambda: not any(machine.command_lines() for machine in lab.running()), seconds=5)


CHECK = """
import sys
from compare.doctor.examine import check_beforehand
from compare.errors import HostError
from compare.launch.engines.ssh import Ssh
from compare.schema.hostfile import parse_hosts
try:
    found = check_beforehand(parse_hosts(sys.argv[1]), carrier=Ssh())(failed=False)
    print("healthy:", *(f"{finding.host}: {finding.what}" for finding in found))
except HostError as error:
    print(error)
"""


def check(lab, hosts):
    began = time.monotonic()
    done = lab.login.run([sys.executable, "-c", CHECK, hosts])
    assert done.returncode == 0, done.stderr
    return done.stdout, time.monotonic() - began


@pytest.mark.parametrize(
    ("hosts", "parts", "limit_seconds"),
    [
        ("n1:1,n2:999", ["healthy: n2: The host has more slots than cores.\n"], 10),
        (
            "down,n1,nowhere,silent,10.77.0.1",
            [
                "4 of 5 hosts cannot be used.\nHost down (-H:1): Cannot be reached.",
                "Host nowhere (-H:3): Has a name that does not resolve.",
                "Host silent (-H:4): Cannot be reached.",
                "Host 10.77.0.1 (-H:5): Has no sshd that listens at this port.",
            ],
            15,
        ),
    ],
)
def test_quick_check_names_unusable_hosts_in_time(lab, hosts, parts, limit_seconds):
    printed, seconds = check(lab, hosts)
    assert printed.startswith(parts[0])
    assert [part for part in parts if part not in printed] == []
    assert seconds < limit_seconds


def test_quick_check_names_a_host_whose_key_is_unknown_or_another(make_lab):
    lab = make_lab(2)
    other = (lab.folder / "keys" / "n2.pub").read_text()
    for known in ("", f"n1,10.77.0.11 {other}"):
        (lab.folder / "known_hosts").write_text(known)
        printed, _ = check(lab, "n1")
        assert "Host n1 (-H:1): Is not known to ssh, or its host key has changed" in printed
        assert "known_hosts" in printed


def test_doctor_answers_are_in_the_order_of_hosts_and_here_without_ssh(lab):
    done, report, _ = doctor(lab, "-H", "n2,login,n1", "--quick")
    assert [host["facts"]["hostname"] for host in report["hosts"]] == ["n2", "login", "n1"], done.stdout


def test_one_machine_under_two_names_is_named_by_doctor_and_run(lab):
    names = f"n1,{lab.hosts[0].address}"
    done, report, _ = doctor(lab, "-H", names, "--quick")
    assert "Two names lead to the same machine." in [finding["what"] for finding in report["findings"]]
    words = ["run", "-H", names, "--backend", "ddp", "--steps", "40"]
    done = lab.login.run([sys.executable, "-m", "compare", *words])
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{lab.hosts[0].address} is the same machine as n1." in done.stderr
    assert "Name it once, with all its slots: 'n1 slots=2'." in done.stderr
