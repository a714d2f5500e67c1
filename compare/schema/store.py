"""Save runs in folders, and read them back."""

from __future__ import annotations

import itertools
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from compare.errors import OutputError, UsageError, system_reason
from compare.schema.config import RunConfig
from compare.schema.files import read_json, write_json, write_text
from compare.schema.hostfile import format_hostfile
from compare.schema.results import PHASES, SCHEMA_VERSION, Block, Launch, Mode, RankResult, Run

if TYPE_CHECKING:
    from collections.abc import Iterator


RESULTS_FILE = "results.json"
VERIFICATION_FILE = "verification.json"


class _Form(msgspec.Struct):
    """Just enough of a file to tell which of ours it is."""

    schema_version: int | None = None
    run: Any = None
    summary: Any = None
    arms: Any = None


class _Exported(msgspec.Struct):
    run: Run


def results_file(path: Path) -> Path:
    """Return the file that holds a run: the path itself, or what lies in that folder."""
    return path / RESULTS_FILE if path.is_dir() else path


def read_run(path: Path) -> Run:
    """Read a run from its directory, from its results file, or from what ``--export-json`` wrote of it.

    Raises:
        OutputError: there is no run, it was written under another schema, it contradicts itself, or it is
            a verification.
    """
    file = results_file(path)
    if not file.exists():
        if path.is_dir() and (path / VERIFICATION_FILE).exists():
            raise _verification(path / VERIFICATION_FILE)
        raise OutputError(
            f"There is no run at {path}.",
            found=f"{file} does not exist.",
            remedy="Give the folder that `compare run` named, or its results.json.",
        )
    form = read_json(file, _Form)
    exported = form.schema_version is None and isinstance(form.run, dict)
    if exported and form.summary is None and form.arms is not None:
        raise _verification(file)
    version = form.run.get("schema_version") if exported else form.schema_version
    if version != SCHEMA_VERSION:
        raise OutputError(
            f"{file} has schema version {version or 0}.",
            found=f"This version of Ringside reads schema version {SCHEMA_VERSION}.",
            remedy="Read it with the version that wrote it.",
        )
    run = read_json(file, _Exported).run if exported else read_json(file, Run)
    wrong = next(_contradictions(run), None)
    if wrong:
        raise OutputError(
            f"{file} does not hold a run as Ringside writes it.",
            found=wrong,
            remedy="Was it edited? Restore it, or run the comparison again.",
        )
    return run


def _verification(file: Path) -> OutputError:
    return OutputError(
        f"{file} is a verification, not a run.",
        found="`compare verify` tells whether arms train alike; it measures no speed that could be reported.",
        remedy="Read the file itself for its gates, or measure the arms with `compare run`.",
    )


def _contradictions(run: Run) -> Iterator[str]:
    """Name what no run holds, so that whatever is derived from one may rely on it."""
    labels = [arm.label for arm in run.config.arms]
    yield from _contradictions_of_config(run.config, labels)
    if run.cores_by_host and (len(run.cores_by_host) != len(run.hosts) or min(run.cores_by_host) < 1):
        yield f"It names {len(run.hosts)} hosts, and the cores of {len(run.cores_by_host)}."
    if not run.hosts or run.cores < 1:
        yield f"It names {len(run.hosts)} hosts of {run.cores} cores."
    seen: set[tuple[str, int]] = set()
    for launch in run.launches:
        where = f"Launch {launch.number} ({launch.arm}, round {launch.round})"
        arm = next((arm for arm in run.config.arms if arm.label == launch.arm), None)
        if arm is None:
            yield f"{where} is of none of the arms: {', '.join(labels)}."
            continue
        if (launch.arm, launch.round) in seen:
            yield f"{where} is there twice."
        seen.add((launch.arm, launch.round))
        count = run.config.ranks_of(arm)
        yield from (f"{where}: {wrong}" for wrong in _contradictions_in(launch, count))


def _contradictions_of_config(config: RunConfig, labels: list[str]) -> Iterator[str]:
    if not labels:
        yield "config names no arms."
    if config.baseline not in labels:
        yield f"The baseline {config.baseline!r} is none of the arms: {', '.join(labels)}."
    if len(set(labels)) < len(labels):
        yield f"config names an arm twice: {', '.join(labels)}."
    if config.comparisons is None:
        return
    if not 1 <= config.comparisons <= config.rounds:
        yield f"{config.comparisons} comparisons cannot be made of {config.rounds} rounds."
    if len(labels) != 2:  # noqa: PLR2004 -- a comparison takes two
        yield f"A run of comparisons has two arms, this one {len(labels)}."


def _contradictions_in(launch: Launch, count: int) -> Iterator[str]:
    ranks = [rank.rank for rank in launch.ranks]
    if ranks != list(range(count)):
        yield f"has ranks {', '.join(map(str, ranks)) or 'none'}, where 0 to {count - 1} belong."
        return
    if launch.seconds <= 0:
        yield f"took {launch.seconds:g} s."
    first = launch.ranks[0]
    if sum(rank.evaluation.samples for rank in launch.ranks) < 1:
        yield "its ranks saw no sample of the test set."
    for rank in launch.ranks:
        yield from (f"rank {rank.rank} {wrong}" for wrong in _contradictions_of(rank))
        if _shape(rank) != _shape(first):
            yield f"rank {rank.rank} timed other blocks than rank 0."
        if _collectives(rank) != _collectives(first):
            yield f"rank {rank.rank} timed other collectives than rank 0."


def _contradictions_of(rank: RankResult) -> Iterator[str]:
    if not any(block.mode == "training" and not block.phases for block in rank.blocks):
        yield "has no block of the training that tells its speed."
    for number, block in enumerate(rank.blocks):
        yield from (f"has a block, number {number}, {wrong}" for wrong in _contradictions_of_block(block))
    if min(rank.collective_ns, default=1) < 1:
        yield "has a collective that took no time."
    if any(min(sweep.ns, default=0) < 1 for sweep in rank.sweep):
        yield "has a sweep that took no time."
    if rank.machine is not None and (rank.machine.cpus < 1 or rank.machine.wall_ns < 1):
        yield f"saw {rank.machine.cpus} CPUs for {rank.machine.wall_ns} ns."
    yield from _contradictions_of_attestation(rank.attestation)


def _contradictions_of_block(block: Block) -> Iterator[str]:
    if block.steps < 1 or block.wall_ns < 1:
        yield f"of {block.steps} steps in {block.wall_ns} ns."
    if block.phases and set(block.phases) | {"forward"} != PHASES:
        yield f"with the phases {', '.join(block.phases)}."
    if any(len(times) != block.steps for times in block.phases.values()):
        yield f"whose phases were not timed in each of its {block.steps} steps."


def _contradictions_of_attestation(attestation: dict[str, Any]) -> Iterator[str]:
    group = attestation.get("group")
    if not isinstance(group, dict) or not isinstance(group.get("transport"), str):
        yield "attests no transport of its group (attestation.group.transport)."
    if not isinstance(attestation.get("replica", {}), dict):
        yield "attests a replica (attestation.replica) that is no object."


def _shape(rank: RankResult) -> list[tuple[Mode, int, list[str]]]:
    return [(block.mode, block.steps, sorted(block.phases)) for block in rank.blocks]


def _collectives(rank: RankResult) -> tuple[int, list[tuple[int, int]]]:
    return len(rank.collective_ns), [(sweep.message_bytes, len(sweep.ns)) for sweep in rank.sweep]


CONFIG_FILE = "config.json"


def create_directory(path: Path) -> Path:
    """Make the folder that a run writes into.

    Raises:
        OutputError: it cannot be made or written, or something lies in it already.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise OutputError(
                f"{path} is not empty.",
                found="A run never writes over what is there.",
                remedy="Choose another folder with --output.",
            )
        # Claimed, so that another run which starts at the same moment finds it taken.
        (path / CONFIG_FILE).touch(exist_ok=False)
    except OSError as error:
        raise OutputError(
            f"Results cannot be written to {path}.",
            found=system_reason(error),
            remedy="Choose another folder with --output.",
        ) from None
    return path.resolve()


def write_request(run: Run, directory: Path) -> None:
    """Write what was asked for into a run's folder: its config, and its hosts as a hostfile.

    Raises:
        OutputError: the folder takes no more writing.
    """
    write_json(directory / CONFIG_FILE, run.config)
    write_text(directory / "hostfile", format_hostfile(run.hosts))


def default_output(config: RunConfig, *, purpose: str = "") -> Path:
    """Name a folder for a run, by its time and what it is."""
    model = config.model.replace(":", "-")  # scp and rsync take what stands before a colon for a host
    name = f"{datetime.now().astimezone():%Y-%m-%dT%H-%M-%S}-{model}-np{config.ranks}{purpose}"
    names = (name if n == 1 else f"{name}-{n}" for n in itertools.count(1))
    return next(path for path in map(Path("runs").joinpath, names) if not path.exists())


def require_writable(path: Path, *, to_be_made: Path | None) -> None:
    """See to it that a file can be written later on, before anything is started.

    Args:
        path: the file.
        to_be_made: a folder that will be there by then.

    Raises:
        OutputError: its folder is missing or read-only, or it is a folder itself.
    """
    folder = path.absolute().parent
    if to_be_made and folder == to_be_made.absolute():
        if path.name in {RESULTS_FILE, "config.json", "hostfile"}:
            raise UsageError(f"{path} is where the run itself is saved.", remedy="Choose another name.")
        return
    problem = (
        f"{path} is a folder."
        if path.is_dir()
        else f"{folder} is not a folder."
        if not folder.is_dir()
        else f"{path if path.exists() else folder} is read-only."
        if not os.access(path if path.exists() else folder, os.W_OK)
        else ""
    )
    if problem:
        raise OutputError(f"{path} could not be written.", found=problem, remedy="Choose another file.")
