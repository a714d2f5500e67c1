"""The wheel in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile

import pytest

from compare.schema.store import read_run
from tests.comparing import ROOT

pytestmark = pytest.mark.long
_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    execute(sys.executable, *_PIP, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Install the wheel into an empty environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    execute(python, *_PIP, "install", "--constraint", ROOT / "constraints.txt", wheel)
    return python


def execute(*words, cwd="/"):
    """Execute a program that knows nothing of this environment."""
    known = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=known,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_wheel_has_types_licence_and_files_that_are_no_code(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(path.relative_to(ROOT))
        for package in ("compare", "backends")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources - names == set()
    assert {"compare/py.typed", "backends/py.typed", "compare/report/formats/templates/page.html"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]


def test_installed_program_compares_from_any_folder(python, tmp_path):
    where = execute(python, "-c", "import compare; print(compare.__file__)", cwd=tmp_path)
    assert str(ROOT) not in where
    program = python.with_name("compare")
    options = ("--data", "digits", "--steps", 60, "--repeats", 1, "-np", 2, "--device", "cpu")
    shown = execute(program, "run", *options, "--backend", "ddp,manual", "--output", "run", cwd=tmp_path)
    assert "equal bit for bit" in shown
    assert {launch.arm for launch in read_run(tmp_path / "run").launches} == {"none", "ddp", "manual"}
    page = execute(program, "report", "run", "--format", "html", cwd=tmp_path)
    assert "<html" in page
    assert "torch.distributed" in execute(program, "backends", cwd=tmp_path)
