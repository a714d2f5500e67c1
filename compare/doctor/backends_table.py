"""Make the document of ``compare backends``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

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


class _Row(NamedTuple):
    """An arm with what was found of it."""

    arm: str
    backend: Backend
    found: Availability
    summary: str
    problem: str

    @property
    def shown(self) -> Row:
        """Return the row of the table: the arm's name, whether it can run, and two lines about it.

        The row is marked as doubtful if the arm cannot run.
        """
        claims = ", ".join(self.backend.claims)
        facts = (self.found.launcher, self.found.version, self.found.transport, claims)
        about = f"{self.problem or self.summary}\n{' · '.join(filter(None, facts))}"
        return Row((self.arm, "no" if self.problem else "yes", about), "doubtful" if self.problem else "")


def document_of(survey: Survey) -> Document:
    """Show the arms, what cannot be had, and all options."""
    rows = list(_rows(survey))
    groups = {
        title: [row.shown for row in rows if group_of(row) == title] for title in (DEFAULT, SAME, OTHER)
    }
    here = sum(not row.problem for row in rows)
    return Document(
        title=f"{here} of {len(rows)} arms can run here",
        tables=[
            *(_table(title, shown, "arm", "here", _ABOUT) for title, shown in groups.items() if shown),
            _table("Not to be had", [*map(Row, _unavailable(survey))], "", ""),
            _table("Options, written backend:option=value:option=value", [*map(Row, _options())], "", ""),
        ],
        content=lambda: listing(survey),
    )


def listing(survey: Survey) -> list[dict[str, Any]]:
    """Return the same facts for programs, one entry for each arm."""
    return [
        {
            "arm": row.arm,
            "available": not row.problem,
            "problem": row.problem,
            "summary": row.summary,
            "version": row.found.version,
            "transport": row.found.transport,
            "launcher": row.found.launcher,
            "training": row.backend.training,
            "shards": row.backend.shards,
            "claims": row.backend.claims,
            "by_default": group_of(row) == DEFAULT,
            "options": {option.name: option.default for option in row.backend.options},
        }
        for row in _rows(survey)
    ]


def group_of(row: _Row) -> str:
    """Return the title of the group that an arm belongs to."""
    if row.backend.training != "same":
        return OTHER
    default = not row.backend.only_named and row.arm in _default_arms(row.backend)
    return DEFAULT if default else SAME


def _default_arms(backend: Backend) -> list[str]:
    second = [Arm(backend.name, dict(backend.on_one_host)).label] if backend.on_one_host else []
    return [backend.name, *second]


def _rows(survey: Survey) -> Iterator[_Row]:
    """Yield each backend, its second default arm, and its other libraries."""
    for name, backend in BACKENDS.items():
        found = survey.backends[name]
        yield _row(name, backend, found, backend.summary, survey.gpus)
        for arm in _default_arms(backend)[1:]:
            here = Availability(
                backend=arm, launcher=found.launcher, problem=found.problem or survey.shared_memory_problem
            )
            yield _row(arm, backend, here, "for ranks on the CPUs of one host", survey.gpus)
        for arm, other in survey.choices.items():
            if arm.partition(":")[0] == name:
                yield _row(arm, backend, other, backend.summary, survey.gpus)


def _row(arm: str, backend: Backend, found: Availability, summary: str, gpus: int) -> _Row:
    remedy = f"; run: {found.remedy}" if found.remedy else ""
    lacks_gpus = backend.not_on_cpus if gpus < _FEWEST_GPUS else ""
    problem = f"{found.problem}{remedy}" if found.problem else lacks_gpus
    return _Row(arm, backend, found, summary, problem)


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
    values = {
        "choice": list(option.choices),
        "switch": ["true", "false"],
        "number": [f"{option.default:g}"] if isinstance(option.default, float) else [""],
        "count": [str(option.default)],
    }
    lines = [f"{backend.name}:{option.name}="]
    for number, value in enumerate(values[option.kind]):
        word = f"|{value}" if number else value
        if len(lines[-1] + word) > _OPTION_CELLS:
            lines.append("    ")
        lines[-1] += word
    return "\n".join(lines)
