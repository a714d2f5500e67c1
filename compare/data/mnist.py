"""Download each file of MNIST from the first mirror that serves it with the right content."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from compare.data import catalogue
from compare.data.catalogue import CONTENT_BYTES, TEST_LABELS
from compare.data.files import (
    examine,
    fetch_command,
    locked,
    mnist_directory,
    read_content,
    refuse_damaged,
    writing,
)
from compare.errors import DataError

MIRRORS: Final = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MIRRORS_VARIABLE: Final = "RINGSIDE_MNIST_MIRRORS"

PROBE_SECONDS: Final = 5.0
"""Maximum time for all mirrors together to answer the probe."""
FILE_SECONDS: Final = 120.0
"""Maximum time to download one file from one mirror, retries included."""
RETRIES: Final = 1
"""Number of further attempts after a network error, for each file and mirror."""

# This is shorter than the probe, so that a dead address, such as IPv6 without a route, does not use it up.
_PROBE_CONNECT_SECONDS: Final = 2.0
_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 20.0
_CHUNK_BYTES: Final = 1 << 17
_REPORT_BYTES: Final = 2_000_000
_LARGEST_BYTES: Final = max(CONTENT_BYTES.values())

_Answer = TypeVar("_Answer")


class MnistNotFoundError(DataError):
    """MNIST is not complete in the data folder, and cannot be downloaded; ``reason`` is a short clause."""

    def __init__(self, root: Path, *, reason: str, found: str) -> None:
        super().__init__(
            f"MNIST is not complete under {root} and cannot be downloaded: {reason}",
            found=found,
            remedy=(
                f"Run {fetch_command(root)} where there is a network, or name a mirror in "
                f"{MIRRORS_VARIABLE}.\nOr copy the four files into {mnist_directory(root)}.\n"
                "Or use --dataset digits, which needs no network."
            ),
        )
        self.reason = reason


class _MirrorError(Exception):
    """A mirror serves wrong content, or takes too long."""


def fetch_mnist(root: Path, *, progress: Callable[[str], None] = lambda _: None) -> Path:
    """Verify MNIST under ``root``, download the missing files, and return its folder.

    Many processes may call this at once: one downloads, and the others wait. Files are stored uncompressed,
    because every rank of every launch reads them. ``progress`` is called with one line for each event.

    Raises:
        MnistNotFoundError: a file is missing, and no mirror serves it.
        DataError: a file is damaged, a mirror's address is invalid, or another process kept the lock.
        OutputError: the folder cannot be written.
    """
    directory = mnist_directory(root)
    if not _missing(directory):
        return directory
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    # Without a network, all processes fail at the probe at once, because they do not wait for the lock first.
    mirrors = _answering_mirrors(root, _mirrors(), progress)
    with locked(directory, progress), writing(directory):
        for name in _missing(directory):
            _download(root, name, mirrors, progress)
    return directory


def _missing(directory: Path) -> list[str]:
    found = examine("mnist", directory)
    refuse_damaged(found, directory)
    return [file.name for file in found if file.form == "missing"]


def _mirrors() -> list[str]:
    chosen = [mirror.strip() for mirror in os.environ.get(MIRRORS_VARIABLE, "").split(",")]
    return list(dict.fromkeys(filter(None, chosen))) or list(MIRRORS)


def _url(mirror: str, name: str) -> str:
    return f"{mirror.rstrip('/')}/{name}.gz"


def _host(mirror: str) -> str:
    """Return the host and port of an address, without user name and password."""
    return urlsplit(mirror).netloc.rpartition("@")[2]


def _answering_mirrors(root: Path, mirrors: Sequence[str], tell: Callable[[str], None]) -> list[str]:
    """Probe all mirrors at once, and return those that answer, in the given order.

    Raises:
        DataError: an address is invalid.
        MnistNotFoundError: no mirror answers.
    """
    import requests

    tell("Looking for a mirror of MNIST")
    deadline = time.monotonic() + PROBE_SECONDS
    head = partial(requests.head, timeout=(_PROBE_CONNECT_SECONDS, PROBE_SECONDS), allow_redirects=False)
    answers = {mirror: _in_thread(partial(head, _url(mirror, TEST_LABELS))) for mirror in mirrors}
    problems: dict[str, str] = {}
    for mirror, answer in answers.items():
        try:
            _wait(answer, deadline)  # any status is an answer, even 404
        except TimeoutError:
            problems[mirror] = f"no answer within {PROBE_SECONDS:g} s"
        except ValueError as error:
            raise DataError(
                f"{MIRRORS_VARIABLE} contains an invalid address",
                found=f"{mirror!r} does not start with http:// or https:// and a host.",
                remedy=f"Correct it, for example {MIRRORS_VARIABLE}={MIRRORS[0]}, or unset it.",
            ) from error
        except OSError as error:
            problems[mirror] = _reason(error)
    if len(problems) == len(mirrors):
        raise MnistNotFoundError(root, reason="offline, no mirror answers", found=_per_mirror(problems))
    return [mirror for mirror in mirrors if mirror not in problems]


def _in_thread(call: Callable[[], _Answer]) -> Future[_Answer]:
    """Call a function in a daemon thread, and return the future of its result.

    So the caller can stop waiting at any time. The timeouts of ``requests`` end neither a slow name lookup
    nor a download that keeps arriving in small pieces.
    """
    future: Future[_Answer] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except (OSError, ValueError, _MirrorError) as error:
            future.set_exception(error.with_traceback(None))  # frees the frames that hold the connection

    threading.Thread(target=run, daemon=True).start()
    return future


def _wait(future: Future[_Answer], deadline: float) -> _Answer:
    try:
        return future.result(timeout=max(0.0, deadline - time.monotonic()))
    finally:
        del future  # the error's traceback would hold it, and it holds the error: a cycle with a connection


def _per_mirror(problems: Mapping[str, str]) -> str:
    return "\n".join(f"{_host(mirror)}: {problem}" for mirror, problem in problems.items())


def _reason(error: Exception) -> str:
    """Return a phrase that states why a mirror failed, without its address."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    for kind, phrase in (
        (_MirrorError, str(error)),
        (requests.Timeout, "no answer in time"),
        (requests.exceptions.ChunkedEncodingError, "the connection broke off"),
        (requests.exceptions.SSLError, "its TLS certificate was refused"),
    ):
        if isinstance(error, kind):
            return phrase
    system = re.search(r"\[Errno -?\d+\] ([^'\")\]]+)", str(error))  # nested in the text of requests
    return system.group(1) if system else type(error).__name__


def _download(root: Path, name: str, mirrors: list[str], tell: Callable[[str], None]) -> None:
    """Get one file from the first mirror that serves it with the right content.

    A mirror that fails is moved to the end of ``mirrors``, which is changed in place.

    Raises:
        MnistNotFoundError: every mirror failed.
    """
    import requests

    problems: dict[str, str] = {}
    for mirror in tuple(mirrors):
        tell(f"{name}: downloading from {_host(mirror)}")
        try:
            _fetch(mnist_directory(root), name, mirror, tell)
        except (_MirrorError, requests.RequestException, ValueError) as error:
            problems[mirror] = _reason(error)
            tell(f"{name}: {_host(mirror)} failed: {problems[mirror]}")
            mirrors.remove(mirror)
            mirrors.append(mirror)
        else:
            tell(f"{name}: verified")
            return
    raise MnistNotFoundError(
        root, reason="no mirror served it whole", found=f"{name} from\n{_per_mirror(problems)}"
    )


def _fetch(directory: Path, name: str, mirror: str, tell: Callable[[str], None]) -> None:
    """Download one file from one mirror with pooch, verify it, and store it uncompressed in ``directory``."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    deadline = time.monotonic() + FILE_SECONDS

    def report(size_bytes: int) -> None:
        tell(f"{name}: {size_bytes / 1e6:.0f} MB from {_host(mirror)}")

    def download(url: str, output: str, _pooch: object) -> None:
        file = Path(output)
        file.write_bytes(_downloaded(url, deadline, report))
        content = bytearray(CONTENT_BYTES[name] + 1)
        try:
            size_bytes = read_content("mnist", name, file, memoryview(content))
        except DataError as error:
            raise _MirrorError(error.found) from error
        file.write_bytes(content[:size_bytes])
        file.chmod(0o644)  # data folders are often shared, but temporary files are private

    pooch.create(
        path=directory,
        base_url=mirror,
        registry=dict(catalogue.SHA256["mnist"]),
        urls={name: _url(mirror, name)},
        retry_if_failed=RETRIES,
        allow_updates=False,
    ).fetch(name, downloader=download)


def _downloaded(url: str, deadline: float, report: Callable[[int], None]) -> bytes:
    import pooch

    sink = _Sink(report)
    get = pooch.HTTPDownloader(
        chunk_size=_CHUNK_BYTES,
        timeout=(_CONNECT_SECONDS, _READ_SECONDS),
        headers={"Accept-Encoding": "identity"},
    )
    try:
        _wait(_in_thread(partial(get, url, sink, None)), deadline)
    except TimeoutError as error:
        sink.close()  # ends the thread at its next chunk
        message = f"not complete after {FILE_SECONDS:g} s"
        raise _MirrorError(message) from error
    return sink.getvalue()


class _Sink(io.BytesIO):
    """A buffer in memory that reports its growth, and refuses more bytes than the largest file has."""

    def __init__(self, report: Callable[[int], None]) -> None:
        super().__init__()
        self._report = report

    def write(self, data: Any, /) -> int:  # io.BytesIO's own parameter is any buffer
        before, written = self.tell(), super().write(data)
        if self.tell() > _LARGEST_BYTES:
            message = "it serves more than MNIST"
            raise _MirrorError(message)
        if self.tell() // _REPORT_BYTES > before // _REPORT_BYTES:
            self._report(self.tell())
        return written
