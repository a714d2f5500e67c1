"""MNIST, fetched from the first mirror that serves it whole."""

from __future__ import annotations

import gzip
import io
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from compare.data import catalogue
from compare.data.catalogue import IMAGE_SIDE_PIXELS, TEST_LABELS, TRAIN_COUNT
from compare.data.files import examine, fetch_command, mnist_directory, refuse_damaged
from compare.data.idx import idx_bytes
from compare.data.writing import locked, writing
from compare.errors import DataError

if TYPE_CHECKING:
    from compare.data.catalogue import Progress

MIRRORS: Final = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MIRRORS_VARIABLE: Final = "RINGSIDE_MNIST_MIRRORS"

_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 20.0
# One address that swallows packets (IPv6 without a route, say) must not eat the whole probe.
_PROBE_CONNECT_SECONDS: Final = 2.0
_PROBE_DEADLINE_SECONDS: Final = 5.0

_CHUNK_BYTES: Final = 1 << 17
_PROGRESS_BYTES: Final = 2_000_000
_GZIP_MAGIC: Final = b"\x1f\x8b"
_MOST_BYTES: Final = idx_bytes((TRAIN_COUNT, IMAGE_SIDE_PIXELS, IMAGE_SIDE_PIXELS))


class NotObtainedError(DataError):
    """MNIST is neither here nor to be had: the one failure that lets ``auto`` fall back.

    Damaged files are not this error: they are somebody's data, and somebody must look at them.
    """

    def __init__(self, root: Path, *, reason: str, found: str) -> None:
        super().__init__(
            f"MNIST is not complete under {root} and could not be downloaded: {reason}",
            found=found,
            remedy=(
                f"Run {fetch_command(root)} where there is a network, name a mirror within reach in "
                f"{MIRRORS_VARIABLE}, copy the four files into {mnist_directory(root)}, "
                "or use --dataset digits, which needs no network."
            ),
        )
        self.reason = reason


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
    directory = mnist_directory(root)
    if not missing_mnist(directory):
        return directory
    tell = progress or _silent
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    # Outside the lock: where there is no network, waiting processes find out together, not one by one.
    mirrors = _answering_mirrors(root, _mirrors(), tell)
    with locked(directory, tell), writing(directory):
        for name in missing_mnist(directory):
            _download(root, name, mirrors, tell)
    return directory


def missing_mnist(directory: Path) -> list[str]:
    """The names that are not there.

    Raises:
        DataError: a file is there, but is not MNIST's.
    """
    found = examine("mnist", directory)
    refuse_damaged(found, directory)
    return [file.name for file in found if file.form == "missing"]


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
        raise NotObtainedError(root, reason="offline, no mirror answers", found=_per_mirror(verdicts))
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
            _retrieve(mnist_directory(root), name, mirror, tell)
        except _MirrorError as error:
            problems[mirror] = str(error)
            tell(f"{name}: {_host_of(mirror)} failed, {error}")
            # For the files still to come, begin with one that has not failed.
            mirrors.remove(mirror)
            mirrors.append(mirror)
        else:
            return
    raise NotObtainedError(
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
            known_hash=f"sha256:{catalogue.SHA256['mnist'][name]}",
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
        chunk_size=_CHUNK_BYTES,
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
        if self.tell() > _MOST_BYTES:
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
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(blob)) as stream:
            return stream.read(_MOST_BYTES + 1)  # one more than can be right: a bomb fails the checksum
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"what it served is truncated or damaged ({error})"
        raise _MirrorError(message) from error
