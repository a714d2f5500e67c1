"""Install Horovod without the real build.

`make setup` tests the real build, which takes minutes.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console

from compare.doctor.horovod import build, command
from compare.doctor.horovod import recipe as recipes
from compare.errors import UnavailableError, UsageError

REPOSITORY = Path(__file__).resolve().parents[3]

RECIPE = recipes.Recipe(
    torch="2.13.0+cpu",
    python="cp311",
    platform="linux-x86_64-glibc2.36",
    mpi="openmpi-4.1.8",
    gpu="cpu",
    environment=(("HOROVOD_WITH_MPI", "1"),),
    toolchain="set(A 1)",
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ringside"


@pytest.fixture
def console():
    """Make a console that is no terminal; its ``file`` holds the output."""
    return Console(file=io.StringIO(), force_terminal=False, width=300)


@pytest.fixture
def cpu_torch(monkeypatch):
    """Replace torch by a CPU build, and any installed Horovod by none."""
    monkeypatch.setattr(recipes, "torch_facts", lambda: {"version": "2.13.0+cpu", "cuda": None})
    monkeypatch.setattr(recipes, "installed_key", lambda: None)


# ---- the key ----


@pytest.mark.parametrize(
    ("ingredient", "other"),
    [*((field.name, "something else") for field in dataclasses.fields(RECIPE)), ("torch", "2.13.0_cpu")],
)
def test_key_changes_with_every_ingredient(ingredient, other):
    other = (("HOROVOD_WITH_MPI", "0"),) if ingredient == "environment" else other
    assert dataclasses.replace(RECIPE, **{ingredient: other}).key != RECIPE.key
    assert dataclasses.replace(RECIPE).key == RECIPE.key
    # A + in a path breaks Horovod's CMake files; a / or a space would break more.
    readable = "horovod-0.28.1-torch-2.13.0_cpu-cp311-linux-x86_64-glibc2.36-openmpi-4.1.8-cpu-"
    assert re.fullmatch(rf"{re.escape(readable)}[A-Za-z0-9._-]*", RECIPE.key)


def test_key_changes_with_the_toolchain_file_and_the_compiler(tmp_path, monkeypatch):
    for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CUDAFLAGS"):
        monkeypatch.delenv(name, raising=False)
    before = recipes.make_recipe("2.13.0", None, None).key
    assert recipes.make_recipe("2.13.0", None, None).key == before

    monkeypatch.setenv("CXXFLAGS", "-O1")
    with_flags = recipes.make_recipe("2.13.0", None, None).key
    monkeypatch.delenv("CXXFLAGS")

    shutil.copy(recipes.TOOLCHAIN.with_name("FindPytorch.cmake"), tmp_path)
    statements, changed = recipes.TOOLCHAIN.read_text(), tmp_path / "horovod.cmake"
    monkeypatch.setattr(recipes, "TOOLCHAIN", changed)
    changed.write_text(f"{statements}  # another comment\n")
    assert recipes.make_recipe("2.13.0", None, None).key == before
    changed.write_text(f"{statements}set(A 1)\n")
    with_statement = recipes.make_recipe("2.13.0", None, None).key
    (tmp_path / "FindPytorch.cmake").write_text("set(B 1)\n")
    assert len({before, with_flags, with_statement, recipes.make_recipe("2.13.0", None, None).key}) == 4


@pytest.mark.parametrize(
    ("mpi", "machine", "present", "absent"),
    [
        (recipes.Mpi("openmpi-4.1.8", from_wheel=True), "x86_64", "HOROVOD_WITH_MPI", "HOROVOD_WITHOUT_MPI"),
        (None, "x86_64", "HOROVOD_WITHOUT_MPI", "HOROVOD_WITH_MPI"),
        (None, "x86_64", "HOROVOD_BUILD_ARCH_FLAGS", "RINGSIDE_MPI_OUTSIDE"),
        (None, "aarch64", "HOROVOD_WITH_GLOO", "HOROVOD_BUILD_ARCH_FLAGS"),
        (recipes.Mpi("mpi-4", from_wheel=False), "x86_64", "RINGSIDE_MPI_OUTSIDE", "HOROVOD_WITHOUT_MPI"),
    ],
)
def test_recipe_environment_follows_mpi_and_machine(monkeypatch, mpi, machine, present, absent):
    monkeypatch.setattr(recipes.platform, "machine", lambda: machine)
    environment = dict(recipes.make_recipe("2.13.0", mpi, None).environment)
    assert environment[present]
    assert absent not in environment


def test_build_environment_drops_the_users_settings(tmp_path, monkeypatch):
    theirs = {"HOROVOD_GPU_OPERATIONS", "PIP_CONSTRAINT", "MAKELEVEL", "PYTHONSAFEPATH"}
    for name in theirs:
        monkeypatch.setenv(name, "1")
    recipe = recipes.make_recipe("2.13.0", None, None)
    environment = build.build_environment(recipe, None, tmp_path)
    assert not theirs & set(environment)
    assert environment["CMAKE_TOOLCHAIN_FILE"] == str(recipes.TOOLCHAIN)
    assert environment["PATH"].split(os.pathsep)[0] == sysconfig.get_path("scripts")


def test_build_environment_starts_a_job_per_2_gib(tmp_path, monkeypatch):
    monkeypatch.setattr(build.os, "sched_getaffinity", lambda _: set(range(16)))
    for available, jobs in ((1, 1), (6 * 2**30, 3), (2**40, 16)):
        memory = SimpleNamespace(available=available)
        monkeypatch.setattr(build.psutil, "virtual_memory", lambda memory=memory: memory)
        assert build.build_environment(RECIPE, None, tmp_path)["MAKEFLAGS"] == f"-j{jobs}"


# ---- MPI and GPUs ----


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_find_mpi_prefers_the_wheel_and_names_version_and_place(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes.sysconfig, "get_path", lambda _: str(tmp_path / "scripts"))
    monkeypatch.setattr(recipes.importlib.metadata, "version", {"openmpi": "4.1.8"}.__getitem__)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert recipes.find_mpi() is None

    found = []
    for place in ("one", "two"):
        executable(tmp_path / place / "mpicxx")
        executable(tmp_path / place / "mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
        monkeypatch.setenv("PATH", str(tmp_path / place))
        found.append(recipes.find_mpi())
    assert [mpi.from_wheel for mpi in found] == [False, False]
    assert len({mpi.name for mpi in found}) == 2
    assert all(mpi.name.startswith("mpi-4.1.4-at-") for mpi in found)

    executable(tmp_path / "scripts" / "mpicxx")
    assert recipes.find_mpi() == recipes.Mpi("openmpi-4.1.8", from_wheel=True)


CUDA_TORCH = {"version": "2.13.0+cu130", "cuda": "13.0", "nccl": "2.28.9", "capabilities": ["90"]}


def toolkit(home: Path, include: str = "include") -> None:
    executable(home / "bin" / "nvcc")
    (home / include).mkdir(parents=True)
    (home / include / "cuda_runtime.h").touch()


def test_find_gpu_needs_a_cuda_torch_and_a_toolkit(tmp_path):
    toolkit(tmp_path / "cuda")
    here = {"cuda_home": str(tmp_path / "cuda"), "nccl_home": str(tmp_path / "nccl")}
    assert recipes.find_gpu({"version": "2.13.0+cpu", "cuda": None}) is None
    assert recipes.find_gpu(CUDA_TORCH | here | {"cuda_home": None}) is None

    gpu = recipes.find_gpu(CUDA_TORCH | here)
    assert gpu.name == "cuda13.0-nccl2.28.9-cc90"
    recipe = recipes.make_recipe("2.13.0+cu130", None, gpu)
    assert recipe.gpu == gpu.name
    environment = build.build_environment(recipe, gpu, tmp_path)
    assert environment["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert environment["HOROVOD_NCCL_HOME"] == str(tmp_path / "nccl")
    assert environment["HOROVOD_CUDA_HOME"] == str(tmp_path / "cuda")
    assert environment["HOROVOD_BUILD_CUDA_CC_LIST"] == "90"


def test_find_gpu_follows_an_nvcc_that_is_a_script(tmp_path):
    toolkit(tmp_path / "cuda", "targets/x86_64-linux/include")
    executable(tmp_path / "local/bin/nvcc", f"#!/bin/sh\necho '#$ TOP={tmp_path}/cuda/bin/..' >&2\n")
    gpu = recipes.find_gpu(CUDA_TORCH | {"cuda_home": str(tmp_path / "local"), "nccl_home": "/nccl"})
    assert gpu.cuda_home == tmp_path / "cuda"


NVCC, HEADER = "bin/nvcc", "include/cuda_runtime.h"


@pytest.mark.parametrize(
    "present",
    [
        {},
        {HEADER: ""},
        {NVCC: "#!/bin/sh\n"},
        {NVCC: "#!/bin/sh\nexec sleep 60\n", HEADER: ""},
        {NVCC: "no program", HEADER: ""},
    ],
    ids=["nothing", "no nvcc", "no header", "nvcc hangs", "nvcc is no program"],
)
def test_find_gpu_incomplete_toolkit_is_refused(tmp_path, monkeypatch, present):
    monkeypatch.setattr(recipes, "_VERSION_SECONDS", 0.2)
    for name, text in present.items():
        executable(tmp_path / name, text)
    with pytest.raises(UnavailableError, match="cannot be compiled for this CUDA build") as caught:
        recipes.find_gpu(CUDA_TORCH | {"cuda_home": str(tmp_path), "nccl_home": "/nccl"})
    assert "no bin/nvcc, or no include/cuda_runtime.h" in caught.value.found
    assert "CUDA_HOME" in caught.value.remedy


def test_find_gpu_torch_without_nccl_is_refused(tmp_path):
    toolkit(tmp_path)
    with pytest.raises(UnavailableError) as caught:
        recipes.find_gpu(CUDA_TORCH | {"cuda_home": str(tmp_path)})
    assert "nvidia-nccl" in caught.value.found
    assert "from PyPI" in caught.value.remedy


# ---- refusals ----


@pytest.mark.parametrize(
    ("present", "missing", "packages"),
    [
        ([], "a C++ compiler (c++, g++, clang++); make", "apt-get install g++ && apt-get install make"),
        (["make"], "a C++ compiler", "apt-get install g++"),
        (["g++"], "make", "apt-get install make"),
    ],
)
def test_install_without_tools_starts_nothing(
    tmp_path, monkeypatch, cache, console, cpu_torch, present, missing, packages
):
    for name in present:
        executable(tmp_path / "bin" / name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(command.Commands, "run", lambda *_: pytest.fail("a command was started"))
    with pytest.raises(UnavailableError) as caught:
        build.install_horovod(console=console)
    assert "nothing was started" in caught.value.what
    assert f"Missing: {missing}" in caught.value.found
    assert packages in caught.value.remedy
    assert not list(cache.rglob("*.whl"))


def test_check_tools_accepts_other_names_and_wants_headers(tmp_path, monkeypatch):
    include = tmp_path / "include"
    executable(include / "Python.h")
    monkeypatch.setattr(recipes.sysconfig, "get_path", lambda _: str(include))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CXX", "ccache-g++ -m64")
    executable(tmp_path / "bin" / "ccache-g++")
    executable(tmp_path / "bin" / "gmake")
    build.check_tools()
    (include / "Python.h").unlink()
    with pytest.raises(UnavailableError) as caught:
        build.check_tools()
    assert "Python's headers" in caught.value.found
    assert "python3-dev" in caught.value.remedy


def test_torch_facts_of_a_broken_torch_show_its_error(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libgomp.so.1 is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UnavailableError) as caught:
        recipes.torch_facts()
    assert "libgomp.so.1 is missing" in caught.value.found
    assert "pip install" in caught.value.remedy


def test_install_with_unfit_files_is_an_error(tmp_path, monkeypatch, console, cpu_torch):
    with pytest.raises(UsageError, match=r"absent.txt"):
        build.install_horovod(tmp_path / "absent.txt")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UnavailableError) as caught:
        build.install_horovod(console=console)
    assert "XDG_CACHE_HOME" in caught.value.remedy


@pytest.mark.parametrize(
    ("cache_home", "temporary", "expected"),
    [
        ("plain", "(x86)", "plain/ringside/wheels"),
        ("c++", "plain", "plain"),
        ("c++", "(x86)", None),
    ],
)
def test_scratch_parent_avoids_regular_expressions(tmp_path, monkeypatch, cache_home, temporary, expected):
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path / temporary))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache_home))
    if expected:
        assert build.scratch_parent() == tmp_path / expected
    else:
        with pytest.raises(UnavailableError, match=r"c\+\+"):
            build.scratch_parent()


def test_cache_folder_ignores_a_relative_path(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert recipes.cache_folder() == tmp_path / ".cache" / "ringside"


# ---- running commands ----


@pytest.fixture
def commands(tmp_path, console):
    with (tmp_path / "build.log").open("a", encoding="utf-8") as log:
        yield command.Commands("Horovod", console, log)


def test_command_that_fails_shows_its_errors_and_its_log(tmp_path, commands):
    script = "print('noise\\nx.cc:7: error: no member named y\\nmore noise'); raise SystemExit(3)"
    with pytest.raises(UnavailableError) as caught:
        commands.run("building Horovod", [sys.executable, "-c", script])
    assert "building Horovod failed (exit status 3)" in caught.value.what
    assert caught.value.found == "x.cc:7: error: no member named y"
    assert str(tmp_path / "build.log") in caught.value.remedy
    assert "more noise" in (tmp_path / "build.log").read_text()


def test_progress_is_every_tenth_or_on_a_terminal_the_percentage(commands, console):
    lines = [f"[{percent:3d}%] Building CXX object" for percent in (1, 5, 9, 10, 12, 8, 35, 36, 100)]
    script = f"for line in {[*lines, '100% of nothing']}: print(line)"
    commands.run("building", [sys.executable, "-c", script])
    rows = [line for line in console.file.getvalue().splitlines() if "%" in line]
    assert [row.split(":")[1].split("%")[0].strip() for row in rows] == ["10", "35", "100"]
    commands.console = Console(file=io.StringIO(), force_terminal=True, highlight=False, width=100)
    script = "print('[ 42%] Building', flush=True); import time; time.sleep(0.5)"
    commands.run("building", [sys.executable, "-c", script])
    assert "42%" in commands.console.file.getvalue()


def test_command_interrupted_leaves_no_process(tmp_path, commands, monkeypatch):
    pids = tmp_path / "pids"
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "print('[ 50%] Building', flush=True); time.sleep(60)\n"
    )

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "minutes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        commands.run("building", [sys.executable, "-c", script])

    def alive(pid):
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    deadline = time.monotonic() + 10
    while left := [pid for pid in map(int, pids.read_text().split()) if alive(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


def test_error_lines_are_causes_and_no_repetitions():
    output = [
        "-- Could not find CCache. Consider installing it",
        "/usr/bin/c++ -Werror=x " + "y" * 400,
        "c++: fatal error: Killed signal terminated program cc1plus",
        "gmake[2]: *** [x.o] Error 1",
        "ERROR: Failed building wheel for horovod",
        "error: subprocess-exited-with-error",
    ]
    assert command.error_lines(output) == ["c++: fatal error: Killed signal terminated program cc1plus"]
    assert command.error_lines([str(n) for n in range(20)]) == ["14", "15", "16", "17", "18", "19"]


# ---- which Horovod is installed ----


WHEEL = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"


@pytest.mark.parametrize(
    ("record", "key"),
    [
        ({"url": f"file:///home/a%20b/wheels/the-key/{WHEEL}", "archive_info": {}}, "the-key"),
        ({"url": f"https://example.org/the-key/{WHEEL}", "archive_info": {}}, None),
        (None, None),
    ],
)
def test_installed_key_is_read_from_the_record_of_pip(tmp_path, monkeypatch, record, key):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert recipes.installed_key() is None, "there is no Horovod"
    info = tmp_path / "horovod-0.28.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    if record:
        (info / "direct_url.json").write_text(json.dumps(record))
    importlib.invalidate_caches()
    assert recipes.installed_key() == key


# ---- the toolchain file, with a real CMake ----


def cmake_or_skip() -> str:
    cmake = shutil.which("cmake", path=recipes.search_path())
    if cmake is None:
        pytest.skip("no cmake here: pip install cmake")
    if not shutil.which("c++") or not shutil.which("make"):
        pytest.skip("no C++ compiler or no make here")
    return cmake


def configure(folder: Path, name: str, lines: str = "") -> tuple[str, str]:
    """Build a project; return its compiler command and the output of CMake."""
    cmake = cmake_or_skip()
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.13)\nproject({name} CXX)\n"
        "set(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\nset(CMAKE_CXX_EXTENSIONS OFF)\n"
        'set(CMAKE_EXPORT_COMPILE_COMMANDS ON)\nmessage(STATUS "suffixes: ${CMAKE_FIND_LIBRARY_SUFFIXES}")\n'
        f"{lines}\nadd_library(probe SHARED probe.cc)\n"
    )
    (folder / "probe.cc").write_text("long standard() { return __cplusplus; }\n")
    environment = {k: v for k, v in os.environ.items() if k not in {"CXXFLAGS", "MAKEFLAGS", "MAKELEVEL"}}
    environment |= {"CMAKE_TOOLCHAIN_FILE": str(recipes.TOOLCHAIN), "CMAKE_GENERATOR": "Unix Makefiles"}
    output = ""
    for argv in ([cmake, "-S", ".", "-B", "build"], [cmake, "--build", "build"]):
        done = subprocess.run(argv, cwd=folder, env=environment, check=False, capture_output=True, text=True)
        output += done.stdout + done.stderr
        assert done.returncode == 0, output
    commands = json.loads((folder / "build" / "compile_commands.json").read_text())
    (compiler,) = [entry["command"] for entry in commands if "probe.dir" in entry["command"]]
    return compiler, output


@pytest.mark.parametrize("project", ["horovod", "CheckLanguage"])
def test_toolchain_compiles_horovod_alone_as_cxx20(tmp_path, project):
    (tmp_path / "needs20.cc").write_text(
        # Uses uint32_t and std::runtime_error without including them, and C++20.
        'static_assert(__cplusplus >= 202002L, "C++20");\n'
        'uint32_t f() { throw std::runtime_error(std::string("x")); }\n'
    )
    more, own = f"add_library(more STATIC {tmp_path}/needs20.cc)\n", project == "horovod"
    old = tmp_path / "gloo"  # with the old policies of Gloo
    old.mkdir()
    (old / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 2.8)\nproject(gloo C CXX)\n")
    more += f"add_subdirectory({old} gloo)\n"
    compiler, output = configure(tmp_path / "project", project, more if own else "")
    assert ("-std=c++20" in compiler, "-std=c++14" in compiler) == (own, not own)
    assert ("-include cstdint" in compiler, "-include" in compiler) == (own, own)
    assert (".so.2" in output.split("suffixes: ")[1].splitlines()[0].split(";")) is own


@pytest.mark.parametrize(("gpu", "compiled"), [(None, 3), ("NCCL", 4)])
def test_toolchain_compiles_small_sources_as_one_for_cpus(tmp_path, monkeypatch, gpu, compiled):
    if gpu:
        monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", gpu)
    sources = [tmp_path / name for name in ("one.cc", "two.cc", "gloo_operations.cc", "gaussian_process.cc")]
    for source in sources:
        source.write_text(f"int {source.stem}() {{ return 1; }}\n")
    ops, optim = (f"${{CMAKE_SOURCE_DIR}}/horovod/common/{name}" for name in ("ops", "optim"))
    lines = (
        f"file(COPY {sources[2]} DESTINATION {ops})\nfile(COPY {sources[3]} DESTINATION {optim})\n"
        f"set(CMAKE_BUILD_TYPE RelWithDebInfo)\nadd_library(pytorch SHARED {sources[0]} {sources[1]} "
        f"{ops}/{sources[2].name} {optim}/{sources[3].name})"
    )
    compiler, output = configure(tmp_path / "project", "horovod", lines)
    assert output.count("Building CXX object CMakeFiles/pytorch.dir") == compiled
    assert "-O2" in compiler
    assert "-g" not in compiler.split()


def test_toolchain_sets_paths_relative_to_the_library(tmp_path):
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf here: apt-get install binutils")
    lines = f"add_library(neighbour SHARED {tmp_path}/neighbour.cc)\nlink_libraries(neighbour)\n"
    (tmp_path / "neighbour.cc").write_text("int neighbour() { return 1; }\n")
    configure(tmp_path / "project", "horovod", lines)
    library = tmp_path / "project" / "build" / "libprobe.so"
    shown = subprocess.run([readelf, "-d", library], check=True, capture_output=True, text=True).stdout
    (path,) = [line for line in shown.splitlines() if "RUNPATH" in line or "RPATH" in line]
    assert "[$ORIGIN/../../../..:$ORIGIN/../../torch/lib]" in path  # and nothing of the build tree


# ---- reuse, with a real pip ----

BASICS = """
def mpi_built(): return {mpi}
def gloo_built(): return True
def nccl_built(): return 0
"""


def make_wheel(folder: Path, files: dict[str, str]) -> Path:
    info = "horovod-0.28.1.dist-info"
    files = files | {
        "horovod-0.28.1.data/scripts/horovodrun": "#!python\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "horovod-0.28.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o100755 << 16  # pip lets a script be executable that is here
            archive.writestr(entry, text)
    return wheel


@pytest.fixture
def other_python(tmp_path, cache, monkeypatch):
    """Make a virtual environment that sees this one, and installs into itself."""
    folder = tmp_path / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "outer.pth").write_text(f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n")
    # Without the scripts of this environment and of any MPI, a build has Gloo only.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shutil.which("mpicxx"):
        pytest.skip("this system has an mpicxx, which is always found")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *arguments], check=False, capture_output=True, text=True, cwd=tmp_path, timeout=200
        )

    return run


def key_for(run) -> str:
    script = "from compare.doctor.horovod.recipe import *; "
    answer = run("-c", f"{script}print(make_recipe(torch_facts()['version'], None, None).key)")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


INSTALL = ("-m", "compare", "install", "horovod")
MODULE = {"horovod/__init__.py": "__version__ = '0.28.1'"}
LIBRARY = {"horovod/torch/mpi_lib_v2.py": ""}


@pytest.mark.slow
def test_install_cached_wheel_is_reused_and_not_built(other_python, cache, tmp_path):
    folder = cache / "wheels" / key_for(other_python)
    make_wheel(folder, MODULE | LIBRARY | {"horovod/torch/__init__.py": BASICS.format(mpi=False)})
    script = tmp_path / "env" / "bin" / "horovodrun"
    for prints, prints_not in (
        (["reusing", "built with gloo"], ["building"]),
        (["already installed"], ["reusing"]),
        ([], ["already installed"]),
    ):
        answer = other_python(*INSTALL)
        assert answer.returncode == 0, answer.stderr
        assert [text for text in prints if text not in answer.stderr] == []
        assert [text for text in prints_not if text in answer.stderr] == []
        assert script.exists()
        if "already installed" in prints:
            script.unlink()


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(
    ("mpi", "library", "found"),
    [
        # horovod.torch itself imports without its library, and only prints an error.
        (False, {}, "No module named 'horovod.torch.mpi_lib_v2'"),
        (True, LIBRARY, "it was built with gloo, mpi."),
    ],
    ids=["library missing", "another MPI"],
)
def test_install_unfit_wheel_is_removed(other_python, cache, mpi, library, found):
    basics = {"horovod/torch/__init__.py": BASICS.format(mpi=mpi)}
    wheel = make_wheel(cache / "wheels" / key_for(other_python), MODULE | basics | library)
    answer = other_python(*INSTALL)
    assert answer.returncode == UnavailableError.exit_code, answer.stderr
    assert found in answer.stderr
    assert "Traceback (most recent call last)" not in answer.stderr.split("installing the wheel")[0]
    assert not wheel.exists()
    where = other_python(
        "-c", "import importlib.metadata as m; print(m.distribution('horovod').locate_file(''))"
    )
    assert "/env/" not in where.stdout
