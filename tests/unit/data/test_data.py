"""Test the files on the disk, the downloads and the digits.

Most tests use four small files with their own checksums in place of MNIST's. They need no network. The
real files are tested if ``../shared/data`` beside the repository holds them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from compare import data
from compare.data import catalogue, digits, files, mnist
from compare.data.catalogue import FILES, TEST_IMAGES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS
from compare.errors import DataError, OutputError
from tests.waiting import free_port

REPOSITORY = Path(__file__).resolve().parents[3]
REAL_ROOT = REPOSITORY.parent / "shared" / "data"
REAL_RAW = REAL_ROOT / "MNIST" / "raw"
needs_real_mnist = pytest.mark.skipif(
    not all((REAL_RAW / f"{name}.gz").is_file() for name in FILES),
    reason="the real MNIST is not in ../shared/data beside the repository",
)


# ---- fixtures --------------------------------------------------------------------------------------------


def idx_file(array):
    """Write an IDX file without the code under test."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def small_arrays():
    random = np.random.default_rng(1)
    return {
        TRAIN_IMAGES: random.integers(0, 256, (30, 28, 28), dtype=np.uint8),
        TRAIN_LABELS: random.integers(0, 10, 30, dtype=np.uint8),
        TEST_IMAGES: random.integers(0, 256, (10, 28, 28), dtype=np.uint8),
        TEST_LABELS: random.integers(0, 10, 10, dtype=np.uint8),
    }


def sums_of(contents):
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


@pytest.fixture
def small(monkeypatch):
    """Four small IDX files by name, which pass for MNIST."""
    contents = {name: idx_file(array) for name, array in small_arrays().items()}
    monkeypatch.setattr(catalogue, "SHA256", {**catalogue.SHA256, "mnist": sums_of(contents)})
    return contents


def put(root, contents):
    """Write files in torchvision's layout; a name with .gz is compressed."""
    directory = root / "MNIST" / "raw"
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (directory / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return directory


def source(directory, name="mnist"):
    return data.DatasetSource(name=name, requested=name, directory=str(directory))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        mirror, name = self.server, self.path.rpartition("/")[2]
        mirror.gets.append(name)
        time.sleep(mirror.delay_seconds)
        body = mirror.serves or mirror.bodies.get(name)
        if body is None:
            self.send_error(404)
            return
        self.send_response(mirror.status)
        self.send_header("Content-Length", str(len(body) + mirror.missing_bytes))
        for header, value in mirror.headers.items():
            self.send_header(header, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            for piece in [bytes([byte]) for byte in body] if mirror.drip_seconds else [body]:
                self.wfile.write(piece)
                time.sleep(mirror.drip_seconds)

    def log_message(self, *_arguments):
        pass


class Mirror(ThreadingHTTPServer):
    """A web server on loopback: it serves ``bodies`` and lists the requests."""

    serves = b""  # in place of every body
    missing_bytes = 0  # promised but never sent: an interrupted download
    status = 200
    delay_seconds = 0.0
    drip_seconds = 0.0  # between one byte and the next

    def __init__(self, bodies):
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies, self.gets, self.headers = bodies, [], {}
        self.url = f"http://127.0.0.1:{self.server_port}/mnist"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch, tmp_path):
    """Keep tests from the real mirrors, proxies and the user's cache."""
    for variable in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(mnist, "RETRIES", 0)  # a second passes before each
    use_mirrors(monkeypatch, f"http://127.0.0.1:{free_port()}/")


@pytest.fixture
def serve(monkeypatch, loopback_only):
    """Start mirrors that serve the files, compressed, and choose them."""
    mirrors = []

    def start(contents):
        mirrors.append(Mirror({f"{name}.gz": gzip.compress(content) for name, content in contents.items()}))
        use_mirrors(monkeypatch, *(mirror.url for mirror in mirrors))
        return mirrors[-1]

    yield start
    for mirror in mirrors:
        mirror.close()


@pytest.fixture
def mirror(small, serve):
    """Start a mirror that serves the small files."""
    return serve(small)


def use_mirrors(monkeypatch, *mirrors):
    monkeypatch.setenv(mnist.MIRRORS_VARIABLE, ",".join(mirrors))


def visible(directory):
    """List a folder without its lock; temporary files would show."""
    return sorted(path.name for path in directory.iterdir() if path.name != ".ringside.lock")


@pytest.fixture(scope="session")
def digits_root(tmp_path_factory):
    """A data folder with the digits; tests only read it."""
    root = tmp_path_factory.mktemp("digits")
    digits.prepare_digits(root)
    return root


@pytest.fixture(scope="session")
def digit_arrays(digits_root):
    where = source(digits_root / "digits" / "v1", "digits")
    return dict(zip(FILES, [*data.load_split(where, "train"), *data.load_split(where, "test")], strict=True))


# ---- reading files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_load_split_returns_the_arrays_of_plain_and_compressed_files(small, tmp_path, suffix):
    directory = put(tmp_path, {f"{name}{suffix}": content for name, content in small.items()})
    found = [*data.load_split(source(directory), "train"), *data.load_split(source(directory), "test")]
    for array, expected in zip(found, small_arrays().values(), strict=True):
        assert array.dtype == np.uint8
        assert array.flags.writeable
        assert array.flags.c_contiguous
        np.testing.assert_array_equal(array, expected, strict=True)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_load_split_every_prefix_is_a_data_error(small, tmp_path, pack):
    whole = pack(small[TEST_LABELS])
    directory = put(tmp_path, small)
    for length in range(len(whole)):
        (directory / TEST_LABELS).write_bytes(whole[:length])
        with pytest.raises(DataError, match="cannot be used"):
            data.load_split(source(directory), "test")
    (directory / TEST_LABELS).write_bytes(whole)
    assert data.load_split(source(directory), "test")[1].shape == (10,)


def test_load_split_reads_only_its_own_plain_files(small, tmp_path):
    directory = put(tmp_path, small | {TEST_IMAGES: b"damaged"})
    put(tmp_path, {f"{TRAIN_IMAGES}.gz": b"damaged"})
    found = data.load_split(source(directory), "train")
    for array, expected in zip(found, list(small_arrays().values())[:2], strict=True):
        np.testing.assert_array_equal(array, expected)
    assert {file.form for file in data.status(tmp_path)} == {"plain"}
    for name in ("mnist", "digits"):
        with pytest.raises(DataError, match=TEST_IMAGES) as caught:
            data.load_split(source(directory, name), "test")
        assert catalogue.SHA256[name][TEST_IMAGES] in caught.value.found


def test_load_split_names_the_bad_file_and_the_remedy(small, tmp_path):
    content = idx_file(np.full(10, 10, np.uint8))
    directory = put(tmp_path, small | {TEST_LABELS: content})
    with pytest.raises(DataError) as caught:
        data.load_split(source(directory), "test")
    assert f"{directory / TEST_LABELS} cannot be used" in caught.value.what
    assert hashlib.sha256(content).hexdigest() in caught.value.found
    assert sums_of(small)[TEST_LABELS] in caught.value.found
    assert f"rm {shlex.quote(str(directory / TEST_LABELS))}" in caught.value.remedy
    assert f"ringside setup data --data {shlex.quote(str(tmp_path))}" in caught.value.remedy


def test_load_split_refuses_a_byte_too_many(digits_root, tmp_path):
    directory = Path(shutil.copytree(digits_root / "digits" / "v1", tmp_path / "v1"))
    with (directory / TEST_LABELS).open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match=f"{TEST_LABELS} cannot be used"):
        data.load_split(source(directory, "digits"), "test")


def test_load_split_names_the_missing_file(small, tmp_path):
    directory = put(tmp_path, small)
    (directory / TEST_LABELS).unlink()
    with pytest.raises(DataError, match=f"{TEST_LABELS} is not in") as caught:
        data.load_split(source(directory), "test")
    assert "rm " not in caught.value.remedy
    assert "ringside setup data" in caught.value.remedy
    (directory / TEST_LABELS).mkdir()
    with pytest.raises(DataError, match="cannot be used") as caught:
        data.load_split(source(directory), "test")
    assert "cannot be read" in caught.value.found


# ---- examining a folder ----------------------------------------------------------------------------------


def test_status_tells_every_case_apart(small, tmp_path):
    contents = {TRAIN_IMAGES: small[TRAIN_IMAGES], f"{TRAIN_LABELS}.gz": small[TRAIN_LABELS]}
    directory = put(tmp_path, contents | {TEST_IMAGES: small[TEST_IMAGES][:-1]})
    plain, compressed, truncated, missing = data.status(tmp_path)
    assert (plain.form, plain.verified, plain.problem) == ("plain", True, "")
    assert plain.size_bytes == len(small[TRAIN_IMAGES])
    assert (compressed.form, compressed.verified) == ("gz", True)
    assert compressed.path == str(directory / f"{TRAIN_LABELS}.gz")
    assert (truncated.verified, truncated.size_bytes) == (False, len(small[TEST_IMAGES]) - 1)
    assert "SHA-256" in truncated.problem
    assert (missing.form, missing.verified, missing.problem) == ("missing", False, "")


def test_status_reports_damaged_gz_dangling_links_and_folders(small, tmp_path):
    directory = put(tmp_path, {})
    (directory / f"{TRAIN_IMAGES}.gz").write_bytes(gzip.compress(small[TRAIN_IMAGES])[:-9])
    (directory / TRAIN_LABELS).symlink_to(directory / "nowhere")
    (directory / TEST_IMAGES).mkdir()
    truncated, dangling, folder, missing = data.status(tmp_path)
    assert "truncated" in truncated.problem
    assert "cannot be read" in dangling.problem
    assert "cannot be read" in folder.problem
    assert missing.form == "missing"
    with pytest.raises(DataError, match="3 files in"):
        data.resolve("auto", tmp_path)
    assert {file.form for file in data.status(Path("/", "x" * 300))} == {"missing"}


def test_status_of_files_that_cannot_be_looked_for_says_why(tmp_path):
    """A folder that may not be searched is another such reason."""
    (tmp_path / "MNIST").symlink_to("MNIST")
    found = data.status(tmp_path)
    assert {file.form for file in found} == {"missing"}
    assert {file.problem for file in found} == {"cannot be looked for: Too many levels of symbolic links"}
    with pytest.raises(DataError, match="4 files in") as refused:
        data.fetch_mnist(tmp_path)
    assert "--data" in refused.value.remedy


# ---- fetching --------------------------------------------------------------------------------------------


def test_fetch_downloads_only_the_missing_files(small, tmp_path, mirror):
    put(tmp_path, {f"{TRAIN_LABELS}.gz": small[TRAIN_LABELS]})
    lines = []
    directory = data.fetch_mnist(tmp_path, progress=lines.append)
    assert directory == tmp_path / "MNIST" / "raw"
    assert sorted(mirror.gets) == sorted(f"{name}.gz" for name in FILES if name != TRAIN_LABELS)
    assert visible(directory) == sorted([TRAIN_IMAGES, f"{TRAIN_LABELS}.gz", TEST_IMAGES, TEST_LABELS])
    assert all(file.verified for file in data.status(tmp_path))
    assert f"{TEST_IMAGES}: verified" in lines
    assert (directory / TRAIN_IMAGES).stat().st_mode & 0o777 == 0o644
    mirror.gets.clear()
    data.fetch_mnist(tmp_path)
    assert mirror.gets == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"missing_bytes": 1000}, "the connection broke off"),
        ({"drip_seconds": 0.05}, "not complete after 1 s"),
        ({"bodies": {}}, "HTTP status 404"),
        ({"status": 302, "headers": {"Location": "ftp://127.0.0.1/mnist"}}, "InvalidSchema"),
        ({"serves": b"<html>Please log in</html>"}, "SHA-256"),
        ({"serves": gzip.compress(bytes(60_000_000))}, "SHA-256"),
        ({"serves": bytes(60_000_000)}, "more bytes than MNIST"),
    ],
    ids=["broken off", "drip", "not found", "redirect", "captive portal", "bomb", "flood"],
)
def test_fetch_that_fails_leaves_no_file(tmp_path, mirror, monkeypatch, fault, reason):
    vars(mirror).update(fault)
    if "drip_seconds" in fault:
        monkeypatch.setattr(mnist, "FILE_SECONDS", 1.0)
    with pytest.raises(mnist.MnistNotFoundError, match="no mirror served it whole") as caught:
        data.fetch_mnist(tmp_path)
    assert caught.value.reason == "no mirror served it whole"
    assert f"127.0.0.1:{mirror.server_port}: " in caught.value.found
    assert reason in caught.value.found
    assert "--data digits" in caught.value.remedy
    assert visible(tmp_path / "MNIST" / "raw") == []


def test_fetch_leaves_a_bad_mirror_for_the_next(small, tmp_path, serve, monkeypatch):
    bad, good, lines = serve(small), serve(small), []
    bad.serves = gzip.compress(small[TRAIN_IMAGES][:-1] + b"\xff")
    monkeypatch.setattr(mnist, "RETRIES", 1)  # only after a network error
    directory = data.fetch_mnist(tmp_path, progress=lines.append)
    assert (len(bad.gets), len(good.gets)) == (1, len(FILES))
    assert any("SHA-256" in line for line in lines)
    assert visible(directory) == sorted(FILES)


def test_fetch_retries_after_a_broken_connection(tmp_path, mirror, monkeypatch):
    mirror.missing_bytes = 1000
    monkeypatch.setattr(mnist, "RETRIES", 1)
    monkeypatch.setattr(time, "sleep", lambda seconds: seconds and setattr(mirror, "missing_bytes", 0))
    data.fetch_mnist(tmp_path)
    assert len(mirror.gets) == len(FILES) + 1
    assert all(file.verified for file in data.status(tmp_path))


def test_resolve_never_overwrites_or_replaces_damaged_files(tmp_path, mirror):
    directory = put(tmp_path / "a b", {TRAIN_IMAGES: b"precious", f"{TEST_LABELS}.gz": b"mine"})
    with pytest.raises(DataError, match="2 files in") as caught:
        data.resolve("auto", tmp_path / "a b")
    assert f"{directory / TRAIN_IMAGES} (8 bytes)" in caught.value.found
    assert hashlib.sha256(b"precious").hexdigest() in caught.value.found
    assert f"rm '{directory / TRAIN_IMAGES}' '{directory / TEST_LABELS}.gz'" in caught.value.remedy
    assert (directory / TRAIN_IMAGES).read_bytes() == b"precious"
    assert mirror.gets == []


def test_fetch_twice_at_once_downloads_once(tmp_path, mirror):
    mirror.delay_seconds = 0.5  # the first still downloads when the second starts
    outputs = [[], []]
    with ThreadPoolExecutor() as both:
        for lines in outputs:
            both.submit(data.fetch_mnist, tmp_path, progress=lines.append)
    assert sorted(mirror.gets) == sorted(f"{name}.gz" for name in FILES)
    assert sorted(f"{TEST_LABELS}: verified" in lines for lines in outputs) == [False, True]
    assert all(file.verified for file in data.status(tmp_path))


def test_fetch_waits_for_the_lock_but_not_for_ever(tmp_path, mirror, monkeypatch):
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.2)
    directory = put(tmp_path, {})
    lines = []
    with (directory / ".ringside.lock").open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="kept the lock") as caught:
            data.fetch_mnist(tmp_path, progress=lines.append)
    assert f"Waiting for another process that writes to {directory}" in lines
    assert str(directory / ".ringside.lock") in caught.value.remedy
    assert mirror.gets == []


@pytest.mark.parametrize("peculiar", ["server unpacks", "no locks"])
def test_fetch_works_with_a_peculiar_server_or_file_system(mirror, tmp_path, monkeypatch, peculiar):
    def no_locks(*_arguments):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    if peculiar == "no locks":
        monkeypatch.setattr(fcntl, "flock", no_locks)
    else:
        mirror.headers = {"Content-Encoding": "gzip"}  # what Apache's AddEncoding does to .gz files
    assert files.holds("mnist", data.fetch_mnist(tmp_path))


@pytest.mark.timed
@pytest.mark.parametrize("hangs", ["name server", "server"])
def test_fetch_does_not_wait_for_a_server_that_hangs(tmp_path, monkeypatch, hangs):
    released = threading.Event()
    monkeypatch.setattr(mnist, "ANSWER_SECONDS", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        use_mirrors(monkeypatch, f"http://127.0.0.1:{mute.getsockname()[1]}/")
        if hangs == "name server":
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [released.wait(30)][1:])
            use_mirrors(monkeypatch, "http://one.invalid/", "https://two.invalid/", "http://three.invalid/")
        started = time.monotonic()
        with pytest.raises(DataError, match="offline") as caught:
            data.fetch_mnist(tmp_path)
        assert time.monotonic() - started < 2
    assert caught.value.found.count("no answer within 0.4 s") == (3 if hangs == "name server" else 1)
    released.set()


@pytest.mark.parametrize(
    "mirror", ["ftp://host/", "host/mnist", "http://", "http://host:nope/", "http://[::1/"]
)
def test_resolve_an_invalid_mirror_is_an_error(tmp_path, monkeypatch, mirror):
    """A wrong setting is no reason to use the digits."""
    use_mirrors(monkeypatch, mirror)
    with pytest.raises(DataError, match=mnist.MIRRORS_VARIABLE) as caught:
        data.resolve("auto", tmp_path)
    assert repr(mirror) in caught.value.found


def test_fetch_shows_no_password(tmp_path, monkeypatch, serve):
    mirror = serve({})
    use_mirrors(monkeypatch, mirror.url.replace("//", "//user:hunter2@"))
    lines = []
    with pytest.raises(DataError) as caught:
        data.fetch_mnist(tmp_path, progress=lines.append)
    assert "hunter2" not in str(caught.value) + " ".join(lines)


# ---- resolving -------------------------------------------------------------------------------------------


def test_default_root_follows_xdg(monkeypatch, tmp_path):
    assert data.default_root() == tmp_path / "cache" / "ringside" / "data"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert data.default_root() == tmp_path / ".cache" / "ringside" / "data"


@pytest.mark.parametrize("requested", ["auto", "mnist"])
def test_resolve_uses_mnist_on_the_disk_without_a_network(small, tmp_path, requested):
    directory = put(tmp_path, small)
    found = data.resolve(requested, tmp_path)
    assert found == data.DatasetSource(name="mnist", requested=requested, directory=str(directory))
    assert visible(directory) == sorted(FILES)
    assert not (directory / ".ringside.lock").exists()  # the folder may be read-only


def test_resolve_auto_falls_back_with_a_note(digits_root):
    found = data.resolve("auto", digits_root)
    assert found.note == (
        "MNIST is not available (offline, no mirror answers): scikit-learn's digits instead"
    )
    assert (found.name, found.requested) == ("digits", "auto")
    assert found.directory == str(digits_root / "digits" / "v1")
    assert files.holds("digits", Path(found.directory))


def test_resolve_never_substitutes_a_named_data_set(tmp_path, digits_root):
    with pytest.raises(DataError, match="offline") as caught:
        data.resolve("mnist", tmp_path)
    assert "Connection refused" in caught.value.found
    (tmp_path / "file").write_text("not a folder")  # not even the superuser can write into it
    for name in ("auto", "mnist", "digits"):
        with pytest.raises(OutputError, match="cannot be written") as caught:
            data.resolve(name, tmp_path / "file" / "data")
        assert "--data" in caught.value.remedy
    found = data.resolve("digits", digits_root)
    assert (found.name, found.requested, found.note) == ("digits", "digits", "")


# ---- digits ----------------------------------------------------------------------------------------------


def test_digits_have_the_shapes_and_brightness_of_mnist(digits_root, digit_arrays):
    shapes = [(60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,)]
    assert [array.shape for array in digit_arrays.values()] == shapes
    assert np.bincount(digit_arrays[TRAIN_LABELS]).min() > 5_500
    assert digit_arrays[TRAIN_IMAGES].mean() / 255 == pytest.approx(0.1307, abs=0.01)
    assert [file.verified for file in data.status(digits_root) if file.dataset == "digits"] == [True] * 4


def test_digits_are_the_same_every_time(digits_root, tmp_path):
    started = time.monotonic()
    again = digits.prepare_digits(tmp_path)
    assert time.monotonic() - started < 20  # about three seconds on an idle machine
    for name in FILES:
        assert (again / name).read_bytes() == (digits_root / "digits" / "v1" / name).read_bytes()
    before = {path.name: path.stat().st_mtime_ns for path in again.iterdir()}
    digits.prepare_digits(tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in again.iterdir()} == before
    assert visible(tmp_path / "digits") == ["v1"]
    assert again.stat().st_mode & 0o777 == 0o755


def test_digits_no_test_image_is_a_training_image(digit_arrays):
    """Compare what shifting does not change.

    Every original occurs in every degree of paling.
    """

    def outlines(images):
        found = set()
        for image in images:
            rows, columns = np.nonzero(image > 40)
            found.add(image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].tobytes())
        return found

    assert not outlines(digit_arrays[TRAIN_IMAGES]) & outlines(digit_arrays[TEST_IMAGES])


def test_digits_that_are_damaged_are_an_error(digits_root, tmp_path):
    directory = Path(shutil.copytree(digits_root / "digits", tmp_path / "digits")) / "v1"
    (directory / TEST_LABELS).write_bytes(b"damaged")
    (directory / TRAIN_LABELS).unlink()
    with pytest.raises(DataError, match="2 files in") as caught:
        digits.prepare_digits(tmp_path)
    assert "It is missing" in caught.value.found
    assert caught.value.remedy.startswith(f"Run `rm -r {directory}`")
    with pytest.raises(DataError):
        data.load_split(source(directory, "digits"), "test")


def test_digits_of_another_recipe_leave_no_file(tmp_path, monkeypatch):
    other = {name: array[:3] for name, array in small_arrays().items()}
    monkeypatch.setattr(digits, "_make_digits", lambda: other)
    with pytest.raises(DataError, match="yields other digits"):
        digits.prepare_digits(tmp_path)
    assert visible(tmp_path / "digits") == []


# ---- the real MNIST --------------------------------------------------------------------------------------


@needs_real_mnist
def test_real_mnist_is_found_without_writing_and_has_its_published_figures():
    found = data.resolve("auto", REAL_ROOT)
    assert (found.name, found.directory) == ("mnist", str(REAL_RAW))
    assert all(file.form == "gz" and file.verified for file in data.status(REAL_ROOT)[: len(FILES)])
    images, labels = data.load_split(found, "train")
    assert images.shape == (60_000, 28, 28)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(labels).tolist() == counts
    assert images.mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    assert images.std() / 255 == pytest.approx(0.3081, abs=1e-4)
    images, labels = data.load_split(found, "test")
    assert (images.shape, labels.shape) == ((10_000, 28, 28), (10_000,))


@pytest.mark.parametrize(
    ("dataset", "does"),
    [
        ("auto", "would download it, or take scikit-learn's digits if it cannot"),
        ("mnist", "would download it"),
        ("digits", "would make it"),
    ],
)
def test_expected_data_that_is_missing_says_what_a_run_does(tmp_path, dataset, does):
    root = tmp_path / "data"
    assert data.expect(dataset, root).note == f"It is not there yet: a run {does}"
    assert not root.exists()


def test_making_the_digits_changes_no_variable_that_ranks_inherit(tmp_path):
    program = (
        "import os, sys, pathlib; from compare.data.digits import prepare_digits; before = dict(os.environ);"
        "prepare_digits(pathlib.Path(sys.argv[1])); assert 'sklearn' in sys.modules;"
        "sys.exit(str(dict(os.environ.items() ^ before.items())) if os.environ != before else 0)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
