"""Find out which backends can run on this machine, and which variable keeps a library from loading.

Each library is loaded once in a process of its own, and each launcher is looked for.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from backends import BACKENDS, Backend, Runtime
from backends.launchers import LAUNCHERS, find_launcher, missing_launcher_clause
from compare.doctor.checkup import Probe
from compare.doctor.facts import Library
from compare.errors import UnavailableError
from compare.schema.environment import import_path, library_settings

_PROBE_SECONDS = 60.0
_LOADER_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "LD_BIND_NOW", "PYTHONHOME", "PYTHONPATH")
"""Variables that the dynamic loader and Python read before a library's own code runs."""
_SHOWN_CHARACTERS = 60


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a backend can run on this machine; if not, ``problem`` says why and ``remedy`` what to do."""

    backend: str
    """Name of the backend, with its option if that needs other libraries, as ``mpi:library=mpich``."""
    version: str = ""
    transport: str = ""
    launcher: str
    problem: str = ""
    remedy: str = ""


class Survey(msgspec.Struct, frozen=True):
    """The backends and libraries of this machine, by their names."""

    backends: dict[str, Availability]
    libraries: dict[str, Library]
    choices: dict[str, Availability] = {}
    """Options that need other libraries than their backend, keyed by arm, as ``mpi:library=mpich``."""

    @property
    def gpus(self) -> int:
        """Return the number of CUDA devices that torch finds."""
        return int(self.libraries["torch"].facts.get("gpus", 0))

    @property
    def shared_memory_problem(self) -> str:
        """Return why ranks cannot share memory on this machine; empty if they can or torch does not load."""
        return str(self.libraries["torch"].facts.get("shared_memory_problem", ""))

    def of(self, name: str, options: Mapping[str, Any]) -> Availability:
        """Return the availability of a backend with these options on this machine."""
        arms = (f"{name}:{option.name}={options.get(option.name)}" for option in BACKENDS[name].options)
        return next((self.choices[arm] for arm in arms if arm in self.choices), self.backends[name])

    def require(self, name: str, options: Mapping[str, Any]) -> None:
        """Require that a backend can run with these options on this machine.

        Raises:
            UnavailableError: it cannot; with the reason and the remedy.
        """
        availability = self.of(name, options)
        if availability.problem:
            raise UnavailableError(
                f"{availability.backend} cannot run here.",
                found=availability.problem,
                remedy=availability.remedy,
            )
        backend = BACKENDS[name]
        for option in backend.options:
            chosen = options.get(option.name)
            if not option.offered_in or chosen is None:
                continue
            library = backend.default_runtime.libraries[-1]
            offered = self.libraries[library].facts.get(option.offered_in, [])
            if chosen not in offered:
                raise UnavailableError(
                    f"{library.title()} was built without its {chosen} {option.name}.",
                    found=f"It has: {', '.join(offered)}.",
                    remedy=option.rebuild,
                )


def survey(wanted: Iterable[str] = ()) -> Survey:
    """Load torch and the libraries of the ``wanted`` backends, and find their launchers.

    Without names, all backends are surveyed. This takes a second or two, and longer if a library does not
    load, because variables that may be the cause are then tried.
    """
    backends = [BACKENDS[name] for name in dict.fromkeys(wanted)] or list(BACKENDS.values())
    choices = {
        f"{backend.name}:{option.name}={choice}": (backend, runtime)
        for backend in backends
        for option in backend.options
        for choice, runtime in option.runtimes.items()
    }
    arms = {backend.name: (backend, backend.runtime({})) for backend in backends} | choices
    libraries = load(
        ["torch", *sorted({library for _, runtime in arms.values() for library in runtime.libraries})]
    )
    faults = _faults(libraries)
    judged = {arm: _judge(arm, *needed, libraries, faults) for arm, needed in arms.items()}
    return Survey(
        {backend.name: judged[backend.name] for backend in backends},
        libraries,
        {arm: judged[arm] for arm in choices},
    )


def _faults(libraries: Mapping[str, Library]) -> dict[str, tuple[str, str]]:
    """Return for each library that cannot be used the reason and a remedy, by its name.

    The remedy is empty if the library is to be installed, which is done differently for each arm.
    """
    faults = {}
    for name, library in libraries.items():
        if library.missing:
            faults[name] = f"{name} is not installed", "pip install torch" if name == "torch" else ""
        elif library.problem:
            # What keeps torch from loading keeps the others, too.
            to_be_tried = name == "torch" or not libraries["torch"].problem
            suspects = find_suspects(partial(_loads, name), os.environ) if to_be_tried else []
            shown = f"{shlex.join([sys.executable, '-c', 'import torch'])}, which shows the whole error"
            remedy = unset(name, suspects, os.environ) or (shown if name == "torch" else "")
            faults[name] = f"{name} does not load: {library.problem}", remedy
    return faults


def _loads(name: str, environ: Mapping[str, str]) -> bool:
    return bool(load([name], environ=environ)[name].facts)


def load(
    names: Iterable[str], seconds: float = _PROBE_SECONDS, *, environ: Mapping[str, str] = os.environ
) -> dict[str, Library]:
    """Load libraries at the same time, each in a process of its own, and return the outcomes by name.

    The names are those that ``backends.probe`` knows. A library that does not answer within ``seconds`` is
    reported as one that does not load.
    """
    # The working folder is left out: it may contain another module of that name.
    environment = {**environ, "PYTHONPATH": import_path(environ), "PYTHONSAFEPATH": "1"}
    probes: list[Probe] = []
    try:
        probes.extend(Probe(name, environment) for name in names)
        return {probe.name: msgspec.convert(probe.read(seconds), Library) for probe in probes}
    finally:
        for probe in probes:  # after Ctrl-C some still run
            probe.end()


def _judge(
    arm: str,
    backend: Backend,
    runtime: Runtime,
    libraries: Mapping[str, Library],
    faults: Mapping[str, tuple[str, str]],
) -> Availability:
    needed = ("torch", *runtime.libraries)
    facts = libraries[needed[-1]].facts
    problem, remedy = next((faults[name] for name in needed if name in faults), ("", ""))
    if problem:
        remedy = remedy or runtime.install
    elif find_launcher(runtime.launcher) is None:
        problem, remedy = missing_launcher_clause(runtime.launcher), LAUNCHERS[runtime.launcher].REMEDY
    return Availability(
        backend=arm,
        version=facts.get("version", ""),
        transport=facts.get("transport", "") if backend.communicates else "none",
        launcher=runtime.launcher,
        problem=problem,
        remedy=remedy,
    )


# ---- variables that keep a library from loading ----------------------------------------------------------


def find_suspects(loads: Callable[[Mapping[str, str]], bool], environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables without which a library loads; empty if removing all does not help.

    ``loads`` returns whether the library loads in an environment. A try takes a second or two, so each try
    leaves out half of the variables. If leaving out one is not enough, all that are set are returned.
    """
    suspects = [name for name in (*_LOADER_VARIABLES, *library_settings(environ)) if environ.get(name)]
    suspects = list(dict.fromkeys(suspects))
    if not suspects or not loads(_without(suspects, environ)):
        return []
    fewer = suspects
    while len(fewer) > 1:
        half = fewer[: len(fewer) // 2]
        fewer = half if loads(_without(half, environ)) else fewer[len(half) :]
    # Leaving out one variable may not be enough.
    return fewer if len(suspects) == 1 or loads(_without(fewer, environ)) else suspects


def unset(name: str, suspects: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return the command that unsets the ``suspects`` of library ``name``, with the reason as a comment.

    Empty without suspects.
    """
    names = list(suspects)
    held = ", ".join(f"{variable}={_short(environ[variable])}" for variable in names)
    return f"unset {' '.join(names)}  # {name} loads without {held}" if names else ""


def _without(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    left_out = set(names)
    return {name: value for name, value in environ.items() if name not in left_out}


def _short(value: str) -> str:
    first = value.split(os.pathsep, maxsplit=1)[0]
    return value if len(value) <= _SHOWN_CHARACTERS else f"{first[:_SHOWN_CHARACTERS]}…"
