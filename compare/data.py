"""The images every arm trains on: found, fetched, verified, and loaded the same way on every rank.

Two data sets, one file format (IDX), one loader:

* ``mnist``: the original, in torchvision's layout ``<root>/MNIST/raw/*-ubyte[.gz]``, so that a copy
  fetched by either program serves both.
* ``digits``: scikit-learn's bundled 1,797 scanned digits, brought to MNIST's shapes and sizes and
  written to ``<root>/digits/v1/*-ubyte``. It needs no network, costs every arm the same bytes and
  floating point operations per step, and can be learnt; its accuracy is not comparable with MNIST's.

The parent asks ``resolve`` for a ``DatasetSource``; the ranks hand it to ``load_split``. Whatever
is loaded has been compared with a SHA-256 written in this file, so two hosts that both load ``mnist``
(or both ``digits``) hold the same pixels. Nothing that exists is ever overwritten.

NumPy, scikit-learn and the network libraries are imported where they are used: the command line must
answer ``--help`` without them.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import math
import os
import re
import shlex
import shutil
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from compare.errors import DataError, OutputError
from compare.words import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Bytes: TypeAlias = NDArray[np.uint8]
    Indices: TypeAlias = NDArray[np.int64]

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
_SPLITS: Final[Mapping[Split, Sequence[str]]] = MappingProxyType({"train": FILES[:2], "test": FILES[2:]})
_NAMES: Final[tuple[DatasetName, ...]] = ("mnist", "digits")

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
        # Made by _make_digits in integer arithmetic, hence the same on every machine.
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

MIRRORS: Final = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MIRRORS_VARIABLE: Final = "RINGSIDE_MNIST_MIRRORS"

DIGITS_VERSION: Final = "v1"  # another recipe needs another folder and other sums
_DIGITS_SEED: Final = 20_240_601
_DIGITS_TEST_ONE_IN: Final = 5
_DIGITS_SHIFT_PIXELS: Final = 2
_DIGITS_GLYPH_PIXELS: Final = 20  # MNIST, too, draws in a 20 x 20 box inside 28 x 28

_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 20.0
# One address that swallows packets (IPv6 without a route, say) must not eat the whole probe.
_PROBE_CONNECT_SECONDS: Final = 2.0
_PROBE_DEADLINE_SECONDS: Final = 5.0
_LOCK_SECONDS: Final = 900.0

_CHUNK_BYTES: Final = 1 << 20
_PROGRESS_BYTES: Final = 2_000_000
_GZIP_MAGIC: Final = b"\x1f\x8b"
_DEFLATE_MAX_RATIO: Final = 1032  # https://zlib.net/zlib_tech.html
_IDX_UINT8: Final = 0x08
_IDX_MAX_DIMENSIONS: Final = 8
# Where flock is not offered at all (some network and FUSE file systems).
_NO_FLOCK_ERRNOS: Final = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


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


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a data set, as ``compare data status`` shows it.

    Attributes:
        dataset: the data set the file belongs to.
        name: its name without ``.gz``.
        path: the file that is there, or the one that should be.
        form: what is there.
        size_bytes: on the disk, compressed or not; 0 when missing.
        verified: whether the uncompressed content has the expected SHA-256.
        problem: empty, or what is wrong with a file that is there.
    """

    dataset: DatasetName
    name: str
    path: str
    form: Literal["plain", "gz", "missing"]
    size_bytes: int = 0
    verified: bool = False
    problem: str = ""


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


class _NotObtainedError(DataError):
    """MNIST is neither here nor to be had: the one failure that lets ``auto`` fall back.

    Damaged files are not this error: they are somebody's data, and somebody must look at them.
    """

    def __init__(self, root: Path, *, reason: str, found: str) -> None:
        super().__init__(
            f"MNIST is not complete under {root} and could not be downloaded: {reason}",
            found=found,
            remedy=(
                f"Run {_fetch_command(root)} where there is a network, name a mirror within reach in "
                f"{MIRRORS_VARIABLE}, copy the four files into {_mnist_directory(root)}, "
                "or use --dataset digits, which needs no network."
            ),
        )
        self.reason = reason


# ------------------------------------------------------------------------------------------ which data


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
    except (_NotObtainedError, OutputError) as error:
        if dataset == "mnist":
            raise
        reason = error.reason if isinstance(error, _NotObtainedError) else f"{root} cannot be written"
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
    directory = _mnist_directory(root)
    missing = _missing_mnist(directory)
    if missing:
        raise _NotObtainedError(
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


# ------------------------------------------------------------------------------------ what is on the disk


def status(root: Path) -> tuple[FileStatus, ...]:
    """Examine the data under ``root`` without changing anything.

    Returns:
        MNIST's four files, there or not; then the four of ``digits``, if its folder is there.
    """
    digits = _digits_directory(root)
    found = _examine_all("mnist", _mnist_directory(root))
    return (*found, *_examine_all("digits", digits)) if digits.is_dir() else found


def holds(dataset: DatasetName, directory: Path) -> bool:
    """Whether a folder holds a data set, whole and every byte as it should be."""
    return all(file.verified for file in _examine_all(dataset, directory))


def files_in(directory: Path) -> list[Path]:
    """Return the files of the data set in a folder, as they lie there: plain or compressed."""
    return [path for path in (_find(directory, name) for name in FILES) if path]


def _mnist_directory(root: Path) -> Path:
    return root / "MNIST" / "raw"


def _digits_directory(root: Path) -> Path:
    return root / "digits" / DIGITS_VERSION


def _fetch_command(root: Path) -> str:
    return f"`compare data fetch --data-dir {shlex.quote(str(root))}`"


def _examine_all(dataset: DatasetName, directory: Path) -> tuple[FileStatus, ...]:
    return tuple(_examine(dataset, directory, name) for name in FILES)


def _examine(dataset: DatasetName, directory: Path, name: str) -> FileStatus:
    path = _find(directory, name)
    if path is None:
        return FileStatus(dataset=dataset, name=name, path=str(directory / name), form="missing")
    problem = ""
    size_bytes = 0
    try:
        size_bytes = path.stat().st_size
        content_bytes, sha256 = _content_digest(path)
        if sha256 != SHA256[dataset][name]:
            problem = _mismatch(content_bytes, sha256, dataset, name)
    except DataError as error:
        problem = error.found
    except OSError as error:
        problem = f"It cannot be read: {_system_reason(error)}."
    return FileStatus(
        dataset=dataset,
        name=name,
        path=str(path),
        form="gz" if path.suffix == ".gz" else "plain",
        size_bytes=size_bytes,
        verified=not problem,
        problem=problem,
    )


def _find(directory: Path, name: str) -> Path | None:
    """The plain file, which loads in a third of the time, else the compressed one, else None."""
    for path in (directory / name, directory / f"{name}.gz"):
        # lexists: a dangling link or an unreadable file is there, and wrong; it is not missing.
        if os.path.lexists(path):
            return path
    return None


def _missing_mnist(directory: Path) -> list[str]:
    """The names that are not there.

    Raises:
        DataError: a file is there, but is not MNIST's.
    """
    found = _examine_all("mnist", directory)
    _refuse_damaged(found, directory)
    return [file.name for file in found if file.form == "missing"]


def _refuse_damaged(files: Sequence[FileStatus], directory: Path) -> None:
    damaged = [file for file in files if file.problem]
    if not damaged:
        return
    raise DataError(
        f"{counted(len(damaged), 'file')} in {directory} cannot be used and nothing was overwritten",
        found="\n".join(f"{file.path} ({file.size_bytes:,} bytes): {file.problem}" for file in damaged),
        remedy=_replace_remedy(directory, [file.path for file in damaged]),
    )


def _replace_remedy(directory: Path, paths: Sequence[str]) -> str:
    """How to get good files where damaged or missing ones are; ``paths`` are those to remove first."""
    if directory == _digits_directory(directory.parent.parent):
        return f"Run `rm -r {shlex.quote(str(directory))}`; the next run makes it anew."
    remove = f"`rm {' '.join(shlex.quote(path) for path in paths)}`, then " if paths else ""
    if directory == _mnist_directory(directory.parent.parent):
        return f"Run {remove}{_fetch_command(directory.parent.parent)}."
    return f"Run {remove}copy the original there." if paths else "Copy the original there."


def _mismatch(content_bytes: int, sha256: str, dataset: str, name: str) -> str:
    return (
        f"Its content is {content_bytes:,} bytes with SHA-256 {sha256}; "
        f"that of {dataset} has SHA-256 {SHA256[dataset][name]}."
    )


def _content_digest(path: Path) -> tuple[int, str]:
    """Length in bytes and SHA-256 of a file's uncompressed content; no NumPy, the parent calls this."""
    digest = hashlib.sha256()
    size_bytes = 0
    with _content(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return size_bytes, digest.hexdigest()


@contextmanager
def _content(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open ``path`` for its uncompressed content, whatever its name says; every failure is a DataError."""
    try:
        with path.open("rb") as file:
            compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            if compressed:
                with gzip.GzipFile(fileobj=file) as stream:
                    yield stream
            else:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _unusable(path, f"Its gzip stream is truncated or damaged: {error}.") from error
    except OSError as error:
        raise _unusable(path, f"It cannot be read: {_system_reason(error)}.") from error


def _unusable(path: Path, found: str) -> DataError:
    return DataError(f"{path} cannot be used", found=found, remedy=_replace_remedy(path.parent, [str(path)]))


def _system_reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


# -------------------------------------------------------------------------------------- fetching MNIST


def fetch_mnist(root: Path, *, progress: Progress | None = None) -> Path:
    """Download the files of MNIST that are not under ``root`` yet; verify the others.

    Safe to call from many processes at once: one of them downloads, the others wait for it. Without a
    network it gives up within six seconds, whatever the number of mirrors. Downloads are stored
    uncompressed: every rank of every launch reads them, in a third of the time.

    Args:
        root: the folder data is kept in; made if need be.
        progress: told what is going on.

    Returns:
        The folder of the four verified files, ``<root>/MNIST/raw``.

    Raises:
        DataError: a file that is there is damaged, or no mirror served a missing one.
        OutputError: the folder cannot be written.
    """
    directory = _mnist_directory(root)
    if not _missing_mnist(directory):
        return directory
    tell = progress or _silent
    with _writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    # Outside the lock: where there is no network, waiting processes find out together, not one by one.
    mirrors = _answering_mirrors(root, _mirrors(), tell)
    with _locked(directory, tell), _writing(directory):
        for name in _missing_mnist(directory):
            _download(root, name, mirrors, tell)
    return directory


def _silent(_message: str) -> None:
    pass


def _mirrors() -> list[str]:
    """The base addresses to try, in order, each with a slash at its end."""
    listed = os.environ.get(MIRRORS_VARIABLE, "").split(",")
    chosen = [mirror.strip() for mirror in listed if mirror.strip()]
    for mirror in chosen:
        if not _is_web_address(mirror):
            raise DataError(
                f"{MIRRORS_VARIABLE} names something that is not a mirror",
                found=f"{mirror!r} does not start with http:// or https:// and a host.",
                remedy=f"Correct it, for example {MIRRORS_VARIABLE}={MIRRORS[0]}, or unset it.",
            )
    return [mirror.rstrip("/") + "/" for mirror in chosen] or list(MIRRORS)


def _is_web_address(mirror: str) -> bool:
    try:
        parts = urlsplit(mirror)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bad port or a bad IPv6 literal
        return False


def _host_of(mirror: str) -> str:
    """For messages: never the whole address, which may hold a password."""
    parts = urlsplit(mirror)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def _answering_mirrors(root: Path, mirrors: Sequence[str], tell: Progress) -> list[str]:
    """Keep the mirrors that answer at all; give up on the rest when the deadline is over.

    A whole HTTP request is made, not merely a connection, so that proxies count; in a thread of its
    own, because nothing can interrupt a name server that does not answer. The threads are daemons for
    the same reason: one that hangs must not keep the program from ending.
    """
    import requests  # noqa: F401 - once, before the threads race for it

    tell("Looking for a mirror of MNIST")
    answers: dict[str, str] = {}
    deadline = time.monotonic() + _PROBE_DEADLINE_SECONDS
    threads = [
        threading.Thread(target=_probe, args=(mirror, answers), name=f"probe {_host_of(mirror)}", daemon=True)
        for mirror in mirrors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"no answer within {_PROBE_DEADLINE_SECONDS:g} s"
    verdicts = {mirror: answers.get(mirror, late) for mirror in mirrors}
    answering = [mirror for mirror, problem in verdicts.items() if not problem]
    if not answering:
        raise _NotObtainedError(root, reason="offline, no mirror answers", found=_per_mirror(verdicts))
    return answering


def _probe(mirror: str, answers: dict[str, str]) -> None:
    import requests

    timeout = (_PROBE_CONNECT_SECONDS, _PROBE_DEADLINE_SECONDS)
    try:
        # Any status will do, even 404 or 405: somebody is there.
        requests.head(f"{mirror}{TEST_LABELS}.gz", timeout=timeout, allow_redirects=False)
    except (OSError, ValueError) as error:  # requests' own are OSErrors; a host name may not encode
        answers[mirror] = _network_reason(error)
    else:
        answers[mirror] = ""


def _per_mirror(problems: Mapping[str, str]) -> str:
    return "\n".join(f"{_host_of(mirror)}: {problem}" for mirror, problem in problems.items())


def _network_reason(error: Exception) -> str:
    """One phrase out of requests' nested exceptions, without the address they quote."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off"
    if isinstance(error, requests.exceptions.SSLError):
        return "its TLS certificate was refused"
    # The innermost text is the useful one: "[Errno 111] Connection refused".
    system = re.search(r"\[Errno -?\d+\] ([^'\")\]]+)", str(error))
    return system.group(1) if system else type(error).__name__


def _download(root: Path, name: str, mirrors: list[str], tell: Progress) -> None:
    """Get one file from the first mirror that serves it whole; ``mirrors`` is reordered on failures."""
    problems: dict[str, str] = {}
    for mirror in tuple(mirrors):
        try:
            _retrieve(_mnist_directory(root), name, mirror, tell)
        except _MirrorError as error:
            problems[mirror] = str(error)
            tell(f"{name}: {_host_of(mirror)} failed, {error}")
            # For the files still to come, begin with one that has not failed.
            mirrors.remove(mirror)
            mirrors.append(mirror)
        else:
            return
    raise _NotObtainedError(
        root, reason="no mirror served it whole", found=f"{name} from\n{_per_mirror(problems)}"
    )


class _MirrorError(Exception):
    """This mirror did not serve this file; the next one may."""


def _retrieve(directory: Path, name: str, mirror: str, tell: Progress) -> None:
    """Let pooch write to a temporary file beside the final one, verify it, and rename it.

    Our downloader hands it the *uncompressed* content, so that the check which pooch makes before the
    renaming is the check by SHA-256 of the content, and no unverified byte ever has the final name.
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")  # our progress says it already

    def download(url: str, output: str, _pooch: object) -> None:
        content = _inflated(_downloaded(url, name, tell))
        Path(output).write_bytes(content)
        # Temporary files are private by default; a data folder is often shared.
        Path(output).chmod(0o644)

    try:
        pooch.retrieve(
            f"{mirror}{name}.gz",
            known_hash=f"sha256:{SHA256['mnist'][name]}",
            fname=name,
            path=directory,
            downloader=download,
        )
    except ValueError as error:  # pooch's word for a wrong checksum
        message = "what it served is not the original (wrong SHA-256)"
        raise _MirrorError(message) from error
    tell(f"{name}: verified")


def _downloaded(url: str, name: str, tell: Progress) -> bytes:
    import pooch

    sink = _Sink(lambda size: tell(f"{name}: {size / 1e6:.0f} MB from {_host_of(url)}"))
    get = pooch.HTTPDownloader(
        chunk_size=_CHUNK_BYTES // 8,
        timeout=(_CONNECT_SECONDS, _READ_SECONDS),
        headers={"Accept-Encoding": "identity"},
    )
    try:
        get(url, sink, None)
    except (OSError, ValueError) as error:  # the sink is memory: every OSError is the network's
        raise _MirrorError(_network_reason(error)) from error
    return sink.getvalue()


class _Sink(io.BytesIO):
    """Memory that reports how much has arrived, and refuses more than any file of MNIST holds."""

    def __init__(self, report: Callable[[int], None]) -> None:
        super().__init__()
        self._report = report
        self._next_report_bytes = _PROGRESS_BYTES

    def write(self, data: Any, /) -> int:  # io.BytesIO's own parameter is any buffer
        written = super().write(data)
        if self.tell() > _idx_bytes((TRAIN_COUNT, IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS)):
            message = "it serves more than MNIST"
            raise _MirrorError(message)
        if self.tell() >= self._next_report_bytes:
            self._next_report_bytes += _PROGRESS_BYTES
            self._report(self.tell())
        return written


def _inflated(blob: bytes) -> bytes:
    """The content of a download, which some servers ('Content-Encoding: gzip') unpack on the way."""
    if not blob.startswith(_GZIP_MAGIC):
        return blob
    most = _idx_bytes((TRAIN_COUNT, IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(blob)) as stream:
            return stream.read(most + 1)  # one more than can be right: a bomb fails the checksum
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"what it served is truncated or damaged ({error})"
        raise _MirrorError(message) from error


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{directory} cannot be written",
            found=f"{_system_reason(error)}{f': {error.filename}' if error.filename else ''}.",
            remedy="Name a folder that can be written with --data-dir, or make room or rights there.",
        ) from error


@contextmanager
def _locked(directory: Path, tell: Progress) -> Iterator[None]:
    """Hold this folder's lock, waiting for whoever holds it; the file is left, as unlinking would race.

    Where the file system has no locks we go on without: every file gets its final name by an atomic
    rename after it was verified, so two writers at once waste traffic and nothing else.
    """
    import filelock

    lock = filelock.FileLock(directory / ".ringside.lock")
    try:
        with _writing(directory):
            _acquire(lock, directory, tell)
    except NotImplementedError:
        pass
    except OutputError as error:
        if getattr(error.__cause__, "errno", None) not in _NO_FLOCK_ERRNOS:
            raise
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: Any, directory: Path, tell: Progress) -> None:  # filelock stays lazy
    import filelock

    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        tell(f"Waiting for another process that writes into {directory}")
        try:
            lock.acquire(timeout=_LOCK_SECONDS)
        except filelock.Timeout as error:
            raise DataError(
                f"Another process has kept the lock on {directory} for {_LOCK_SECONDS:g} s",
                found=f"The lock is {lock.lock_file}.",
                remedy=f"Find its holder with `fuser -v {shlex.quote(lock.lock_file)}` and end it.",
            ) from error


# ------------------------------------------------------------------------------------------ the digits


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
    directory = _digits_directory(root)
    if _digits_complete(directory):
        return directory
    with _writing(directory.parent):
        directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.parent, _silent), _writing(directory.parent):
        if not _digits_complete(directory):
            _write_digits(directory)
    return directory


def _digits_complete(directory: Path) -> bool:
    """Whether the folder is there and good; it appears in one rename, so half of it is damage."""
    if not os.path.lexists(directory):
        return False
    files = [
        msgspec.structs.replace(file, problem="It is missing.") if file.form == "missing" else file
        for file in _examine_all("digits", directory)
    ]
    _refuse_damaged(files, directory)
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
    other = [file for file in _examine_all("digits", scratch) if not file.verified]
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


# ---------------------------------------------------------------------------------------------- loading


def load(directory: str | Path) -> RawDataset:
    """Read and verify a whole data set.

    Args:
        directory: the folder of the four IDX files, plain or ``.gz``: ``DatasetSource.directory``.

    Returns:
        Writable arrays of their own memory.

    Raises:
        DataError: a file is missing, truncated, not IDX, or not what its checksum says.
    """
    name, (train_images, train_labels, test_images, test_labels) = _load(Path(directory), FILES, among=_NAMES)
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
    _, (images, labels) = _load(Path(source.directory), _SPLITS[split], among=(source.name,))
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
    path = _find(folder, name)
    if path is None:
        raise DataError(
            f"{name} is not in {folder}",
            found="Neither the plain file nor the one with .gz is there.",
            remedy=_replace_remedy(folder, []),
        )
    return _read_idx(path)


def _check_pair(folder: Path, images_name: str, images: Bytes, labels_name: str, labels: Bytes) -> None:
    """What the training loop relies on; said here in words, where a checksum would only say "other"."""
    images_path, labels_path = _find(folder, images_name), _find(folder, labels_name)
    wanted = (len(labels), IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS)
    if labels.ndim != 1:
        raise _unusable(labels_path or folder, f"Labels have one dimension; these have shape {labels.shape}.")
    if images.ndim != len(wanted) or images.shape[1:] != wanted[1:]:
        raise _unusable(images_path or folder, f"Images are (n, 28, 28); these have shape {images.shape}.")
    if len(images) != len(labels):
        raise _unusable(
            labels_path or folder,
            f"It has {len(labels):,} labels for {len(images):,} images in {images_path}.",
        )
    if len(labels) and int(labels.max()) >= CLASS_COUNT:
        raise _unusable(labels_path or folder, f"It has a label {int(labels.max())}; the classes are 0 to 9.")


def _check_sums(folder: Path, found: Mapping[str, str], among: Sequence[DatasetName]) -> DatasetName:
    """Which data set these files are, by their content alone: folders get copied and renamed."""
    # The best match, so that one damaged file among several is the one that gets named.
    name = max(among, key=lambda known: sum(sha256 == SHA256[known][file] for file, sha256 in found.items()))
    wrong = [file for file, sha256 in found.items() if sha256 != SHA256[name][file]]
    if wrong:
        path = _find(folder, wrong[0]) or folder
        others = f" So are {', '.join(wrong[1:])}." if wrong[1:] else ""
        raise _unusable(
            path,
            f"Well formed, but not the original: SHA-256 {found[wrong[0]]}, "
            f"that of {name} is {SHA256[name][wrong[0]]}.{others}",
        )
    return name


# ---------------------------------------------------------------------------------------- the IDX format


def read_idx(path: str | Path) -> Bytes:
    """Read a file of unsigned bytes in IDX, plain or compressed with gzip, whatever its name.

    IDX: two zero bytes, a type code, the number of dimensions, the dimensions as big-endian 32-bit
    integers, the elements in C order (http://yann.lecun.com/exdb/mnist/).

    Returns:
        A writable uint8 array with the header's shape.

    Raises:
        DataError: the file cannot be read, is not IDX of unsigned bytes, or is too short or too long.
    """
    return _read_idx(Path(path))[0]


def _read_idx(path: Path) -> tuple[Bytes, str]:
    """The array and the SHA-256 of the file's uncompressed content, in one pass."""
    import numpy as np

    digest = hashlib.sha256()
    with _content(path) as stream:
        shape = _read_shape(path, stream, digest)
        size_bytes = math.prod(shape)
        _refuse_impossible(path, size_bytes)
        elements = np.empty(size_bytes, dtype=np.uint8)
        read_bytes = _fill(stream, memoryview(elements.data), digest)
        # Also makes gzip check its trailer, which reading exactly the content does not.
        surplus = stream.read(1)
    if read_bytes < size_bytes or surplus:
        more = "more" if surplus else f"only {read_bytes:,}"
        raise _unusable(path, f"Its header {shape} promises {size_bytes:,} bytes; there are {more}.")
    try:
        return elements.reshape(shape), digest.hexdigest()
    except ValueError as error:  # no element at all, but dimensions whose product NumPy cannot hold
        raise _unusable(path, f"Its header {shape} is beyond what an array can be.") from error


def _read_shape(path: Path, stream: IO[bytes] | gzip.GzipFile, digest: hashlib._Hash) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < len(b"\0\0\x08\x03"):
        raise _unusable(path, f"It ends within its header, after {counted(len(magic), 'byte')}.")
    zeros, code, dimensions = magic[:2], magic[2], magic[3]
    if zeros != b"\0\0" or code != _IDX_UINT8 or not 1 <= dimensions <= _IDX_MAX_DIMENSIONS:
        raise _unusable(path, f"It starts with 0x{magic.hex()}; IDX of unsigned bytes starts with 0x000008.")
    sizes = stream.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise _unusable(path, f"It ends within its header, after {len(magic) + len(sizes)} bytes.")
    digest.update(magic + sizes)
    return struct.unpack(f">{dimensions}I", sizes)


def _refuse_impossible(path: Path, size_bytes: int) -> None:
    """Refuse a header that promises more than the file can hold, before memory is asked for."""
    most = path.stat().st_size * _DEFLATE_MAX_RATIO
    if size_bytes > most:
        raise _unusable(path, f"Its header promises {size_bytes:,} bytes; the file cannot hold as many.")


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
    with _writing(Path(path).parent):
        Path(path).write_bytes(content)


def _idx_bytes(shape: Sequence[int]) -> int:
    """The length of an IDX file of that shape."""
    return 4 + 4 * len(shape) + math.prod(shape)
