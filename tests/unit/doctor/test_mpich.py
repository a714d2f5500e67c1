"""Install MPICH without pip; `make setup` tests the real installation."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from backends.launchers import find_launcher, hydra, where_it_is_not
from compare.doctor import availability, mpich
from compare.doctor.facts import Library
from compare.errors import UnavailableError

LOADED = Library(facts={"version": "4.1.2 on MPICH 5.0.2"})


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ringside" / f"mpich-{hydra.VERSION}"


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=300)


@pytest.fixture
def pip(monkeypatch):
    """Replace pip, and what loads MPICH."""
    fake = SimpleNamespace(commands=[], error=None, loaded=LOADED)

    def run(_, _title, command):
        fake.commands.append(command)
        if fake.error:
            raise fake.error
        new = Path(next(word for word in command if word.startswith("--prefix=")).partition("=")[2])
        for name in ("bin/mpiexec.hydra", "lib/libmpi.so.12"):
            (new / name).parent.mkdir(parents=True)
            (new / name).touch(mode=0o755)

    monkeypatch.setattr(mpich.Commands, "run", run)
    monkeypatch.setattr(availability, "load", lambda names: dict.fromkeys(names, fake.loaded))
    return fake


def test_mpich_is_installed_into_a_prefix_of_its_own(prefix, console, pip):
    assert find_launcher("mpiexec.hydra") is None
    assert where_it_is_not("mpiexec.hydra") == f"mpiexec.hydra is not in {prefix / 'bin'}"
    mpich.install_mpich(console=console)
    assert find_launcher("mpiexec.hydra") == prefix / "bin" / "mpiexec.hydra"
    assert hydra.library() == prefix / "lib" / "libmpi.so.12"
    assert "--require-hashes" in pip.commands[0]
    assert "it loads: mpi4py 4.1.2 on MPICH 5.0.2" in console.file.getvalue()
    assert {path.name for path in prefix.parent.iterdir()} <= {f"{prefix.name}{end}" for end in ("", ".lock", ".log")}


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


def test_folder_that_cannot_be_written_is_an_error(tmp_path, monkeypatch, console, pip):
    (tmp_path / "cache").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UnavailableError, match="MPICH was not installed"):
        mpich.install_mpich(console=console)
