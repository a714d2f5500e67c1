"""Try Ringside with every Python and torch that is here.

``python -m tests.matrix FOLDER`` prints why it did not try the others. An interpreter that has torch is tried
as it is. A wheel of torch in a folder of WHEELS gets an environment of its own. All else in it comes from the
registry, and no torch is downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
TORCHES = ("2.11", "2.12", "2.13", "2.14", "2.15")
LIMIT_SECONDS = 300
ASK = "import sys, torch; print('%d.%d' % sys.version_info[:2], torch.__version__)"
OF_TORCH = ("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions", "setuptools")
"""What torch needs besides CUDA."""
ASK_HOROVOD = "import horovod.torch, horovod; print(horovod.__version__)"


class Cell(NamedTuple):
    """What became of one Python with one torch."""

    python: str
    torch: str
    outcome: str
    why: str = ""
    horovod: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", nargs="*", default=[], help="further interpreters")
    given = parser.parse_args()
    if missing := [name for name in given.python if not shutil.which(name)]:
        parser.error(f"There is no interpreter {', '.join(missing)}.")
    folder = given.folder.resolve()
    folder.mkdir(parents=True)
    print(f"{'Python':<8}{'torch':<16}{'outcome':<10}{'Horovod':<9}why")
    done = []
    # Not resolved: the link to an interpreter is what names its environment.
    named = [os.path.abspath(shutil.which(name)) for name in given.python]  # noqa: PTH100
    for cell in cells(named, folder):
        done.append(cell)
        print(f"{cell.python:<8}{cell.torch:<16}{cell.outcome:<10}{cell.horovod:<9}{cell.why}", flush=True)
    sys.exit(any(cell.outcome == "FAILED" for cell in done))


def cells(named: Sequence[str], folder: Path) -> Iterator[Cell]:
    """Yield a cell for all that is here, then for the rest."""
    seen = set()
    for python in interpreters(named):
        asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False, cwd=folder)
        if asked.returncode == 0:
            version, torch = asked.stdout.split()
            if (version, torch) not in seen:
                seen.add((version, torch))
                yield tried(python, version, torch, folder)
    for wheel in wheels():
        found = re.match(r"torch-([^-]+)-cp(\d)(\d+)-", wheel.name)
        torch, version = found[1], f"{found[2]}.{found[3]}"
        if version in PYTHONS and (version, torch) not in seen and shutil.which(f"python{version}"):
            seen.add((version, torch))
            yield from_wheel(wheel, version, torch, folder)
    for version in PYTHONS:
        for torch in TORCHES:
            if not any(v == version and t.startswith(f"{torch}.") for v, t in seen):
                yield Cell(version, torch, "not here", why_not(version))


def interpreters(named: Sequence[str]) -> list[str]:
    """Return this interpreter, those that were named, and those on PATH."""
    on_path = [shutil.which(f"python{version}") for version in PYTHONS]
    return list(dict.fromkeys(filter(None, [sys.executable, *named, *on_path])))


def wheels() -> list[Path]:
    """Return the torch wheels in the folders of WHEELS."""
    folders = filter(None, os.environ.get("WHEELS", "").split(os.pathsep))
    return sorted(wheel for folder in folders for wheel in Path(folder).resolve().glob("torch-*.whl"))


def why_not(version: str) -> str:
    """Return why nothing can be tried."""
    python = shutil.which(f"python{version}")
    if not python or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        return f"no python{version} on PATH"
    return "no interpreter has it, and no wheel of it lies in WHEELS"


def from_wheel(wheel: Path, version: str, torch: str, folder: Path) -> Cell:
    """Install a wheel into an environment of its own, and try it."""
    environment = folder / f"python{version}-torch{torch}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    others = [need for need in project["dependencies"] if not need.startswith("torch")]
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps = [
        ("not here", [f"python{version}", "-m", "venv", str(environment)]),
        ("FAILED", [*pip, "--no-deps", str(wheel)]),
        ("FAILED", [*pip, *OF_TORCH, *others, *project["optional-dependencies"]["mpi"]]),
        ("not here", [str(python), "-c", ASK]),  # some wheels need CUDA's libraries
    ]
    for outcome, step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False, cwd=folder)
        if done.returncode:
            return Cell(version, torch, outcome, last_line(done.stderr))
    return tried(str(python), version, torch, folder)


def tried(python: str, version: str, torch: str, folder: Path) -> Cell:
    """Prove that all arms which can run train the same."""
    output = folder / f"verify-python{version}-torch{torch}"
    command = [python, "-m", "compare", "verify", "--device", "cpu", "--data", "digits"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    try:
        done = subprocess.run(
            [*command, "--output", str(output)],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environment,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Cell(version, torch, "FAILED", f"It took more than {LIMIT_SECONDS} s.")
    output.with_suffix(f"{output.suffix}.txt").write_text(done.stdout + done.stderr)
    horovod = subprocess.run(
        [python, "-c", ASK_HOROVOD], capture_output=True, text=True, check=False, cwd=folder
    )
    has_horovod = horovod.stdout.strip() if horovod.returncode == 0 else "none"
    if done.returncode:
        return Cell(version, torch, "FAILED", last_line(done.stderr), has_horovod)
    arms = re.findall(r"^ *(\S+) .*the same training", done.stdout, re.MULTILINE)
    return Cell(version, torch, "ran", ", ".join(arms), has_horovod)


def last_line(text: str) -> str:
    """Return the last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


if __name__ == "__main__":
    main()
