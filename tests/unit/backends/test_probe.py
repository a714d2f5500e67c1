"""A process that loads a library ends with its parent."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from backends import probe
from backends.launchers import hydra
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
# Sleeps without letting another thread run, as the start of a library may: PyDLL keeps the lock.
HANG = "import ctypes; print('hangs', flush=True); ctypes.PyDLL(None).sleep(60)"
LISTEN = "from backends import probe; probe.end_with_parent()"


def start(code, **streams):
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, text=True, **streams
    )


def test_probe_that_hangs_ends_when_its_input_closes():
    alive, held = os.pipe()
    with start(f"{LISTEN}; {HANG}", stdin=alive) as process:
        assert process.stdout.readline() == "hangs\n"
        assert process.poll() is None
        os.close(held)
        assert process.wait(10) == -signal.SIGIO
    os.close(alive)


def test_probe_without_a_parent_does_not_begin():
    alive, held = os.pipe()
    os.close(held)
    with start(f"{LISTEN}; print('begins')", stdin=alive, stderr=subprocess.PIPE) as process:
        printed, errors = process.communicate(timeout=30)
    assert (process.returncode, printed, errors) == (1, "", "its parent has ended\n")
    os.close(alive)


def test_probe_without_a_pipe_begins():
    with start(f"{LISTEN}; print('begins')", stdin=subprocess.DEVNULL) as process:
        assert process.communicate(timeout=30)[0] == "begins\n"


CUDA_TORCH = """
import sys
from types import ModuleType as Module, SimpleNamespace as Space
from backends import probe
nccl = Space(version=lambda: (2, 28, 9))
cuda = Space(device_count=lambda: 2, get_device_capability=lambda i: (9, i), nccl=nccl)
sys.modules["torch"] = Module("torch")
vars(sys.modules["torch"]).update(__version__="2.13.0+cu130", version=Space(cuda="13.0"), cuda=cuda)
for name in ("torch.utils", "torch.utils.cpp_extension", "nvidia", "nvidia.nccl"):
    sys.modules[name] = Module(name)
sys.modules["torch.utils.cpp_extension"].CUDA_HOME = "/cuda"
sys.modules["nvidia"].nccl = sys.modules["nvidia.nccl"]
sys.modules["nvidia.nccl"].__path__ = ["/nccl"]
print(probe.probe_torch_build())
"""


def test_probe_torch_build_of_cuda_names_toolkit_gpus_and_nccl():
    with start(CUDA_TORCH) as process:
        printed = process.communicate(timeout=30)[0]
    assert ast.literal_eval(printed) == {
        "version": "2.13.0+cu130",
        "cuda": "13.0",
        "cuda_home": "/cuda",
        "capabilities": ["90", "91"],
        "nccl_home": "/nccl",
        "nccl": "2.28.9",
    }


def test_survey_killed_ends_the_libraries_that_load(tmp_path):
    """Let a library write its process id, and hang."""
    package, written = tmp_path / "mpi4py", tmp_path / "pid"
    package.mkdir()
    (package / "__init__.py").write_text(
        f"import os, pathlib; pathlib.Path({str(written)!r}).write_text(f'{{os.getpid()}}\\n'); {HANG}"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "TMPDIR": str(tmp_path)}
    with start("from compare.doctor.availability import survey; survey(['mpi'])", env=environment) as process:
        wait_until(lambda: written.exists() and written.read_text().endswith("\n"), 60)
        library = psutil.Process(int(written.read_text()))
        assert library.ppid() == process.pid
        process.kill()
    psutil.wait_procs([library], timeout=10)
    assert not library.is_running() or library.status() == psutil.STATUS_ZOMBIE
    assert not list(tmp_path.glob("ringside-*"))


def test_probe_of_mpich_needs_its_prefix_and_refuses_another_library(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MPI4PY_LIBMPI", "")
    monkeypatch.setattr(probe, "version", lambda _: "4.1.2")
    loaded = SimpleNamespace(Get_library_version=lambda: "MPICH Version:      5.0.2\n")
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(rc=SimpleNamespace(), MPI=loaded))
    assert probe.probe_mpich() is None
    hydra.library().parent.mkdir(parents=True)
    hydra.library().touch()
    assert probe.probe_mpich()["version"] == "4.1.2 on MPICH 5.0.2"
    assert os.environ["MPI4PY_LIBMPI"] == str(hydra.library())
    loaded.Get_library_version = lambda: "Open MPI v4.1.8, package: x"
    with pytest.raises(ImportError, match="ignores MPI4PY_LIBMPI"):
        probe.probe_mpich()
