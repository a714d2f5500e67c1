"""Carry out ``compare verify``: launch every arm once, and check it by every gate."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from compare.analysis.gates import pass_of
from compare.analysis.parity import check_gates
from compare.errors import BudgetError, LaunchError
from compare.experiment.allocation import endings_named, require_time, time_of, too_little_time
from compare.experiment.run import Watch, begin, kept, open_hosts
from compare.experiment.settle import UserRequest, settle
from compare.experiment.turn_plan import START_SECONDS
from compare.launch.alone import launch_arm
from compare.launch.arm import Observer
from compare.launch.cluster import Cluster
from compare.schema.config import RunConfig
from compare.schema.job import Planned
from compare.schema.results import ArmVerification, Failure, Launch, Run, Verification
from compare.schema.store import VERIFICATION_FILE, write_request
from compare.system.clock import unix_time
from compare.system.files import read_json, write_json


class VerificationObserver(Observer, Protocol):
    """Gets the events of a verification."""

    def arm_verified(self, arm: ArmVerification) -> None:
        """Handle the result of one arm."""


def verify_arms(
    request: UserRequest,
    say: Callable[[str], None],
    watch: Watch[RunConfig, VerificationObserver],
    on_early_end: Callable[[Verification], None] = lambda _: None,
) -> tuple[Verification, Path]:
    """Verify every arm that a user asked for, and save the results in a folder.

    ``say`` prints a line, and ``watch`` makes the observer of the verification. ``on_early_end`` receives the
    saved part of a verification that is stopped or fails.

    Returns:
        The results, and the path of their folder.

    Raises:
        RingsideError: something failed; a note of the error names the folder of the finished part, if any.
        KeyboardInterrupt: the user stopped the verification; with the same note.
    """
    with open_hosts(request, say) as cluster:
        config, left_out = settle(request, cluster)
        require_time(cluster.job, "arm", START_SECONDS * len(config.arms), unix_time())
        run, directory = begin(request, config, left_out, cluster, say, purpose="-verify")
        file = directory / VERIFICATION_FILE
        write_json(file, Verification(run=run))
        early = kept(directory, lambda: read_json(file, Verification), on_early_end, where="is in")
        with early, watch(run.config) as observer:
            return verify(run, directory, cluster, observer), directory


def verify(run: Run, directory: Path, cluster: Cluster, observer: VerificationObserver) -> Verification:
    """Launch and judge every arm once, in the order of the config, and return the verification.

    The verification is saved after every arm. If one arm fails, the others still run.

    Raises:
        BudgetError: the time of the scheduler's job ended before every arm was verified.
        RingsideError: something failed that would fail every arm; what was finished is saved.
    """
    write_request(run, directory)
    ends_at = time_of(cluster.job)
    verification = Verification(run=run)
    for number, arm in enumerate(run.config.arms, start=1):
        planned = Planned(number, 1, arm)
        observer.launch_begins(planned)
        began = time.monotonic()
        launches = verification.run.launches
        try:
            with endings_named(cluster.job):
                launch = launch_arm(
                    run, planned, directory, cluster, observer, proof="whole", budget_ends_at=ends_at
                )
        except BudgetError:
            assert cluster.job  # noqa: S101 -- nothing else sets a limit
            limit = f"The time of {cluster.job.name}"
            raise too_little_time(limit, "arm", number - 1, len(run.config.arms)) from None
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
        gates=check_gates(planned.arm, launch.ranks, "whole"),
        curve=as_run.differences if as_run else [],
        seconds=launch.seconds,
    )
