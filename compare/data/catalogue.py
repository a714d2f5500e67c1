"""Which data sets there are, of what shape, and the sums of every file: the only authority on content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes: TypeAlias = NDArray[np.uint8]

DatasetName: TypeAlias = Literal["mnist", "digits"]
Split: TypeAlias = Literal["train", "test"]
DatasetChoice: TypeAlias = Literal["auto", "mnist", "digits"]
Progress: TypeAlias = Callable[[str], None]
"""Told one short sentence at a time: fit for a spinner's caption or a log line."""

TRAIN_IMAGES: Final = "train-images-idx3-ubyte"
TRAIN_LABELS: Final = "train-labels-idx1-ubyte"
TEST_IMAGES: Final = "t10k-images-idx3-ubyte"
TEST_LABELS: Final = "t10k-labels-idx1-ubyte"
FILES: Final = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)
SPLITS: Final[Mapping[Split, Sequence[str]]] = MappingProxyType({"train": FILES[:2], "test": FILES[2:]})
NAMES: Final[tuple[DatasetName, ...]] = ("mnist", "digits")

TRAIN_COUNT: Final = 60_000
TEST_COUNT: Final = 10_000
IMAGE_SIDE_PIXELS: Final = 28
CLASS_COUNT: Final = 10

# The only authority on content, and of the *uncompressed* files: mirrors (and people) recompress, so
# the .gz files' well-known MD5s would refuse good copies, and an MD5 that agrees proves less than this.
SHA256: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "mnist": MappingProxyType(
            {
                TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            }
        ),
        # Made by digits.py in integer arithmetic, hence the same on every machine.
        "digits": MappingProxyType(
            {
                TRAIN_IMAGES: "0dd88c152a24fe1baa4e174be208256e07aca1564ab303ef798b8c3722e2b9fa",
                TRAIN_LABELS: "2051f3a3d21c1a351a4182df4d4d082a9833abcea962314423732694f772a430",
                TEST_IMAGES: "17422859d71afe71f76be2a1629ef52aeb7cc7a352e9067651121ac5f5c4fac9",
                TEST_LABELS: "a8903fdb3ee4d0eb29a1e7b8e85488d16cd81d3b4763ed300a2fa1c8d40e9f12",
            }
        ),
    }
)
DIGITS_VERSION: Final = "v1"  # another recipe needs another folder and other sums


class DatasetSource(msgspec.Struct, frozen=True, kw_only=True):
    """Which data a run uses, where it lies and why: part of the run's record, JSON both ways.

    Attributes:
        name: the data set that is really used.
        requested: what was asked for.
        directory: the folder of the four IDX files, as ``load`` takes it.
        note: empty, or one sentence for every table, saying that ``auto`` fell back and why.
    """

    name: DatasetName
    requested: DatasetChoice
    directory: str
    note: str = ""
