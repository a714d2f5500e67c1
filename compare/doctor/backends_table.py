"""Make the document of ``compare backends``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from backends import BACKENDS, UNREADABLE, Backend, Option
from compare.doctor.availability import Availability, Survey
from compare.report.document import Column, Document, Row, Table
from compare.schema.arms import Arm

DEFAULT, SAME, OTHER = (
    "Arms of a plain compare run",
    "Arms that train the same, and run only if you name them",
    "Arms that train otherwise, and run only if you name them: read accuracy and loss",
)
_ABOUT = "what it is, or why it is not here"
_ON_ONE_HOST = "for ranks on the CPUs of one host"
_FEWEST_GPUS = 2
_OPTION_CELLS = 42
_NEVER = (
    ("torchcomms", "the package index holds an empty 0.0.1 only"),
    ("process_group=ucc", "torch's wheels are built without UCC"),
    ("process_group=mpi", "torch must be compiled with an MPI for it; the arm mpi needs no such torch"),
    ("process_group=xccl", "for Intel GPUs, with a torch that is built for them"),
    ("oneCCL", "its binding (oneccl_bind_pt) has no release for this torch"),
)
"""What cannot be had, with the reasons."""


class _Arm(NamedTuple):
    """An arm with what was found of it."""

    backend: Backend
    found: Availability
    summary: str
    lacks_gpus: bool = False
    by_default: bool = False

    @property
    def problem(self) -> str:
        """Return why the arm cannot run, with the command that helps; empty if it can."""
        remedy = f"; run: {self.found.remedy}" if self.found.remedy else ""
        lacking = self.backend.not_on_cpus if self.lacks_gpus else ""
        return f"{self.found.problem}{remedy}" if self.found.problem else lacking

    @property
    def group(self) -> str:
        """Return the title of the table that shows the arm."""
        if self.backend.training != "same":
            return OTHER
        return DEFAULT if self.by_default else SAME

    @property
    def row(self) -> Row:
        """Return the arm's name, whether it can run, and two lines about it; doubtful if it cannot run."""
        claims = ", ".join(self.backend.claims)
        facts = (self.found.launcher, self.found.version, self.found.transport, claims)
        about = f"{self.problem or self.summary}\n{' · '.join(filter(None, facts))}"
        cells = (self.found.backend, "no" if self.problem else "yes", about)
        return Row(cells, "doubtful" if self.problem else "")

    @property
    def record(self) -> dict[str, Any]:
        """Return the same facts for programs."""
        return {
            "arm": self.found.backend,
            "available": not self.problem,
            "problem": self.problem,
            "summary": self.summary,
            "version": self.found.version,
            "transport": self.found.transport,
            "launcher": self.found.launcher,
            "training": self.backend.training,
            "shards": self.backend.shards,
            "claims": self.backend.claims,
            "by_default": self.group == DEFAULT,
            "options": {option.name: option.default for option in self.backend.options},
        }


def document_of(survey: Survey) -> Document:
    """Show the arms, what cannot be had, and all options."""
    arms = list(_arms(survey))
    groups = {title: [arm.row for arm in arms if arm.group == title] for title in (DEFAULT, SAME, OTHER)}
    here = sum(not arm.problem for arm in arms)
    return Document(
        title=f"{here} of {len(arms)} arms can run here",
        tables=[
            *(_table(title, rows, "arm", "here", _ABOUT) for title, rows in groups.items() if rows),
            _table("Not to be had", [*map(Row, _unavailable(survey))], "", ""),
            _table("Options, written backend:option=value:option=value", [*map(Row, _options())], "", ""),
        ],
        content=lambda: [arm.record for arm in arms],
    )


def _arms(survey: Survey) -> Iterator[_Arm]:
    """Yield each backend, its second default arm, and its other libraries."""
    lacks_gpus = survey.gpus < _FEWEST_GPUS
    for name, backend in BACKENDS.items():
        found, plain = survey.backends[name], not backend.only_named
        yield _Arm(backend, found, backend.summary, lacks_gpus, plain)
        if backend.on_one_host:
            second = msgspec.structs.replace(
                found,
                backend=Arm(name, dict(backend.on_one_host)).label,
                problem=found.problem or survey.shared_memory_problem,
                transport="shared memory",
            )
            yield _Arm(backend, second, _ON_ONE_HOST, lacks_gpus, plain)
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


def _options() -> Iterator[tuple[str, str]]:
    for backend in BACKENDS.values():
        for option in backend.options:
            yield _example(backend, option), option.summary
    yield "ddp:bucket_cap_mb={1,5,25}", "a sweep, of any option: three arms"
    yield "ddp:env.NCCL_ALGO=Ring", "set in the environment of this arm's ranks alone"


def _example(backend: Backend, option: Option) -> str:
    """Write an option with its values, as many on a line as fit."""
    number = (f"{option.default:g}",) if not isinstance(option.default, str) else ()
    values = option.choices or (("true", "false") if option.kind == "switch" else number)
    lines = [f"{backend.name}:{option.name}="]
    for index, value in enumerate(values):
        word = f"|{value}" if index else value
        if len(lines[-1] + word) > _OPTION_CELLS:
            lines.append("    ")
        lines[-1] += word
    return "\n".join(lines)
