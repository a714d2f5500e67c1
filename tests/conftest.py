"""Fixtures that all tests share: data, backends, and processes left running."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

import psutil
import pytest

from backends import BACKENDS
from backends.launchers.request import MARKER
from compare.data.digits import prepare_digits
from compare.doctor import Survey, survey
from compare.errors import UnavailableError
from tests.comparing import find_mnist

# Failed assertions in these modules are then shown in full, as in a test.
pytest.register_assert_rewrite("tests.contract.promises")


def pytest_collection_finish() -> None:
    """Leave all that is loaded by now out of every search for garbage, which would take a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def frozen_torch() -> None:
    """Leave torch out of the meter's searches for live objects, with all that its first optimizer loads."""
    import torch

    torch.optim.SGD([torch.zeros(1)])
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def mnist_dir() -> Path:
    """Find the folder that holds MNIST/raw."""
    return find_mnist() or pytest.skip(
        "the real MNIST is not in data/ nor in ../shared/data beside the repository"
    )


@pytest.fixture(scope="session")
def any_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Provide any data set and its folder: MNIST, or the stand-in."""
    if (place := find_mnist()) is not None:
        return "mnist", place
    folder = tmp_path_factory.mktemp("data")
    prepare_digits(folder)
    return "digits", folder


@pytest.fixture(scope="session")
def surveyed() -> Survey:
    """Survey once what can run here: loading every library takes seconds."""
    return survey()


@pytest.fixture(scope="session")
def requires_backend(surveyed):
    """Skip the test, with the reason, if a backend cannot run.

    Example: ``requires_backend("horovod", controller="mpi")``.
    """

    def require(name: str, **options) -> None:
        try:
            surveyed.require(name, options)
        except UnavailableError as error:
            pytest.skip(" ".join(str(error).splitlines()))

    return require


@pytest.fixture(scope="session")
def every_backend(requires_backend) -> None:
    """Skip the test unless all backends run, with all their controllers."""
    for backend in BACKENDS.values():
        controllers = [option.choices for option in backend.options if option.name == "controller"]
        for controller in controllers[0] if controllers else [None]:
            requires_backend(backend.name, controller=controller)


@pytest.fixture(scope="session")
def find_launched():
    """Find live processes by the name of their launch.

    ``name/0`` is a part of the launch ``name``. This does not use the product's own search, so that it
    finds what that search misses.
    """

    def find(names: list[str]) -> list[str]:
        found = []
        for process in psutil.process_iter() if names else ():
            with contextlib.suppress(psutil.Error, OSError):
                mark = process.environ().get(MARKER, "")
                named = any(mark == name or mark.startswith(f"{name}/") for name in names)
                if named and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} of {mark}: {' '.join(process.cmdline())}")
        return found

    return find


@pytest.fixture(scope="session")
def launch_marks() -> list[str]:
    """Collect names of launches that must have ended when their test ends."""
    return []


@pytest.fixture
def nothing_left_running(launch_marks, find_launched):
    """Fail the test if a process of its launches is left running."""
    yield
    left = find_launched(launch_marks)
    launch_marks.clear()
    assert not left, f"still running: {left}"
