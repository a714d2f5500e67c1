"""Carry out ``ringside verify``: launch every arm once, and check it by every gate."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from compare.analysis.budget import START_SECONDS
from compare.analysis.gates import pass_of
from compare.analysis.parity import check_gates
from compare.experiment.allocation import require_time
from compare.experiment.run import Watch, attempt, begin_run, open_hosts, reporting_early_end
from compare.experiment.settle import UserRequest, settle
from compare.launch.arm import Observer
from compare.launch.cluster import Cluster
from compare.launch.launches import launch_arm
from compare.launch.monitor import MemoryShortError
from compare.schema.config import RunConfig
from compare.schema.job import Planned
from compare.schema.results import ArmVerification, Failure, Gate, Run, Verification
from compare.schema.store import VERIFICATION_FILE, write_request
from compare.system.files import write_json


def verify_arms(
    request: UserRequest,
    say: Callable[[str], None],
    watch: Watch[RunConfig],
    on_early_end: Callable[[Verification], None] = lambda _: None,
) -> tuple[Verification, Path]:
    """Verify every arm that a user asked for, and return the results and the folder with them.

    See ``compare_arms`` for the other arguments and the errors.
    """
    with open_hosts(request, say) as cluster:
        config, left_out = settle(request, cluster, say)
        require_time(cluster.job, "arm", START_SECONDS * len(config.arms))
        run, directory = begin_run(request, config, left_out, cluster, say, purpose="-verify")
        write_json(directory / VERIFICATION_FILE, Verification(run=run))
        with reporting_early_end(directory, on_early_end), watch(run.config) as observer:
            return verify(run, directory, cluster, observer), directory


def verify(run: Run, directory: Path, cluster: Cluster, observer: Observer) -> Verification:
    """Launch and judge every arm once, in the order of the config, and return the verification.

    The verification is saved after every arm. If one arm fails, the others still run.

    Raises:
        BudgetError: the time of the scheduler's job ended before every arm was verified.
        RingsideError: something failed that would fail every arm; what was finished is saved.
    """
    write_request(run, directory)
    verification = Verification(run=run)
    for number, arm in enumerate(run.config.arms, start=1):
        planned = Planned(number, 1, arm)
        began = time.monotonic()
        launch_whole = partial(launch_arm, run, planned, directory, cluster, observer, proof="whole")
        launch = attempt(launch_whole, planned, cluster, "arm", len(run.config.arms))
        launches = verification.run.launches
        if isinstance(launch, Failure) and launch.kind == MemoryShortError.__name__:
            what, *more = launch.message.splitlines()
            gate = Gate(name="float64", outcome="unfit", what=what.removesuffix("."), remedy=" ".join(more))
            result = ArmVerification(arm=arm.label, gates=[gate], seconds=time.monotonic() - began)
        elif isinstance(launch, Failure):
            result = ArmVerification(arm=arm.label, failure=launch, seconds=time.monotonic() - began)
        else:
            launches = [*launches, launch]
            as_run = pass_of(launch.ranks[0], "as run")
            result = ArmVerification(
                arm=arm.label,
                gates=check_gates(arm, launch.ranks, "whole"),
                curve=as_run.differences if as_run else [],
                seconds=launch.seconds,
            )
        verification = Verification(
            run=msgspec.structs.replace(run, launches=launches), arms=[*verification.arms, result]
        )
        write_json(directory / VERIFICATION_FILE, verification)
        observer.arm_verified(result)
    run = msgspec.structs.replace(verification.run, complete=True)
    verification = msgspec.structs.replace(verification, run=run)
    write_json(directory / VERIFICATION_FILE, verification)
    return verification
