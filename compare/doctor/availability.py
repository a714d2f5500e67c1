"""What can run here: each library loaded once, in a process of its own, and each launcher looked for."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from backends import BACKENDS, Backend
from backends.launchers import LAUNCHERS, find_launcher, where_it_is_not
from compare.errors import UnavailableError
from compare.schema.environment import import_path

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROBE_SECONDS = 60.0


class Found(msgspec.Struct, frozen=True):
    """One library, as it answered when it was loaded."""

    facts: dict[str, Any] = {}
    problem: str = ""
    """Why it could not be loaded; empty when it was."""


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a backend can run here, or why not and what to do."""

    backend: str
    version: str = ""
    transport: str = ""
    launcher: str
    problem: str = ""
    remedy: str = ""


class Survey(msgspec.Struct, frozen=True):
    """What was found on this machine."""

    backends: dict[str, Availability]
    libraries: dict[str, Found]

    @property
    def gpus(self) -> int:
        """Number of CUDA devices that torch sees."""
        return int(self.libraries["torch"].facts.get("gpus", 0))

    @property
    def shared_memory_problem(self) -> str:
        """Why ranks cannot share memory here; empty where they can."""
        return str(self.libraries["torch"].facts.get("shared_memory_problem", ""))

    def require(self, name: str, options: dict[str, Any]) -> None:
        """Insist on a backend that was asked for by name.

        Raises:
            UnavailableError: it cannot run here; with the reason and the remedy.
        """
        availability = self.backends[name]
        if availability.problem:
            raise UnavailableError(
                f"{name} cannot run here.", found=availability.problem, remedy=availability.remedy
            )
        controllers = self.libraries["horovod"].facts.get("controllers", []) if name == "horovod" else []
        controller = options.get("controller")
        if controller and controller not in controllers:
            raise UnavailableError(
                f"This Horovod was built without its {controller} controller.",
                found=f"It has: {', '.join(controllers)}.",
                remedy="pip install 'ringside[mpi]' && compare install horovod --force",
            )


def survey(wanted: Iterable[str] = ()) -> Survey:
    """Load the libraries that backends need and look for their launchers. Takes a second or two.

    Args:
        wanted: names of the backends that matter; all of them, where none are named.
    """
    backends = [BACKENDS[name] for name in dict.fromkeys(wanted)] or list(BACKENDS.values())
    names = ["torch", *sorted({library for backend in backends for library in backend.libraries})]
    probes: dict[str, subprocess.Popen[str]] = {}
    with ExitStack() as held:
        try:
            for name in names:
                probes[name] = _start_probe(name, held)
            libraries = {name: _read_probe(name, probe) for name, probe in probes.items()}
        finally:
            for probe in probes.values():  # where there was an interrupt: one may hang for ever
                probe.kill()
                probe.wait()
    return Survey({backend.name: _judge(backend, libraries) for backend in backends}, libraries)


def _start_probe(name: str, held: ExitStack) -> subprocess.Popen[str]:
    # It ends itself when the other end is closed, which is held open for as long as this process lives.
    alive, other_end = os.pipe()
    held.callback(os.close, other_end)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "backends.probe", name],
            env=os.environ | {"PYTHONPATH": import_path(os.environ)},
            stdin=alive,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(alive)


def _read_probe(name: str, process: subprocess.Popen[str]) -> Found:
    try:
        printed, errors = process.communicate(timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return Found(problem=f"{name} did not load within {_PROBE_SECONDS:g} s")
    if process.returncode == 0 and (answer := _last_line(printed)).startswith("{"):
        return Found(facts=msgspec.json.decode(answer))
    last = _last_line(errors) or f"status {process.returncode}"
    missing = f"No module named '{name}" in last
    return Found(problem=f"{name} is not installed" if missing else f"{name} does not load: {last}")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _judge(backend: Backend, libraries: dict[str, Found]) -> Availability:
    needed = ("torch", *backend.libraries)
    facts = libraries[needed[-1]].facts
    problem = next((libraries[name].problem for name in needed if libraries[name].problem), "")
    remedy = backend.install or "pip install torch" if problem else ""
    if not problem and find_launcher(backend.launcher) is None:
        problem = where_it_is_not(backend.launcher)
        remedy = LAUNCHERS[backend.launcher].REMEDY
    return Availability(
        backend=backend.name,
        version=facts.get("version", ""),
        transport="none" if not backend.synchronises else facts.get("transport", ""),
        launcher=backend.launcher,
        problem=problem,
        remedy=remedy,
    )
