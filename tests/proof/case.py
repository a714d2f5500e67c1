"""Describe a case: its workload, its arm, and how its proof ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKLOADS = Path(__file__).parent / "workloads"
FOUND = ("failed", "nothing")
"""How the proof of a wrong step may end; ``refused`` and ``crashed`` are named by a case."""
CASES: list[Case] = []
"""The cases of all imported files, in their order."""


@dataclass(frozen=True)
class Case:
    """A workload's factory, or a mutation, with what its proof must tell."""

    file: Path
    name: str
    arm: str
    ends: tuple[str, ...] = ()
    """Outcomes that are right; ``refused`` is an error of a rank."""
    names: tuple[str, ...] = ()
    """Texts that the gates must hold."""
    or_names: tuple[str, ...] = ()
    """Texts of the gates with which ``passed`` is right, too."""
    is_right: bool = False
    is_first: bool = True
    """Whether it has the first of the arms that try its workload."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the run beside the suite's own."""
    mutation: str = ""
    """Name of what is patched in the ranks before they begin."""

    def __str__(self) -> str:
        ranks = f"-{self.settings['ranks']}-ranks" if "ranks" in self.settings else ""
        return f"{self.name}-{self.arm}{ranks}"


def right(*arms, origin, ends="passed", names=(), **settings):
    """Register a right workload, to be tried by each arm; ``origin`` is where it was reported, or ``own``."""
    return _register(arms, ends=ends, names=names, is_right=True, settings=settings)


def wrong(*arms, origin, ends=FOUND, names=(), or_names=(), **settings):
    """Register a workload that no arm trains as one process would."""
    return _register(arms or ("own_torch",), ends=ends, names=names, or_names=or_names, settings=settings)


def _register(arms, **described):
    def register(factory):
        add(arms, Path(factory.__code__.co_filename), factory.__name__, **described)
        return factory

    return register


def mutation(*arms, of, ends="failed", names=(), **settings):
    """Register a fault in a strategy of ours; ``of`` is what it trains: ``file.py:factory``."""

    def register(patch):
        file, _, factory = of.partition(":")
        add(
            arms,
            WORKLOADS / file,
            factory,
            ends=ends,
            names=names,
            settings=settings,
            mutation=patch.__name__,
        )
        return patch

    return register


def add(arms, file, name, *, ends, names=(), or_names=(), **described):
    """Add a case for each arm; single texts stand for tuples of one."""
    texts = [(given,) if isinstance(given, str) else given for given in (ends, names, or_names)]
    CASES.extend(Case(file, name, arm, *texts, is_first=arm == arms[0], **described) for arm in arms)
