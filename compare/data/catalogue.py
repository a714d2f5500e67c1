"""List the built-in data sets with every file's size and SHA-256, and define the record of a run's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Bytes: TypeAlias = "NDArray[np.uint8]"
DatasetName: TypeAlias = Literal["mnist", "digits", "own"]
Split: TypeAlias = Literal["train", "test"]
DatasetChoice: TypeAlias = Literal["auto", "mnist", "digits", "own"]

TRAIN_IMAGES: Final = "train-images-idx3-ubyte"
TRAIN_LABELS: Final = "train-labels-idx1-ubyte"
TEST_IMAGES: Final = "t10k-images-idx3-ubyte"
TEST_LABELS: Final = "t10k-labels-idx1-ubyte"
FILES: Final = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)
SPLITS: Final[Mapping[Split, Sequence[str]]] = {"train": FILES[:2], "test": FILES[2:]}

TRAIN_COUNT: Final = 60_000
TEST_COUNT: Final = 10_000
IMAGE_SIDE_PIXELS: Final = 28
CONTENT_BYTES: Final[Mapping[str, int]] = {
    TRAIN_IMAGES: 16 + TRAIN_COUNT * IMAGE_SIDE_PIXELS**2,
    TRAIN_LABELS: 8 + TRAIN_COUNT,
    TEST_IMAGES: 16 + TEST_COUNT * IMAGE_SIDE_PIXELS**2,
    TEST_LABELS: 8 + TEST_COUNT,
}
"""Size of every file in bytes without compression, which is the same for MNIST and the digits."""

# The sums are those of the uncompressed files. Mirrors compress anew, so sums of .gz files would refuse some.
SHA256: Final[Mapping[str, Mapping[str, str]]] = {
    "mnist": {
        TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    # digits.py computes in integers, so every machine makes the same bytes.
    "digits": {
        TRAIN_IMAGES: "0dd88c152a24fe1baa4e174be208256e07aca1564ab303ef798b8c3722e2b9fa",
        TRAIN_LABELS: "2051f3a3d21c1a351a4182df4d4d082a9833abcea962314423732694f772a430",
        TEST_IMAGES: "17422859d71afe71f76be2a1629ef52aeb7cc7a352e9067651121ac5f5c4fac9",
        TEST_LABELS: "a8903fdb3ee4d0eb29a1e7b8e85488d16cd81d3b4763ed300a2fa1c8d40e9f12",
    },
}
DIGITS_VERSION: Final = "v1"  # a new recipe needs a new folder and new sums


class DatasetSource(msgspec.Struct, frozen=True, kw_only=True):
    """The data set of a run, or the user's own workload, and where it is."""

    name: DatasetName
    requested: DatasetChoice
    directory: str
    note: str = ""
    """Why ``auto`` chose the digits, or how to get data that is not there yet; otherwise empty."""
    workload: str = ""
    """``file.py:factory`` in ``directory`` for a workload of the user's own; otherwise empty."""
    sha256: str = ""
    """SHA-256 over the Python files below ``directory``; empty unless the workload is the user's own."""
    code: dict[str, str] = {}
    """The first 12 digits of each Python file's SHA-256, by the file's path relative to ``directory``.

    Empty if there are more than a thousand Python files, or if the workload is not the user's own.
    """
