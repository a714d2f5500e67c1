"""Name the choices of flags, which ``--help`` lists and shells complete."""

from __future__ import annotations

from enum import StrEnum


class Order(StrEnum):
    """Orders of the arms in a report."""

    STEP = "step"
    NAME = "name"
    SYNC = "sync"


class Format(StrEnum):
    """Formats of ``compare report``."""

    TABLE = "table"
    MARKDOWN = "markdown"
    HTML = "html"
    CSV = "csv"
    JSON = "json"
