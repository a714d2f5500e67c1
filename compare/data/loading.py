"""Reading a data set into memory, verified: the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compare.data import catalogue
from compare.data.catalogue import CLASS_COUNT, FILES, IMAGE_SIDE_PIXELS, NAMES, SPLITS
from compare.data.files import find, replace_remedy, unusable
from compare.data.idx import read_idx_and_digest
from compare.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compare.data.catalogue import Bytes, DatasetName, DatasetSource, Split


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RawDataset:
    """A data set as stored: uint8 pixels from 0 (paper) to 255 (ink), uint8 labels from 0 to 9.

    Attributes:
        name: which data set the checksums say this is.
        train_images: shape (60000, 28, 28).
        train_labels: shape (60000,).
        test_images: shape (10000, 28, 28).
        test_labels: shape (10000,).
    """

    name: DatasetName
    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes


def load(directory: str | Path) -> RawDataset:
    """Read and verify a whole data set.

    Args:
        directory: the folder of the four IDX files, plain or ``.gz``: ``DatasetSource.directory``.

    Returns:
        Writable arrays of their own memory.

    Raises:
        DataError: a file is missing, truncated, not IDX, or not what its checksum says.
    """
    name, (train_images, train_labels, test_images, test_labels) = _load(Path(directory), FILES, among=NAMES)
    return RawDataset(
        name=name,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
    )


def load_split(source: DatasetSource, split: Split) -> tuple[Bytes, Bytes]:
    """Read and verify one part of a data set; every rank calls this, for the test set after its training.

    Returns:
        Images, shape (n, 28, 28), and labels, shape (n,): writable arrays of their own memory.

    Raises:
        DataError: as ``load``; or it is another data set than the source says.
    """
    _, (images, labels) = _load(Path(source.directory), SPLITS[split], among=(source.name,))
    return images, labels


def _load(
    folder: Path, names: Sequence[str], *, among: Sequence[DatasetName]
) -> tuple[DatasetName, list[Bytes]]:
    """Read files, which come in pairs of images and labels."""
    files = {name: _read_member(folder, name) for name in names}
    for images, labels in zip(names[::2], names[1::2], strict=True):
        _check_pair(folder, images, files[images][0], labels, files[labels][0])
    name = _check_sums(folder, {file: sha256 for file, (_, sha256) in files.items()}, among)
    return name, [array for array, _ in files.values()]


def _read_member(folder: Path, name: str) -> tuple[Bytes, str]:
    path = find(folder, name)
    if path is None:
        raise DataError(
            f"{name} is not in {folder}",
            found="Neither the plain file nor the one with .gz is there.",
            remedy=replace_remedy(folder, []),
        )
    return read_idx_and_digest(path)


def _check_pair(folder: Path, images_name: str, images: Bytes, labels_name: str, labels: Bytes) -> None:
    """What the training loop relies on; said here in words, where a checksum would only say "other"."""
    images_path, labels_path = find(folder, images_name), find(folder, labels_name)
    wanted = (len(labels), IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS)
    if labels.ndim != 1:
        raise unusable(labels_path or folder, f"Labels have one dimension; these have shape {labels.shape}.")
    if images.ndim != len(wanted) or images.shape[1:] != wanted[1:]:
        raise unusable(images_path or folder, f"Images are (n, 28, 28); these have shape {images.shape}.")
    if len(images) != len(labels):
        raise unusable(
            labels_path or folder,
            f"It has {len(labels):,} labels for {len(images):,} images in {images_path}.",
        )
    if len(labels) and int(labels.max()) >= CLASS_COUNT:
        raise unusable(labels_path or folder, f"It has a label {int(labels.max())}; the classes are 0 to 9.")


def _check_sums(folder: Path, found: Mapping[str, str], among: Sequence[DatasetName]) -> DatasetName:
    """Which data set these files are, by their content alone: folders get copied and renamed."""
    # The best match, so that one damaged file among several is the one that gets named.
    sums = catalogue.SHA256
    name = max(among, key=lambda known: sum(sha256 == sums[known][file] for file, sha256 in found.items()))
    wrong = [file for file, sha256 in found.items() if sha256 != sums[name][file]]
    if wrong:
        path = find(folder, wrong[0]) or folder
        others = f" So are {', '.join(wrong[1:])}." if wrong[1:] else ""
        raise unusable(
            path,
            f"Well formed, but not the original: SHA-256 {found[wrong[0]]}, "
            f"that of {name} is {sums[name][wrong[0]]}.{others}",
        )
    return name
