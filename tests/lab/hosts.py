"""Make real hosts on one machine, with own networks and processes.

A host also has its own hostname, /tmp, /dev/shm and sshd. Everything is in namespaces that end with the
process that made them. Nothing is written to /run or /etc, and no interface appears outside. A lab whose
process was killed leaves one folder in the temporary directory, and the next lab removes it.

    switch          a bridge, in its own network namespace
    login           10.77.0.1: no sshd, in no hostfile; commands start here
    n1, n2, …       10.77.0.11, …: with sshd, reached by ``ssh n1`` from everywhere in the lab
    down            an address without a host: "No route to host" after three seconds
    silent          an address that drops all packets and never answers
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Self

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
PREFIX = "ringside-lab-"
INTERFACE = "eth0"
NETWORK = "10.77.0"
MARK = "RINGSIDE_LAB"
"""Variable in every process of a lab that holds the lab's folder."""

_HERE = Path(__file__).resolve().parent
_NAMESPACES = ("--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
_START_SECONDS = 20.0
_DAEMONS = {"sshd", "munged", "slurmctld", "slurmscriptd", "slurmd"}

_SSHD_CONFIG = """\
AuthorizedKeysFile /run/lab/keys/login.pub
AuthenticationMethods publickey
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
UseDNS no
PidFile none
PrintMotd no
MaxStartups 1000
MaxSessions 1000
SetEnv XDG_CACHE_HOME=/tmp/cache
LogLevel ERROR
"""
_SSH_CONFIG = """\
IdentityFile /run/lab/keys/login
IdentitiesOnly yes
UserKnownHostsFile /run/lab/known_hosts
GlobalKnownHostsFile none
StrictHostKeyChecking yes
"""


class LabError(Exception):
    """A lab that cannot be made here or did not start."""


def packages(file: str = "debian-packages") -> dict[str, str]:
    """Return the Debian package that brings each program of a list."""
    rows = (line.partition("#")[0].split() for line in (_HERE / file).read_text().splitlines())
    return dict(row for row in rows if row)


@functools.cache
def why_not() -> str:
    """Try to make namespaces; return why no lab can be made."""
    for program, package in packages().items():
        if find_program(program) is None:
            return f"no lab here: {program} is missing (apt-get install {package})"
    bridge = (
        "set -e; ip link add br0 type bridge; ip link add probe0 type veth peer name probe1; "
        "ip link set probe0 master br0; mount -t tmpfs tmpfs /tmp"
    )
    tried = subprocess.run(
        ["unshare", *_NAMESPACES, "bash", "-c", bridge], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        reason = tried.stderr.strip() or f"status {tried.returncode}"
        return f"no lab here: the kernel refuses a bridge in its own namespace: {reason}"
    return ""


def why_no_rate_limit() -> str:
    """Return why links cannot be slowed down here."""
    shape = "ip link set lo up && tc qdisc replace dev lo root tbf rate 1gbit burst 128kb latency 50ms"
    tried = subprocess.run(
        ["unshare", "--net", "bash", "-c", shape], capture_output=True, text=True, check=False
    )
    return f"no rate limit here: {tried.stderr.strip()}" if tried.returncode else ""


class Machine:
    """One host of the lab, or its login."""

    def __init__(self, lab: Lab, name: str, number: int) -> None:
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self.hardware_address = f"02:00:00:00:00:{number:02x}"
        self._lab = lab
        self._port = f"port{number}"
        self._outer: subprocess.Popen[str] | None = None
        self._pid = 0

    def run(self, argv, *, stdin="", timeout_seconds=60.0, cwd=REPOSITORY, environment=None):
        """Execute a command here and return the finished process."""
        return subprocess.run(
            self.enter(argv, cwd=cwd),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
            env=self._environment(environment),
        )

    def start(self, argv, *, cwd=REPOSITORY, environment=None, **popen):
        """Start a command here; other arguments go to ``subprocess.Popen``."""
        started = subprocess.Popen(
            self.enter(argv, cwd=cwd), env=self._environment(environment), text=True, **popen
        )
        self._lab.started.append(started)
        return started

    def enter(self, argv, *, cwd=REPOSITORY):
        """Return the command line that executes another one here."""
        spaces = ["-m", "-u", "-i", "-n", "-p"]
        return ["nsenter", "-t", str(self._pid), *spaces, "--", "env", "-C", str(cwd), *map(str, argv)]

    def processes(self) -> list[psutil.Process]:
        """Return the processes here, without the first one and daemons."""
        mine = _namespace(self._pid, "pid")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if _namespace(process.pid, "pid") != mine or process.pid == self._pid:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE and process.name() not in _DAEMONS:
                    found.append(process)
        return found

    def command_lines(self) -> list[str]:
        """Return the command lines of ``processes`` that still run."""
        return _command_lines(self.processes())

    def limit_rate(self, rate: str) -> None:
        """Limit the link's rate in each direction, e.g. to ``1gbit``."""
        shape = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms"]
        self._lab.on_switch(["tc", "qdisc", "replace", "dev", self._port, *shape])
        _checked(self.enter(["tc", "qdisc", "replace", "dev", INTERFACE, *shape]))

    def link_down(self) -> None:
        """Take the link down, as if the cable was pulled."""
        self._lab.on_switch(["ip", "link", "set", self._port, "down"])

    def link_up(self) -> None:
        """Bring the link up again."""
        self._lab.on_switch(["ip", "link", "set", self._port, "up"])

    def drop_packets(self) -> None:
        """Drop all packets to and from here, while the link stays up."""
        self._lab.on_switch(["ip", "link", "set", self._port, "nomaster"])

    def pass_packets(self) -> None:
        """End ``drop_packets``."""
        self._lab.on_switch(["ip", "link", "set", self._port, "master", "br0"])

    def stop(self) -> None:
        """Switch the host off: its processes die, and its address is dead."""
        if self._outer is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._outer.communicate()
        self._outer = None
        for other in self._lab.running():
            # Without this the other hosts would still send to its old hardware address.
            subprocess.run(
                other.enter(["ip", "neigh", "del", self.address, "dev", INTERFACE]),
                capture_output=True,
                check=False,
            )

    def _begin(self) -> None:
        """Start its first process, without waiting for it."""
        visible = [str(path) for path in self._lab.visible]
        sshd = "" if self is self._lab.login or not self._lab.sshd else str(find_program("sshd"))
        init = [str(_HERE / "host-init"), str(self._lab.folder), self.name, self.address, "24", sshd]
        self._outer = _daemon(["unshare", *_NAMESPACES, "bash", *init, *visible], self._environment({}))

    def _connect(self) -> None:
        self._expect("made")
        assert self._outer is not None
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        self._pid = int(children[0])
        link = ["ip", "link", "add", self._port, "type", "veth", "peer", "name", INTERFACE]
        self._lab.on_switch([*link, "netns", str(self._pid)])
        self._lab.on_switch(["ip", "link", "set", self._port, "master", "br0", "up"])
        print(file=self._outer.stdin, flush=True)

    def _expect(self, word: str) -> None:
        assert self._outer is not None
        line = self._outer.stdout.readline().strip()
        if line != word:
            self._outer.kill()
            raise LabError(f"{self.name} did not start: {line} {self._outer.communicate()[1].strip()}")

    def _environment(self, more) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "USER") if name in os.environ}
        return kept | {MARK: str(self._lab.folder)} | dict(more or {})


class Lab:
    """A context manager with a switch, a login and hosts.

    Args:
        hosts: number of hosts, beside the login.
        sshd: whether the hosts can be reached by ssh.
        visible: folders that every host sees under its private /tmp, beside this checkout and its Python.

    Raises:
        LabError: no lab can be made here, or it did not start.
    """

    def __init__(self, hosts: int = 2, *, sshd=True, visible=()) -> None:
        self.sshd = sshd
        self.folder = Path()
        self.visible = _under_tmp([REPOSITORY, Path(sys.prefix), Path(sys.prefix).resolve(), *visible])
        self.login = Machine(self, "login", 1)
        self.hosts = [Machine(self, f"n{number}", 10 + number) for number in range(1, hosts + 1)]
        self.down = f"{NETWORK}.250"
        self.silent = f"{NETWORK}.251"
        self.started: list[subprocess.Popen[str]] = []
        """Processes started on its hosts, to be reaped at the end."""
        self._switch: subprocess.Popen[str] | None = None
        self._lock = -1

    def __enter__(self) -> Self:
        """Bring it up."""
        if reason := why_not():
            raise LabError(reason)
        sweep()
        # Under its own name only with its lock: a neighbour's sweep removes folders without one.
        self.folder = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
        try:
            self._lock = _locked(self.folder)
            self.folder = self.folder.rename(self.folder.with_name(self.folder.name[1:]))
            self._write_files()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exception) -> None:
        """Take it down."""
        self.close()

    def on_switch(self, argv) -> None:
        """Execute a command where the bridge is."""
        assert self._switch is not None
        _checked(["nsenter", "-t", str(self._switch.pid), "-n", "--", *argv])

    def running(self) -> list[Machine]:
        """Return the hosts, login included, that have not been stopped."""
        return [machine for machine in self._machines() if machine._outer is not None]

    def close(self) -> None:
        """End all its processes, and with them everything else."""
        running = [*self.running()]
        for machine in running:
            with contextlib.suppress(ProcessLookupError):
                # Its first process may not exist yet; --kill-child then ends it with this one.
                os.kill(machine._pid or machine._outer.pid, signal.SIGKILL)
        for process in [*(machine._outer for machine in running), self._switch]:
            if process is not None:
                process.kill()
                process.communicate()
        for machine in running:
            machine._outer = None
        self._switch = None
        _end_processes(self.folder)
        for process in self.started:
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                pipe.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if PREFIX in self.folder.name:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _machines(self) -> list[Machine]:
        return [self.login, *self.hosts]

    def _start(self) -> None:
        switch = "ip link add br0 type bridge && ip link set br0 up && echo made && while read -r; do :; done"
        environment = {"PATH": os.environ["PATH"], MARK: str(self.folder)}
        self._switch = _daemon(["unshare", "--net", "bash", "-c", switch], environment)
        for machine in self._machines():
            machine._begin()
        if self._switch.stdout.readline().strip() != "made":
            raise LabError(f"the switch did not come up: {self._switch.communicate()[1].strip()}")
        for machine in self._machines():
            machine._connect()
        for machine in self._machines():
            machine._expect("up")

    def _write_files(self) -> None:
        keys, etc_ssh = self.folder / "keys", self.folder / "etc-ssh"
        for folder in (keys, etc_ssh):
            folder.mkdir(mode=0o700)
        makers = [
            subprocess.Popen(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", machine.name, "-f", keys / machine.name]
            )
            for machine in self._machines()
        ]
        if any([maker.wait() for maker in makers]):  # noqa: C419 -- every one is waited for
            raise LabError("ssh-keygen failed")
        (self.folder / "nothing").touch()
        known = [f"{m.name},{m.address} {(keys / f'{m.name}.pub').read_text()}" for m in self.hosts]
        (self.folder / "known_hosts").write_text("".join(known))
        addresses = {m.name: m.address for m in self._machines()} | {"down": self.down, "silent": self.silent}
        rows = ["127.0.0.1 localhost", "::1 localhost", *(f"{a} {n}" for n, a in addresses.items())]
        (self.folder / "hosts").write_text("\n".join(rows) + "\n")
        settled = {m.address: m.hardware_address for m in self._machines()}
        settled[self.silent] = "02:00:00:00:00:fb"
        lines = [
            f"neigh replace {address} lladdr {hardware} dev {INTERFACE} nud permanent\n"
            for address, hardware in settled.items()
        ]
        (self.folder / "neighbours").write_text("".join(lines))
        (etc_ssh / "ssh_config").write_text(_SSH_CONFIG)
        (etc_ssh / "sshd_config").write_text(_SSHD_CONFIG)


class Left(NamedTuple):
    """The traces that a lab must not leave."""

    processes: list[str]
    mounts: list[str]
    interfaces: list[str]
    namespaces: set[str]
    folders: list[str]


def traces(folder: Path | None = None) -> Left:
    """Find traces of labs; of one lab only if ``folder`` is given."""
    folders = Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if folder is None else [folder]
    return Left(
        processes=_command_lines(_processes(folder)),
        mounts=[line for line in Path("/proc/self/mounts").read_text().splitlines() if PREFIX in line],
        interfaces=sorted(os.listdir("/sys/class/net")),  # noqa: PTH208 -- names alone
        namespaces=network_namespaces(p.pid for p in _processes(folder)),
        folders=[str(path) for path in folders if path.exists()],
    )


def sweep() -> None:
    """Remove traces of killed labs; living labs hold a lock."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            lock = _locked(folder)
        except OSError:
            continue
        _end_processes(folder)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked(folder: Path) -> int:
    """Take the lock of a lab's folder, which ends with this process.

    Raises:
        OSError: another process has it, or the folder is gone.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _processes(folder: Path | None) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark = process.environ().get(MARK)
            if mark is None or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if folder is None or mark == str(folder):
                found.append(process)
    return found


def _command_lines(processes: list[psutil.Process]) -> list[str]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found


def _end_processes(folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while found := _processes(folder):
        if time.monotonic() > deadline:
            raise LabError(f"{folder}: these do not end: {found}")
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.02)


def network_namespaces(pids) -> set[str]:
    """Return the network namespaces that these processes are in."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(_namespace(pid, "net"))
    return found


def _namespace(pid: int, kind: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def _daemon(argv, environment) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _checked(argv) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip()}")


def find_program(program: str) -> str | None:
    # sbin is not on every user's PATH.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _under_tmp(folders) -> list[Path]:
    """Return the outermost folders that a private /tmp would hide."""
    hidden = sorted({folder for folder in folders if folder.is_relative_to("/tmp")})  # noqa: S108
    return [f for f in hidden if not any(f != other and f.is_relative_to(other) for other in hidden)]
