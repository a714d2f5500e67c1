"""Find, download and verify MNIST, or its stand-in of the same size."""

from compare.data.catalogue import DatasetChoice, DatasetName, DatasetSource
from compare.data.delivery import files_of, is_in, key_of
from compare.data.files import FileStatus, files_in, holds, status
from compare.data.idx import load_split
from compare.data.mnist import fetch_mnist
from compare.data.own import code_digest, own_source
from compare.data.source import default_root, resolve

__all__ = [
    "DatasetChoice",
    "DatasetName",
    "DatasetSource",
    "FileStatus",
    "code_digest",
    "default_root",
    "fetch_mnist",
    "files_in",
    "files_of",
    "holds",
    "is_in",
    "key_of",
    "load_split",
    "own_source",
    "resolve",
    "status",
]
