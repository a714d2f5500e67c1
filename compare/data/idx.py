"""IDX, the file format of MNIST."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from compare.data.files import open_content, unusable
from compare.data.writing import writing
from compare.errors import DataError
from compare.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compare.data.catalogue import Bytes

_CHUNK_BYTES: Final = 1 << 20
_DEFLATE_MAX_RATIO: Final = 1032  # https://zlib.net/zlib_tech.html
_IDX_UINT8: Final = 0x08
_IDX_MAX_DIMENSIONS: Final = 8


def read_idx(path: str | Path) -> Bytes:
    """Read a file of unsigned bytes in IDX, plain or compressed with gzip, whatever its name.

    IDX: two zero bytes, a type code, the number of dimensions, the dimensions as big-endian 32-bit
    integers, the elements in C order (http://yann.lecun.com/exdb/mnist/).

    Returns:
        A writable uint8 array with the header's shape.

    Raises:
        DataError: the file cannot be read, is not IDX of unsigned bytes, or is too short or too long.
    """
    return read_idx_and_digest(Path(path))[0]


def read_idx_and_digest(path: Path) -> tuple[Bytes, str]:
    """The array and the SHA-256 of the file's uncompressed content, in one pass."""
    import numpy as np

    digest = hashlib.sha256()
    with open_content(path) as stream:
        shape = _read_shape(path, stream, digest)
        size_bytes = math.prod(shape)
        _refuse_impossible(path, size_bytes)
        elements = np.empty(size_bytes, dtype=np.uint8)
        read_bytes = _fill(stream, memoryview(elements.data), digest)
        # Also makes gzip check its trailer, which reading exactly the content does not.
        surplus = stream.read(1)
    if read_bytes < size_bytes or surplus:
        more = "more" if surplus else f"only {read_bytes:,}"
        raise unusable(path, f"Its header {shape} promises {size_bytes:,} bytes; there are {more}.")
    try:
        return elements.reshape(shape), digest.hexdigest()
    except ValueError as error:  # no element at all, but dimensions whose product NumPy cannot hold
        raise unusable(path, f"Its header {shape} is beyond what an array can be.") from error


def _read_shape(path: Path, stream: IO[bytes] | gzip.GzipFile, digest: hashlib._Hash) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < len(b"\0\0\x08\x03"):
        raise unusable(path, f"It ends within its header, after {counted(len(magic), 'byte')}.")
    zeros, code, dimensions = magic[:2], magic[2], magic[3]
    if zeros != b"\0\0" or code != _IDX_UINT8 or not 1 <= dimensions <= _IDX_MAX_DIMENSIONS:
        raise unusable(path, f"It starts with 0x{magic.hex()}; IDX of unsigned bytes starts with 0x000008.")
    sizes = stream.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise unusable(path, f"It ends within its header, after {len(magic) + len(sizes)} bytes.")
    digest.update(magic + sizes)
    return struct.unpack(f">{dimensions}I", sizes)


def _refuse_impossible(path: Path, size_bytes: int) -> None:
    """Refuse a header that promises more than the file can hold, before memory is asked for."""
    most = path.stat().st_size * _DEFLATE_MAX_RATIO
    if size_bytes > most:
        raise unusable(path, f"Its header promises {size_bytes:,} bytes; the file cannot hold as many.")


def _fill(stream: IO[bytes] | gzip.GzipFile, target: memoryview, digest: hashlib._Hash) -> int:
    """Read into ``target`` until it is full or the stream ends; returns the number of bytes read.

    In pieces that stay in the processor's cache between inflating, copying and hashing.
    """
    done = 0
    while done < len(target) and (chunk := stream.read(min(_CHUNK_BYTES, len(target) - done))):
        target[done : done + len(chunk)] = chunk
        digest.update(chunk)
        done += len(chunk)
    return done


def write_idx(path: str | Path, array: Bytes) -> None:
    """Write unsigned bytes as IDX; compressed if the name ends in ``.gz``, and then reproducibly.

    Args:
        path: the file, which is replaced if it is there.
        array: uint8, one to eight dimensions.

    Raises:
        DataError: the array is not uint8, or has no dimension or more than eight.
        OutputError: the file cannot be written.
    """
    import numpy as np

    if array.dtype != np.uint8 or not 1 <= array.ndim <= _IDX_MAX_DIMENSIONS:
        raise DataError(
            f"{path} cannot hold this array",
            found=f"It is {array.dtype} with {counted(array.ndim, 'dimension')}.",
            remedy=f"Convert it to uint8 with 1 to {_IDX_MAX_DIMENSIONS} dimensions.",
        )
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, _IDX_UINT8, array.ndim, *array.shape)
    content = header + np.ascontiguousarray(array).tobytes()
    if str(path).endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    with writing(Path(path).parent):
        Path(path).write_bytes(content)


def idx_bytes(shape: Sequence[int]) -> int:
    """The length of an IDX file of that shape."""
    return 4 + 4 * len(shape) + math.prod(shape)
