"""Ask another interpreter what it is and what it has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from compare import PACKAGE_ROOT, PROTOCOL, __version__
from compare.errors import UnavailableError, UsageError, system_reason
from compare.schema.environment import inherited
from compare.schema.interpreter import Interpreter

_ANSWER_SECONDS = 60.0
"""Maximum time for an interpreter to start and to answer."""
_NEEDED = ("torch", "msgspec")
"""What a rank needs besides the code of the worker."""
_QUESTION = """
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
print(json.dumps(found))
"""


def find_interpreter(written: str) -> Interpreter:
    """Return the interpreter of an environment, given its path.

    Its own package of Ringside runs there, if it has the same protocol. Else this package's sources do.

    Raises:
        UnavailableError: it cannot be executed, or lacks a library.
        UsageError: there is no such file.
    """
    executable = shutil.which(written)
    if executable is None:
        raise UsageError(
            f"--against {written} is no program.",
            remedy="Name the interpreter of the other environment: /path/to/venv/bin/python.",
        )
    path = Path(executable).absolute()  # not resolved: a link chooses the environment
    found = _ask(path)
    missing = [name for name in _NEEDED if name not in found["versions"]]
    if missing:
        raise UnavailableError(
            f"{path} lacks {' and '.join(missing)}.",
            found=f"It is Python {found['python']} in {found['prefix']}.",
            remedy=f"Install them there: {path} -m pip install {' '.join(missing)}",
        )
    own = found.get("protocol") == PROTOCOL
    return Interpreter(
        executable=str(path),
        prefix=found["prefix"],
        python=found["python"],
        torch=found["versions"]["torch"],
        ringside=found["ringside"] if own else __version__,
        sources=found["sources"] if own else str(PACKAGE_ROOT),
        own_sources=own,
    )


def _ask(path: Path) -> dict[str, Any]:
    """Let an interpreter describe itself.

    Its own packages count alone, not those that your PYTHONPATH names.
    """
    environment = {name: value for name, value in inherited(os.environ).items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [str(path), "-c", _QUESTION, *_NEEDED],
            env=environment | {"PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_SECONDS,
        )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        printed = done.stderr.strip()[-500:] if "done" in locals() else ""
        reason = system_reason(error) if isinstance(error, OSError) else printed or str(error)
        raise UnavailableError(
            f"{path} does not answer as a Python interpreter.",
            found=reason,
            remedy="Name the interpreter of the other environment: /path/to/venv/bin/python.",
        ) from None
    return answer
