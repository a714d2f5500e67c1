"""Test how numbers are written."""

import pytest

from compare.text import binary_size, counted, duration, numbered, printable


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1 round"), (2, "2 rounds"), (0, "0 rounds"), (1.5, "1.5 rounds")]
)
def test_counted_number_is_followed_by_its_noun(number, text):
    assert counted(number, "round") == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "round 3"),
        ([1, 3], "rounds 1, 3"),
        ([1, 2, 3, 7, 9, 10], "rounds 1–3, 7, 9–10"),
        (range(0, 512, 2), "rounds 0, 2, 4, 6, 8, 10 and 250 more"),
    ],
)
def test_numbered_consecutive_numbers_become_a_range(numbers, text):
    assert numbered("round", numbers) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (45, "45 s"),
        (59.7, "1 min"),
        (130, "2 min 10 s"),
        (300, "5 min"),
        (3605, "1 h"),
        (9000, "2 h 30 min"),
    ],
)
def test_duration_is_written_in_its_two_largest_units(seconds, text):
    assert duration(seconds) == text


def test_printable_escapes_what_could_steer_a_terminal():
    assert printable("a\x1b[2J\x07b\u202ec\ré\n×") == r"a\x1b[2J\x07b\u202ec\ré" + "\n×"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (8, "8 B"),
        (1 << 10, "1 KiB"),
        (3 << 19, "1.5 MiB"),
        (64 << 30, "64 GiB"),
        (1 << 60, "1048576 TiB"),
    ],
)
def test_binary_size_has_its_largest_unit(size, text):
    assert binary_size(size) == text
