"""Test how a user's own script is started, interrupted and ended."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from backends.launchers.request import Command
from compare.errors import UnavailableError, UsageError
from compare.launch import script
from compare.launch.engines import Carrier
from compare.launch.script import Attached, Place, run_attached, script_commands
from compare.schema.hosts import Host, Network, local_host

ARGUMENTS = ["train.py", "--lr", "0.1"]
RUN = """
import sys
from tests.unit.launch.test_script import attach
from compare.launch.script import run_attached
print(tuple(run_attached([attach(sys.argv[1], *sys.argv[2:])])), flush=True)
"""


class Near(Carrier, frozen=True):
    """A carrier that reaches every host as a child process here."""

    def _argv(self, _host, argv):
        return tuple(argv)


def python(code):
    return Attached((sys.executable, "-c", code), {"FROM": "us"})


def a_place(*hosts):
    network = Network(interface="eth0", network="10.0.0.0/24", addresses=("10.0.0.1", "10.0.0.2"))
    return Place(hosts=hosts, carrier=Near(), network=network if len(hosts) > 1 else Network(), port=29500)


def attach(code, where="here"):
    """Return a command that runs Python here, or as on another host."""
    if where == "here":
        return python(code)
    command = Command((sys.executable, "-c", code), {"FROM": "us"}, FAR)
    return script._attached(command, a_place(local_host(1), FAR))


FAR = Host(name="far", slots=2)


@pytest.mark.parametrize("launcher", ["torchrun", "horovodrun", "mpirun"])
def test_script_command_starts_the_script_with_its_arguments(launcher, monkeypatch):
    monkeypatch.setattr(script, "find_launcher", lambda name: f"/bin/{name}")
    [command] = script_commands(launcher, a_place(local_host(3)), ARGUMENTS, {"A": "1"})
    assert command.argv[0] == f"/bin/{launcher}"
    assert list(command.argv[-len(ARGUMENTS) :]) == ARGUMENTS
    assert "-m" not in command.argv[-len(ARGUMENTS) - 1 :]
    assert command.environment["A"] == "1"
    assert {"3", "--nproc_per_node=3"} & set(command.argv)


def test_script_command_without_the_launcher_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(script, "find_launcher", lambda _: None)
    with pytest.raises(UnavailableError, match="horovodrun is not installed") as raised:
        script_commands("horovodrun", a_place(local_host(2)), ARGUMENTS, {})
    assert raised.value.remedy == "ringside setup horovod"


@pytest.mark.parametrize(
    ("code", "status"),
    [("", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL)],
)
def test_run_attached_returns_the_status(code, status):
    assert run_attached([python(code)]) == (status, False)


def test_run_attached_leaves_the_streams_and_the_environment(capfd, monkeypatch):
    monkeypatch.setenv("FROM_SHELL", "shell")
    code = "import os, sys; print(os.environ['FROM_SHELL'], os.environ['FROM']); sys.exit('no')"
    run_attached([python(code)])
    assert capfd.readouterr() == ("shell us\n", "no\n")


def test_run_attached_of_a_missing_program_is_an_error():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with pytest.raises(UnavailableError, match="could not be executed"):
        run_attached([Attached(("/no/such/launcher",), {})])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


CHILD = textwrap.dedent("""
    import os, signal, sys, time
    def end(number, _):
        print("got", signal.Signals(number).name, flush=True)
        sys.exit(7)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)
    print("ready", os.getpid(), flush=True)
    time.sleep(60)
""")


def start(where):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, CHILD, where],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).resolve().parents[3],
    )
    word, pid = process.stdout.readline().split()
    assert word == "ready"
    return process, int(pid)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_run_attached_passes_a_signal_on_and_waits_for_the_end(sent):
    """The script may save its state first, so its exit status counts and not the signal."""
    process, _ = start("here")
    process.send_signal(sent)
    out, _ = process.communicate(timeout=60)
    assert out == f"got {sent.name}\n(7, True)\n"


@pytest.mark.parametrize("where", ["here", "far"])
def test_run_attached_that_is_killed_ends_the_command(where):
    process, pid = start(where)
    process.kill()
    assert process.stdout.read() == "got SIGTERM\n"
    process.communicate()
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}/exe").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}/exe").exists()


# ---- several hosts ----


def test_script_commands_start_a_torchrun_on_each_host(monkeypatch):
    monkeypatch.setattr(script, "find_launcher", lambda name: f"/bin/{name}")
    here, far = script_commands("torchrun", a_place(local_host(1), FAR), ARGUMENTS, {"SECRET": "x y"})
    assert "--node_rank=0" in here.argv
    assert here.stdin is None
    assert {"--node_rank=1", "--nproc_per_node=2", "--master_addr=10.0.0.1"} <= set(far.argv)
    assert list(far.argv[-len(ARGUMENTS) :]) == ARGUMENTS
    assert not any("x y" in word for word in far.argv)
    assert b"SECRET=x y\n" in far.stdin


def test_a_command_on_another_host_has_folder_variables_and_status(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    code = "import os; print(os.getcwd(), os.environ['FROM'], os.environ['OMP_NUM_THREADS']); os._exit(9)"
    command = attach(code, "far")
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert run_attached([command]) == (9, False)
    assert capfd.readouterr().out == f"{tmp_path} us 3\n"


def test_a_variable_of_several_lines_cannot_be_sent():
    command = Command(("torchrun",), {"TEXT": "a\nb"}, FAR)
    with pytest.raises(UsageError, match="TEXT cannot be sent to far"):
        script._attached(command, a_place(local_host(1), FAR))


def test_run_attached_when_one_command_fails_ends_the_others(monkeypatch):
    """Ranks that wait for a lost host would wait for ever."""
    monkeypatch.setattr(script, "_GRACE_SECONDS", 0.0)
    began = time.monotonic()
    ended = run_attached([python("import time; time.sleep(300)"), attach("raise SystemExit(4)", "far")])
    assert ended == (4, False)
    assert time.monotonic() - began < 60


STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("got SIGTERM", flush=True))
until = time.monotonic() + 2
while time.monotonic() < until:
    time.sleep(0.05)
"""


def test_run_attached_asks_the_others_to_end_only_once(monkeypatch, capfd):
    """A launcher takes a second SIGTERM for an order to kill its ranks at once."""
    monkeypatch.setattr(script, "_GRACE_SECONDS", 0.5)
    monkeypatch.setattr(script, "_TICK_SECONDS", 0.1)
    assert run_attached([python(STUBBORN), attach("raise SystemExit(4)", "far")]) == (4, False)
    assert capfd.readouterr().out == "got SIGTERM\n"
