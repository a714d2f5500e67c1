"""An ``ssh`` for tests: a shell script first on PATH."""

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
