"""Carry out a verification: every arm launched once, and put through every gate; none stops the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from compare.analysis.parity import Gate, judge, pass_of
from compare.errors import LaunchError, ParityError, StalledError
from compare.experiment.run import write_request
from compare.experiment.schedule import Planned
from compare.launch.arm import Observer, launch_arm
from compare.schema.results import VERIFICATION_FILE, Failure, Run, write_json

if TYPE_CHECKING:
    from pathlib import Path

    from compare.launch.local import Site
    from compare.schema.results import Launch


class ArmVerification(msgspec.Struct, frozen=True, kw_only=True):
    """How one arm fared."""

    arm: str
    gates: list[Gate] = []
    curve: list[float | None] = []
    """Relative difference from a single process after each float32 step with the run's own optimizer:
    no gate, for rounding alone may carry it far. Empty in the control."""
    failure: Failure | None = None
    """Why there are no gates: its launch failed."""
    seconds: float

    @property
    def proven(self) -> bool:
        """Whether it ran, and failed at nothing."""
        return self.failure is None and all(gate.outcome != "failed" for gate in self.gates)


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """A whole verification, with the launches that it rests on."""

    run: Run
    arms: list[ArmVerification] = []

    @property
    def exit_code(self) -> int:
        """Return 0 where all is proven; a failed gate counts for more than a failed launch."""
        if any(gate.outcome == "failed" for arm in self.arms for gate in arm.gates):
            return ParityError.exit_code
        kinds = [arm.failure.kind for arm in self.arms if arm.failure]
        if not kinds:
            return 0
        return StalledError.exit_code if StalledError.__name__ in kinds else LaunchError.exit_code


class VerificationObserver(Observer, Protocol):
    """Somebody who watches a verification."""

    def arm_verified(self, arm: ArmVerification) -> None:
        """Hear how an arm fared."""


def verify(run: Run, directory: Path, site: Site, observer: VerificationObserver) -> Verification:
    """Launch every arm of a run once, in the order named, and judge it; saved after every arm.

    Args:
        run: without launches; not changed.
        directory: its folder.
        site: where it runs.
        observer: told of everything that happens.

    Raises:
        RingsideError: something failed that would fail every arm; what was finished is saved.
    """
    write_request(run, directory)
    verification = Verification(run=run)
    for number, arm in enumerate(run.config.arms, start=1):
        planned = Planned(number, 1, arm)
        observer.launch_begins(planned)
        began = time.monotonic()
        launches = verification.run.launches
        try:
            launch = launch_arm(run, planned, directory, site, observer, proof="whole")
        except LaunchError as error:
            failure = Failure(arm=arm.label, round=1, kind=type(error).__name__, message=str(error))
            found = ArmVerification(arm=arm.label, failure=failure, seconds=time.monotonic() - began)
        else:
            launches = [*launches, launch]
            found = _judged(planned, launch)
        verification = Verification(
            run=msgspec.structs.replace(run, launches=launches), arms=[*verification.arms, found]
        )
        write_json(directory / VERIFICATION_FILE, verification)
        observer.arm_verified(found)
    run = msgspec.structs.replace(verification.run, complete=True)
    verification = msgspec.structs.replace(verification, run=run)
    write_json(directory / VERIFICATION_FILE, verification)
    return verification


def _judged(planned: Planned, launch: Launch) -> ArmVerification:
    as_run = pass_of(launch.ranks[0], "as run")
    return ArmVerification(
        arm=planned.arm.label,
        gates=judge(planned.arm, launch.ranks, "whole"),
        curve=as_run.differences if as_run else [],
        seconds=launch.seconds,
    )
