"""Run the check-up on a bare Python, and without tools."""

import ast
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest

from compare import __version__
from compare.doctor import checkup
from compare.doctor.facts import Facts
from tests.waiting import free_port

SOURCE = Path(checkup.__file__).read_bytes()
LOOPBACK = "127.0.0.1"


def facts_of(argv, **environment):
    environment = os.environ | environment
    done = subprocess.run(
        argv, input=SOURCE, capture_output=True, check=False, timeout=60, env=environment, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    (line,) = [row for row in done.stdout.decode().splitlines() if row.startswith(checkup.PREFIX)]
    return json.loads(line.removeprefix(checkup.PREFIX))


def test_checkup_imports_only_the_standard_library():
    at_start = set()
    for node in ast.walk(ast.parse(SOURCE, feature_version=(3, 8))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        at_start |= {name.partition(".")[0] for name in names}
    assert at_start - sys.stdlib_module_names == {"compare", "psutil"}, "imported only if they are installed"


def test_collect_facts_returns_exactly_the_fields_of_facts():
    facts = checkup.collect_facts(quick=True, peers=("localhost",))
    assert facts.keys() == set(Facts.__struct_fields__)
    assert msgspec.convert(json.loads(json.dumps(facts)), Facts).hostname == socket.gethostname()
    assert LOOPBACK in facts["peers"]["localhost"]
    assert facts["began_at"] <= facts["answered_at"]


def test_checkup_on_a_bare_python_reports_no_ringside():
    facts = facts_of([sys.executable, "-I", "-S", "-"], PATH="/nowhere")
    assert (facts["ringside"], facts["packages"]) == ("", {})
    assert facts["libraries"] == {}, "Ringside would load them"
    assert facts["gpus"] == [], "nvidia-smi is not on this PATH"
    assert facts["interfaces"] == [], "psutil would find them"
    assert facts["python"].startswith("3.")


def test_checkup_as_standard_input_finds_ringside_on_the_path(tmp_path):
    root = str(Path(checkup.__file__).parents[2])
    facts = facts_of([sys.executable, "-", "--quick"], PYTHONPATH=root, PYTHONSAFEPATH="1")
    assert (facts["ringside"], facts["ringside_path"]) == (__version__, root)
    assert facts["ringside_sources"] == checkup.ringside_facts()["ringside_sources"]


def test_ringside_digest_changes_with_the_sources(tmp_path):
    for package in ("compare", "backends"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("__version__ = '9'\n")
    argv, path = [sys.executable, "-", "--quick"], {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    before = facts_of(argv, **path)
    assert before["ringside"] == "9"
    assert before["ringside_sources"] == facts_of(argv, **path)["ringside_sources"]
    (tmp_path / "backends" / "new.py").write_text("")
    assert before["ringside_sources"] != facts_of(argv, **path)["ringside_sources"]


def test_interfaces_have_addresses_with_the_length_of_their_prefix(monkeypatch):
    (loopback,) = [interface for interface in checkup.interfaces() if interface["name"] == "lo"]
    assert loopback["up"]
    assert f"{LOOPBACK}/8" in loopback["addresses"]
    found = SimpleNamespace(family=socket.AF_INET6, address="fd00::1", netmask="ffff:ffff:ffff:fff0::")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": [found]})
    (loopback,) = [interface for interface in checkup.interfaces() if interface["name"] == "lo"]
    assert loopback["addresses"] == ["fd00::1/60"]


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """Make a probe of the library ``missing_one`` that runs this program instead."""
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")

    def start(program):
        (tmp_path / "backends" / "probe.py").write_text(program)
        return checkup.Probe("missing_one")

    return start


@pytest.mark.parametrize(
    ("program", "facts"),
    [
        ("print('Welcome'); print('{\"version\": \"1\"}')", {"facts": {"version": "1"}}),
        ("raise ImportError('undefined symbol: x')", {"problem": "ImportError: undefined symbol: x"}),
        ("import os; os.abort()", {"problem": "status -6"}),
        ("import missing_one", {"missing": True}),
        ("print('null')", {"missing": True}),
        (
            "raise ImportError(\"No module named 'missing_one.part'\")",
            {"problem": "ImportError: No module named 'missing_one.part'"},
        ),
    ],
)
def test_probe_reads_the_facts_or_the_last_error_line(probe, program, facts):
    assert probe(program).read(60.0, 60.0) == facts


def test_library_that_still_works_gets_more_time(probe, monkeypatch):
    """Beside a load, a library that loads well takes long, and must not be reported as a broken one."""
    monkeypatch.setattr(checkup, "_LOOK_SECONDS", 1.0)
    works = "import time\nwhile time.process_time() < 2: pass\nprint('{}')"
    assert probe(works).read(0.5, 120.0) == {"facts": {}}


def test_library_that_works_for_ever_is_given_up_as_unknown(probe, monkeypatch):
    monkeypatch.setattr(checkup, "_LOOK_SECONDS", 0.5)
    outcome = probe("while True: pass").read(0.5, 2.0)
    assert outcome.keys() == {"unanswered"}
    assert re.fullmatch(r"no answer in \d+ s, beside a load of [\d.]+ on \d+ cores", outcome["unanswered"])


def test_libraries_that_hang_share_one_limit(probe, monkeypatch):
    """Two libraries that hang must not take 40 seconds each, because somebody waits for the host."""
    monkeypatch.setattr(checkup, "PROBE_SECONDS", 8.0)
    monkeypatch.setattr(checkup, "_LOOK_SECONDS", 1.0)
    program = "import sys, time; time.sleep(60 * (sys.argv[1] in {'torch', 'mpi4py'})); print('{}')"
    probe(program).end()
    began = time.monotonic()
    libraries = checkup.collect_facts()["libraries"]
    assert time.monotonic() - began < 2 * 8.0
    assert [name for name, outcome in libraries.items() if "unanswered" in outcome] == ["torch", "mpi4py"]
    assert [name for name, outcome in libraries.items() if outcome == {"facts": {}}] == ["horovod", "mpich"]


def test_try_port_counts_the_hosts_that_connect(monkeypatch):
    port, listened = free_port(), {}
    listener = threading.Thread(target=lambda: listened.update(checkup.try_port(LOOPBACK, port, 2, 10.0)))
    listener.start()
    monkeypatch.setattr(checkup, "_is_own", lambda address: threading.current_thread() is listener)
    assert checkup.try_port(LOOPBACK, port, 2, 10.0) == {"role": "connects", "problem": ""}
    assert checkup.try_port(LOOPBACK, port, 2, 10.0) == {"role": "connects", "problem": ""}
    listener.join(10)
    assert listened == {"role": "listens", "problem": "", "connected": 2}


def test_try_port_that_fails_names_the_role_and_the_problem(monkeypatch):
    with socket.create_server((LOOPBACK, 0)) as taken:
        found = checkup.try_port(LOOPBACK, taken.getsockname()[1], 1, 0.3)
    assert found == {"role": "listens", "problem": "Address already in use"}
    found = checkup.try_port(LOOPBACK, free_port(), 1, 0.3)
    assert found == {"role": "listens", "problem": "", "connected": 0}
    monkeypatch.setattr(checkup, "_is_own", lambda address: False)
    found = checkup.try_port(LOOPBACK, free_port(), 1, 0.3)
    assert found == {"role": "connects", "problem": "Connection refused"}
