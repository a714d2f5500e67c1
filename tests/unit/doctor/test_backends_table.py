"""The table of `compare backends`."""

from __future__ import annotations

import pytest
from rich.console import Console

from backends import BACKENDS
from compare.doctor.backends_table import _options


@pytest.mark.parametrize("width", [80, 160])
def test_every_choice_of_an_option_is_readable(width):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(_options())
    first_column = "".join(line[: width // 2].split("  ")[0].strip() for line in capture.get().splitlines())
    for choice in BACKENDS["manual"].options[0].choices:
        assert choice in first_column
