"""Ask another Python interpreter for its version, its libraries and its copy of Ringside."""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from pathlib import Path

import msgspec

from backends.launchers.request import MARKER
from compare import PACKAGE_ROOT, PROTOCOL, __version__
from compare.errors import UnavailableError, UsageError
from compare.launch.engines import STREAM_BYTES, Carrier
from compare.launch.engines.commands import run_everywhere
from compare.launch.processes import end_all
from compare.schema.arms import Interpreter
from compare.schema.hosts import local_host
from compare.text import printable

_ANSWER_SECONDS = 30.0
"""Maximum time for an interpreter to start and to answer."""
_NEEDED_PACKAGES = ("torch", "msgspec", "psutil", "numpy")
"""Packages that a rank imports besides Ringside, whichever its arm."""
_DESCRIBE = """
import importlib.metadata as metadata, json, platform, sys
found = {"prefix": sys.prefix, "python": platform.python_version(), "versions": {}}
for name in sys.argv[1:]:
    try:
        found["versions"][name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
try:
    import compare
    found |= {"sources": str(compare.PACKAGE_ROOT), "ringside": compare.__version__}
    found["protocol"] = getattr(compare, "PROTOCOL", None)
except (ImportError, AttributeError):
    pass
print()
print(json.dumps(found))
"""


class _Description(msgspec.Struct):
    """What an interpreter prints about itself when it executes ``_DESCRIBE``."""

    prefix: str
    """The folder of its environment."""
    python: str
    """The version of Python."""
    versions: dict[str, str]
    """The version of each needed package that is installed, by its name."""
    sources: str = ""
    """The folder from which it imports Ringside; empty if it has none."""
    ringside: str = ""
    """The version of its Ringside; empty if it has none."""
    protocol: int | None = None
    """Number of the protocol with which its Ringside's parent and ranks communicate; None if it has none."""


def find_interpreter(against: str) -> Interpreter:
    """Return the description of another environment's interpreter, whose path or name ``--against`` gives.

    Ranks in that environment run its own Ringside if that has the same protocol as this one. Otherwise they
    run the sources of this Ringside.

    Raises:
        UnavailableError: the interpreter cannot be executed, or lacks a library.
        UsageError: there is no such program that can be executed.
    """
    executable = shutil.which(against)
    if executable is None:
        raise UsageError(
            f"--against {against}: no executable program was found.",
            remedy="Name the interpreter of the other environment: /path/to/venv/bin/python.",
        )
    path = Path(executable).absolute()  # not resolved: a link chooses the environment
    description = _ask(path)
    missing = [name for name in _NEEDED_PACKAGES if name not in description.versions]
    if missing:
        raise UnavailableError(
            f"{path} lacks {', '.join(missing)}, which every rank imports.",
            found=f"It is Python {description.python} in {description.prefix}.",
            remedy=f"Install them there: {path} -m pip install {' '.join(missing)}",
        )
    has_own_sources = description.protocol == PROTOCOL
    return Interpreter(
        executable=str(path),
        prefix=description.prefix,
        python=description.python,
        torch=description.versions["torch"],
        ringside=description.ringside if has_own_sources else __version__,
        sources=description.sources if has_own_sources else str(PACKAGE_ROOT),
        own_sources=has_own_sources,
    )


def _ask(path: Path) -> _Description:
    """Return what the interpreter at ``path`` prints about itself.

    It runs without the user's PYTHONPATH, so that only its own packages count. Afterwards no process that it
    started is left, unless one changed both its process group and its environment.

    Raises:
        UnavailableError: it cannot be executed, is too slow, or prints something else.
    """
    name = f"ringside-{uuid.uuid4()}"
    command = ("env", f"{MARKER}={name}", "PYTHONPATH=", "PYTHONSAFEPATH=1", str(path), "-c", _DESCRIBE)
    here = [local_host(1)]
    try:
        (answer,) = run_everywhere(
            here, (*command, *_NEEDED_PACKAGES), carrier=Carrier(), timeout_seconds=_ANSWER_SECONDS
        )
    finally:
        end_all(name)
    printed = answer.stdout.decode(errors="replace").strip().splitlines()
    found = answer.last_lines or printable("\n".join(printed[-3:])) or "It printed no description of itself."
    # The last line may be a warning, which an interpreter prints as it exits.
    objects = [line for line in answer.stdout.splitlines() if line.startswith(b"{")]
    if answer.flooded:
        found = f"It printed more than {STREAM_BYTES >> 20} MiB."
    elif answer.status is None:
        found = f"It did not end within {_ANSWER_SECONDS:g} s."
    elif objects:
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(objects[-1], type=_Description)
    raise UnavailableError(
        f"{path} did not answer as a Python interpreter does.",
        found=found,
        remedy="Name the interpreter of the other environment: /path/to/venv/bin/python.",
    )
