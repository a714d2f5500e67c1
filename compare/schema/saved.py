"""Read the saved result of any command that measures or verifies."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from compare.schema.collectives import COLLECTIVES_FILE, CollectivesRun
from compare.schema.results import Run, Verification
from compare.schema.scale import Scale, read_scale
from compare.schema.store import OF_RUNS, RESULTS_FILE, SCALE_FILE, VERIFICATION_FILE, read_run
from compare.system.files import read_json

Result: TypeAlias = Run | Scale | CollectivesRun | Verification
"""The results that ``compare report`` can show."""
OF_RESULTS = (*OF_RUNS, VERIFICATION_FILE)
"""Names of the files that hold a result."""


def file_of(path: Path) -> Path:
    """Return the file of a result, given the file or its folder.

    For a folder without any result, it is the path of ``results.json``, which does not exist.
    """
    if not path.is_dir():
        return path
    files = [path / name for name in (COLLECTIVES_FILE, SCALE_FILE, VERIFICATION_FILE)]
    return next((file for file in files if file.exists()), path / RESULTS_FILE)


def read_result(path: Path) -> Result:
    """Read a result of any kind, given its folder or its file.

    Raises:
        OutputError: there is no result, or it is damaged or of another version.
    """
    file = file_of(path)
    if file.name == COLLECTIVES_FILE and file.exists():
        return read_json(file, CollectivesRun)
    if file.name == VERIFICATION_FILE and file.exists():
        return read_json(file, Verification)
    return read_scale(file) or read_run(path)
