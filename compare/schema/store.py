"""Save runs in folders, and read them back."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from compare.errors import OutputError, UsageError, system_reason
from compare.schema.collectives import COLLECTIVES_FILE, CollectivesRun
from compare.schema.config import RunConfig
from compare.schema.hostfile import format_hostfile
from compare.schema.results import PHASES, SCHEMA_VERSION, Launch, Mode, RankResult, Run
from compare.system.files import STANDARD_OUTPUT, read_json, write_json, write_text

RESULTS_FILE = "results.json"
RUNS = Path("runs")
"""The folder for runs without ``--output``."""
LAST = "last"
"""What a user writes for the newest run in ``RUNS``."""
VERIFICATION_FILE = "verification.json"
CONFIG_FILE = "config.json"
SCALE_FILE = "scale.json"
_LONGEST_NAME = 100
"""Maximum number of characters of a model's name in the name of a folder."""
OF_RUNS = (RESULTS_FILE, COLLECTIVES_FILE, SCALE_FILE)
"""Names of the files that hold what a command measured."""
_RENAMED = {2: {"set_aside": "discarded"}, SCHEMA_VERSION: {}}
"""The schema versions that are read, each with its renamed fields: the old name and the present one."""


def collectives_file(path: Path) -> Path:
    """Return the file of collectives, given the file or its folder."""
    return path / COLLECTIVES_FILE if path.is_dir() else path


def read_collectives(path: Path) -> CollectivesRun | None:
    """Read what ``compare collectives`` saved, given the file ``collectives.json`` or its folder.

    Returns:
        None if there is no such file.

    Raises:
        OutputError: the file is damaged, or of another version.
    """
    file = collectives_file(path)
    return read_json(file, CollectivesRun) if file.name == COLLECTIVES_FILE and file.exists() else None


def find_run(path: Path, names: Sequence[str] = OF_RUNS) -> Path:
    """Return ``path`` unchanged, or for ``last`` the folder of the newest run in ``runs``.

    The newest run has the latest file with one of ``names``. A file or folder called ``last`` comes first.

    Raises:
        OutputError: ``last`` was asked for, and there is no run yet.
    """
    if path != Path(LAST) or path.exists():
        return path
    files = [file for name in names for file in RUNS.glob(f"*/{name}")]
    if not files:
        raise OutputError(
            "There is no last run.",
            found=f"No folder in {RUNS.absolute()} holds a run.",
            remedy="Run `compare run`, change to the folder that you ran it from, or name a run's folder.",
        )
    return max(files, key=lambda file: file.stat().st_mtime).parent


def name_of_run(directory: Path) -> str:
    """Return what a user writes to name a new run: ``last`` if it is in ``runs``, or else its path.

    The path is quoted for a shell, and relative if the run lies below the working folder.
    """
    if directory.absolute().parent == RUNS.absolute():
        return LAST
    path = directory.absolute()
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def results_file(path: Path) -> Path:
    """Return the file of a run, given the file or its folder."""
    return path / RESULTS_FILE if path.is_dir() else path


def read_run(path: Path) -> Run:
    """Read a run, given its folder, its ``results.json`` or its JSON export.

    Raises:
        OutputError: there is no run, or it is a verification, is damaged, has an unknown schema version, or
            contradicts itself.
    """
    file = results_file(path)
    if not file.exists():
        if path.is_dir() and (path / VERIFICATION_FILE).exists():
            raise _verification(path / VERIFICATION_FILE)
        raise OutputError(
            f"There is no run at {path}.",
            found=f"{file} does not exist.",
            remedy="Give the folder that `compare run` printed, or its results.json.",
        )
    run = read_json(file, Run, adapt=lambda content: _fields(file, content))
    wrong = next(_contradictions(run), None)
    if wrong:
        raise OutputError(
            f"{file} does not hold a run as Ringside writes it.",
            found=wrong,
            remedy="Was it edited? Restore it, or run the comparison again.",
        )
    return run


def _fields(file: Path, content: Any) -> dict[str, Any]:
    """Return the fields of a run from the JSON of its file or of its export, by their present names.

    Raises:
        OutputError: the file holds a verification, or has an unknown schema version.
    """
    content = msgspec.convert(content, dict[str, Any])
    exported = "schema_version" not in content and isinstance(content.get("run"), dict)
    if exported and "summary" not in content and "arms" in content:
        raise _verification(file)
    fields = content["run"] if exported else content
    version = fields.get("schema_version")
    if not isinstance(version, int) or version not in _RENAMED:
        raise OutputError(
            f"{file} has schema version {version or 0}.",
            found=f"This version of Ringside reads schema versions {' and '.join(map(str, _RENAMED))}.",
            remedy="Read it with the version of Ringside that wrote it.",
        )
    today = {_RENAMED[version].get(name, name): value for name, value in fields.items()}
    return today | {"schema_version": SCHEMA_VERSION}


def _verification(file: Path) -> OutputError:
    return OutputError(
        f"{file} is a verification, not a run.",
        found="`compare verify` proves that arms train alike. It measures no speed.",
        remedy="Read the gates in the file, or measure the arms with `compare run`.",
    )


def _contradictions(run: Run) -> Iterator[str]:
    """Yield each contradiction in a run as a sentence, because the analysis relies on a run without any."""
    labels = [arm.label for arm in run.config.arms]
    yield from _contradictions_of_config(run.config, labels)
    if len(run.cores_by_host) not in (0, len(run.hosts)):
        yield f"It has {len(run.hosts)} hosts, but the cores of {len(run.cores_by_host)}."
    seen: set[tuple[str, int]] = set()
    for launch in run.launches:
        where = f"Launch {launch.number} ({launch.arm}, round {launch.round})"
        arm = next((arm for arm in run.config.arms if arm.label == launch.arm), None)
        if arm is None:
            yield f"{where}: its arm is none of {', '.join(labels)}."
            continue
        if (launch.arm, launch.round) in seen:
            yield f"{where}: it appears twice."
        seen.add((launch.arm, launch.round))
        count = run.config.ranks_of(arm)
        yield from (f"{where}: {wrong}" for wrong in _contradictions_in(launch, count))
        if run.dataset.name != "own":  # an own metric is any sum
            yield from (f"{where}: {wrong}" for wrong in _wrong_accuracies(launch))


def _contradictions_of_config(config: RunConfig, labels: list[str]) -> Iterator[str]:
    if config.baseline not in labels:
        yield f"The baseline {config.baseline!r} is none of the arms {', '.join(labels)}."
    if len(set(labels)) < len(labels):
        yield f"config has an arm twice: {', '.join(labels)}."
    if config.comparisons is None:
        return
    if config.comparisons > config.rounds:
        yield f"{config.rounds} rounds cannot make {config.comparisons} comparisons."
    if len(labels) != 2:  # noqa: PLR2004 -- a comparison needs two
        yield f"A run of comparisons has two arms; this one has {len(labels)}."


def _contradictions_in(launch: Launch, count: int) -> Iterator[str]:
    ranks = [rank.rank for rank in launch.ranks]
    if len(ranks) != count or ranks != list(range(len(ranks))):
        yield f"it has ranks {', '.join(map(str, ranks)) or 'none'}, not 0 to {count - 1}."
        return
    first = launch.ranks[0]
    if sum(rank.evaluation.samples for rank in launch.ranks) < 1:
        yield "its ranks tested no sample."
    for rank in launch.ranks:
        yield from (f"rank {rank.rank} {wrong}" for wrong in _contradictions_of(rank))
        if _shape(rank) != _shape(first):
            yield f"rank {rank.rank} timed other blocks than rank 0."
        if _collectives(rank) != _collectives(first):
            yield f"rank {rank.rank} timed other collectives than rank 0."


def _wrong_accuracies(launch: Launch) -> Iterator[str]:
    for rank in launch.ranks:
        correct, samples = rank.evaluation.correct, rank.evaluation.samples
        if correct is not None and not 0 <= correct <= samples:
            yield f"rank {rank.rank} tested {samples} samples, and {correct:g} of them were right."


def _contradictions_of(rank: RankResult) -> Iterator[str]:
    if not any(block.mode == "training" and not block.phases for block in rank.blocks):
        yield "has no timed block of training without phases."
    for number, block in enumerate(rank.blocks):
        where = f"has a block, number {number},"
        if block.phases and set(block.phases) | {"forward"} != PHASES:
            yield f"{where} with the phases {', '.join(block.phases)}."
        if any(len(times) != block.steps for times in block.phases.values()):
            yield f"{where} whose phases were not timed in each of its {block.steps} steps."
    group = rank.attestation.get("group")
    if not isinstance(group, dict) or not isinstance(group.get("transport"), str):
        yield "attests no transport of its group (attestation.group.transport)."
    if not isinstance(rank.attestation.get("replica", {}), dict):
        yield "attests a replica that is no object (attestation.replica)."


def _shape(rank: RankResult) -> list[tuple[Mode, int, list[str], int]]:
    return [(block.mode, block.steps, sorted(block.phases), block.turn) for block in rank.blocks]


def _collectives(rank: RankResult) -> tuple[int, list[tuple[int, int]]]:
    return len(rank.collective_ns), [(sweep.message_bytes, len(sweep.ns)) for sweep in rank.sweep]


def create_output(asked: Path | None, what: str, ranks: int, *, purpose: str = "") -> Path:
    """Make the folder ``asked``, or a new one in ``runs``, and return its absolute path.

    A new folder is named by time, ``what``, the number of ranks and ``purpose``. Runs that start at the same
    moment get a folder each.

    Raises:
        OutputError: the folder cannot be made or written, or it is not empty.
    """
    if asked:
        return create_directory(asked)
    with _errors_of_output(RUNS):
        RUNS.mkdir(exist_ok=True)
    paths = _new_folders(what, ranks, purpose)
    while True:
        path = next(paths)
        with _errors_of_output(path), suppress(FileExistsError):
            path.mkdir()
            return create_directory(path)


def create_directory(path: Path) -> Path:
    """Make the folder that a run writes into, and return its absolute path.

    Raises:
        OutputError: the folder cannot be made or written, or it is not empty.
    """
    with _errors_of_output(path):
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise OutputError(
                f"{path} is not empty.",
                found="A run never overwrites files.",
                remedy="Choose another folder with --output.",
            )
        # This claims the folder, so that a run that starts at the same moment finds it taken.
        (path / CONFIG_FILE).touch(exist_ok=False)
    return path.resolve()


@contextmanager
def _errors_of_output(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"Results cannot be written to {path}.",
            found=system_reason(error),
            remedy="Choose another folder with --output.",
        ) from None


def write_request(run: Run | CollectivesRun, directory: Path) -> None:
    """Write the config and the hostfile of a run into its folder.

    Raises:
        OutputError: one of these files cannot be written.
    """
    write_json(directory / CONFIG_FILE, run.config)
    write_text(directory / "hostfile", format_hostfile(run.hosts))


def default_output(config: RunConfig) -> Path:
    """Return the path of a new folder in ``runs``, named by time, model and ranks, without making it."""
    return next(_new_folders(config.model, config.ranks))


def _new_folders(what: str, ranks: int, purpose: str = "") -> Iterator[Path]:
    """Yield paths in ``runs`` that do not exist yet, named by time and by the arguments."""
    what = what.replace(":", "-")[:_LONGEST_NAME]  # scp and rsync treat the text before a colon as a host
    name = f"{datetime.now().astimezone():%Y-%m-%dT%H-%M-%S}-{what}-np{ranks}{purpose}"
    names = (name if n == 1 else f"{name}-{n}" for n in itertools.count(1))
    return (path for path in map(RUNS.joinpath, names) if not path.exists())


def require_writable(path: Path, *, to_be_made: Path | None) -> None:
    """Check before a run that a file can be written after it.

    ``to_be_made`` is the folder that the run will make for its own files, so it need not exist yet.

    Raises:
        OutputError: the path is a folder, its folder is missing, or the file or its folder is read-only.
        UsageError: the run writes a file of this name itself.
    """
    if path == STANDARD_OUTPUT:
        return
    folder = path.absolute().parent
    if to_be_made and folder == to_be_made.absolute():
        if path.name in {*OF_RUNS, VERIFICATION_FILE, CONFIG_FILE, "hostfile"}:
            raise UsageError(f"{path}: the run itself writes this file.", remedy="Choose another name.")
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
