"""Write the record of rank 0, whole after each block."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from compare import __version__
from compare.errors import OutputError, system_reason
from compare.meter.facts import first_rank
from compare.schema.metered import METER_FILE, Metered, MeteredBlock, MeterSettings, Unswitched
from compare.system.files import write_json
from compare.text import counted

_RUNS = Path("runs")


def ended_early(steps: int, needed: int) -> str:
    """Return why not all pairs were measured in a script of so many steps, and what helps."""
    ended = f"The script ended after {counted(steps, 'step')}."
    if steps < needed:
        return f"{ended} All pairs need at least {needed} steps."
    wait = "Blocks wait for the end of an epoch, so all pairs take more"
    return f"{ended} {wait}: let it train longer, or set --pairs."


class Recorder:
    """The record of this process, which only rank 0 writes.

    ``folder`` is empty for a new folder in ``runs``; where that is, standard error says at the end.

    Attributes:
        file: the record; None before it is written for the first time, and on other ranks.
        is_first: whether this process is rank 0, as far as it knows when the first step is taken.
    """

    def __init__(self, settings: MeterSettings, folder: str) -> None:
        self._record = Metered(
            ringside_version=__version__,
            started_at=f"{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S%z}",
            command=sys.argv,
            settings=settings,
            torch_version=str(torch.__version__),
        )
        self.file: Path | None = None
        self.is_first = first_rank()
        self._chosen = folder

    @property
    def ended(self) -> str:
        """Return why measuring ended; empty while it goes on."""
        return self._record.ended

    @property
    def unswitched(self) -> Sequence[Unswitched]:
        """Return what cannot be switched off."""
        return self._record.unswitched

    @unswitched.setter
    def unswitched(self, found: Sequence[Unswitched]) -> None:
        self._record.unswitched = list(found)

    def begin(self, ranks: Sequence[Any], **facts: Any) -> None:
        """Write the record for the first time, after ``make_folder``."""
        self._record.ranks = list(ranks)
        for name, value in facts.items():
            setattr(self._record, name, value)
        self._write()

    def note(self, sentence: str) -> None:
        """Add a sentence about what was found."""
        self._record.notes.append(sentence)

    def add(self, block: MeteredBlock, *, steps_so_far: int, undone: int) -> None:
        """Add a block."""
        self._record.blocks.append(block)
        self._record.steps = steps_so_far
        self._record.undone_steps += undone
        self._write()

    def complete_pairs(self) -> None:
        """Write that all pairs are measured; phases may still follow."""
        self._record.measured = True
        self._write()

    def end(self, why: str) -> None:
        """Write why measuring ended."""
        self._record.ended = why
        self._write()

    def close(self, steps: int, *, in_block: bool) -> None:
        """Write the record for the last time, as the script exits."""
        record = self._record
        if not record.ended and record.measured:
            record.ended = f"The script ended after {steps} steps, before all phases were measured."
        if not record.ended:
            record.ended = ended_early(steps, record.settings.steps_needed)
        if in_block:
            record.notes.append(
                "The script ended within a local block, so what it read of its parameters at the end may "
                "differ between ranks."
            )
        record.steps = steps
        if not self.file and self.is_first:
            self.make_folder(int(os.environ.get("WORLD_SIZE", "1")))
        self._write()
        if self.file and not self._chosen:
            sys.stderr.write(f"ringside meter: {record.ended} See: ringside report {self.file.parent}\n")
        elif not self.file and self.is_first:
            sys.stderr.write(f"ringside meter: {record.ended} Its record could not be written.\n")

    def _write(self) -> None:
        """Write the file, if this rank has one; a full disk must not end the script."""
        if self.file:
            with suppress(OutputError, OSError):
                write_json(self.file, self._record)

    def make_folder(self, ranks: int) -> str:
        """Make the folder with a first record; return why it cannot be written, or an empty text."""
        try:
            file = self._folder(ranks) / METER_FILE
            write_json(file, self._record)
        except OSError as error:
            return f"its folder {error.filename} cannot be made ({system_reason(error)})"
        except OutputError as error:
            return f"its record cannot be written ({error.found.rstrip('.')})"
        self.file = file
        return ""

    def _folder(self, ranks: int) -> Path:
        if self._chosen:
            folder = Path(self._chosen)
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        script = Path(sys.argv[0]).stem or "script"
        name = f"{datetime.now().astimezone():%Y-%m-%dT%H-%M-%S}-{script}-np{ranks}-meter"
        names = (name if n == 1 else f"{name}-{n}" for n in itertools.count(1))
        folder = next(path for path in map(_RUNS.joinpath, names) if not path.exists())
        folder.mkdir(parents=True)
        return folder
