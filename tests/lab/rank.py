"""Act as a rank: make progress, print, and exit.

Usage: ``rank.py DIRECTORY RANK SECONDS [KIND]``. KIND is how it exits: with a ``result`` or a ``failure``.
It has a child in a session of its own, as launchers make them. Its result holds what it found in its
environment.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from compare.schema.job import Progress, RankFailure, append_progress, open_progress
from compare.schema.launch_files import LaunchFiles
from compare.system.files import write_json


def main(directory, rank, seconds, kind="result"):
    files, rank = LaunchFiles(Path(directory)), int(rank)
    subprocess.Popen(["sleep", "321"], start_new_session=True)
    with files.log(rank).open("a") as log, open_progress(files, rank) as notes:
        for step in range(int(float(seconds) * 10)):
            print(f"step {step}", file=log, flush=True)
            progress = Progress(stage="train", step=step, at=time.time(), limit_seconds=30)
            append_progress(notes, progress)
            time.sleep(0.1)
    if kind == "failure":
        failure = RankFailure(rank=rank, host=socket.gethostname(), at=time.time(), message="on purpose")
        write_json(files.failure(rank), failure)
        sys.exit(1)
    print("all is done")
    found = {
        "host": socket.gethostname(),
        "secret": os.environ.get("SECRET", ""),
        "job": files.job.read_text(),
        "modes": [oct(path.stat().st_mode & 0o777) for path in (files.directory, files.job)],
    }
    write_json(files.result(rank), found)


if __name__ == "__main__":
    main(*sys.argv[1:])
