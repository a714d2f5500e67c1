"""Horovod's installer: the key of the wheel cache, refusals before any work, the toolchain file, reuse.

The real build takes minutes and is done by `make setup`; what can go wrong around it is tested here.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from compare.doctor.horovod import build as install
from compare.errors import UnavailableError, UsageError

REPOSITORY = Path(__file__).resolve().parents[3]

RECIPE = install.Recipe(
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
def said():
    """A console that is no terminal, and what is printed on it."""
    stream = io.StringIO()
    return Console(file=stream, force_terminal=False, width=300), stream


# ---- the key ----


@pytest.mark.parametrize("ingredient", [field.name for field in dataclasses.fields(install.Recipe)])
def test_every_ingredient_changes_the_key(ingredient):
    other = (("HOROVOD_WITH_MPI", "0"),) if ingredient == "environment" else "something else"
    assert dataclasses.replace(RECIPE, **{ingredient: other}).key != RECIPE.key


def test_equal_recipes_share_a_key_that_is_a_plain_folder_name():
    assert dataclasses.replace(RECIPE).key == RECIPE.key
    # A + in a path breaks Horovod's CMake files; a / or a space would break more.
    assert RECIPE.key.startswith(
        "horovod-0.28.1-torch-2.13.0_cpu-cp311-linux-x86_64-glibc2.36-openmpi-4.1.8-cpu-"
    )
    assert set(RECIPE.key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def test_local_tags_of_torch_that_look_alike_still_differ():
    assert dataclasses.replace(RECIPE, torch="2.13.0_cpu").key != RECIPE.key


def test_the_key_follows_the_toolchain_file_and_the_compiler(tmp_path, monkeypatch):
    for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CUDAFLAGS"):
        monkeypatch.delenv(name, raising=False)
    before = install.make_recipe("2.13.0", None, None).key
    assert install.make_recipe("2.13.0", None, None).key == before

    monkeypatch.setenv("CXXFLAGS", "-O1")
    with_flags = install.make_recipe("2.13.0", None, None).key
    monkeypatch.delenv("CXXFLAGS")

    changed = tmp_path / "horovod.cmake"
    changed.write_text(install.TOOLCHAIN.read_text() + "# another line\n")
    monkeypatch.setattr(install, "TOOLCHAIN", changed)
    assert len({before, with_flags, install.make_recipe("2.13.0", None, None).key}) == 3


def test_with_and_without_mpi_are_two_builds():
    mpi = install.Mpi("openmpi-4.1.8", Path("/env/bin/mpicxx"), from_wheel=True)
    with_mpi = dict(install.make_recipe("2.13.0", mpi, None).environment)
    without = dict(install.make_recipe("2.13.0", None, None).environment)
    assert with_mpi["HOROVOD_WITH_MPI"] == "1"
    assert "HOROVOD_WITHOUT_MPI" not in with_mpi
    assert without["HOROVOD_WITHOUT_MPI"] == "1"
    assert "HOROVOD_WITH_MPI" not in without


@pytest.mark.parametrize(("machine", "there"), [("x86_64", True), ("aarch64", False)])
def test_x86_flags_stay_on_x86(monkeypatch, machine, there):
    monkeypatch.setattr(install.platform, "machine", lambda: machine)
    environment = dict(install.make_recipe("2.13.0", None, None).environment)
    assert ("HOROVOD_BUILD_ARCH_FLAGS" in environment) is there


def test_a_stranger_s_settings_do_not_reach_the_build(tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "MPI")
    monkeypatch.setenv("PIP_CONSTRAINT", "constraints.txt")
    monkeypatch.setenv("MAKELEVEL", "1")
    recipe = install.make_recipe("2.13.0", None, None)
    environment = install._build_environment(recipe, None, tmp_path)
    assert not {"HOROVOD_GPU_OPERATIONS", "PIP_CONSTRAINT", "MAKELEVEL"} & set(environment)
    assert environment["CMAKE_TOOLCHAIN_FILE"] == str(install.TOOLCHAIN)
    assert environment["PATH"].split(os.pathsep)[0] == sysconfig.get_path("scripts")
    assert int(environment["MAKEFLAGS"].removeprefix("-j")) >= 1


def test_little_memory_means_few_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr(install.os, "sched_getaffinity", lambda _: set(range(16)))
    for available, jobs in ((1, 1), (6 * 2**30, 3), (2**40, 16)):
        monkeypatch.setattr(
            install.psutil,
            "virtual_memory",
            lambda available=available: type("M", (), {"available": available}),
        )
        assert install._build_environment(RECIPE, None, tmp_path)["MAKEFLAGS"] == f"-j{jobs}"


# ---- MPI and GPUs ----


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_mpi_on_path_is_named_by_its_version_and_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(install.sysconfig, "get_path", lambda _: str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert install.find_mpi() is None

    names = set()
    for place in ("one", "two"):
        mpicxx = executable(tmp_path / place / "mpicxx")
        executable(tmp_path / place / "mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
        monkeypatch.setenv("PATH", str(tmp_path / place))
        found = install.find_mpi()
        assert found is not None
        assert found.mpicxx == mpicxx
        assert found.name.startswith("mpi-4.1.4-at-")
        assert not found.from_wheel
        assert dict(install.make_recipe("2", found, None).environment)["RINGSIDE_MPI_OUTSIDE"] == "1"
        names.add(found.name)
    assert len(names) == 2


def test_the_openmpi_wheel_goes_before_path(tmp_path, monkeypatch):
    monkeypatch.setattr(install.sysconfig, "get_path", lambda _: str(tmp_path / "scripts"))
    beside = executable(tmp_path / "scripts" / "mpicxx")
    executable(tmp_path / "elsewhere" / "mpicxx")
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(install.importlib.metadata, "version", {"openmpi": "4.1.8"}.__getitem__)
    assert install.find_mpi() == install.Mpi("openmpi-4.1.8", beside, from_wheel=True)


CUDA_TORCH = {"version": "2.13.0+cu130", "cuda": "13.0", "nccl": "2.28.9", "capabilities": ["90"]}


def test_nccl_needs_a_cuda_torch_and_a_toolkit(tmp_path):
    executable(tmp_path / "cuda" / "bin" / "nvcc")
    here = {"cuda_home": str(tmp_path / "cuda"), "nccl_home": str(tmp_path / "nccl")}
    assert install.find_gpu({"version": "2.13.0+cpu", "cuda": None}) is None
    assert install.find_gpu(CUDA_TORCH | here | {"cuda_home": None}) is None

    gpu = install.find_gpu(CUDA_TORCH | here)
    assert gpu is not None
    assert gpu.name == "cuda13.0-nccl2.28.9-cc90"
    recipe = install.make_recipe("2.13.0+cu130", None, gpu)
    assert recipe.gpu == gpu.name
    environment = install._build_environment(recipe, gpu, tmp_path)
    assert environment["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert environment["HOROVOD_NCCL_HOME"] == str(tmp_path / "nccl")
    assert environment["HOROVOD_CUDA_HOME"] == str(tmp_path / "cuda")
    assert environment["HOROVOD_BUILD_CUDA_CC_LIST"] == "90"


def test_a_toolkit_without_nvcc_is_refused_before_cmake_trips_over_it(tmp_path):
    with pytest.raises(UnavailableError) as caught:
        install.find_gpu(CUDA_TORCH | {"cuda_home": str(tmp_path), "nccl_home": str(tmp_path)})
    assert "nvcc" in caught.value.found
    assert "CUDA_HOME" in caught.value.remedy


# ---- refusals ----


@pytest.mark.parametrize(
    ("there", "complaint"),
    [
        ([], "no C++ compiler (c++, g++, clang++) and no make"),
        (["make"], "no C++ compiler"),
        (["g++"], "no make"),
    ],
)
def test_without_compiler_or_make_nothing_is_started(tmp_path, monkeypatch, cache, said, there, complaint):
    console, _ = said
    for name in there:
        executable(tmp_path / "bin" / name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(install, "_torch_facts", lambda: {"version": "2.13.0+cpu", "cuda": None})
    monkeypatch.setattr(install, "installed_key", lambda: None)
    monkeypatch.setattr(install._Shop, "run", lambda *_: pytest.fail("a command was started"))
    with pytest.raises(UnavailableError) as caught:
        install.install_horovod(console=console)
    assert "nothing was started" in caught.value.what
    assert complaint in caught.value.found
    assert "apt-get install g++ make" in caught.value.remedy
    assert not list(cache.rglob("*.whl"))


def test_tools_that_are_there_are_not_complained_about(tmp_path, monkeypatch):
    include = tmp_path / "include"
    executable(include / "Python.h")
    monkeypatch.setattr(install.sysconfig, "get_path", lambda _: str(include))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CXX", "ccache-g++ -m64")
    executable(tmp_path / "bin" / "ccache-g++")
    executable(tmp_path / "bin" / "gmake")
    install.check_tools()
    (include / "Python.h").unlink()
    with pytest.raises(UnavailableError, match=r"Python's own headers") as caught:
        install.check_tools()
    assert "python3-dev" in caught.value.remedy


def test_a_constraints_file_that_is_not_there(tmp_path, capsys):
    with pytest.raises(UsageError):
        install.install_horovod(tmp_path / "absent.txt")
    assert install.main(["--constraints", str(tmp_path / "absent.txt")]) == UsageError.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3  # what, found, remedy; no traceback
    assert "absent.txt" in lines[0]


def test_an_interrupt_is_no_traceback(monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(install, "install_horovod", interrupt)
    monkeypatch.setattr(install, "end_in_good_order", lambda: None)
    assert install.main([]) == 130


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, said):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(install, "_torch_facts", lambda: {"version": "2.13.0+cpu", "cuda": None})
    monkeypatch.setattr(install, "installed_key", lambda: None)
    with pytest.raises(UnavailableError) as caught:
        install.install_horovod(console=said[0])
    assert "XDG_CACHE_HOME" in caught.value.remedy


def test_compiling_avoids_a_path_that_is_a_regular_expression(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "plain"))
    assert install.scratch_parent() == tmp_path / "plain" / "ringside" / "wheels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c++"))
    monkeypatch.setattr(install.tempfile, "gettempdir", lambda: str(tmp_path))
    assert install.scratch_parent() == tmp_path
    monkeypatch.setattr(install.tempfile, "gettempdir", lambda: str(tmp_path / "(x86)"))
    with pytest.raises(UnavailableError, match=r"c\+\+"):
        install.scratch_parent()


def test_compiling_needs_no_folder_for_temporary_files_where_the_cache_will_do(tmp_path, monkeypatch):
    def nowhere():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(install.tempfile, "gettempdir", nowhere)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "plain"))
    assert install.scratch_parent() == tmp_path / "plain" / "ringside" / "wheels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c++"))
    with pytest.raises(UnavailableError, match=r"c\+\+"):
        install.scratch_parent()


def test_a_relative_cache_home_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert install.cache_folder() == tmp_path / ".cache" / "ringside"


# ---- running commands ----


def shop_at(tmp_path, console):
    return install._Shop(console, (tmp_path / "build.log").open("a", encoding="utf-8"))


def test_a_failed_command_shows_its_errors_and_its_log(tmp_path, said):
    script = "print('noise\\nx.cc:7: error: no member named y\\nmore noise'); raise SystemExit(3)"
    shop = shop_at(tmp_path, said[0])
    with shop.stream, pytest.raises(UnavailableError) as caught:
        shop.run("building Horovod", [sys.executable, "-c", script])
    assert "building Horovod failed (exit status 3)" in caught.value.what
    assert caught.value.found == "x.cc:7: error: no member named y"
    assert str(tmp_path / "build.log") in caught.value.remedy
    assert "more noise" in (tmp_path / "build.log").read_text()


def test_progress_without_a_terminal_is_a_line_for_every_tenth(tmp_path, said):
    script = r"""
for percent in (1, 5, 9, 10, 12, 8, 35, 36, 100):
    print('[%3d%%] Building CXX object' % percent)
print('100% of nothing')
"""
    console, stream = said
    shop = shop_at(tmp_path, console)
    with shop.stream:
        shop.run("building", [sys.executable, "-c", script])
    shown = [
        line.split(":")[1].split("%")[0].strip() for line in stream.getvalue().splitlines() if "%" in line
    ]
    assert shown == ["10", "35", "100"]


def test_progress_on_a_terminal_shows_the_percentage(tmp_path):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    shop = shop_at(tmp_path, console)
    with shop.stream:
        shop.run(
            "building",
            [sys.executable, "-c", "print('[ 42%] Building', flush=True); import time; time.sleep(0.5)"],
        )
    assert "42%" in stream.getvalue()


def test_an_interrupted_build_leaves_no_process_behind(tmp_path, said, monkeypatch):
    pids = tmp_path / "pids"
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "print('started', flush=True); time.sleep(60)\n"
    )

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(install._Meter, "read", interrupt)
    shop = shop_at(tmp_path, said[0])
    with shop.stream, pytest.raises(KeyboardInterrupt):
        shop.run("building", [sys.executable, "-c", script])

    def alive(pid):
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    deadline = time.monotonic() + 10
    while left := [pid for pid in map(int, pids.read_text().split()) if alive(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


def test_error_lines_are_the_causes_not_the_echo():
    said = [
        "-- Could not find CCache. Consider installing it",
        "/usr/bin/c++ -Werror=x " + "y" * 400,
        "c++: fatal error: Killed signal terminated program cc1plus",
        "gmake[2]: *** [x.o] Error 1",
        "ERROR: Failed building wheel for horovod",
        "error: subprocess-exited-with-error",
    ]
    assert install.error_lines(said) == ["c++: fatal error: Killed signal terminated program cc1plus"]
    assert install.error_lines([str(n) for n in range(20)]) == ["14", "15", "16", "17", "18", "19"]


# ---- which Horovod is installed ----


def horovod_from(folder: Path, url: str | None) -> None:
    info = folder / "horovod-0.28.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    if url is not None:
        (info / "direct_url.json").write_text(json.dumps({"url": url, "archive_info": {}}))


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("file:///home/a%20b/wheels/the-key/horovod-0.28.1-cp311-cp311-linux_x86_64.whl", "the-key"),
        ("https://example.org/the-key/horovod-0.28.1.whl", None),
        (None, None),
    ],
)
def test_the_installed_key_comes_from_pip_s_own_record(tmp_path, monkeypatch, url, key):
    horovod_from(tmp_path, url)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert install.installed_key() == key


def test_no_horovod_has_no_key(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert install.installed_key() is None


# ---- the toolchain file, with a real CMake ----


def cmake_or_skip() -> str:
    cmake = shutil.which("cmake", path=install._search_path())
    if cmake is None:
        pytest.skip("no cmake here: pip install cmake")
    if not shutil.which("c++") or not shutil.which("make"):
        pytest.skip("no C++ compiler or no make here")
    return cmake


def configure(folder: Path, name: str, lines: str = "") -> tuple[str, str]:
    """Configure and build a project of this name; its compiler command, and what CMake said."""
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
    environment |= {"CMAKE_TOOLCHAIN_FILE": str(install.TOOLCHAIN), "CMAKE_GENERATOR": "Unix Makefiles"}
    output = ""
    for command in ([cmake, "-S", ".", "-B", "build"], [cmake, "--build", "build"]):
        done = subprocess.run(
            command, cwd=folder, env=environment, check=False, capture_output=True, text=True
        )
        output += done.stdout + done.stderr
        assert done.returncode == 0, output
    commands = json.loads((folder / "build" / "compile_commands.json").read_text())
    (compiler,) = [entry["command"] for entry in commands if entry["file"].endswith("probe.cc")]
    return compiler, output


def test_horovod_asks_for_14_and_gets_20(tmp_path):
    (tmp_path / "needs20.cc").write_text(
        # Uses uint32_t and std::runtime_error without including them, and C++20.
        'static_assert(__cplusplus >= 202002L, "C++20");\n'
        'uint32_t f() { throw std::runtime_error(std::string("x")); }\n'
    )
    compiler, output = configure(
        tmp_path / "project", "horovod", f"add_library(more STATIC {tmp_path}/needs20.cc)\n"
    )
    assert "-std=c++20" in compiler
    assert "-std=c++14" not in compiler
    assert "-include cstdint" in compiler
    assert ".so.2" in output.split("suffixes: ")[1].splitlines()[0].split(";")


def test_other_projects_see_the_compiler_as_it_is(tmp_path):
    compiler, output = configure(tmp_path / "project", "CheckLanguage")
    assert "-std=c++14" in compiler
    assert "-include" not in compiler
    assert ".so.2" not in output.split("suffixes: ")[1].splitlines()[0].split(";")


def test_gloo_s_ancient_policies_are_accepted(tmp_path):
    old = tmp_path / "gloo"
    old.mkdir()
    (old / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 2.8)\nproject(gloo C CXX)\n")
    configure(tmp_path / "project", "horovod", f"add_subdirectory({old} gloo)")


def test_the_library_finds_its_neighbours_from_where_it_lies(tmp_path):
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf here: apt-get install binutils")
    lines = f"""
add_library(neighbour SHARED {tmp_path}/neighbour.cc)
link_libraries(neighbour)
"""
    (tmp_path / "neighbour.cc").write_text("int neighbour() { return 1; }\n")
    configure(tmp_path / "project", "horovod", lines)
    shown = subprocess.run(
        [readelf, "-d", tmp_path / "project" / "build" / "libprobe.so"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
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
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        for name, text in files.items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "horovod-0.28.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (
            files | {f"{info}/RECORD": "\n".join([*record, f"{info}/RECORD,,"]) + "\n"}
        ).items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o100755 << 16  # pip lets a script be executable that is here
            archive.writestr(entry, text)
    return wheel


@pytest.fixture
def other_python(tmp_path, cache, monkeypatch):
    """A virtual environment that sees everything of this one, and installs into itself."""
    folder = tmp_path / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "outer.pth").write_text(f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n")
    # Without this environment's scripts and those of any MPI: a build with Gloo only.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if shutil.which("mpicxx"):
        pytest.skip("a system-wide mpicxx is always found")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *arguments], check=False, capture_output=True, text=True, cwd=tmp_path, timeout=200
        )

    return run


def key_for(run) -> str:
    torch = "build._torch_facts()['version']"
    answer = run(
        "-c", f"from compare.doctor.horovod import build; print(build.make_recipe({torch}, None, None).key)"
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


@pytest.mark.slow
def test_a_cached_wheel_is_installed_once_and_not_built(other_python, cache, tmp_path):
    folder = cache / "wheels" / key_for(other_python)
    basics = BASICS.format(mpi=False)
    make_wheel(
        folder,
        {"horovod/__init__.py": "", "horovod/torch/__init__.py": basics, "horovod/torch/mpi_lib_v2.py": ""},
    )

    first = other_python("-m", "compare.doctor.horovod.build")
    assert first.returncode == 0, first.stderr
    assert "reusing" in first.stderr
    assert "building" not in first.stderr
    assert "built with gloo" in first.stderr

    second = other_python("-m", "compare.doctor.horovod.build")
    assert second.returncode == 0, second.stderr
    assert "already installed" in second.stderr, second.stderr
    assert "reusing" not in second.stderr

    (tmp_path / "env" / "bin" / "horovodrun").unlink()
    third = other_python("-m", "compare.doctor.horovod.build")
    assert third.returncode == 0, third.stderr
    assert "already installed" not in third.stderr
    assert (tmp_path / "env" / "bin" / "horovodrun").exists()


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        # horovod.torch itself imports without its library, and says so only on standard output.
        (
            {"horovod/torch/__init__.py": BASICS.format(mpi=False)},
            "No module named 'horovod.torch.mpi_lib_v2'",
        ),
        (
            {"horovod/torch/__init__.py": BASICS.format(mpi=True), "horovod/torch/mpi_lib_v2.py": ""},
            "its library says: {'mpi': True",
        ),
    ],
    ids=["library missing", "another MPI"],
)
def test_a_wheel_that_is_not_what_it_should_be_is_taken_away_again(other_python, cache, files, complaint):
    wheel = make_wheel(cache / "wheels" / key_for(other_python), {"horovod/__init__.py": ""} | files)
    answer = other_python("-m", "compare.doctor.horovod.build")
    assert answer.returncode == UnavailableError.exit_code, answer.stderr
    assert complaint in answer.stderr
    assert "Traceback (most recent call last)" not in answer.stderr.split("installing the wheel")[0]
    assert not wheel.exists()
    where = other_python(
        "-c", "import importlib.metadata as m; print(m.distribution('horovod').locate_file(''))"
    )
    assert "/env/" not in where.stdout
