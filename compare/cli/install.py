"""Install what pip alone cannot: ``ringside install horovod`` and ``mpich``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def horovod(
    *,
    constraints: Annotated[
        Path | None, typer.Option(help="pip constraints for the packages that the build needs.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Build again, even if a wheel is in the cache.")
    ] = False,
) -> None:
    """Build Horovod 0.28.1 from its unmodified source for the installed torch."""
    from compare.doctor.horovod.build import install_horovod

    install_horovod(constraints=constraints, force=force)


def mpich(
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Install again, even if it is in the cache.")
    ] = False,
) -> None:
    """Install MPICH for mpi:library=mpich, beside the environment's Open MPI."""
    from compare.doctor.mpich import install_mpich

    install_mpich(force=force)
