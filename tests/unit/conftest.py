"""Programs for tests, first on PATH."""

import os

import pytest


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """Install an ``ssh`` that runs a shell script."""

    def install(script):
        program = tmp_path / "bin" / "ssh"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return install


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put programs first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def write(name, text):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    return write
