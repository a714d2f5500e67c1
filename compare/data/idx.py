"""Read and write arrays in IDX, the file format of MNIST.

An IDX file starts with two zero bytes, a type code and the number of dimensions. The dimensions follow
as big-endian 32-bit integers, then the elements in C order (http://yann.lecun.com/exdb/mnist/).
"""

from __future__ import annotations

import struct
from pathlib import Path

from compare.data.catalogue import CONTENT_BYTES, SPLITS, Bytes, DatasetSource, Split
from compare.data.files import find, read_content, replace_remedy
from compare.errors import DataError

_UINT8 = 0x08


def load_split(source: DatasetSource, split: Split) -> tuple[Bytes, Bytes]:
    """Read and verify the training set or the test set of a built-in model.

    Returns:
        The images, shape (n, 28, 28), and the labels, shape (n,), as new writable arrays of unsigned bytes.
        Pixels go from 0 (paper) to 255 (ink), labels from 0 to 9.

    Raises:
        DataError: a file is missing or damaged, or belongs to another data set.
    """
    images, labels = (_load(source, name) for name in SPLITS[split])
    return images, labels


def _load(source: DatasetSource, name: str) -> Bytes:
    import numpy as np

    directory = Path(source.directory)
    path = find(directory, name)
    if path is None:
        raise DataError(
            f"{name} is not in {directory}",
            found="Neither the plain file nor the one with .gz is there.",
            remedy=replace_remedy(directory, []),
        )
    buffer = np.empty(CONTENT_BYTES[name] + 1, np.uint8)
    content = buffer[: read_content(source.name, name, path, buffer.data)]
    dimensions = int(content[3])
    shape = struct.unpack_from(f">{dimensions}I", content.data, 4)
    return content[4 + 4 * dimensions :].reshape(shape)


def encode(array: Bytes) -> bytes:
    """Return the content of the IDX file for an array of unsigned bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, _UINT8, array.ndim, *array.shape) + array.tobytes()
