"""Describe a case: its workload, its arm, and how its proof ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    ends: tuple[str, ...]
    """Outcomes that are right; ``refused`` is an error of a rank."""
    origin: str
    """Where the kind was reported, or ``own``."""
    names: tuple[str, ...] = ()
    """Texts that the gates must hold."""
    or_names: tuple[str, ...] = ()
    """Texts of the gates with which ``passed`` is right, too."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the run beside the suite's own."""
    mutation: str = ""
    """Name of what is patched in the ranks before they begin."""

    def __str__(self) -> str:
        return f"{self.name}-{self.arm}"


def right(*arms, origin, ends=("passed",), names=(), **settings):
    """Register a right workload, to be tried by each arm."""
    return _register(arms or ("ddp",), origin=origin, ends=_several(ends), names=names, settings=settings)


def wrong(*arms, origin, ends=FOUND, names=(), or_names=(), **settings):
    """Register a workload that no arm trains as one process would."""
    return _register(
        arms or ("own_torch",),
        origin=origin,
        ends=_several(ends),
        names=names,
        or_names=_several(or_names),
        settings=settings,
    )


def mutation(*arms, of, names=(), or_names=(), ends=("failed",), origin="own", **settings):
    """Register a fault in a strategy of ours.

    ``of`` is what it trains: ``file.py:factory``.
    """

    def register(patch):
        file, _, factory = of.partition(":")
        CASES.extend(
            Case(
                file=Path(__file__).parent / "workloads" / file,
                name=factory,
                arm=arm,
                ends=_several(ends),
                origin=origin,
                names=_several(names),
                or_names=_several(or_names),
                settings=settings,
                mutation=patch.__name__,
            )
            for arm in arms
        )
        return patch

    return register


def _register(arms, *, names=(), **described):
    def register(factory):
        file = Path(factory.__code__.co_filename)
        CASES.extend(
            Case(file=file, name=factory.__name__, arm=arm, names=_several(names), **described)
            for arm in arms
        )
        return factory

    return register


def _several(texts) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)
