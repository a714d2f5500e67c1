"""Download each file of MNIST from the first mirror that serves it with the right content."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from compare.data import catalogue
from compare.data.catalogue import CONTENT_BYTES
from compare.data.files import (
    examine,
    fetch_command,
    folder_of,
    locked,
    read_content,
    refuse_damaged,
    writing,
)
from compare.errors import DataError, system_reason

if TYPE_CHECKING:
    import requests

MIRRORS: Final = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MIRRORS_VARIABLE: Final = "RINGSIDE_MNIST_MIRRORS"

ANSWER_SECONDS: Final = 5.0
"""Maximum time until a mirror begins to answer."""
FILE_SECONDS: Final = 120.0
"""Maximum time to download one file from one mirror, retries included."""
RETRIES: Final = 1
"""Number of further attempts after a network error, for each file and mirror."""

# This is shorter than the wait, so that a dead address, such as IPv6 without a route, does not use it up.
_CONNECT_SECONDS: Final = 2.0
_READ_SECONDS: Final = 20.0
_CHUNK_BYTES: Final = 1 << 17
_REPORT_BYTES: Final = 2_000_000
_LARGEST_BYTES: Final = max(CONTENT_BYTES.values())

_Answer = TypeVar("_Answer")


class MnistNotFoundError(DataError):
    """MNIST is not complete in the data folder, and cannot be downloaded; ``reason`` is a short clause."""

    def __init__(self, root: Path, *, reason: str, found: str) -> None:
        super().__init__(
            f"MNIST is not complete under {root} and cannot be downloaded: {reason}.",
            found=found,
            remedy=(
                f"Run {fetch_command(root)} where there is a network, or name a mirror in "
                f"{MIRRORS_VARIABLE}.\nOr copy the four files into {folder_of('mnist', root)}.\n"
                "Or use --dataset digits, which needs no network."
            ),
        )
        self.reason = reason


class _MirrorError(Exception):
    """A mirror serves wrong content, or takes too long."""


class _SilentMirrorError(_MirrorError):
    """A mirror does not begin to answer."""


def fetch_mnist(root: Path, *, progress: Callable[[str], None] = lambda _: None) -> Path:
    """Verify MNIST under ``root``, download the missing files, and return its folder.

    Many processes may call this at once: one downloads, and the others wait. Files are stored uncompressed,
    because every rank of every launch reads them. ``progress`` is called with one line for each event.

    Raises:
        MnistNotFoundError: a file is missing, and no mirror serves it.
        DataError: a file is damaged, a mirror's address is invalid, or another process kept the lock.
        OutputError: the folder cannot be written.
    """
    directory = folder_of("mnist", root)
    if not _missing(directory):
        return directory
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    mirrors = _mirrors()
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


def _download(root: Path, name: str, mirrors: list[str], tell: Callable[[str], None]) -> None:
    """Get one file from the first mirror that serves it with the right content.

    A mirror that fails is moved to the end of ``mirrors``, which is changed in place.

    Raises:
        DataError: the address of a mirror is invalid.
        MnistNotFoundError: every mirror failed.
    """
    import requests

    problems: list[str] = []
    offline = True
    for mirror in tuple(mirrors):
        if not _is_address(mirror):
            raise DataError(
                f"{MIRRORS_VARIABLE} contains an invalid address.",
                found=f"{mirror!r} does not start with http:// or https:// and a host.",
                remedy=f"Correct it, for example {MIRRORS_VARIABLE}={MIRRORS[0]}, or unset it.",
            )
        host = _host(mirror)
        tell(f"{name}: downloading from {host}")
        try:
            _fetch(folder_of("mnist", root), name, mirror, tell)
        except (_MirrorError, requests.RequestException, ValueError) as error:  # also of a redirect's address
            offline &= isinstance(error, (_SilentMirrorError, requests.ConnectionError))
            problems.append(f"{host}: {_reason(error)}")
            tell(f"{name}: {host} failed: {_reason(error)}")
            mirrors.remove(mirror)
            mirrors.append(mirror)
        else:
            tell(f"{name}: verified")
            return
    reason = "offline, no mirror answers" if offline else "no mirror served it whole"
    raise MnistNotFoundError(root, reason=reason, found="\n".join([f"{name} from", *problems]))


def _is_address(mirror: str) -> bool:
    try:
        parts = urlsplit(mirror)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # also of a port that is no number
        return False


def _host(mirror: str) -> str:
    """Return the host and port of an address, without user name and password."""
    return mirror.partition("://")[2].partition("/")[0].rpartition("@")[2]


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


def _fetch(directory: Path, name: str, mirror: str, tell: Callable[[str], None]) -> None:
    """Download one file from one mirror with pooch, verify it, and store it uncompressed in ``directory``."""
    import pooch
    import requests

    deadline = time.monotonic() + FILE_SECONDS
    ask = partial(requests.get, stream=True, timeout=(_CONNECT_SECONDS, _READ_SECONDS))
    silent = _SilentMirrorError(f"no answer within {ANSWER_SECONDS:g} s")
    late = _MirrorError(f"not complete after {FILE_SECONDS:g} s")

    def report(size_bytes: int) -> None:
        tell(f"{name}: {size_bytes / 1e6:.0f} MB from {_host(mirror)}")

    def download(url: str, output: str, _pooch: object) -> None:
        response = _within(ANSWER_SECONDS, partial(ask, url, headers={"Accept-Encoding": "identity"}), silent)
        left_seconds = deadline - time.monotonic()
        file = Path(output)
        file.write_bytes(_within(left_seconds, partial(_body, response, deadline, report), late))
        try:
            file.write_bytes(read_content("mnist", name, file))
        except DataError as error:
            raise _MirrorError(error.found) from error
        file.chmod(0o644)  # data folders are often shared, but temporary files are private

    pooch.get_logger().setLevel("WARNING")
    pooch.create(
        path=directory,
        base_url=mirror,
        registry=dict(catalogue.SHA256["mnist"]),
        urls={name: f"{mirror.rstrip('/')}/{name}.gz"},
        retry_if_failed=RETRIES,
        allow_updates=False,
    ).fetch(name, downloader=download)


def _body(response: requests.Response, deadline: float, report: Callable[[int], None]) -> bytearray:
    """Return the body of an answer, but not more bytes than the largest file has."""
    body = bytearray()
    with response:
        response.raise_for_status()
        for chunk in response.iter_content(_CHUNK_BYTES):
            before = len(body)
            body += chunk
            if len(body) > _LARGEST_BYTES:
                message = "it sent more bytes than MNIST has"
                raise _MirrorError(message)
            if time.monotonic() > deadline:
                break  # no caller waits any more
            if len(body) // _REPORT_BYTES > before // _REPORT_BYTES:
                report(len(body))
    return body


def _within(seconds: float, call: Callable[[], _Answer], late: _MirrorError) -> _Answer:
    """Call a function in a daemon thread, and wait for its result at most for ``seconds``.

    The timeouts of ``requests`` end neither a slow name lookup nor a download that keeps arriving in small
    pieces.

    Raises:
        _MirrorError: there is no result in time; it is ``late``.
    """
    future: Future[_Answer] = Future()
    threading.Thread(target=_finish, args=(future, call), daemon=True).start()
    try:
        return future.result(timeout=max(0.0, seconds))
    except TimeoutError:
        raise late from None
    finally:
        del future  # the error's traceback would hold it, and it holds the error: a cycle with a connection


def _finish(future: Future[_Answer], call: Callable[[], _Answer]) -> None:
    import requests

    try:
        future.set_result(call())
    except (requests.RequestException, ValueError, _MirrorError) as error:
        future.set_exception(error.with_traceback(None))  # frees the frames that hold the connection
    except OSError as error:  # such as a missing file of certificates
        future.set_exception(_MirrorError(system_reason(error)))
