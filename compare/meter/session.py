"""Follow a process from the first step of an optimizer to its end, and finish its record."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from compare.meter.course import Course, StoppedError
from compare.meter.ranks import DisagreementError
from compare.meter.recorder import Recorder, ended_early
from compare.meter.steps import Steps
from compare.schema.metered import MeterSettings

_LOST_PACE = (
    "The script now takes its steps with another optimizer than at the end of the warm-up, so they cannot be "
    "compared with those before."
)


class Session:
    """The meter of one process. Once it has measured, or gave up, it only counts steps.

    It must be made at the first step of an optimizer, when the process knows which rank it is.

    Args:
        settings: what the user chose.
        folder: the folder of the record; empty for a new one in ``runs``.
    """

    def __init__(self, settings: MeterSettings, folder: str) -> None:
        self._settings = settings
        self._recorder = Recorder(settings, folder)
        self._steps = Steps()
        self._course: Course | None = Course(settings, self._recorder, self._steps, self._skip)
        self._run = self._course.run()
        self._left = next(self._run)

    @property
    def is_first(self) -> bool:
        """Return whether this rank writes the record."""
        return self._recorder.is_first

    @property
    def file(self) -> Path | None:
        """Return the record; None on ranks that write none."""
        return self._recorder.file

    @property
    def ended(self) -> str:
        """Return why measuring ended, as a sentence; empty while it goes on."""
        return self._recorder.ended

    def before_step(self, optimizer: Any) -> None:
        """Take note of an optimizer that is about to take a step."""
        is_first = not self._steps.knows(optimizer)
        if self._steps.begin(optimizer) and self._course:
            self._course.step_begins(optimizer, is_first=is_first)

    def after_step(self, optimizer: Any) -> None:
        """Count a step, and begin or end a block where one is due."""
        if not self._steps.end(optimizer):
            return
        if self._course:
            self._course.step_ended()
        is_one = self._steps.counts(optimizer)
        if self._course and self._steps.lost_pace:
            self._advance(StoppedError(_LOST_PACE))
        elif is_one and self._course:
            self._course.script_stepped()
            self._left -= 1
            if not self._left:
                self._advance()

    def end(self) -> None:
        """Finish the record; a block that is open is undone."""
        in_block = self._course is not None and self._course.is_undoing
        self._run.close()
        self._let_go(ended_early(self._steps.count, self._settings.steps_needed))
        self._recorder.close(self._steps.count, in_block=in_block)

    def _skip(self, optimizer: Any) -> None:
        """Count a step that was due and skipped."""
        self.before_step(optimizer)
        self.after_step(optimizer)

    def _advance(self, reason: StoppedError | None = None) -> None:
        """Go on to the next point at which something is to be done, or stop for a reason."""
        try:
            self._left = self._run.throw(reason) if reason else next(self._run)
        except StopIteration:
            self._recorder.end("Everything was measured.")
            self._course = None
        except (StoppedError, DisagreementError) as why:
            self._stop(str(why))
        except Exception as error:  # noqa: BLE001 -- a fault of the meter must not end the script
            self._stop(f"The meter failed, which is a fault of Ringside: {error!r}")

    def _stop(self, why: str) -> None:
        """End measuring early."""
        with suppress(Exception):
            self._recorder.end(why)
        self._let_go(why)

    def _let_go(self, why: str) -> None:
        """Tell the other ranks that this one measures no more, and drop all that was kept of the script."""
        if self._course and self._course.ranks:
            self._course.ranks.leave(why)
        self._course = None
