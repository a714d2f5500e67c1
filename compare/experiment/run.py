"""Carry out a run: launch after launch, each verified and saved before the next begins."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from compare import __version__
from compare.analysis.budget import seconds_left
from compare.analysis.parity import check_launch
from compare.analysis.step_times import foreign_share
from compare.errors import BudgetError, OutputError, RingsideError
from compare.experiment.schedule import end_for_want_of_time, next_launch, set_aside_disturbed
from compare.launch.arm import Observer, launch_arm
from compare.schema.config import RunConfig
from compare.schema.environment import masked
from compare.schema.files import write_json
from compare.schema.results import Failure, Run
from compare.schema.store import RESULTS_FILE, write_request

if TYPE_CHECKING:
    from pathlib import Path

    from compare.data import DatasetSource
    from compare.launch.local import Site
    from compare.schema.job import Planned


def carry_out(run: Run, directory: Path, site: Site, observer: Observer) -> Run:
    """Launch everything that the run's config asks for, and save after every launch.

    Args:
        run: the run as far as it has come; not changed.
        directory: its folder.
        site: where it runs.
        observer: told of everything that happens.

    Returns:
        The complete run. What a budget cut short is no part of it.

    Raises:
        BudgetError: the budget was over before every arm had run once.
        RingsideError: a launch failed; what was finished is saved, and marked incomplete.
        KeyboardInterrupt: likewise.
    """
    write_request(run, directory)
    write_json(directory / RESULTS_FILE, run)
    while planned := next_launch(run):
        try:
            observer.launch_begins(planned)
            now = time.time()
            launch = launch_arm(
                run, planned, directory, site, observer, budget_ends_at=now + seconds_left(run, now)
            )
            check_launch(planned.arm, launch.ranks)
            disturbed_before = len(run.set_aside)
            # From here on it is part of what is kept, whatever comes between.
            run = set_aside_disturbed(msgspec.structs.replace(run, launches=[*run.launches, launch]))
            write_json(directory / RESULTS_FILE, run)
            observer.launch_ended(planned, launch)
            if disturbed := run.set_aside[disturbed_before:]:
                observer.round_repeats(planned.round, max(map(foreign_share, disturbed)))
        except BudgetError:
            ended = end_for_want_of_time(run)
            if ended.launches:
                run = ended
                break
            error = _too_small_a_budget(run)
            _save_failure(run, planned, error, directory)
            raise error from None
        except (RingsideError, KeyboardInterrupt) as error:
            _save_failure(run, planned, error, directory)
            raise
    run = msgspec.structs.replace(run, complete=True)
    write_json(directory / RESULTS_FILE, run)
    return run


def _save_failure(run: Run, planned: Planned, error: BaseException, directory: Path) -> None:
    failure = Failure(
        arm=planned.arm.label,
        round=planned.round,
        kind=type(error).__name__,
        message=str(error) or "interrupted",
    )
    # Where nothing can be written any more, the first error is the one to tell.
    with suppress(OutputError):
        write_json(directory / RESULTS_FILE, msgspec.structs.replace(run, failure=failure))


def _too_small_a_budget(run: Run) -> BudgetError:
    done, arms = len(run.launches), len(run.config.arms)
    return BudgetError(
        f"--budget {run.config.budget_seconds:g} was over before every arm had run once.",
        found=f"{done} of {arms} had." if done else "None had.",
        remedy="Give it longer, name fewer arms, or train fewer --steps.",
    )


def new_run(config: RunConfig, dataset: DatasetSource, site: Site, left_out: dict[str, str]) -> Run:
    """Begin the record of a run."""
    return Run(
        ringside_version=__version__,
        started_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        # A path may hold bytes that are no text; they are shown, not lost.
        command=["compare", *(os.fsencode(word).decode(errors="replace") for word in masked(sys.argv[1:]))],
        config=config,
        dataset=dataset,
        hosts=list(site.hosts),
        network=site.network,
        cores=min(map(len, site.cpus())),
        cores_by_host=[len(cpus) for cpus in site.cpus()],
        left_out=left_out,
    )
