"""What the tests of this room share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put programs first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def write(name, text):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    return write
