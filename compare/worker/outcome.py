"""Do a rank's job, and write its result or its failure into a file."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from backends.base import BackendError, Placement
from compare.errors import OutputError
from compare.schema.environment import EXPORTED
from compare.schema.job import Job, RankFailure, SweepJob, read_job
from compare.schema.launch_files import LaunchFiles
from compare.system.files import read_json, write_json
from compare.worker.messages import describe_error, note_warnings, user_line_of
from compare.worker.shortage import find_shortage
from compare.worker.watchdog import Watchdog
from compare.workload import WorkloadError


def do_job(files: LaunchFiles, placement: Placement) -> NoReturn:
    """Do a rank's job, write its result or failure, and exit with status 0 for a result, otherwise 1.

    A library that does not load is recorded as a failure like any other.
    """
    job = read_job(files)
    if exported := os.environ.pop(EXPORTED, ""):
        os.environ.update(read_json(Path(exported), dict[str, str]))
    _redirect_output(files.log(placement.rank))
    note_warnings()
    watchdog = Watchdog(files, placement.rank, job.config.stall_seconds)
    try:
        # Importing torch may take minutes from a cold network drive.
        watchdog.start(limit_seconds=job.config.launch_timeout_seconds)
        from compare.worker.rank import run, sweep_group  # imports torch, under the watchdog

        result = (
            sweep_group(job, placement, watchdog)
            if isinstance(job, SweepJob)
            else run(job, placement, watchdog)
        )
        write_json(files.result(placement.rank), result)
        status = 0
    except BaseException as error:  # noqa: BLE001 -- an exit is an outcome too
        status = 1
        folder = job.dataset.directory if isinstance(job, Job) and job.dataset.name == "own" else None
        failure = _describe(error, placement, folder)
        with suppress(OSError, ValueError):  # a workload may have closed the log
            traceback.print_exc()
        with suppress(OutputError):  # the parent finds the full disk by itself
            write_json(files.failure(placement.rank), failure)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # without teardown, because a library may wait in it for ever


def _redirect_output(log: Path) -> None:
    """Append stdout and stderr, also those of C libraries, to the rank's log."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, sys.stdout.fileno())
    os.dup2(handle, sys.stderr.fileno())
    os.close(handle)


def _describe(error: BaseException, placement: Placement, folder: str | None) -> RankFailure:
    """Return the record of an error, with its message, line and traceback.

    The line is ``error.where``, else the innermost in the user's ``folder``, else the one that raised it.
    """
    where = getattr(error, "where", "") or (user_line_of(error, folder) if folder else "")
    is_explained = isinstance(error, (BackendError, WorkloadError))
    if not where and not isinstance(error, WorkloadError):
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
    return RankFailure(
        rank=placement.rank,
        host=placement.host,
        at=time.time(),
        shortage=find_shortage(error),
        message=str(error) if is_explained else describe_error(error),
        where=where,
        traceback=traceback.format_exc(),
    )
