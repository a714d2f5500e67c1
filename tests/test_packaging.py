"""The distribution: its name, its files and the hints to install it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

from tests.comparing import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Somebody else owns `ringside` on the registry, and ours is not published. A hint with either name may
# install a stranger's code.
_OUR_NAMES = re.compile(r"pip install[^\n`&]*?\b(gradient-)?ringside\b(?!/)")


def test_distribution_has_a_name_of_its_own_and_both_commands():
    assert PROJECT["project"]["name"] == "gradient-ringside"
    assert set(PROJECT["project"]["scripts"]) == {"compare", "ringside"}


@pytest.mark.parametrize("folder", ["backends", "compare", "docs", "examples"])
def test_hints_install_nothing_by_the_name_of_a_distribution(folder):
    paths = [path for kind in ("py", "md") for path in (ROOT / folder).rglob(f"*.{kind}")]
    texts = {path: path.read_text() for path in paths}
    assert {str(path): found[0] for path, text in texts.items() if (found := _OUR_NAMES.search(text))} == {}
    assert texts


def test_types_and_licence_are_shipped():
    for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").is_file()
    assert [(ROOT / name).is_file() for name in PROJECT["project"]["license-files"]] == [True]


def build(kind, source, out):
    """Build a wheel or an sdist; return its file."""
    program = f"from hatchling.build import build_{kind}; build_{kind}({str(out)!r})"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = out.iterdir()
    return built


def test_sdist_builds_the_same_wheel_as_the_checkout(tmp_path):
    for name in ("sdist", "direct", "from-sdist"):
        (tmp_path / name).mkdir()
    sdist = build("sdist", ROOT, tmp_path / "sdist")
    shutil.unpack_archive(sdist, tmp_path)
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    wheels = [
        build("wheel", source, tmp_path / name)
        for source, name in ((ROOT, "direct"), (unpacked, "from-sdist"))
    ]
    direct, rebuilt = (zipfile.ZipFile(wheel) for wheel in wheels)
    assert wheels[0].name == wheels[1].name
    assert sorted(direct.namelist()) == sorted(rebuilt.namelist())
    assert [name for name in direct.namelist() if direct.read(name) != rebuilt.read(name)] == []
    assert "compare/report/formats/templates/page.html" in direct.namelist()
    # What a packager needs to build, to test and to pass on.
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "constraints.txt", "tests/conftest.py"):
        assert (unpacked / name).is_file()
    assert not [
        path.name for path in unpacked.iterdir() if path.name in {".venv", "runs", "data", "build", "dist"}
    ]


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_containerfile_copies_what_is_there_and_leaves_root(name):
    lines = (ROOT / "containers" / f"{name}.Containerfile").read_text().splitlines()
    ignored, *allowed = (ROOT / ".dockerignore").read_text().split()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[2:-1]]
    assert ignored == "*"
    for path in copied:
        assert (ROOT / path).exists()
        assert f"!{path}" in allowed
    assert {"constraints.txt", "backends", "compare"} <= set(copied)
    assert re.search(r"^FROM \S+:\d+\.\d+\.\d+-", "\n".join(lines), re.MULTILINE), "its base is pinned"
    assert [line for line in lines if line.startswith("USER ")] == ["USER 1000"]


@pytest.mark.parametrize(("name", "needed"), [("cpu", {"g++", "make"}), ("cuda", {"g++"})])
def test_containerfile_installs_ssh_and_what_compiles(name, needed):
    text = (ROOT / "containers" / f"{name}.Containerfile").read_text()
    (installed,) = re.findall(r"apt-get install --yes --no-install-recommends (.+) \\", text)
    # --compile needs g++ also where Horovod is not built.
    assert set(installed.split()) == {"openssh-client", *needed}
