"""The process on each rank, as every launcher starts it: ``python -m compare.worker JOB``.

This is the guard around the work of ``rank.py``: whatever happens in there, even a library that does
not load, ends in a result or in a failure with the rank's name on it.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from compare.job import Job, LaunchFiles
from compare.launch import LAUNCHERS
from compare.results import RankFailure, read_json, write_json

if TYPE_CHECKING:
    from backends.base import Placement


def main(job_file: str) -> None:
    """Do a job, and leave either a result or a failure behind."""
    files = LaunchFiles(Path(job_file).parent)
    job = read_json(files.job, Job)
    placement = LAUNCHERS[job.launcher].placement(os.environ)
    _redirect_output(files.log(placement.rank))
    try:
        from compare.rank import run  # inside the guard, because it imports torch

        write_json(files.result(placement.rank), run(job, placement, files))
        _end()
    except BaseException as error:
        write_json(files.failure(placement.rank), _describe(error, placement))
        raise


def _redirect_output(log: Path) -> None:
    """Send stdout and stderr to the rank's own log; below Python, so that libraries follow."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, sys.stdout.fileno())
    os.dup2(handle, sys.stderr.fileno())
    os.close(handle)


def _end() -> None:
    """End at once: the group has been left, and tearing the interpreter down takes half a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _describe(error: BaseException, placement: Placement) -> RankFailure:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return RankFailure(
        rank=placement.rank,
        host=placement.host,
        at=time.time(),
        message=f"{type(error).__name__}: {error}",
        where=f"{last.filename}:{last.lineno}",
        traceback=traceback.format_exc(),
    )


if __name__ == "__main__":
    main(sys.argv[1])
