"""Choose the data set of a run, and find, download or make it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

from compare.data.catalogue import DatasetChoice, DatasetName, DatasetSource
from compare.data.digits import prepare_digits
from compare.data.files import digits_directory, holds, mnist_directory
from compare.data.mnist import MnistNotFoundError, fetch_mnist
from compare.errors import OutputError


def default_root() -> Path:
    """Return the user's data folder: ``ringside/data`` below ``XDG_CACHE_HOME``, or else below ``~/.cache``.

    Raises:
        OutputError: ``XDG_CACHE_HOME`` is not an absolute path, and the user has no home directory.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if cache.is_absolute():  # the XDG specification ignores relative paths
        return cache / "ringside" / "data"
    try:
        return Path.home() / ".cache" / "ringside" / "data"
    except RuntimeError as error:
        raise OutputError(
            "There is no folder to keep data in", found=str(error), remedy="Name one with --data-dir."
        ) from error


def resolve(
    dataset: DatasetChoice,
    root: Path,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> DatasetSource:
    """Find, download or make the data set that the user chose, and return where it is.

    ``auto`` takes MNIST if ``root`` holds all of it or a mirror serves it. Otherwise it takes the digits, and
    the note of the returned source states why. Damaged files are always an error.

    Raises:
        DataError: the data is damaged, or the user chose ``mnist`` and it is not available.
        OutputError: ``root`` cannot be written; with ``auto``, nor can the default root.
    """
    if dataset == "digits":
        return DatasetSource(name="digits", requested=dataset, directory=str(prepare_digits(root)))
    try:
        directory = fetch_mnist(root, progress=progress)
    except (MnistNotFoundError, OutputError) as error:
        if dataset == "mnist":
            raise
        reason = error.reason if isinstance(error, MnistNotFoundError) else f"{root} cannot be written"
        return DatasetSource(
            name="digits",
            requested=dataset,
            directory=str(_prepare_digits_somewhere(root)),
            note=f"MNIST is not available ({reason}): scikit-learn's digits instead",
        )
    return DatasetSource(name="mnist", requested=dataset, directory=str(directory))


def expect(dataset: DatasetChoice, root: Path) -> DatasetSource:
    """Return the source that ``resolve`` is expected to return, without downloading or making anything.

    For ``auto`` it is MNIST, unless ``root`` holds only the digits. If the data is not in ``root`` yet, the
    note states how to get it.
    """
    there = [name for name, folder in _folders(root).items() if holds(name, folder)]
    choices: list[DatasetName] = ["mnist", "digits"] if dataset == "auto" else [dataset]
    name = next((name for name in choices if name in there), choices[0])
    note = "" if name in there else f"The data is not in {root} yet. {_first_step(name, root)}"
    return DatasetSource(name=name, requested=dataset, directory=str(_folders(root)[name]), note=note)


def _first_step(name: DatasetName, root: Path) -> str:
    """Return a sentence that tells a user how to get the data before starting ranks by hand."""
    if name == "mnist":
        return f"Get it first: compare data fetch --data-dir {shlex.quote(str(root))}"
    return "Run the same once without --dry-run, which makes it."


def _folders(root: Path) -> dict[DatasetName, Path]:
    return {"mnist": mnist_directory(root), "digits": digits_directory(root)}


def _prepare_digits_somewhere(root: Path) -> Path:
    """Make the digits under ``root``, or under the default root if ``root`` cannot be written.

    Raises:
        DataError: the digits in the folder are damaged, or scikit-learn yields others than expected.
        OutputError: neither folder can be written.
    """
    try:
        return prepare_digits(root)
    except OutputError:
        if root == default_root():
            raise
        return prepare_digits(default_root())
