"""Find, download and verify MNIST, make its stand-in of the same size, and identify a user's own workload."""

from compare.data.catalogue import DatasetChoice, DatasetName, DatasetSource
from compare.data.files import FileStatus, load_split, status
from compare.data.mnist import fetch_mnist
from compare.data.own import MOST_BYTES, own_source, size_bytes
from compare.data.source import default_root, expect, files_of, is_copied, is_in, key_of, resolve

__all__ = [
    "MOST_BYTES",
    "DatasetChoice",
    "DatasetName",
    "DatasetSource",
    "FileStatus",
    "default_root",
    "expect",
    "fetch_mnist",
    "files_of",
    "is_copied",
    "is_in",
    "key_of",
    "load_split",
    "own_source",
    "resolve",
    "size_bytes",
    "status",
]
