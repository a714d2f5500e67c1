"""Refuse to go on where a script could only wait for ever, and say so in the record."""

from __future__ import annotations

import os

import msgspec

from compare.errors import UnmeasuredError
from compare.meter import OUTPUT_VARIABLE, SETTINGS_VARIABLE
from compare.meter.recorder import Recorder
from compare.schema.metered import MeterSettings, Unswitched

_RANKS_OF_ITS_OWN = Unswitched(
    name="torch.multiprocessing",
    why="The script starts its ranks itself, which would wait for ever under torchrun. Start it without: "
    "ringside meter --launcher none, or python -m ringside.meter.",
)


def refuse_ranks_of_its_own() -> None:
    """End a rank that torchrun did not start.

    Raises:
        SystemExit: always, with the exit code of a script in which nothing can be measured.
    """
    settings = msgspec.json.decode(os.environ[SETTINGS_VARIABLE], type=MeterSettings)
    recorder = Recorder(settings, os.environ.get(OUTPUT_VARIABLE, ""))
    recorder.unswitched = [_RANKS_OF_ITS_OWN]
    recorder.end(_RANKS_OF_ITS_OWN.why)
    recorder.close(0, in_block=False)
    raise SystemExit(UnmeasuredError.exit_code)
