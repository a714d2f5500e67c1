"""Print the tables of ``compare backends``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from backends import BACKENDS, Backend, Option
from compare.doctor.availability import Availability, Survey
from compare.schema.arms import Arm
from compare.text import printable

DEFAULT, SAME, OTHER = (
    "Arms of a plain compare run",
    "Arms that train the same, and run only if you name them",
    "Arms that train otherwise, and run only if you name them: read accuracy and loss",
)
_TRAINING = {
    "same": "same training",
    "same at period 1": "same training at period 1",
    "another": "another training",
}
_FEWEST_GPUS = 2
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

    def cells(self) -> tuple[Text, ...]:
        """Return its name, whether it is here, and two lines about it."""
        facts = (self.found.launcher, self.found.version, self.found.transport, _claim(self.backend))
        first = Text(printable(self.problem or self.summary))
        return (
            Text(self.arm),
            Text("no" if self.problem else "yes"),
            first.append("\n" + " · ".join(filter(None, facts)), style="dim"),
        )


def renderable(survey: Survey) -> RenderableType:
    """Build the tables of arms, what cannot be had, and all options."""
    rows = list(_rows(survey))
    parts: list[RenderableType] = []
    for title in (DEFAULT, SAME, OTHER):
        if chosen := [row for row in rows if group_of(row) == title]:
            parts += [_heading(title), _table(chosen)]
    parts += [_heading("Not to be had"), _unavailable(survey)]
    return Group(*parts, _heading("Options, written backend:option=value:option=value"), _options())


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


def _claim(backend: Backend) -> str:
    """Return what an arm claims about its training and its shards."""
    if not backend.synchronises:
        return "ranks train apart"
    shards = f", {backend.shards} in shards" if backend.shards != "nothing" else ""
    return f"{_TRAINING[backend.training]}{shards}"


def _heading(title: str) -> Text:
    return Text(f"\n{title}", style="bold")


def _table(rows: list[_Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("arm", "here", "what it is, or why it is not here"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row.cells(), style="yellow" if row.problem else None)
    return table


def _unavailable(survey: Survey) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold")
    groups = survey.libraries["torch"].facts.get("process_groups", ())
    nccl = "this torch is built without it" if "nccl" not in groups else ""
    nccl = nccl or ("" if survey.gpus else "it needs a GPU, and torch finds none")
    here = (("process_group=nccl", nccl),) if nccl else ()
    for name, reason in (*here, *_NEVER):
        grid.add_row(Text(f" {name}"), Text(reason, style="dim"))
    return grid


def _options() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold")  # every choice is read, however many there are
    for backend in BACKENDS.values():
        for option in backend.options:
            grid.add_row(Text(_example(backend, option)), Text(option.summary, style="dim"))
    for written, meaning in (
        ("ddp:bucket_cap_mb={1,5,25}", "a sweep, of any option: three arms"),
        ("ddp:env.NCCL_ALGO=Ring", "set in the environment of this arm's ranks alone"),
    ):
        grid.add_row(Text(written), Text(meaning, style="dim"))
    return grid


def _example(backend: Backend, option: Option) -> str:
    values = {
        "choice": "|".join(option.choices),
        "switch": "true|false",
        "number": f"{option.default:g}" if isinstance(option.default, float) else "",
        "count": str(option.default),
    }
    return f"{backend.name}:{option.name}={values[option.kind]}"
