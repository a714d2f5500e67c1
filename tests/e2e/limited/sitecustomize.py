"""Leave a rank of an arm that sets TEST_ROOM only so many bytes beyond what it has with torch."""

import os
import resource
from pathlib import Path

from injecting import change_when_imported


def _limit(_module):
    if room := os.environ.get("TEST_ROOM"):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + int(room), resource.RLIM_INFINITY))


change_when_imported("compare.worker.rank", _limit)
