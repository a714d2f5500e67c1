"""The data sets: the file format, what is on the disk, fetching over loopback, the digits, the fallback.

Most tests run on four tiny files that stand in for MNIST, with their checksums in the place of the
real ones, so that they need neither the network nor the real files. The real ones are tested where
``../shared/data`` (beside the repository) holds them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import json
import os
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from compare import data
from compare.data import catalogue, digits, mnist, writing
from compare.data import idx as idx_format
from compare.data.catalogue import FILES, TEST_IMAGES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS
from compare.errors import DataError, OutputError

REPOSITORY = Path(__file__).resolve().parents[3]
REAL_ROOT = REPOSITORY.parent / "shared" / "data"
REAL_RAW = REAL_ROOT / "MNIST" / "raw"
needs_real_mnist = pytest.mark.skipif(
    not all((REAL_RAW / f"{name}.gz").is_file() for name in FILES),
    reason="the real MNIST is not in ../shared/data beside the repository",
)

Bytes = NDArray[np.uint8]


# ------------------------------------------------------------------------------------------- fixtures


def idx(array: Bytes) -> bytes:
    """The IDX file of an array, written independently of the code under test."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def small_arrays() -> dict[str, Bytes]:
    random = np.random.default_rng(1)
    return {
        TRAIN_IMAGES: random.integers(0, 256, (30, 28, 28), dtype=np.uint8),
        TRAIN_LABELS: random.integers(0, 10, 30, dtype=np.uint8),
        TEST_IMAGES: random.integers(0, 256, (10, 28, 28), dtype=np.uint8),
        TEST_LABELS: random.integers(0, 10, 10, dtype=np.uint8),
    }


def sums_of(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Four tiny IDX files by name, which pass for MNIST during the test."""
    files = {name: idx(array) for name, array in small_arrays().items()}
    monkeypatch.setattr(catalogue, "SHA256", {**catalogue.SHA256, "mnist": sums_of(files)})
    return files


def put(root: Path, files: dict[str, bytes]) -> Path:
    """Lay files out as torchvision does; a name with .gz is compressed."""
    directory = root / "MNIST" / "raw"
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return directory


class Mirror:
    """A loopback web server: serves ``bodies`` by file name, and counts what was asked of it."""

    def __init__(self, bodies: dict[str, bytes]) -> None:
        self.bodies = bodies
        self.gets: list[str] = []
        self.claim_more_bytes = 0  # promise more than is sent, then hang up: an interrupted download
        self.headers: dict[str, str] = {}
        self.delay_seconds = 0.0
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                mirror.answer(self, with_body=False)

            def do_GET(self) -> None:
                mirror.answer(self, with_body=True)

            def log_message(self, *_arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/mnist"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler, *, with_body: bool) -> None:
        name = request.path.rpartition("/")[2]
        if with_body:
            self.gets.append(name)
            time.sleep(self.delay_seconds)
        body = self.bodies.get(name)
        if body is None:
            request.send_error(404)
            return
        request.send_response(200)
        request.send_header("Content-Length", str(len(body) + self.claim_more_bytes))
        for header, value in self.headers.items():
            request.send_header(header, value)
        request.end_headers()
        if with_body:
            with contextlib.suppress(ConnectionError):
                request.wfile.write(body)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, bytes]], Mirror]]:
    """Start mirrors that serve the files given, compressed, under their names with .gz."""
    mirrors: list[Mirror] = []

    def start(files: dict[str, bytes]) -> Mirror:
        mirrors.append(Mirror({f"{name}.gz": gzip.compress(content) for name, content in files.items()}))
        return mirrors[-1]

    yield start
    for mirror in mirrors:
        mirror.close()


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test may reach the real mirrors, a proxy, or the user's cache."""
    for variable in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    use_mirrors(monkeypatch, closed_address())


def use_mirrors(monkeypatch: pytest.MonkeyPatch, *mirrors: str) -> None:
    monkeypatch.setenv(mnist.MIRRORS_VARIABLE, ",".join(mirrors))


def closed_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


def visible(directory: Path) -> list[str]:
    """What a user sees in a folder: leftovers of temporary files would show up here."""
    return sorted(path.name for path in directory.iterdir() if path.name != ".ringside.lock")


@pytest.fixture(scope="session")
def digits_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with the digits in it; the tests only read it."""
    root = tmp_path_factory.mktemp("digits")
    digits.prepare_digits(root)
    return root


# ------------------------------------------------------------------------------------- the IDX format


uint8_arrays = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6))


@given(array=uint8_arrays, suffix=st.sampled_from(["", ".gz"]))
@settings(deadline=None)
def test_idx_round_trip(array: Bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"array{suffix}"
        idx_format.write_idx(path, array)
        back = idx_format.read_idx(path)
        content = path.read_bytes()
    assert back.dtype == np.uint8
    assert back.shape == array.shape
    assert back.flags.writeable
    np.testing.assert_array_equal(back, array)
    assert (gzip.decompress(content) if suffix else content) == idx(array)


@given(
    content=st.binary(max_size=40),
    head=st.sampled_from([b"", b"\0\0\x08\x01", b"\0\0\x08\x03", b"\x1f\x8b\x08"]),
)
@settings(deadline=None)
def test_any_bytes_are_an_array_or_a_data_error(content: bytes, head: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any"
        path.write_bytes(head + content)
        with contextlib.suppress(DataError):
            assert idx_format.read_idx(path).dtype == np.uint8


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_every_prefix_is_a_data_error(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    whole = pack(idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4)))
    path = tmp_path / "file"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="cannot be used"):
            idx_format.read_idx(path)
    path.write_bytes(whole)
    assert idx_format.read_idx(path).shape == (2, 3, 4)


def test_every_flipped_byte_of_the_compressed_content_is_noticed(tmp_path: Path) -> None:
    array = np.arange(60, dtype=np.uint8)
    whole = gzip.compress(idx(array), mtime=0)
    path = tmp_path / "file.gz"
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            back = idx_format.read_idx(path)
        except DataError:
            continue
        # The gzip header has fields (time, system) that say nothing about the content.
        assert position < 10
        np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "ends within its header, after 0 bytes"),
        (b"\0\0\x0d\x01" + struct.pack(">I", 1) + bytes(4), "0x00000d01"),
        (b"\0\0\x08\x00", "0x00000800"),
        (b"\0\0\x08\x40" + bytes(256), "0x00000840"),
        (idx(np.zeros(5, np.uint8)) + b"x", "promises 5 bytes; there are more"),
        (idx(np.zeros(5, np.uint8))[:-1], "promises 5 bytes; there are only 4"),
        (b"\0\0\x08\x03" + b"\xff" * 12 + bytes(9), "cannot hold as many"),
        (b"\0\0\x08\x04" + bytes(4) + b"\xff" * 12, "beyond what an array can be"),
        (b"<html>404</html>", "0x3c68746d"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        idx_format.read_idx(path)
    assert said in caught.value.found
    assert str(path) in caught.value.what


def test_unreadable_things_are_data_errors(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", tmp_path / "absent" / "deeper"):
        with pytest.raises(DataError, match="cannot be read"):
            idx_format.read_idx(path)


def test_only_unsigned_bytes_are_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="float64 with 1 dimension"):
        idx_format.write_idx(tmp_path / "x", np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="uint8 with 0 dimensions"):
        idx_format.write_idx(tmp_path / "x", np.array(3, dtype=np.uint8))
    with pytest.raises(OutputError, match="cannot be written"):
        idx_format.write_idx(tmp_path / "absent" / "x", np.zeros(3, np.uint8))


# ------------------------------------------------------------------------------- loading and examining


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_load_verifies_and_returns_writable_arrays(
    small: dict[str, bytes], tmp_path: Path, suffix: str
) -> None:
    loaded = data.load(str(put(tmp_path, {name + suffix: content for name, content in small.items()})))
    assert loaded.name == "mnist"
    arrays = (loaded.train_images, loaded.train_labels, loaded.test_images, loaded.test_labels)
    for array, expected in zip(arrays, small_arrays().values(), strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.flags.writeable
        assert array.flags.c_contiguous


def source(directory: Path, name: data.DatasetName = "mnist") -> data.DatasetSource:
    return data.DatasetSource(name=name, requested=name, directory=str(directory))


def test_a_split_is_read_without_the_other(small: dict[str, bytes], tmp_path: Path) -> None:
    directory = put(tmp_path, small | {TEST_IMAGES: b"damaged"})
    found = data.load_split(source(directory), "train")
    for array, expected in zip(found, list(small_arrays().values())[:2], strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.flags.writeable
    with pytest.raises(DataError, match=TEST_IMAGES):
        data.load_split(source(directory), "test")


def test_a_split_of_another_data_set_is_refused(small: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        data.load_split(source(put(tmp_path, small), "digits"), "test")
    assert "not the original" in caught.value.found
    assert "that of digits" in caught.value.found


def test_plain_files_are_preferred(small: dict[str, bytes], tmp_path: Path) -> None:
    directory = put(tmp_path, small)
    put(tmp_path, {f"{TRAIN_IMAGES}.gz": b"damaged"})
    assert data.load(directory).name == "mnist"
    assert {file.form for file in data.status(tmp_path)} == {"plain"}


def replaced(name: str, array: Bytes) -> dict[str, bytes]:
    return {name: idx(array)}


@pytest.mark.parametrize(
    ("change", "blamed", "said"),
    [
        (
            replaced(TRAIN_LABELS, np.full(30, 10, np.uint8)),
            TRAIN_LABELS,
            "a label 10; the classes are 0 to 9",
        ),
        (replaced(TRAIN_LABELS, np.zeros(29, np.uint8)), TRAIN_LABELS, "29 labels for 30 images"),
        (replaced(TEST_LABELS, np.zeros((5, 2), np.uint8)), TEST_LABELS, "these have shape (5, 2)"),
        (replaced(TEST_IMAGES, np.zeros((10, 28, 27), np.uint8)), TEST_IMAGES, "shape (10, 28, 27)"),
        (replaced(TEST_IMAGES, np.zeros((10, 784), np.uint8)), TEST_IMAGES, "shape (10, 784)"),
        (
            replaced(TEST_IMAGES, np.zeros((10, 28, 28), np.uint8)),
            TEST_IMAGES,
            "Well formed, but not the original",
        ),
        ({TRAIN_IMAGES: b"\0\0\x08\x03"}, TRAIN_IMAGES, "ends within its header"),
    ],
)
def test_load_names_the_bad_file(
    small: dict[str, bytes], tmp_path: Path, change: dict[str, bytes], blamed: str, said: str
) -> None:
    directory = put(tmp_path, small | change)
    with pytest.raises(DataError) as caught:
        data.load(directory)
    assert str(directory / blamed) in caught.value.what
    assert said in caught.value.found
    assert f"rm {shlex.quote(str(directory / blamed))}" in caught.value.remedy
    assert f"compare data fetch --data-dir {shlex.quote(str(tmp_path))}" in caught.value.remedy


def test_load_names_the_missing_file(small: dict[str, bytes], tmp_path: Path) -> None:
    directory = put(tmp_path, small)
    (directory / TEST_LABELS).unlink()
    with pytest.raises(DataError, match=f"{TEST_LABELS} is not in") as caught:
        data.load(directory)
    assert "rm " not in caught.value.remedy
    assert "compare data fetch" in caught.value.remedy


def test_status_tells_every_case_apart(small: dict[str, bytes], tmp_path: Path) -> None:
    directory = put(
        tmp_path,
        {
            TRAIN_IMAGES: small[TRAIN_IMAGES],
            f"{TRAIN_LABELS}.gz": small[TRAIN_LABELS],
            TEST_IMAGES: small[TEST_IMAGES][:-1],
        },
    )
    plain, compressed, truncated, missing = data.status(tmp_path)
    assert (plain.form, plain.verified, plain.problem) == ("plain", True, "")
    assert plain.size_bytes == len(small[TRAIN_IMAGES])
    assert (compressed.form, compressed.verified) == ("gz", True)
    assert compressed.path == str(directory / f"{TRAIN_LABELS}.gz")
    assert not truncated.verified
    assert f"{len(small[TEST_IMAGES]) - 1:,} bytes with SHA-256" in truncated.problem
    assert (missing.form, missing.verified, missing.problem) == ("missing", False, "")
    assert msgspec.json.decode(msgspec.json.encode(truncated), type=data.FileStatus) == truncated


def test_status_survives_truncated_gz_dangling_links_and_folders(
    small: dict[str, bytes], tmp_path: Path
) -> None:
    directory = put(tmp_path, {})
    (directory / f"{TRAIN_IMAGES}.gz").write_bytes(gzip.compress(small[TRAIN_IMAGES])[:-9])
    (directory / TRAIN_LABELS).symlink_to(directory / "nowhere")
    (directory / TEST_IMAGES).mkdir()
    truncated, dangling, folder, missing = data.status(tmp_path)
    assert "truncated" in truncated.problem
    assert "cannot be read" in dangling.problem
    assert "cannot be read" in folder.problem
    assert missing.form == "missing"


def test_the_parent_needs_no_heavy_import(tmp_path: Path) -> None:
    """Looking at the disk must not cost the seconds that importing these takes."""
    script = (
        "import sys, pathlib; from compare import data; data.status(pathlib.Path(sys.argv[1]));"
        "print({'torch', 'numpy', 'scipy', 'sklearn', 'pooch', 'requests', 'filelock'} & sys.modules.keys())"
    )
    assert run_python(script, str(tmp_path)).strip() == "set()"


def run_python(script: str, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


# -------------------------------------------------------------------------------------------- fetching


Serve = Callable[[dict[str, bytes]], Mirror]


def test_fetch_gets_what_is_missing_and_only_that(
    small: dict[str, bytes], tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = serve(small)
    use_mirrors(monkeypatch, mirror.url)
    put(tmp_path, {f"{TRAIN_LABELS}.gz": small[TRAIN_LABELS]})
    said: list[str] = []
    directory = data.fetch_mnist(tmp_path, progress=said.append)
    assert directory == tmp_path / "MNIST" / "raw"
    assert sorted(mirror.gets) == sorted(f"{name}.gz" for name in FILES if name != TRAIN_LABELS)
    assert visible(directory) == sorted([TRAIN_IMAGES, f"{TRAIN_LABELS}.gz", TEST_IMAGES, TEST_LABELS])
    assert all(file.verified for file in data.status(tmp_path))
    assert f"{TEST_IMAGES}: verified" in said
    assert (directory / TRAIN_IMAGES).stat().st_mode & 0o777 == 0o644
    mirror.gets.clear()
    data.fetch_mnist(tmp_path)
    assert mirror.gets == []


def test_a_bad_mirror_is_passed_over_and_then_tried_last(
    small: dict[str, bytes], tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {name: content[:-1] + bytes([content[-1] ^ 1]) for name, content in small.items()}
    bad, good = serve(wrong), serve(small)
    use_mirrors(monkeypatch, bad.url, good.url)
    said: list[str] = []
    directory = data.fetch_mnist(tmp_path, progress=said.append)
    assert len(bad.gets) == 1
    assert len(good.gets) == len(FILES)
    assert any("wrong SHA-256" in line for line in said)
    assert visible(directory) == sorted(FILES)


def break_off(mirror: Mirror) -> None:
    mirror.claim_more_bytes = 1000


def cut_short(mirror: Mirror) -> None:
    mirror.bodies = {name: body[:-20] for name, body in mirror.bodies.items()}


def captive_portal(mirror: Mirror) -> None:
    mirror.bodies = dict.fromkeys(mirror.bodies, b"<html>Please log in</html>")


def not_found(mirror: Mirror) -> None:
    mirror.bodies = {}


def bomb(mirror: Mirror) -> None:
    mirror.bodies = dict.fromkeys(mirror.bodies, gzip.compress(bytes(60_000_000)))


def flood(mirror: Mirror) -> None:
    mirror.bodies = dict.fromkeys(mirror.bodies, bytes(60_000_000))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (break_off, "the connection broke off"),
        (cut_short, "truncated"),
        (captive_portal, "wrong SHA-256"),
        (not_found, "HTTP status 404"),
        (bomb, "wrong SHA-256"),
        (flood, "more than MNIST"),
    ],
)
def test_a_failed_download_leaves_nothing_behind(
    small: dict[str, bytes],
    tmp_path: Path,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fault: Callable[[Mirror], None],
    reason: str,
) -> None:
    mirror = serve(small)
    fault(mirror)
    use_mirrors(monkeypatch, mirror.url)
    with pytest.raises(DataError, match="no mirror served it whole") as caught:
        data.fetch_mnist(tmp_path)
    assert f"127.0.0.1:{mirror.server.server_port}: " in caught.value.found
    assert reason in caught.value.found
    assert "--dataset digits" in caught.value.remedy
    assert visible(tmp_path / "MNIST" / "raw") == []


def test_a_server_that_unpacks_on_the_way_is_understood(
    small: dict[str, bytes], tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = serve(small)
    mirror.headers = {"Content-Encoding": "gzip"}  # what Apache's AddEncoding does to .gz files
    use_mirrors(monkeypatch, mirror.url)
    assert data.load(data.fetch_mnist(tmp_path)).name == "mnist"


def test_a_proxy_is_used_where_names_do_not_resolve(
    small: dict[str, bytes], tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = serve(small)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    use_mirrors(monkeypatch, "http://mirror.invalid/mnist/")
    assert data.load(data.fetch_mnist(tmp_path)).name == "mnist"


def test_damaged_files_are_never_overwritten(
    small: dict[str, bytes], tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = serve(small)
    use_mirrors(monkeypatch, mirror.url)
    directory = put(tmp_path / "a b", {TRAIN_IMAGES: b"precious", f"{TEST_LABELS}.gz": b"mine"})
    for attempt in (
        lambda: data.fetch_mnist(tmp_path / "a b"),
        lambda: data.resolve("auto", tmp_path / "a b"),
        lambda: data.resolve("mnist", tmp_path / "a b", allow_download=False),
    ):
        with pytest.raises(DataError, match="2 files in") as caught:
            attempt()
        assert f"{directory / TRAIN_IMAGES} (8 bytes)" in caught.value.found
        assert hashlib.sha256(b"precious").hexdigest() in caught.value.found
        assert f"rm '{directory / TRAIN_IMAGES}' '{directory / TEST_LABELS}.gz'" in caught.value.remedy
    assert (directory / TRAIN_IMAGES).read_bytes() == b"precious"
    assert mirror.gets == []


FETCH_SCRIPT = """
import json, pathlib, sys
from compare import data
from compare.data import catalogue
catalogue.SHA256 = {**catalogue.SHA256, "mnist": json.loads(sys.argv[2])}
data.fetch_mnist(pathlib.Path(sys.argv[1]), progress=print)
"""


def test_two_processes_download_once(
    small: dict[str, bytes], tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = serve(small)
    mirror.delay_seconds = 0.5  # the first is still at it when the second comes
    use_mirrors(monkeypatch, mirror.url)
    outputs: list[str] = []

    def fetch() -> None:
        outputs.append(run_python(FETCH_SCRIPT, str(tmp_path), json.dumps(sums_of(small))))

    processes = [threading.Thread(target=fetch) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(mirror.gets) == sorted(f"{name}.gz" for name in FILES)
    assert sorted(f"{TEST_LABELS}: verified" in output for output in outputs) == [False, True]
    assert all(file.verified for file in data.status(tmp_path))


def test_whoever_waits_for_the_lock_says_so_and_does_not_wait_for_ever(
    small: dict[str, bytes], tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = serve(small)
    use_mirrors(monkeypatch, mirror.url)
    monkeypatch.setattr(writing, "LOCK_SECONDS", 0.2)
    directory = put(tmp_path, {})
    said: list[str] = []
    with (directory / ".ringside.lock").open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="kept the lock") as caught:
            data.fetch_mnist(tmp_path, progress=said.append)
    assert f"Waiting for another process that writes into {directory}" in said
    assert str(directory / ".ringside.lock") in caught.value.remedy
    assert mirror.gets == []


def test_offline_is_found_out_within_seconds(small: dict[str, bytes], tmp_path: Path) -> None:
    assert small
    started = time.monotonic()
    with pytest.raises(DataError, match="offline") as caught:
        data.fetch_mnist(tmp_path)
    assert time.monotonic() - started < 6
    assert "Connection refused" in caught.value.found


@pytest.mark.timed
def test_a_name_server_that_hangs_does_not_hang_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(*_arguments: object, **_keywords: object) -> list[object]:
        released.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(mnist, "_PROBE_DEADLINE_SECONDS", 0.4)
    use_mirrors(monkeypatch, "http://one.invalid/", "https://two.invalid/", "http://three.invalid/")
    started = time.monotonic()
    with pytest.raises(DataError, match="offline") as caught:
        data.fetch_mnist(tmp_path)
    assert time.monotonic() - started < 2  # all three together, not one after another
    assert caught.value.found.count("no answer within 0.4 s") == 3
    released.set()


@pytest.mark.timed
def test_a_server_that_accepts_and_says_nothing_does_not_hang_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist, "_PROBE_DEADLINE_SECONDS", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        use_mirrors(monkeypatch, f"http://127.0.0.1:{mute.getsockname()[1]}/")
        started = time.monotonic()
        with pytest.raises(DataError, match="offline"):
            data.fetch_mnist(tmp_path)
        assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "mirror", ["ftp://host/", "host/mnist", "http://", "http://host:nope/", "http://[::1/"]
)
def test_a_mirror_that_is_none_is_an_error_and_no_reason_to_fall_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str
) -> None:
    use_mirrors(monkeypatch, mirror)
    with pytest.raises(DataError, match=mnist.MIRRORS_VARIABLE) as caught:
        data.resolve("auto", tmp_path)
    assert repr(mirror) in caught.value.found


def test_no_password_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    mirror = serve({})
    use_mirrors(monkeypatch, mirror.url.replace("//", "//user:hunter2@"))
    said: list[str] = []
    with pytest.raises(DataError) as caught:
        data.fetch_mnist(tmp_path, progress=said.append)
    assert "hunter2" not in str(caught.value) + " ".join(said)


def test_the_default_mirrors_are_torchvisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mnist.MIRRORS_VARIABLE, "")
    assert mnist._mirrors() == list(mnist.MIRRORS)
    assert "ossci-datasets" in mnist.MIRRORS[0]


def test_a_file_system_without_locks_still_works(
    small: dict[str, bytes], tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(writing, "_acquire", no_locks)
    use_mirrors(monkeypatch, serve(small).url)
    assert data.load(data.fetch_mnist(tmp_path)).name == "mnist"


# ------------------------------------------------------------------------------------------- resolving


def unwritable(tmp_path: Path) -> Path:
    """A root nobody can write, not even the superuser that containers run tests as."""
    (tmp_path / "file").write_text("not a folder")
    return tmp_path / "file" / "data"


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert data.default_root() == tmp_path / "cache" / "ringside" / "data"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert data.default_root() == tmp_path / ".cache" / "ringside" / "data"


@pytest.mark.parametrize("requested", ["auto", "mnist"])
@pytest.mark.parametrize("allow_download", [True, False])
def test_mnist_on_the_disk_is_used_without_a_network(
    small: dict[str, bytes], tmp_path: Path, requested: data.DatasetChoice, *, allow_download: bool
) -> None:
    directory = put(tmp_path, small)
    source = data.resolve(requested, tmp_path, allow_download=allow_download)
    assert source == data.DatasetSource(name="mnist", requested=requested, directory=str(directory))
    assert visible(directory) == sorted(FILES)
    assert not (directory / ".ringside.lock").exists()  # read-only folders will do


def test_auto_downloads_into_the_root_it_is_given(
    small: dict[str, bytes], tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_mirrors(monkeypatch, serve(small).url)
    source = data.resolve("auto", tmp_path / "new")
    assert (source.name, source.note) == ("mnist", "")
    assert source.directory == str(tmp_path / "new" / "MNIST" / "raw")


def test_auto_falls_back_and_says_so(digits_root: Path) -> None:
    source = data.resolve("auto", digits_root)
    assert source.note == (
        "MNIST could not be had (offline, no mirror answers): scikit-learn's digits instead"
    )
    assert (source.name, source.requested) == ("digits", "auto")
    assert source.directory == str(digits_root / "digits" / "v1")
    assert msgspec.json.decode(msgspec.json.encode(source), type=data.DatasetSource) == source
    assert data.load(source.directory).name == "digits"


def test_auto_falls_back_where_downloading_is_off(digits_root: Path) -> None:
    source = data.resolve("auto", digits_root, allow_download=False)
    assert "downloading is switched off" in source.note


def test_auto_falls_back_from_an_unwritable_root_to_the_default_one(
    digits_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ringside").mkdir()
    (tmp_path / "ringside" / "data").symlink_to(digits_root)
    source = data.resolve("auto", unwritable(tmp_path))
    assert source.name == "digits"
    assert "cannot be written" in source.note
    assert source.directory.startswith(str(data.default_root()))


def test_what_is_asked_for_by_name_is_never_substituted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="offline"):
        data.resolve("mnist", tmp_path)
    with pytest.raises(DataError, match="switched off"):
        data.resolve("mnist", tmp_path, allow_download=False)
    for name in ("mnist", "digits"):
        with pytest.raises(OutputError, match="cannot be written") as caught:
            data.resolve(name, unwritable(tmp_path))
        assert "--data-dir" in caught.value.remedy


def test_digits_by_name_carry_no_note(digits_root: Path) -> None:
    source = data.resolve("digits", digits_root)
    assert (source.name, source.requested, source.note) == ("digits", "digits", "")


# ---------------------------------------------------------------------------------------------- digits


def test_digits_have_mnists_shapes_and_nearly_its_brightness(digits_root: Path) -> None:
    digits = data.load(digits_root / "digits" / "v1")
    assert digits.name == "digits"
    assert digits.train_images.shape == (60_000, 28, 28)
    assert digits.train_labels.shape == (60_000,)
    assert digits.test_images.shape == (10_000, 28, 28)
    assert digits.test_labels.shape == (10_000,)
    assert np.bincount(digits.train_labels).min() > 5_500
    assert digits.train_images.mean() / 255 == pytest.approx(0.1307, abs=0.01)
    assert [file.verified for file in data.status(digits_root) if file.dataset == "digits"] == [True] * 4


def test_digits_are_the_same_every_time(digits_root: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    again = digits.prepare_digits(tmp_path)
    assert time.monotonic() - started < 20  # about three seconds; generous to a busy machine
    for name in FILES:
        assert (again / name).read_bytes() == (digits_root / "digits" / "v1" / name).read_bytes()
    before = {path.name: path.stat().st_mtime_ns for path in again.iterdir()}
    digits.prepare_digits(tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in again.iterdir()} == before
    assert visible(tmp_path / "digits") == ["v1"]
    assert again.stat().st_mode & 0o777 == 0o755


def test_no_original_is_in_both_halves() -> None:
    from sklearn.datasets import load_digits

    _, labels = load_digits(return_X_y=True)
    train, test = digits.split_digits(labels)
    assert not set(train) & set(test)
    assert sorted([*train, *test]) == list(range(1797))
    shares = np.bincount(labels[test]) / np.bincount(labels)
    assert shares == pytest.approx(np.full(10, 0.2), abs=0.01)


def test_no_test_image_is_among_the_training_images(digits_root: Path) -> None:
    """Compared by what shifting does not change; every original occurs in every degree of paling."""
    digits = data.load(digits_root / "digits" / "v1")

    def outlines(images: Bytes) -> set[bytes]:
        found = set()
        for image in images:
            rows, columns = np.nonzero(image > 40)
            found.add(image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].tobytes())
        return found

    assert not outlines(digits.train_images) & outlines(digits.test_images)


def test_digits_can_be_learnt(digits_root: Path) -> None:
    """By the nearest neighbour, the plainest learner there is."""
    digits = data.load(digits_root / "digits" / "v1")
    train = digits.train_images[:5000].reshape(5000, -1) / 255
    test = digits.test_images[:2000].reshape(2000, -1) / 255
    distances = (train**2).sum(axis=1) - 2 * test @ train.T  # squared, up to a constant for each row
    guesses = digits.train_labels[distances.argmin(axis=1)]
    assert (guesses == digits.test_labels[:2000]).mean() > 0.9


def test_damaged_digits_are_an_error_not_a_silent_repair(digits_root: Path, tmp_path: Path) -> None:
    directory = tmp_path / "digits" / "v1"
    directory.mkdir(parents=True)
    for name in FILES:
        (directory / name).write_bytes((digits_root / "digits" / "v1" / name).read_bytes())
    (directory / TEST_LABELS).write_bytes(b"damaged")
    (directory / TRAIN_LABELS).unlink()
    with pytest.raises(DataError, match="2 files in") as caught:
        digits.prepare_digits(tmp_path)
    assert "It is missing" in caught.value.found
    assert caught.value.remedy.startswith(f"Run `rm -r {directory}`")
    with pytest.raises(DataError):
        data.load(directory)


def test_another_recipe_is_noticed_before_anything_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {name: array[:3] for name, array in small_arrays().items()}
    monkeypatch.setattr(digits, "_make_digits", lambda: other)
    with pytest.raises(DataError, match="yields other digits"):
        digits.prepare_digits(tmp_path)
    assert visible(tmp_path / "digits") == []


# ------------------------------------------------------------------------------------------ the real MNIST


@needs_real_mnist
def test_real_mnist_loads() -> None:
    mnist = data.load(REAL_RAW)
    assert mnist.name == "mnist"
    assert mnist.train_images.shape == (60_000, 28, 28)
    assert mnist.test_images.shape == (10_000, 28, 28)
    assert np.bincount(mnist.train_labels).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
    assert mnist.train_images.mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    assert mnist.train_images.std() / 255 == pytest.approx(0.3081, abs=1e-4)


@needs_real_mnist
def test_real_mnist_is_found_where_nothing_can_be_written() -> None:
    source = data.resolve("auto", REAL_ROOT, allow_download=False)
    assert (source.name, source.directory) == ("mnist", str(REAL_RAW))
    assert all(file.form == "gz" and file.verified for file in data.status(REAL_ROOT)[: len(FILES)])


@needs_real_mnist
def test_real_mnist_is_fetched_from_a_mirror_that_recompressed_it(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = serve({})
    mirror.bodies = {f"{name}.gz": (REAL_RAW / f"{name}.gz").read_bytes() for name in FILES}
    use_mirrors(monkeypatch, closed_address(), mirror.url)
    said: list[str] = []
    directory = data.fetch_mnist(tmp_path, progress=said.append)
    assert data.load(directory).name == "mnist"
    assert any(f"{TRAIN_IMAGES}: 4 MB from 127.0.0.1" in line for line in said)


@needs_real_mnist
@pytest.mark.parametrize("kept", [1000, 1_600_000])
def test_truncated_real_mnist(tmp_path: Path, kept: int) -> None:
    directory = tmp_path / "MNIST" / "raw"
    directory.mkdir(parents=True)
    for name in FILES:
        (directory / f"{name}.gz").write_bytes((REAL_RAW / f"{name}.gz").read_bytes()[:kept])
    with pytest.raises(DataError, match=r"truncated or damaged|cannot hold as many"):
        data.load(directory)
