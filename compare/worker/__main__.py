"""Start the process of one rank: ``python -m compare.worker LAUNCHER JOB``, as every launcher runs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from backends.launchers import read_placement
from compare.schema.launch_files import LaunchFiles
from compare.worker.witness import fork_witness


def main(launcher: str, job_file: str) -> None:
    """Fork a child that does the rank's part of the job, and record in this process how the child exits.

    ``launcher`` is the launcher's name, and ``job_file`` the path of the job. Neither process returns.
    """
    files = LaunchFiles(Path(job_file).parent)
    placement = read_placement(launcher, os.environ)
    fork_witness(files, placement.rank)
    from compare.worker.outcome import do_job  # only the rank loads libraries

    do_job(files, placement)


if __name__ == "__main__":
    main(*sys.argv[1:])
