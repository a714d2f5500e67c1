"""Print the table of ``compare backends``."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from backends import BACKENDS, Backend, Option
from compare.doctor.availability import Survey

_FEWEST_GPUS = 2
_TRAINING = {
    "same": "the same training",
    "same at period 1": "another training, the same at period 1",
    "another": "another training",
}


def declaration(backend: Backend) -> str:
    """Write what a backend declares of its training and shards."""
    if not backend.synchronises:
        return "every rank trains alone"
    parts = "" if backend.shards == "nothing" else f"; {backend.shards} in shards"
    return f"{_TRAINING[backend.training]}{parts}"


def renderable(survey: Survey) -> RenderableType:
    """Build the table of backends, and the list of their options."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("backend", "here", "version", "transport", "launcher", "description, or the reason"):
        table.add_column(heading, overflow="fold")
    for name, found in survey.backends.items():
        backend = BACKENDS[name]
        lacks_gpus = backend.not_on_cpus if survey.gpus < _FEWEST_GPUS else ""
        here = not found.problem and not lacks_gpus
        missing = f"{found.problem}; install it with: {found.remedy}" if found.problem else lacks_gpus
        reason = f"{backend.summary} · {declaration(backend)}" if here else missing
        cells = (name, "yes" if here else "no", found.version, found.transport, found.launcher, reason)
        table.add_row(*map(Text, cells), style=None if here else "yellow")
    return Group(table, Text("Options, written backend:option=value:option=value", style="bold"), _options())


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
