"""A damaged installation is reported before any launch, with its fix."""

import os
import shutil
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from backends import BACKENDS
from backends.launchers import LAUNCHERS
from compare.errors import UnavailableError
from tests.comparing import ROOT, compare

pytestmark = pytest.mark.faults

PACKAGES = Path(sysconfig.get_path("purelib"))
USED_BY = {"torchrun": "ddp", "horovodrun": "horovod", "mpirun": "mpi"}
"""MPICH's launcher is not in the environment."""
# The start of C++ names in torch's namespace c10; Horovod's library needs hundreds.
OF_TORCH = b"_ZN3c10"


def link_all(source, target):
    for entry in source.iterdir():
        if not (target / entry.name).exists():
            (target / entry.name).symlink_to(entry)


@pytest.fixture
def without(tmp_path):
    """Make an environment like this one, without some launchers."""

    def make(launchers):
        folder = tmp_path / "env"
        venv.create(folder, with_pip=False, symlinks=True)
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        (packages / "outer.pth").write_text(f"{ROOT}\n{PACKAGES}\n")
        for place in ("bin", "lib"):  # with the libraries of an MPI from pip
            link_all(Path(sys.prefix) / place, folder / place)
        path = os.get_exec_path()
        for launcher in launchers:
            (folder / "bin" / launcher).unlink(missing_ok=True)
            path = [place for place in path if shutil.which(launcher, path=place) is None]
        return folder / "bin" / "python", {"PATH": os.pathsep.join(path), "COLUMNS": "400"}

    return make


def test_missing_launchers_are_named_with_their_remedies(tmp_path, without, every_backend):
    python, environment = without(USED_BY)
    for launcher, backend in USED_BY.items():
        asked = compare(
            "run", "--backend", backend, "--output", tmp_path / "out", python=python, environment=environment
        )
        assert asked.returncode == UnavailableError.exit_code, asked.stderr
        assert f"{launcher} is neither beside {python} nor on PATH" in asked.stderr
        assert LAUNCHERS[launcher].REMEDY in asked.stderr
        assert not (tmp_path / "out").exists()
    listed = compare("backends", python=python, environment=environment)
    assert listed.returncode == 0, listed.stderr
    for name, found in BACKENDS.items():
        (line,) = [line for line in listed.stdout.splitlines() if line.startswith(f" {name} ")]
        named = [launcher for launcher in USED_BY if f"{launcher} is neither" in line]
        assert named == [found.default_runtime.launcher], line


@pytest.mark.rest
@pytest.mark.parametrize("launcher", USED_BY)
def test_missing_launcher_leaves_the_backends_of_the_others(without, every_backend, launcher):
    python, environment = without([launcher])
    listed = compare("backends", python=python, environment=environment)
    assert listed.returncode == 0, listed.stderr
    for name, found in BACKENDS.items():
        (line,) = [line for line in listed.stdout.splitlines() if line.startswith(f" {name} ")]
        assert (f"{launcher} is neither" in line) == (found.default_runtime.launcher == launcher), line


@pytest.fixture
def horovod_of_another_torch(tmp_path, requires_backend):
    """Copy Horovod, and let its library need names that this torch lacks."""
    requires_backend("horovod")
    copy = tmp_path / (PACKAGES / "horovod").relative_to(sys.prefix)
    shutil.copytree(PACKAGES / "horovod", copy)
    link_all(Path(sys.prefix) / "lib", tmp_path / "lib")  # for an MPI from pip
    (library,) = copy.glob("torch/mpi_lib_v2*.so")
    data = library.read_bytes()
    assert OF_TORCH in data
    library.write_bytes(data.replace(OF_TORCH, b"_ZN3c99"))
    return {"PYTHONPATH": str(copy.parent), "COLUMNS": "400"}


def test_horovod_of_another_torch_is_unavailable(tmp_path, horovod_of_another_torch):
    listed = compare("backends", environment=horovod_of_another_torch)
    assert listed.returncode == 0, listed.stderr
    assert "undefined symbol: _ZN3c99" in listed.stdout
    assert "unset PYTHONPATH" in listed.stdout, "another Horovod lies there"
    asked = compare(
        "run", "--backend", "horovod", "--output", tmp_path / "out", environment=horovod_of_another_torch
    )
    assert asked.returncode == UnavailableError.exit_code, asked.stderr
    assert "undefined symbol" in asked.stderr
    assert "unset PYTHONPATH" in asked.stderr
    assert not (tmp_path / "out").exists()
