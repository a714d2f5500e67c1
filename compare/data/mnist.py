"""Download each file of MNIST from the first mirror that serves it with the right content."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from compare.data.catalogue import CONTENT_BYTES
from compare.data.files import examine, fetch_command, folder_of, read_content, refuse_damaged, writing
from compare.errors import DataError

if TYPE_CHECKING:
    import requests

MIRRORS: Final = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MIRRORS_VARIABLE: Final = "RINGSIDE_MNIST_MIRRORS"
"""Environment variable with addresses, joined by commas, that take the place of ``MIRRORS``."""

ANSWER_SECONDS: Final = 5.0
"""A mirror must begin to answer within this time."""
FILE_SECONDS: Final = 120.0
"""One file must be downloaded from one mirror within this time, retries included."""
RETRIES: Final = 1
"""Number of further attempts after a network error, for each file and mirror."""

_PAUSE_SECONDS: Final = 1.0
# Of a connection, and of silence after it. A dead address, such as IPv6 without a route, must not use up all.
_TIMEOUTS_SECONDS: Final = (2.0, 20.0)
_PIECE_BYTES: Final = 1 << 17
_LARGEST_BYTES: Final = max(CONTENT_BYTES.values())


class MnistNotFoundError(DataError):
    """MNIST is not complete in the data folder, and cannot be downloaded.

    ``reason`` is a short clause for why, and ``found`` has a line for each mirror.
    """

    def __init__(self, root: Path, *, reason: str, found: str) -> None:
        super().__init__(
            f"MNIST is not complete under {root} and cannot be downloaded: {reason}.",
            found=found,
            remedy=(
                f"Run {fetch_command(root)} where there is a network, or name a mirror in "
                f"{MIRRORS_VARIABLE}.\nOr copy the four files into {folder_of('mnist', root)}.\n"
                "Or use --data digits, which needs no network."
            ),
        )
        self.reason = reason


class _MirrorError(Exception):
    """A mirror does not serve a file, for example because it sends wrong content or takes too long."""


class _SilentMirrorError(_MirrorError):
    """A mirror cannot be reached, or does not begin to answer."""


def fetch_mnist(root: Path, *, progress: Callable[[str], None] = lambda _: None) -> Path:
    """Verify MNIST under the data folder ``root``, download missing files, and return MNIST's own folder.

    Many processes may call this at once: one downloads, and the others wait. Files are stored uncompressed,
    because every rank of every launch reads them. ``progress`` is called with one line of text for each
    event.

    Raises:
        MnistNotFoundError: a file is missing, and no mirror serves it.
        DataError: a file is damaged, a mirror's address is invalid, or another process kept the lock.
        OutputError: the folder cannot be written.
    """
    directory = folder_of("mnist", root)
    if not _missing(directory):
        return directory
    mirrors, offline = _mirror_addresses(), True
    problems: list[str] = []
    with writing(directory, progress):
        for mirror in mirrors:
            host = _host(mirror)
            try:
                for name in _missing(directory):
                    progress(f"{name}: downloading from {host}")
                    _fetch_file(directory, name, mirror)
                    progress(f"{name}: verified")
            except _MirrorError as error:  # the next mirror may serve what is left
                offline &= isinstance(error, _SilentMirrorError)
                problems.append(f"{host}: {error}")
                progress(f"{host} failed: {error}")
            else:
                return directory
    reason = "offline, no mirror answers" if offline else "no mirror served it whole"
    raise MnistNotFoundError(root, reason=reason, found="\n".join(problems))


def _missing(directory: Path) -> list[str]:
    files = examine("mnist", directory)
    refuse_damaged(files, directory)
    return [file.name for file in files if file.form == "missing"]


def _mirror_addresses() -> list[str]:
    chosen = [mirror.strip() for mirror in os.environ.get(MIRRORS_VARIABLE, "").split(",")]
    mirrors = list(dict.fromkeys(filter(None, chosen))) or list(MIRRORS)
    for mirror in mirrors:
        if not _is_address(mirror):
            raise DataError(
                f"{MIRRORS_VARIABLE} contains an invalid address.",
                found=f"{mirror!r} does not start with http:// or https:// and a host.",
                remedy=f"Correct it, for example {MIRRORS_VARIABLE}={MIRRORS[0]}, or unset it.",
            )
    return mirrors


def _is_address(mirror: str) -> bool:
    try:
        parts = urlsplit(mirror)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # also of a port that is no number
        return False


def _host(mirror: str) -> str:
    """Return the host and port of a mirror's address, without user name and password."""
    return mirror.partition("://")[2].partition("/")[0].rpartition("@")[2]


def _fetch_file(directory: Path, name: str, mirror: str) -> None:
    """Download one file from one mirror, verify it, and store it uncompressed in ``directory``.

    ``name`` is the name of the file without ``.gz``.

    Raises:
        _MirrorError: the mirror failed, or its file has wrong content.
    """
    import requests
    import urllib3

    deadline = time.monotonic() + FILE_SECONDS
    unverified = directory / f".{name}.{os.getpid()}"
    try:
        for retries in reversed(range(RETRIES + 1)):
            try:
                unverified.write_bytes(_receive(f"{mirror.rstrip('/')}/{name}.gz", deadline))
                break
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                if not retries:
                    silent = isinstance(error, requests.ConnectionError)
                    kind = _SilentMirrorError if silent else _MirrorError
                    raise kind(_reason_of(error)) from error
                time.sleep(_PAUSE_SECONDS)
        unverified.write_bytes(read_content("mnist", name, unverified))
        unverified.replace(directory / name)
    except DataError as error:
        raise _MirrorError(error.found) from error
    finally:
        unverified.unlink(missing_ok=True)


def _receive(url: str, deadline: float) -> bytes:
    """Return the body of the answer to a request for ``url``, by ``deadline`` of the monotonic clock.

    Raises:
        _MirrorError: the body is larger than any file of MNIST, or not complete at the deadline.
        RequestException, HTTPError: the mirror failed in another way.
    """
    body = bytearray()
    with _request(url) as answer:
        answer.raise_for_status()
        while piece := answer.raw.read1(_PIECE_BYTES, decode_content=False):
            body += piece
            if len(body) > _LARGEST_BYTES:
                raise _MirrorError("it sent more bytes than MNIST has")
            if time.monotonic() > deadline:
                raise _MirrorError(f"not complete after {FILE_SECONDS:g} s")
    return bytes(body)


def _request(url: str) -> requests.Response:
    """Request ``url``, and return the answer once it begins, before its body is read.

    A daemon thread waits for the answer, because the timeouts of ``requests`` do not end a slow name lookup.

    Raises:
        _SilentMirrorError: no answer began within ``ANSWER_SECONDS``.
        _MirrorError: the request cannot be sent.
        RequestException: the mirror failed in another way.
    """
    import requests

    answers: SimpleQueue[requests.Response | Exception] = SimpleQueue()

    def ask() -> None:
        headers = {"Accept-Encoding": "identity"}
        try:
            answers.put(requests.get(url, headers=headers, stream=True, timeout=_TIMEOUTS_SECONDS))
        except requests.RequestException as error:
            answers.put(error.with_traceback(None))  # frees the frames that hold the connection
        except (OSError, ValueError) as error:  # such as a missing file of certificates
            answers.put(_MirrorError(str(error)))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=ANSWER_SECONDS)
    except Empty:
        raise _SilentMirrorError(f"no answer within {ANSWER_SECONDS:g} s") from None
    if not isinstance(answer, Exception):
        return answer
    try:
        raise answer
    finally:
        del answer  # the error's traceback would hold it, and it holds the error: a cycle with a connection


def _reason_of(error: Exception) -> str:
    """Return a phrase for why a mirror failed, which leaves out the address and any password in it."""
    import requests
    import urllib3

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    if isinstance(error, (requests.Timeout, urllib3.exceptions.TimeoutError)):
        return "no answer in time"
    if isinstance(error, urllib3.exceptions.ProtocolError):
        return "the connection broke off"
    if isinstance(error, requests.exceptions.SSLError):
        return "its TLS certificate was refused"
    system = re.search(r"\[Errno -?\d+\] ([^'\")\]]+)", str(error))  # nested in the text of requests
    return system.group(1) if system else type(error).__name__
