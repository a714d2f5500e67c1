"""The process on each rank, as every launcher starts it: ``python -m compare.worker JOB``.

Whatever happens in ``rank.py``, even a library that does not load, ends in a result or in a failure
with the rank's name on it.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from backends.launchers import LAUNCHERS
from compare.errors import OutputError
from compare.schema.environment import EXPORTED
from compare.schema.files import read_json, write_json
from compare.schema.job import Job, RankFailure
from compare.schema.launch_files import LaunchFiles
from compare.worker.watchdog import Guard

if TYPE_CHECKING:
    from backends.base import Placement


def main(job_file: str) -> NoReturn:
    """Do a job, and leave either a result or a failure behind."""
    files = LaunchFiles(Path(job_file).parent)
    job = read_json(files.job, Job)
    if exported := os.environ.pop(EXPORTED, ""):
        os.environ.update(read_json(Path(exported), dict[str, str]))
    placement = LAUNCHERS[job.launcher].placement(os.environ)
    _redirect_output(files.log(placement.rank))
    guard = Guard(files, placement, job.config.stall_seconds)
    try:
        # Importing torch takes a second here and minutes from a cold network drive.
        guard.start(patience_seconds=job.config.launch_timeout_seconds)
        from compare.worker.rank import run  # inside the guard, because it imports torch

        write_json(files.result(placement.rank), run(job, placement, guard))
        status = 0
    except BaseException as error:  # noqa: BLE001 -- whatever it is, it is written down
        status = 1
        traceback.print_exc()
        with suppress(OutputError):  # the parent finds out by itself that nothing can be written
            write_json(files.failure(placement.rank), _describe(error, placement))
    _end(status)


def _redirect_output(log: Path) -> None:
    """Send stdout and stderr to the rank's own log; below Python, so that libraries follow."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, sys.stdout.fileno())
    os.dup2(handle, sys.stderr.fileno())
    os.close(handle)


def _end(status: int) -> NoReturn:
    """End at once: tearing down takes half a second, and a library may wait in it for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _describe(error: BaseException, placement: Placement) -> RankFailure:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return RankFailure(
        rank=placement.rank,
        host=placement.host,
        at=time.time(),
        kind="raised",
        message=f"{type(error).__name__}: {error}",
        where=f"{last.filename}:{last.lineno}",
        traceback=traceback.format_exc(),
    )


if __name__ == "__main__":
    main(sys.argv[1])
