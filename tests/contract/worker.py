"""The process on each rank of a contract launch: ``python -m tests.contract.worker JOB``."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from pathlib import Path

import msgspec

from backends.launchers import read_placement
from tests.contract.plan import Launch
from tests.contract.records import RankRecord

WATCHDOG_SECONDS = 40.0


def main(job_file: Path) -> None:
    launch = msgspec.json.decode(job_file.read_bytes(), type=Launch)
    placement = read_placement(launch.launcher, os.environ)
    record = RankRecord()

    def save() -> None:
        faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)
        new = job_file.with_name(f"rank-{placement.rank}.new")
        new.write_bytes(msgspec.json.encode(record))
        new.replace(job_file.with_name(f"rank-{placement.rank}.json"))

    save()
    try:
        from tests.contract.observe import observe

        observe(launch, placement, record, save)
    except BaseException:
        record.failure = traceback.format_exc()
        save()
        raise
    record.left = True
    save()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
