"""Test how options of a flag's value are read and refused."""

import pytest

from compare.cli.flag_options import read_options
from compare.errors import UsageError

READERS = {"warmup": int, "link_rate": str}


@pytest.mark.parametrize(
    ("text", "value", "options"),
    [
        ("60", "60", {}),
        ("60:warmup=10", "60", {"warmup": 10}),
        (" 60 : warmup = 10 , link-rate=a:b=c", "60", {"warmup": 10, "link_rate": "a:b=c"}),
    ],
)
def test_value_and_options_are_read_by_their_readers(text, value, options):
    assert read_options("--steps", text, READERS) == (value, options)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("60:warmpu=10", ["--steps 60 has no option 'warmpu'", "Did you mean warmup?", "warmup, link_rate"]),
        ("60:", ["has no option ''"]),
        ("60:warmup", ["warmup has no value", "60:warmup=VALUE"]),
        ("60:warmup=1,warmup=2", ["warmup is set twice"]),
        ("60:warmup=soon", ["--steps 60:warmup=soon: warmup cannot be 'soon'", "It is not a whole number."]),
    ],
)
def test_wrong_option_is_refused_with_the_flag(text, says):
    with pytest.raises(UsageError) as refused:
        read_options("--steps", text, READERS)
    assert [part for part in says if part not in str(refused.value)] == []


def test_value_without_options_says_so():
    with pytest.raises(UsageError, match="takes no options"):
        read_options("--engine", "local:port=22", {})
