"""Save results in folders, and read them back."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from compare.errors import OutputError, UsageError, system_reason
from compare.schema.collectives import COLLECTIVES_FILE, CollectivesRun
from compare.schema.config import RunConfig
from compare.schema.hostfile import format_hostfile
from compare.schema.metered import METER_FILE, Metered, read_metered
from compare.schema.results import SCHEMA_VERSION, LaunchRecord, Run, Verification
from compare.schema.scale import Scale, Series, folder_of
from compare.system.files import STANDARD_OUTPUT, read_json, write_json, write_text
from compare.text import counted, listed

RESULTS_FILE = "results.json"
RUNS = Path("runs")
"""The folder for runs without ``--output``, relative to the working folder."""
LAST = "last"
"""The word that a user writes for the newest run in ``RUNS``."""
VERIFICATION_FILE = "verification.json"
CONFIG_FILE = "config.json"
SCALE_FILE = "scale.json"
_LONGEST_NAME = 100
"""Maximum number of characters of a model's name in the name of a folder."""
Result: TypeAlias = Run | Scale | CollectivesRun | Verification | Metered
"""The results that ``ringside report`` can show."""
_NEW_NAMES = {2: {"set_aside": "discarded"}, SCHEMA_VERSION: {}}
"""The new names of renamed fields by their old names, for each schema version that can be read."""


def find_run(path: Path, names: Sequence[str]) -> Path:
    """Return ``path`` unchanged, or for ``last`` the folder of the newest run in ``runs``.

    The newest run is the folder whose file with one of ``names`` was written last. A run that still goes on
    is left out, as long as there is another. If there is a file or folder called ``last``, it is returned
    instead.

    Raises:
        OutputError: ``path`` is ``last``, and there is no run yet.
    """
    if path != Path(LAST) or path.exists():
        return path
    files = [file for name in names for file in RUNS.glob(f"*/{name}")]
    if not files:
        raise OutputError(
            "There is no last run.",
            found=f"No folder in {RUNS.absolute()} holds a run.",
            remedy="Run `ringside run` first, change to the folder where you ran it, or name a run's folder.",
        )
    files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    return next((file for file in files if not _goes_on(file)), files[0]).parent


class _Ending(msgspec.Struct):
    """What the file of a result says about its end; other results than runs may say nothing."""

    complete: bool = True
    failure: msgspec.Raw | None = None


def _goes_on(file: Path) -> bool:
    """Return whether a result has no end: its command still goes on, or its process was killed."""
    try:
        ending = msgspec.json.decode(file.read_bytes(), type=_Ending)
    except (OSError, msgspec.MsgspecError):
        return False  # reading it properly names the reason
    return not ending.complete and ending.failure is None


def list_results(root: Path) -> list[Path]:
    """Return the files of all results in folders directly in ``root``, sorted by folder, without links.

    Raises:
        OutputError: ``root`` cannot be read.
    """
    try:
        folders = sorted(path for path in root.iterdir() if not path.is_symlink())
    except OSError as error:
        raise OutputError(
            f"The runs in {root} cannot be listed.",
            found=f"{system_reason(error)}.",
            remedy="Name the folder that holds the folders of runs, or run `ringside run` first.",
        ) from None
    files = ([path / name for name in (*_KINDS, RESULTS_FILE)] for path in folders)
    return [file for each in files if (file := next(filter(os.path.isfile, each), None))]


def name_of_run(directory: Path) -> str:
    """Return what a user writes to name the newest run: ``last`` if it is in ``runs``, or else its path.

    The path is quoted for a shell, and relative if the run is below the working folder.
    """
    if directory.absolute().parent == RUNS.absolute():
        return LAST
    path = directory.absolute()
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def result_file(path: Path) -> Path:
    """Return the file of a result, given this file or its folder.

    For a folder without a result, it is the path of ``results.json``, which does not exist.
    """
    if not path.is_dir():
        return path
    return next((path / name for name in _KINDS if (path / name).exists()), path / RESULTS_FILE)


def read_result(path: Path) -> Result:
    """Read the result of any command that measures or verifies, given its folder or its file.

    Raises:
        OutputError: there is no result, or it is damaged or of another version.
    """
    file = result_file(path)
    kind = _KINDS.get(file.name) if file.exists() else None
    return kind.read(file) if kind else read_run(path)


def launches_of(result: Result) -> Sequence[LaunchRecord]:
    """Return all launches of a result that have finished; that of a script has none of ours."""
    if isinstance(result, Metered):
        return []
    runs = result.runs.values() if isinstance(result, Scale) else [result]
    return [
        launch for each in runs for launch in (each.run if isinstance(each, Verification) else each).launches
    ]


def _read_scale(file: Path) -> Scale:
    series = read_json(file, Series)
    return Scale(
        series=series, runs={count: read_run(folder_of(file.parent, count)) for count in series.counts}
    )


class _Kind(NamedTuple):
    """A kind of result other than that of ``ringside run``: what users call it, and how it is read."""

    noun: str
    read: Callable[[Path], Result]


_KINDS = {
    COLLECTIVES_FILE: _Kind("a comparison of collectives", partial(read_json, kind=CollectivesRun)),
    SCALE_FILE: _Kind("a scaling series", _read_scale),
    METER_FILE: _Kind("a metered script", read_metered),
    VERIFICATION_FILE: _Kind("a verification", partial(read_json, kind=Verification)),
}
"""The kinds of results, by the name of the file."""
RESULT_FILES = (RESULTS_FILE, *_KINDS)
"""The names of all files that hold a result."""


def kind_of(file: Path) -> str:
    """Return what users call the result in a file, such as ``a verification``."""
    return _KINDS[file.name].noun if file.name in _KINDS else "a run"


def read_run(path: Path) -> Run:
    """Read a run, given its folder, its ``results.json`` or its JSON export.

    Raises:
        OutputError: there is no run, or it is damaged, or has an unknown schema version. For a folder of
            runs, such as that of a scaling series, the error names them.
    """
    file = path / RESULTS_FILE if path.is_dir() else path
    if not file.exists() or file.name in _KINDS:
        _require_no_other(path)
        raise OutputError(
            f"There is no run at {path}.",
            found=f"{file} does not exist.",
            remedy="Give the folder that `ringside run` printed, or its results.json.",
        )
    return read_json(file, Run, adapt=partial(_run_of, file))


def _require_no_other(path: Path) -> None:
    """Raise an ``OutputError`` if there are runs in ``path``, or a result that is no run."""
    results = list_results(path) if path.is_dir() else []
    if inside := [file.parent for file in results if file.name == RESULTS_FILE]:
        inside.sort(key=lambda run: (len(run.name), run))
        raise OutputError(
            f"{path} is not a run, but holds {counted(len(inside), 'run')}.",
            found=f"The runs in it: {listed(run.name for run in inside)}.",
            remedy=f"Name one of them, as {shlex.quote(str(inside[-1]))}.",
        )
    if (file := result_file(path)).exists():
        raise OutputError(
            f"{path} holds {kind_of(file)}, not a run.",
            found="Only a run has a lesson and a prediction, and only runs are shown side by side.",
            remedy=f"Show it alone by `ringside report {shlex.quote(str(path))}`, as a table, a page, "
            "Markdown, CSV or JSON (--format).",
        )


def _run_of(file: Path, data: bytes) -> bytes | msgspec.Raw:
    """Return the JSON of a run, with its present names, from that of its file or its export.

    Only the names at the top are decoded here, because a run of hundreds of ranks takes much memory.

    Raises:
        OutputError: the file holds a verification, or has an unknown schema version.
    """
    content = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    exported = "schema_version" not in content and bytes(content.get("run", b""))[:1] == b"{"
    if exported and "summary" not in content and "arms" in content:
        raise OutputError(
            f"{file} is a verification, not a run.",
            found="`ringside verify` proves that arms train alike. It measures no speed.",
            remedy="Give `ringside report` the folder of the verification or its verification.json, or "
            "measure the arms with `ringside run`.",
        )
    fields = msgspec.json.decode(content["run"], type=dict[str, msgspec.Raw]) if exported else content
    version = msgspec.json.decode(fields["schema_version"]) if "schema_version" in fields else None
    if not isinstance(version, int) or version not in _NEW_NAMES:
        raise OutputError(
            f"{file} has {'no schema version' if version is None else f'schema version {version}'}.",
            found=f"This version of Ringside reads schema versions {' and '.join(map(str, _NEW_NAMES))}.",
            remedy="Give the folder that the command printed, or the results.json of a run."
            if version is None
            else "Read it with the version of Ringside that wrote it.",
        )
    if version == SCHEMA_VERSION:
        return content["run"] if exported else data
    renamed: dict[str, Any] = {_NEW_NAMES[version].get(name, name): value for name, value in fields.items()}
    return msgspec.json.encode(renamed | {"schema_version": SCHEMA_VERSION})


def create_output(folder: Path | None, subject: str, ranks: int, *, purpose: str = "") -> Path:
    """Make ``folder``, or a new folder in ``runs`` if that is None; return its absolute path.

    A new folder is named by the time, the ``subject`` that is measured, the number of ranks and ``purpose``.
    Runs that start at the same moment get a folder each.

    Raises:
        OutputError: the folder cannot be made or written, or it is not empty.
    """
    if folder:
        return create_directory(folder)
    paths = _new_folders(subject, ranks, purpose)
    with _errors_of_output(RUNS):
        RUNS.mkdir(exist_ok=True)
        while True:
            path = next(paths)
            with suppress(FileExistsError):
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
    """Raise an ``OutputError`` that names ``path`` in place of an ``OSError`` of the block."""
    try:
        yield
    except OSError as error:
        raise OutputError.unwritten(path, error) from None


def write_request(run: Run | CollectivesRun, directory: Path) -> None:
    """Write the config and the hostfile of a run into the run's folder.

    Raises:
        OutputError: one of these files cannot be written.
    """
    write_json(directory / CONFIG_FILE, run.config)
    write_text(directory / "hostfile", format_hostfile(run.hosts))


def default_output(config: RunConfig, *, purpose: str = "") -> Path:
    """Return the path of the folder that ``create_output`` would make for a run, without making it."""
    return next(_new_folders(config.model, config.ranks, purpose))


def _new_folders(subject: str, ranks: int, purpose: str = "") -> Iterator[Path]:
    """Yield paths in ``runs`` that do not exist yet, named as ``create_output`` says."""
    # scp and rsync treat the text before a colon as a host.
    subject = subject.replace(":", "-")[:_LONGEST_NAME]
    name = f"{datetime.now().astimezone():%Y-%m-%dT%H-%M-%S}-{subject}-np{ranks}{purpose}"
    names = (name if n == 1 else f"{name}-{n}" for n in itertools.count(1))
    return (path for path in map(RUNS.joinpath, names) if not path.exists())


def require_writable(path: Path, *, to_be_made: Path | None) -> None:
    """Require before a run that a file can be written after the run.

    ``to_be_made`` is the folder that the run will make for its own files, so it need not exist yet.

    Raises:
        OutputError: the path is a folder, its folder is missing, or the file or its folder is read-only.
        UsageError: the run writes a file of this name itself.
    """
    if path == STANDARD_OUTPUT:
        return
    folder = path.absolute().parent
    if to_be_made and folder == to_be_made.absolute():
        if path.name in {*RESULT_FILES, CONFIG_FILE, "hostfile"}:
            raise UsageError(f"{path}: the run itself writes this file.", remedy="Choose another name.")
        return
    changed_path = path if path.exists() else folder
    if path.is_dir():
        problem = f"{path} is a folder."
    elif not folder.is_dir():
        problem = f"There is no folder {folder}."
    elif not os.access(changed_path, os.W_OK):
        problem = f"{changed_path} is read-only."
    else:
        return
    raise OutputError(f"{path} cannot be written.", found=problem, remedy="Choose another path for it.")
