"""Install MPICH into a prefix of its own: ``ringside setup mpich``.

Its wheel has files of the same names as the wheel of Open MPI: ``mpirun``, ``mpicc``, ``libmpi``. In one
environment, the second that is installed would replace parts of the first.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from backends.launchers import find_launcher, hydra
from compare.doctor import availability
from compare.doctor.horovod.command import Commands, installing, pip
from compare.errors import UnavailableError

_SHA256 = (
    "8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4",
    "992ae6ebb0da97d49d7a67000ae8112da9a3825da1bb1e6f1d196428a0410f2d",
)
"""Digests of the wheels for Linux on x86_64 and aarch64."""


def install_mpich(*, force: bool = False, console: Console | None = None) -> None:
    """Install MPICH, unless it is installed already, and check that it loads.

    ``force`` installs it again. Progress is printed on ``console``, by default on standard error.

    Raises:
        UnavailableError: pip could not install it, or mpi4py does not load it.
    """
    console = console or Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"MPICH {hydra.VERSION} in {hydra.prefix()}")
    with installing("MPICH", hydra.prefix(), console) as commands:
        if force or not (find_launcher(hydra.EXECUTABLE) and hydra.library().exists()):
            _install(commands)
            console.print("  installed")
        else:
            console.print("  already installed")
    _verify(console)


def _install(commands: Commands) -> None:
    """Install the wheel into a temporary folder, which replaces the old prefix only at the end."""
    with tempfile.TemporaryDirectory(prefix=".mpich-", dir=hydra.prefix().parent) as name:
        requirement, new = Path(name) / "mpich.txt", Path(name) / "mpich"
        hashes = " ".join(f"--hash=sha256:{digest}" for digest in _SHA256)
        requirement.write_text(f"mpich=={hydra.VERSION} {hashes}\n", encoding="utf-8")
        options = (
            "--no-deps",
            "--ignore-installed",
            "--only-binary=:all:",
            "--no-compile",
            "--require-hashes",
        )
        command = pip("install", *options, f"--prefix={new}", f"--requirement={requirement}")
        commands.run("installing the wheel", command)
        shutil.rmtree(hydra.prefix(), ignore_errors=True)
        new.rename(hydra.prefix())


def _verify(console: Console) -> None:
    """Check that mpi4py loads MPICH.

    Raises:
        UnavailableError: it does not; the error has the reason.
    """
    library = availability.load(["mpich"])["mpich"]
    availability.require_answer("mpich", library)
    if library.problem or library.missing:
        raise UnavailableError(
            "MPICH is installed, but mpi4py does not load it.",
            found=library.problem or f"{hydra.library()} is missing.",
            remedy="Run `pip install --force-reinstall --only-binary=mpi4py 'mpi4py>=4.1,<5'`, then this "
            "command again with --force.",
        )
    console.print(f"  it loads: mpi4py {library.facts['version']}")
