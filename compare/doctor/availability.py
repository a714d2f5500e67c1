"""Find out which backends can run on this machine, and which variable keeps a library from loading.

Each library is loaded in a process of its own, and the executable of each launcher is looked for.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
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

_PROBE_SECONDS, _PROBE_MOST_SECONDS = 60.0, 300.0
_LOADER_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "LD_BIND_NOW", "PYTHONHOME", "PYTHONPATH")
"""Variables that the dynamic loader and Python read before a library's own code runs."""
_SHOWN_CHARACTERS = 60
_SILENT_SECONDS = 5.0
"""Time after which a survey says what it waits for."""


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a backend can run on this machine; if not, it has a ``problem``, and perhaps a ``remedy``."""

    backend: str
    """Name of the backend, with an option if that needs other libraries, such as ``mpi:library=mpich``."""
    version: str = ""
    transport: str = ""
    launcher: str
    problem: str = ""
    remedy: str = ""
    is_known: bool = True
    """False if a library gave no answer, so that the backend may be able to run after all."""

    @property
    def here(self) -> str:
        """Return whether the backend can run here: ``yes``, ``no``, or ``?`` if that is not known."""
        return "yes" if not self.problem else "no" if self.is_known else "?"


class Survey(msgspec.Struct, frozen=True):
    """What was found out about the backends and libraries of this machine, by their names."""

    backends: dict[str, Availability]
    libraries: dict[str, Library]
    choices: dict[str, Availability] = {}
    """Backends with an option that needs other libraries, by their arm, such as ``mpi:library=mpich``."""

    @property
    def gpus(self) -> int:
        """Return the number of CUDA devices that torch finds."""
        return int(self.libraries["torch"].facts.get("gpus", 0))

    @property
    def shared_memory_problem(self) -> str:
        """Return why ranks cannot share memory here; empty if they can, or if torch does not load."""
        return str(self.libraries["torch"].facts.get("shared_memory_problem", ""))

    def of(self, name: str, options: Mapping[str, Any]) -> Availability:
        """Return whether a backend can run with these options on this machine."""
        arms = (f"{name}:{option.name}={options.get(option.name)}" for option in BACKENDS[name].options)
        return next((self.choices[arm] for arm in arms if arm in self.choices), self.backends[name])

    def require(self, name: str, options: Mapping[str, Any]) -> None:
        """Require that a backend can run with these options on this machine.

        Raises:
            UnavailableError: it cannot run; the error has the reason and the remedy.
        """
        availability = self.of(name, options)
        if availability.problem:
            what = "{} cannot run here." if availability.is_known else "Whether {} can run here is not known."
            raise UnavailableError(
                what.format(availability.backend),
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


def survey(wanted: Iterable[str] = (), say: Callable[[str], None] = lambda _line: None) -> Survey:
    """Find out which of the ``wanted`` backends can run, by loading torch and all their libraries.

    If that takes long, ``say`` receives a line that tells what is waited for.

    Without names, all backends are surveyed. This takes a second or two, and longer if a library does not
    load, because it is then loaded again without variables that may be the cause.
    """
    backends = [BACKENDS[name] for name in dict.fromkeys(wanted)] or list(BACKENDS.values())
    choices = {
        f"{backend.name}:{option.name}={choice}": (backend, runtime)
        for backend in backends
        for option in backend.options
        for choice, runtime in option.runtimes.items()
    }
    arms = {backend.name: (backend, backend.runtime({})) for backend in backends} | choices
    names = ["torch", *sorted({library for _, runtime in arms.values() for library in runtime.libraries})]
    line = f"Loading {', '.join(names)}, each in a process, to see which arms can run here …"
    notice = threading.Timer(_SILENT_SECONDS, say, [line])
    notice.daemon = True
    notice.start()
    try:
        libraries = load(names)
        faults = _find_faults(libraries)
    finally:
        notice.cancel()
    availabilities = {arm: _availability_of(arm, *needed, libraries, faults) for arm, needed in arms.items()}
    return Survey(
        {backend.name: availabilities[backend.name] for backend in backends},
        libraries,
        {arm: availabilities[arm] for arm in choices},
    )


def _find_faults(libraries: Mapping[str, Library]) -> dict[str, tuple[str, str]]:
    """Return the reason and a remedy for each library that cannot be used, by the name of the library.

    The remedy is empty if the library must be installed, because that is done differently for each arm.
    """
    faults = {}
    for name, library in libraries.items():
        if library.missing:
            faults[name] = f"{name} is not installed", "pip install torch" if name == "torch" else ""
        elif library.unanswered:
            faults[name] = f"{name} gave {library.unanswered}", _try_again(name)
        elif library.problem:
            # What keeps torch from loading keeps the others from it, too.
            is_worth_trying = name == "torch" or not libraries["torch"].problem
            suspects = find_suspects(partial(_loads, name), os.environ) if is_worth_trying else []
            import_torch = shlex.join([sys.executable, "-c", "import torch"])
            whole_error = f"{import_torch}, which shows the whole error"
            remedy = unset_command(name, suspects, os.environ) or (whole_error if name == "torch" else "")
            faults[name] = f"{name} does not load: {library.problem}", remedy
    return faults


def _try_again(name: str) -> str:
    command = shlex.join([sys.executable, "-m", "backends.probe", name])
    return f"{command}, which loads it without a limit, or try again when this machine is quieter"


def require_answer(name: str, library: Library) -> None:
    """Require that a library answered, whether it loads or not.

    Raises:
        UnavailableError: it gave no answer in time, so nothing is known of it.
    """
    if library.unanswered:
        raise UnavailableError(
            f"Whether {name} loads is not known.",
            found=f"It gave {library.unanswered}.",
            remedy=f"Run: {_try_again(name)}.",
        )


def _loads(name: str, environ: Mapping[str, str]) -> bool:
    return bool(load([name], environ=environ)[name].facts)


def load(
    names: Iterable[str],
    seconds: float = _PROBE_SECONDS,
    most_seconds: float = _PROBE_MOST_SECONDS,
    *,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Library]:
    """Load libraries at the same time, each in a process of its own, and return the outcomes by name.

    The names are those that ``backends.probe`` knows. A library gave no answer if it is not loaded after
    ``seconds``, and its process no longer works or ``most_seconds`` are over.
    """
    # The working folder is left out: it may contain another module of that name.
    environment = {**environ, "PYTHONPATH": import_path(environ), "PYTHONSAFEPATH": "1"}
    probes: list[Probe] = []
    try:
        probes.extend(Probe(name, environment) for name in names)
        return {probe.name: msgspec.convert(probe.read(seconds, most_seconds), Library) for probe in probes}
    finally:
        for probe in probes:  # after Ctrl-C some still run
            probe.end()


def _availability_of(
    arm: str,
    backend: Backend,
    runtime: Runtime,
    libraries: Mapping[str, Library],
    faults: Mapping[str, tuple[str, str]],
) -> Availability:
    needed = ("torch", *runtime.libraries)
    facts = libraries[needed[-1]].facts
    faulty = next((name for name in needed if name in faults), "")
    problem, remedy = faults.get(faulty, ("", ""))
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
        is_known=not (faulty and libraries[faulty].unanswered),
    )


# ---- variables that keep a library from loading ----------------------------------------------------------


def find_suspects(loads: Callable[[Mapping[str, str]], bool], environ: Mapping[str, str]) -> list[str]:
    """Return the names of the environment variables that keep a library from loading.

    ``loads`` returns whether the library loads in a given environment. A try takes a second or two, so each
    try leaves out half of the variables. If no single variable is the cause, all that are set are returned.
    The result is empty if the library does not load without any of them.
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


def unset_command(name: str, suspects: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return the command that unsets the ``suspects`` of library ``name``, with the reason as a comment.

    It is empty without suspects.
    """
    names = list(suspects)
    values = ", ".join(f"{variable}={_short(environ[variable])}" for variable in names)
    return f"unset {' '.join(names)}  # {name} loads without {values}" if names else ""


def _without(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    left_out = set(names)
    return {name: value for name, value in environ.items() if name not in left_out}


def _short(value: str) -> str:
    first = value.split(os.pathsep, maxsplit=1)[0]
    return value if len(value) <= _SHOWN_CHARACTERS else f"{first[:_SHOWN_CHARACTERS]}…"
