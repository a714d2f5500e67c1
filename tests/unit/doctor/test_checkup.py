"""What a host says of itself: it must work anywhere, so it is tried bare, and without its tools."""

import ast
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import psutil
import pytest

from compare import __version__
from compare.doctor import checkup
from compare.doctor.diagnose import Facts

SOURCE = Path(checkup.__file__).read_bytes()
LOOPBACK = "127.0.0.1"


def facts_of(argv, **environment):
    done = subprocess.run(
        argv,
        input=SOURCE,
        capture_output=True,
        check=False,
        timeout=60,
        env=os.environ | environment,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    (line,) = [row for row in done.stdout.decode().splitlines() if row.startswith(checkup.PREFIX)]
    return json.loads(line.removeprefix(checkup.PREFIX))


def test_it_needs_nothing_but_a_python():
    at_start = set()
    for node in ast.walk(ast.parse(SOURCE)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        at_start |= {name.partition(".")[0] for name in names}
    assert at_start - sys.stdlib_module_names == {"compare"}, "and that only where it is there"


def test_its_facts_are_those_that_are_judged():
    facts = checkup.look(quick=True, peers=("localhost",))
    assert facts.keys() == set(Facts.__struct_fields__)
    assert msgspec.convert(json.loads(json.dumps(facts)), Facts).hostname == socket.gethostname()
    assert LOOPBACK in facts["peers"]["localhost"]
    assert facts["began_at"] <= facts["answered_at"]


def test_where_ringside_is_missing_it_says_so():
    facts = facts_of([sys.executable, "-I", "-S", "-"], PATH="/nowhere")
    assert (facts["ringside"], facts["packages"]) == ("", {})
    assert facts["libraries"]["torch"] == {"problem": "Ringside is not there to load it"}
    assert facts["gpus"] == [], "nvidia-smi is not on this PATH"
    assert facts["python"].startswith("3.")


def test_given_as_input_it_finds_the_ringside_on_the_path(tmp_path):
    root = str(Path(checkup.__file__).parents[2])
    facts = facts_of([sys.executable, "-", "--quick"], PYTHONPATH=root, PYTHONSAFEPATH="1")
    assert (facts["ringside"], facts["ringside_path"]) == (__version__, root)
    assert facts["ringside_sources"] == checkup.ringside()["ringside_sources"]


def test_other_sources_have_another_digest(tmp_path):
    for package in ("compare", "backends"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("__version__ = '9'\n")
    argv, path = [sys.executable, "-", "--quick"], {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    before = facts_of(argv, **path)
    assert before["ringside"] == "9"
    assert before["ringside_sources"] == facts_of(argv, **path)["ringside_sources"]
    (tmp_path / "backends" / "new.py").write_text("")
    assert before["ringside_sources"] != facts_of(argv, **path)["ringside_sources"]


def test_interfaces_are_those_of_this_machine():
    found = {interface["name"]: interface for interface in checkup.interfaces()}
    expected = psutil.net_if_stats()
    assert {name: i["mtu"] for name, i in found.items()} == {n: s.mtu for n, s in expected.items()}
    assert f"{LOOPBACK}/8" in found["lo"]["addresses"]
    assert found["lo"]["up"]
    for name, addresses in psutil.net_if_addrs().items():
        four = [address.address for address in addresses if address.family == socket.AF_INET]
        assert four[:1] == [a.partition("/")[0] for a in found[name]["addresses"] if ":" not in a]


def test_names_that_nobody_answers_for_do_not_hold_it_up(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(checkup, "_NAMES_SECONDS", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: (never.wait(20), [])[1])
    facts = checkup.look(quick=True, peers=("n1",))
    never.set()
    assert facts["resolved"] == []
    assert 0.1 < facts["resolve_seconds"] < 10


@pytest.mark.parametrize(
    ("program", "facts"),
    [
        ("print('Welcome'); print('{\"version\": \"1\"}')", {"facts": {"version": "1"}}),
        ("raise ImportError('undefined symbol: x')", {"problem": "ImportError: undefined symbol: x"}),
        ("import os; os.abort()", {"problem": "status -6"}),
        ("import lib_that_is_not_there", {"missing": True}),
    ],
)
def test_a_library_answers_or_says_why_not(program, facts):
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert checkup._read_probe("lib_that_is_not_there", process) == facts


def test_a_library_that_does_not_come_back_is_ended(monkeypatch):
    monkeypatch.setattr(checkup, "PROBE_SECONDS", 0.3)
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert checkup._read_probe("torch", process) == {"problem": "it did not load within 0.3 s"}
    assert process.returncode == -9


def free_port():
    with socket.create_server((LOOPBACK, 0)) as probe:
        return probe.getsockname()[1]


def test_a_port_is_listened_at_and_connected_to(monkeypatch):
    port, came = free_port(), {}
    listener = threading.Thread(target=lambda: came.update(checkup.meet(LOOPBACK, port, 2, 10.0)))
    listener.start()
    monkeypatch.setattr(checkup, "_is_own", lambda address: threading.current_thread() is listener)
    assert checkup.meet(LOOPBACK, port, 2, 10.0) == {"role": "connects", "problem": ""}
    assert checkup.meet(LOOPBACK, port, 2, 10.0) == {"role": "connects", "problem": ""}
    listener.join(10)
    assert came == {"role": "listens", "problem": "", "came": 2}


def test_a_port_that_is_taken_is_told():
    with socket.create_server((LOOPBACK, 0)) as taken:
        found = checkup.meet(LOOPBACK, taken.getsockname()[1], 1, 0.3)
    assert found == {"role": "listens", "problem": "Address already in use"}


def test_whoever_comes_to_nobody_says_so(monkeypatch):
    monkeypatch.setattr(checkup, "_is_own", lambda address: False)
    found = checkup.meet(LOOPBACK, free_port(), 1, 0.3)
    assert found == {"role": "connects", "problem": "Connection refused"}


def test_whoever_waits_in_vain_says_so():
    assert checkup.meet(LOOPBACK, free_port(), 1, 0.3) == {"role": "listens", "problem": "", "came": 0}
