"""The images every arm trains on: found, fetched, verified, and loaded the same way on every rank.

Two data sets, one file format (IDX), one loader:

* ``mnist``: the original, in torchvision's layout ``<root>/MNIST/raw/*-ubyte[.gz]``, so that a copy
  fetched by either program serves both.
* ``digits``: scikit-learn's bundled 1,797 scanned digits, brought to MNIST's shapes and sizes and
  written to ``<root>/digits/v1/*-ubyte``. It needs no network, costs every arm the same bytes and
  floating point operations per step, and can be learnt; its accuracy is not comparable with MNIST's.

The parent asks ``resolve`` for a ``DatasetSource``; the ranks hand it to ``load_split``. Whatever
is loaded has been compared with a SHA-256 written in ``catalogue``, so two hosts that both load ``mnist``
(or both ``digits``) hold the same pixels. Nothing that exists is ever overwritten.

NumPy, scikit-learn and the network libraries are imported where they are used: the command line must
answer ``--help`` without them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from compare.data.catalogue import DatasetChoice, DatasetName, DatasetSource
from compare.data.digits import prepare_digits
from compare.data.files import FileStatus, files_in, holds, mnist_directory, status
from compare.data.loading import RawDataset, load, load_split
from compare.data.mnist import NotObtainedError, fetch_mnist, missing_mnist
from compare.errors import OutputError

if TYPE_CHECKING:
    from compare.data.catalogue import Progress

__all__ = [
    "DatasetChoice",
    "DatasetName",
    "DatasetSource",
    "FileStatus",
    "RawDataset",
    "default_root",
    "fetch_mnist",
    "files_in",
    "holds",
    "load",
    "load_split",
    "resolve",
    "status",
]


def default_root() -> Path:
    """Where data is kept unless the user says otherwise: ``~/.cache/ringside/data``, or as XDG has it.

    Raises:
        OutputError: this user has no home directory.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if cache.is_absolute():  # the XDG specification: others are to be ignored
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
    allow_download: bool = True,
    progress: Progress | None = None,
) -> DatasetSource:
    """Decide which data a run uses, and see to it that it lies on this host's disk.

    ``auto`` is MNIST if it is complete under ``root`` or can be downloaded into it. Otherwise it is
    ``digits``, with a note that says why; damaged MNIST files are an error, never a reason to fall back.

    Args:
        dataset: ``auto``, ``mnist`` or ``digits``.
        root: the folder data is kept in, ``default_root()`` or the user's ``--data-dir``.
        allow_download: whether the network may be used.
        progress: told what is going on.

    Raises:
        DataError: the data is damaged, or ``mnist`` was asked for and cannot be had.
        OutputError: nothing can be written under ``root`` (with ``auto``: nor under the default root).
    """
    if dataset == "digits":
        return DatasetSource(name="digits", requested=dataset, directory=str(prepare_digits(root)))
    try:
        directory = _obtain_mnist(root, allow_download=allow_download, progress=progress)
    except (NotObtainedError, OutputError) as error:
        if dataset == "mnist":
            raise
        reason = error.reason if isinstance(error, NotObtainedError) else f"{root} cannot be written"
        return DatasetSource(
            name="digits",
            requested=dataset,
            directory=str(_prepare_digits_somewhere(root)),
            note=f"MNIST could not be had ({reason}): scikit-learn's digits instead",
        )
    return DatasetSource(name="mnist", requested=dataset, directory=str(directory))


def _obtain_mnist(root: Path, *, allow_download: bool, progress: Progress | None) -> Path:
    if allow_download:
        return fetch_mnist(root, progress=progress)
    directory = mnist_directory(root)
    missing = missing_mnist(directory)
    if missing:
        raise NotObtainedError(
            root, reason="downloading is switched off", found=f"Missing: {', '.join(missing)}."
        )
    return directory


def _prepare_digits_somewhere(root: Path) -> Path:
    """Digits under ``root``, or under the default root where ``root`` is, say, a read-only share."""
    try:
        return prepare_digits(root)
    except OutputError:
        if root == default_root():
            raise
        return prepare_digits(default_root())
