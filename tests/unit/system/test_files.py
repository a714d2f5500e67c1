"""Files from elsewhere: pipes, devices, loops of links, deep JSON."""

from __future__ import annotations

import json
import os
import threading

import pytest

from compare.errors import OutputError, UsageError
from compare.schema.hostfile import read_hostfile
from compare.schema.results import Run
from compare.system import files
from compare.system.files import read_bytes, read_json, write_json, write_text


@pytest.fixture
def pipe(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_PIPE_SECONDS", 0.2)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_hostfile_pipe_without_a_writer_ends_in_an_error(pipe):
    with pytest.raises(UsageError):
        read_hostfile(pipe)


def test_json_pipe_without_a_writer_ends_in_an_error(pipe):
    with pytest.raises(OutputError):
        read_json(pipe, Run)


def test_pipe_with_a_writer_is_read_to_its_end():
    """As a shell gives it: --hostfile <(program)."""
    content = b"node1 slots=2\n" * 20_000  # more than a pipe holds
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file, os.fdopen(reading):
        writer = threading.Thread(target=lambda: (file.write(content), file.close()))
        writer.start()
        assert read_bytes(files.Path(f"/dev/fd/{reading}")) == content
        writer.join()


def test_device_is_refused_before_it_fills_the_memory():
    with pytest.raises(OutputError, match="/dev/zero could not be read"):
        read_json(files.Path("/dev/zero"), Run)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, '{"n": 1e999}', "\udcff"])
def test_json_that_no_parser_likes_is_an_error_of_output(tmp_path, text):
    file = tmp_path / "results.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(OutputError):
        read_json(file, Run, adapt=lambda content: content)


def test_file_in_place_of_a_loop_of_links_is_written(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    write_text(tmp_path / "loop", "text")
    assert (tmp_path / "loop").read_text() == "text"


@pytest.mark.parametrize(("count", "lines"), [(10, 12), (3 << 20, 1)])
def test_large_json_is_written_on_one_line(tmp_path, count, lines):
    numbers = [99] * count
    write_json(tmp_path / "numbers.json", numbers)
    assert len((tmp_path / "numbers.json").read_bytes().splitlines()) == lines
    assert read_json(tmp_path / "numbers.json", list[int]) == numbers


NINETEEN = "1" * 19


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        (f'{{"n":[1,{NINETEEN}]}}', True),
        (f'{{"n":-{NINETEEN}}}', True),
        (f'{{"n":\n {NINETEEN}}}', True),
        (" " * ((1 << 20) - 10) + f'{{"n":{NINETEEN}}}', True),
        (f'{{"n":0.{NINETEEN}}}', False),
        (f'{{"n":"{NINETEEN}"}}', False),
        (f'{{"n":{NINETEEN[1:]}}}', False),
    ],
    ids=["list", "negative", "line", "between pieces", "decimal", "text", "18 digits"],
)
def test_whole_number_of_19_digits_is_refused(tmp_path, text, is_refused):
    (tmp_path / "n.json").write_text(text)
    if is_refused:
        with pytest.raises(OutputError, match="19 digits"):
            read_json(tmp_path / "n.json", dict)
    else:
        assert read_json(tmp_path / "n.json", dict) == json.loads(text)
