"""What the tests have in common: where MNIST lies, what can run here, and that nothing is left running."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest

from backends import BACKENDS
from backends.launchers.request import MARKER
from compare.data import load
from compare.data.digits import prepare_digits
from compare.doctor.availability import Survey, survey
from compare.errors import DataError, UnavailableError

REPOSITORY = Path(__file__).resolve().parents[1]

# What these assert is shown in full when it fails, as in a test.
pytest.register_assert_rewrite("tests.contract.promises")


def _mnist() -> Path | None:
    for place in (REPOSITORY / "data", REPOSITORY.parent / "shared" / "data"):
        with contextlib.suppress(DataError):
            # Its name alone says little: where MNIST could not be had, the stand-in lies there.
            if load(place / "MNIST" / "raw").name == "mnist":
                return place
    return None


@pytest.fixture(scope="session")
def mnist_dir() -> Path:
    """The folder that holds MNIST/raw."""
    return _mnist() or pytest.skip(
        "the real MNIST is not in data/ nor in ../shared/data beside the repository"
    )


@pytest.fixture(scope="session")
def any_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A data set and its folder, for tests to which it does not matter which: MNIST, or what stands in."""
    if (place := _mnist()) is not None:
        return "mnist", place
    folder = tmp_path_factory.mktemp("data")
    prepare_digits(folder)
    return "digits", folder


@pytest.fixture(scope="session")
def surveyed() -> Survey:
    """What can run here; loading every library takes a second or two, so it is done once."""
    return survey()


@pytest.fixture(scope="session")
def requires_backend(surveyed):
    """Skip the test, with the reason, where a backend cannot run: ``requires_backend("horovod")``.

    With its options, where they matter: ``requires_backend("horovod", controller="mpi")``.
    """

    def require(name: str, **options) -> None:
        try:
            surveyed.require(name, options)
        except UnavailableError as error:
            pytest.skip(" ".join(str(error).splitlines()))

    return require


@pytest.fixture(scope="session")
def every_backend(requires_backend) -> None:
    """Skip the test where not all backends, with all they can be asked for, run."""
    for backend in BACKENDS.values():
        controllers = [option.choices for option in backend.options if option.name == "controller"]
        for controller in controllers[0] if controllers else [None]:
            requires_backend(backend.name, controller=controller)


@pytest.fixture(scope="session")
def find_launched():
    """Find live processes by the name of their launch, which ``name/0`` and ``name/1`` are parts of.

    Written apart from ``supervise.descendants``, so that what that overlooks is not overlooked here.
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
    """Names of launches that ought to have ended by the end of the test that started them: append yours."""
    return []


@pytest.fixture
def nothing_left_running(launch_marks, find_launched):
    """Fail the test at whose end a process of a launch still runs."""
    yield
    left = find_launched(launch_marks)
    launch_marks.clear()
    assert not left, f"still running: {left}"
