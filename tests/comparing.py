"""Execute the program to its end, as a user does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from compare.data.files import holds

ROOT = Path(__file__).resolve().parents[1]
RUN = ("run", "--interleave", "launches:reruns=0")
"""No noisy round is repeated; turns have tests of their own."""


def find_mnist() -> Path | None:
    """Find the folder that holds MNIST/raw."""
    for place in (ROOT / "data", ROOT.parent / "shared" / "data"):
        if holds("mnist", place / "MNIST" / "raw"):
            return place
    return None


def compare(*arguments, environment=None, python=sys.executable, timeout=240, below=()):
    """Run the program, as the child of the command ``below``."""
    return subprocess.run(
        [*below, python, "-m", "compare", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"} | (environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def torchrun(folder, *words, ranks=2, environment=None, timeout=240):
    """Start a script on some ranks, in a folder, and return how it ended."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
            *map(str, words),
        ],
        cwd=folder,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def inject(source, folder, settings):
    """Copy an injection with its settings; return the variables that load it."""
    shutil.copytree(ROOT / "tests" / source, folder)
    shutil.copy(ROOT / "tests" / "injecting.py", folder)
    if settings is not None:
        (folder / "injected.json").write_text(json.dumps(settings))
    return {"PYTHONPATH": str(folder)}
