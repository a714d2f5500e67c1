"""Make the document of ``ringside backends``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from backends import BACKENDS, UNREADABLE, Backend, Option
from compare.doctor.availability import Availability, Survey
from compare.report.document import Column, Document, Row, Table
from compare.schema.arms import Arm

DEFAULT, SAME, OTHER = (
    "Arms of a plain ringside run",
    "Arms that train the same, and run only if you name them",
    "Arms that train otherwise, and run only if you name them: read accuracy and loss",
)
_ABOUT = "what it is, or why it is not here"
_ON_ONE_HOST = "for ranks on the CPUs of one host"
_FEWEST_GPUS = 2
_OPTION_CELLS = 42
_NEVER = (
    ("torchcomms", "the package index holds an empty 0.0.1 only"),
    ("DeepSpeed", "it trains here, but in float32 alone, so the proof in float64 refuses it"),
    ("process_group=ucc", "torch's wheels are built without UCC"),
    ("process_group=mpi", "torch must be compiled with an MPI for it; the arm mpi needs no such torch"),
    ("process_group=xccl", "for Intel GPUs, with a torch that is built for them"),
    ("oneCCL", "its binding (oneccl_bind_pt) has no release for this torch"),
)
"""Arms and options that are not offered, with the reasons."""


class _Arm(NamedTuple):
    """An arm of the list, with its availability on this machine."""

    backend: Backend
    availability: Availability
    summary: str
    lacks_gpus: bool = False
    """Whether the machine has fewer than two GPUs."""
    by_default: bool = False
    """Whether a run without ``--backend`` includes the arm, unless it trains otherwise."""

    @property
    def problem(self) -> str:
        """Return why the arm cannot run, and the command that helps; empty if it can run."""
        remedy = f"; run: {self.availability.remedy}" if self.availability.remedy else ""
        why_gpus = self.backend.not_on_cpus if self.lacks_gpus else ""
        return f"{self.availability.problem}{remedy}" if self.availability.problem else why_gpus

    @property
    def group(self) -> str:
        """Return the title of the table in which the arm is listed."""
        if self.backend.training != "same":
            return OTHER
        return DEFAULT if self.by_default else SAME

    @property
    def row(self) -> Row:
        """Return the arm's row: its name, whether it can run, and why not or what it is, above its facts."""
        claims = ", ".join(self.backend.claims)
        facts = (self.availability.launcher, self.availability.version, self.availability.transport, claims)
        about = f"{self.problem or self.summary}\n{' · '.join(filter(None, facts))}"
        here = "no" if self.problem and not self.availability.problem else self.availability.here
        cells = (self.availability.backend, here, about)
        return Row(cells, "doubtful" if self.problem else "")

    @property
    def record(self) -> dict[str, Any]:
        """Return the facts about the arm for programs."""
        return {
            "arm": self.availability.backend,
            "available": not self.problem,
            "problem": self.problem,
            "summary": self.summary,
            "version": self.availability.version,
            "transport": self.availability.transport,
            "launcher": self.availability.launcher,
            "training": self.backend.training,
            "shards": self.backend.shards,
            "claims": self.backend.claims,
            "by_default": self.group == DEFAULT,
            "options": {option.name: option.default for option in self.backend.options},
        }


def document_of(survey: Survey) -> Document:
    """Return the document with the arms of a survey and their options.

    A survey of every backend also gets the arms that are not offered, and how options are swept.
    """
    arms = list(_arms(survey))
    groups = {title: [arm.row for arm in arms if arm.group == title] for title in (DEFAULT, SAME, OTHER)}
    others = {
        "Not to be had": [*_unavailable(survey)] if survey.backends.keys() == BACKENDS.keys() else [],
        "Options, written backend:option=value:option=value": [*_options(survey)],
    }
    able = sum(not arm.problem for arm in arms)
    return Document(
        title=f"{able} of {len(arms)} arms can run here",
        tables=[
            *(_table(title, rows, "arm", "here", _ABOUT) for title, rows in groups.items() if rows),
            *(_table(title, [*map(Row, rows)], "", "") for title, rows in others.items() if rows),
        ],
        content=lambda: [arm.record for arm in arms],
    )


def _arms(survey: Survey) -> Iterator[_Arm]:
    """Yield each backend as an arm, then its second default arm and its arms with other libraries."""
    lacks_gpus = survey.gpus < _FEWEST_GPUS
    for name, availability in survey.backends.items():
        backend = BACKENDS[name]
        by_default = not backend.only_named
        yield _Arm(backend, availability, backend.summary, lacks_gpus, by_default)
        if backend.on_one_host:
            second = msgspec.structs.replace(
                availability,
                backend=Arm(name, dict(backend.on_one_host)).label,
                problem=availability.problem or survey.shared_memory_problem,
                transport="shared memory",
            )
            yield _Arm(backend, second, _ON_ONE_HOST, lacks_gpus, by_default)
        for arm, other in survey.choices.items():
            if arm.partition(":")[0] == name:
                yield _Arm(backend, other, backend.summary, lacks_gpus)


def _table(title: str, rows: list[Row], *headings: str) -> Table:
    columns = [Column(heading, str, is_text=True) for heading in headings]
    return Table(columns=columns, rows=rows, title=title, is_prose=True)


def _unavailable(survey: Survey) -> Iterator[tuple[str, str]]:
    groups = survey.libraries["torch"].facts.get("process_groups", ())
    nccl = "this torch is built without it" if "nccl" not in groups else ""
    nccl = nccl or ("" if survey.gpus else "it needs a GPU, and torch finds none")
    if nccl:
        yield "process_group=nccl", nccl
    yield from UNREADABLE.items()
    yield from _NEVER


def _options(survey: Survey) -> Iterator[tuple[str, str]]:
    for name in survey.backends:
        for option in BACKENDS[name].options:
            yield _example(BACKENDS[name], option), option.summary
    if "ddp" in survey.backends:
        yield "ddp:bucket_cap_mb={1,5,25}", "a sweep, of any option: three arms"
        yield "ddp:env.NCCL_ALGO=Ring", "set in the environment of this arm's ranks alone"


def _example(backend: Backend, option: Option) -> str:
    """Return an option with all of its values as text, with as many on a line as fit."""
    number = (f"{option.default:g}",) if not isinstance(option.default, str) else ()
    values = option.choices or (("true", "false") if option.kind == "switch" else number)
    lines = [f"{backend.name}:{option.name}="]
    for index, value in enumerate(values):
        word = f"|{value}" if index else value
        if len(lines[-1] + word) > _OPTION_CELLS:
            lines.append("    ")
        lines[-1] += word
    return "\n".join(lines)
