"""The stand-in where there is no network: scikit-learn's digits, brought to MNIST's shapes and sizes."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from compare.data.catalogue import (
    IMAGE_SIDE_PIXELS,
    TEST_COUNT,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_COUNT,
    TRAIN_IMAGES,
    TRAIN_LABELS,
)
from compare.data.files import digits_directory, examine, refuse_damaged
from compare.data.idx import write_idx
from compare.data.writing import locked, writing
from compare.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from compare.data.catalogue import Bytes

    Indices: TypeAlias = NDArray[np.int64]

_DIGITS_SEED: Final = 20_240_601
_DIGITS_TEST_ONE_IN: Final = 5
_DIGITS_SHIFT_PIXELS: Final = 2
_DIGITS_GLYPH_PIXELS: Final = 20  # MNIST, too, draws in a 20 x 20 box inside 28 x 28


def prepare_digits(root: Path) -> Path:
    """Make MNIST's stand-in out of scikit-learn's digits, once; about three seconds, no network.

    The 1,797 originals are split into train and test first, one in five of each class going to test:
    no variant of a test image is ever trained on. Each 8 x 8 image is then enlarged to 20 x 20 and set in
    28 x 28, as MNIST does, and each half is brought to MNIST's size by repeating its originals equally
    often, each time shifted by up to two pixels and paled by up to a quarter.

    Returns:
        The folder of the four files, ``<root>/digits/v1``.

    Raises:
        DataError: the folder is there but damaged, or the recipe yields other bytes than it should.
        OutputError: the folder cannot be written.
    """
    directory = digits_directory(root)
    if _digits_complete(directory):
        return directory
    with writing(directory.parent):
        directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.parent), writing(directory.parent):
        if not _digits_complete(directory):
            _write_digits(directory)
    return directory


def _digits_complete(directory: Path) -> bool:
    """Whether the folder is there and good; it appears in one rename, so half of it is damage."""
    if not os.path.lexists(directory):
        return False
    files = [
        msgspec.structs.replace(file, problem="It is missing.") if file.form == "missing" else file
        for file in examine("digits", directory)
    ]
    refuse_damaged(files, directory)
    return True


def _write_digits(directory: Path) -> None:
    """Write all four files beside ``directory``, verify them, and rename the folder."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        for name, array in _make_digits().items():
            write_idx(scratch / name, array)
        _refuse_other_recipe(scratch)
        scratch.chmod(0o755)  # a data folder is often shared; mkdtemp's are private
        scratch.rename(directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _refuse_other_recipe(scratch: Path) -> None:
    other = [file for file in examine("digits", scratch) if not file.verified]
    if other:
        import sklearn

        raise DataError(
            f"scikit-learn {sklearn.__version__} yields other digits than this version of ringside expects",
            found="\n".join(f"{file.name}: {file.problem}" for file in other),
            remedy="Install scikit-learn 1.5 to 1.9, or use --dataset mnist; and please report this.",
        )


def _make_digits() -> dict[str, Bytes]:
    """The four arrays by file name.

    Everything is done in integers and drawn from RandomState, the one generator whose stream NumPy
    promises never to change: each host of a run makes its own copy, and all must be the same.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    labels = labels.astype(np.uint8)
    glyphs = _enlarged(pixels.astype(np.int64).reshape(-1, 8, 8))
    random = np.random.RandomState(_DIGITS_SEED)  # see above
    train, test = split_digits(labels)
    arrays: dict[str, Bytes] = {}
    for part, count, images_name, labels_name in (
        (train, TRAIN_COUNT, TRAIN_IMAGES, TRAIN_LABELS),
        (test, TEST_COUNT, TEST_IMAGES, TEST_LABELS),
    ):
        source = part[random.permutation(count) % len(part)]
        arrays[images_name] = _varied(glyphs[source], random)
        arrays[labels_name] = labels[source]
    return arrays


def split_digits(labels: ArrayLike) -> tuple[Indices, Indices]:
    """Split the originals into train and test, one in five of each class to test.

    Args:
        labels: the class of each original, shape (n,).

    Returns:
        The indices for training and for testing: sorted, disjoint, together all of 0 to n - 1.
    """
    import numpy as np

    classes = np.asarray(labels)
    random = np.random.RandomState(_DIGITS_SEED)  # as in _make_digits
    held_out = np.zeros(len(classes), dtype=bool)
    for label in np.unique(classes):
        members = random.permutation(np.flatnonzero(classes == label))
        held_out[members[: len(members) // _DIGITS_TEST_ONE_IN]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _enlarged(images: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bilinear enlargement from (n, 8, 8) with values 0 to 16 to (n, 20, 20) with values 0 to 255.

    Outside the image is paper, so that strokes cut off by the small frame fade out. Output pixel i has
    its centre at (i + 1/2) * 8/20 - 1/2 = (4 i - 3) / 10 input pixels: whole tenths, hence no rounding.
    """
    import numpy as np

    tenths = 4 * np.arange(_DIGITS_GLYPH_PIXELS) - 3 + 10  # + 10: the border of paper comes first
    low, weight = np.divmod(tenths, 10)
    rows = np.arange(_DIGITS_GLYPH_PIXELS)
    spread = np.zeros((_DIGITS_GLYPH_PIXELS, 10), dtype=np.int64)
    spread[rows, low] = 10 - weight
    spread[rows, low + 1] += weight
    bordered = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    enlarged: NDArray[np.int64] = (spread @ bordered @ spread.T) * 255 // (16 * 10 * 10)
    return enlarged


def _varied(glyphs: NDArray[np.int64], random: np.random.RandomState) -> Bytes:
    """Each glyph of (n, 20, 20) on a canvas of 28 x 28, shifted and paled at random."""
    import numpy as np

    count, side = len(glyphs), _DIGITS_GLYPH_PIXELS
    inked = (glyphs * random.randint(12, 17, size=(count, 1, 1)) // 16).astype(np.uint8)
    steps = 2 * _DIGITS_SHIFT_PIXELS + 1
    shifts = random.randint(0, steps * steps, size=count)
    canvas = np.zeros((count, IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS), dtype=np.uint8)
    margin = (IMAGE_SIDE_PIXELS - side) // 2 - _DIGITS_SHIFT_PIXELS
    for shift in range(steps * steps):
        members = np.flatnonzero(shifts == shift)
        top, left = margin + shift // steps, margin + shift % steps
        canvas[members, top : top + side, left : left + side] = inked[members]
    return canvas
