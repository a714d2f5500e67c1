"""Make the stand-in for MNIST: scikit-learn's images of digits, in as many files of the same sizes."""

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
    Bytes,
)
from compare.data.files import encode, examine, folder_of, holds, refuse_damaged, writing
from compare.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Indices: TypeAlias = NDArray[np.int64]

_SEED: Final = 20_240_601
_SAMPLES_PER_TEST_SAMPLE: Final = 5
_SHIFT_PIXELS: Final = 2
_GLYPH_PIXELS: Final = 20  # as in MNIST


def prepare_digits(root: Path) -> Path:
    """Make the digits under the data folder ``root`` unless they are there, and return their folder.

    First the 1,797 originals are split, so that no variant of a test image is trained on. One in five of
    each class goes to the test set. Each 8 x 8 image is then enlarged to 20 x 20 pixels, and placed in a
    square of 28 x 28. Each set grows to MNIST's size by repeating its originals about equally often. Every
    repetition is shifted by up to two pixels, and made paler by up to a quarter.

    Raises:
        DataError: a file is damaged, scikit-learn yields other digits than expected, or another process kept
            the lock on the folder.
        OutputError: the folder cannot be written.
    """
    directory = folder_of("digits", root)
    if not os.path.lexists(directory):
        with writing(directory.parent):
            if not os.path.lexists(directory):
                _write(directory)
    # A rename puts the whole folder in place at once, so a missing file is damage.
    files = [
        msgspec.structs.replace(file, problem="It is missing.") if file.form == "missing" else file
        for file in examine("digits", directory)
    ]
    refuse_damaged(files, directory)
    return directory


def _write(directory: Path) -> None:
    """Write the four files into a scratch folder, verify them, and rename the folder to ``directory``.

    Raises:
        DataError: scikit-learn yields other digits than expected.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        for name, array in _make_digits().items():
            (scratch / name).write_bytes(encode(array))
        if not holds("digits", scratch):
            import sklearn

            raise DataError(
                f"scikit-learn {sklearn.__version__} yields other digits than Ringside expects.",
                found="\n".join(f"{file.name}: {file.problem}" for file in examine("digits", scratch)),
                remedy="Install scikit-learn 1.5 to 1.9, or use --data mnist. Please report this.",
            )
        scratch.chmod(0o755)  # data folders are often shared, but mkdtemp's are private
        scratch.rename(directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _make_digits() -> dict[str, Bytes]:
    """Return, by file name, the four arrays of unsigned bytes, which are the same on every host.

    They are computed with integers only, and with RandomState, because NumPy never changes its stream.
    """
    import numpy as np

    # As it is imported, scikit-learn sets OpenMP's variables, which all ranks would inherit.
    environment = dict(os.environ)
    from sklearn.datasets import load_digits

    for name in os.environ.keys() - environment:
        del os.environ[name]

    pixels, labels = load_digits(return_X_y=True)
    labels = labels.astype(np.uint8)
    glyphs = _enlarge(pixels.astype(np.int64).reshape(-1, 8, 8))
    random = np.random.RandomState(_SEED)
    train, test = split_digits(labels)
    arrays: dict[str, Bytes] = {}
    for part, count, images_name, labels_name in (
        (train, TRAIN_COUNT, TRAIN_IMAGES, TRAIN_LABELS),
        (test, TEST_COUNT, TEST_IMAGES, TEST_LABELS),
    ):
        source = part[random.permutation(count) % len(part)]
        arrays[images_name] = _vary(glyphs[source], random)
        arrays[labels_name] = labels[source]
    return arrays


def split_digits(labels: ArrayLike) -> tuple[Indices, Indices]:
    """Return the indices of the training samples and of the test samples, both ascending.

    ``labels`` has the class of each sample. One in five samples of each class, rounded down, is for testing.
    """
    import numpy as np

    classes = np.asarray(labels)
    random = np.random.RandomState(_SEED)
    held_out = np.zeros(len(classes), dtype=bool)
    for label in np.unique(classes):
        members = random.permutation(np.flatnonzero(classes == label))
        held_out[members[: len(members) // _SAMPLES_PER_TEST_SAMPLE]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _enlarge(images: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return images of shape (n, 8, 8), enlarged to (n, 20, 20) by bilinear interpolation.

    The range of values grows from 0..16 to 0..255. A border of zeros lets strokes fade out at the edges. The
    centre of output pixel i lies at ``(i + 1/2) * 8/20 - 1/2 = (4 i - 3) / 10`` input pixels. These are
    whole tenths, so all weights are whole numbers.
    """
    import numpy as np

    tenths = 4 * np.arange(_GLYPH_PIXELS) - 3 + 10  # + 10 for the border
    low, weight = np.divmod(tenths, 10)
    rows = np.arange(_GLYPH_PIXELS)
    spread = np.zeros((_GLYPH_PIXELS, 10), dtype=np.int64)
    spread[rows, low] = 10 - weight
    spread[rows, low + 1] += weight
    bordered = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    enlarged: NDArray[np.int64] = (spread @ bordered @ spread.T) * 255 // (16 * 10 * 10)
    return enlarged


def _vary(glyphs: NDArray[np.int64], random: np.random.RandomState) -> Bytes:
    """Return the glyphs, of shape (n, 20, 20), in squares of 28 x 28, shifted and made paler at random."""
    import numpy as np

    count, side = len(glyphs), _GLYPH_PIXELS
    inked = (glyphs * random.randint(12, 17, size=(count, 1, 1)) // 16).astype(np.uint8)
    steps = 2 * _SHIFT_PIXELS + 1
    shifts = random.randint(0, steps * steps, size=count)
    canvas = np.zeros((count, IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS), dtype=np.uint8)
    margin = (IMAGE_SIDE_PIXELS - side) // 2 - _SHIFT_PIXELS
    for shift in range(steps * steps):
        members = np.flatnonzero(shifts == shift)
        top, left = margin + shift // steps, margin + shift % steps
        canvas[members, top : top + side, left : left + side] = inked[members]
    return canvas
