"""Set this machine up: ``ringside setup``, with ``horovod``, ``mpich``, ``data`` and ``workload``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from compare.cli.options import Format, output_flag
from compare.cli.output import make_console, make_say, show
from compare.errors import DataError, OutputError, UsageError

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data", show_default="~/.cache/ringside/data", help="Folder that holds MNIST/raw/*-ubyte[.gz]."
    ),
]


class _Part(NamedTuple):
    """Something that a run may need: its state, and the command that gets it if it is missing."""

    name: str
    here: str
    """Whether it is here: ``yes``, ``no``, or ``?`` if that is not known."""
    state: str
    command: str


def setup(context: typer.Context) -> None:
    """Show what is set up here and what is missing, with the command for each."""
    if context.invoked_subcommand:
        return
    from compare import data
    from compare.doctor.availability import survey
    from compare.report.document import Column, Document, Table

    found = survey(say=make_say(make_console(stderr=True)))
    arms = {name: one for name, one in found.backends.items() if one.remedy or one.launcher != "torchrun"}
    parts = [
        _Part(name, one.here, one.problem or one.version, one.remedy if one.problem else "")
        for name, one in {**arms, **found.choices}.items()
        if not name.startswith("own_")
    ]
    has_data = all(file.verified for file in data.status(data.default_root()) if file.dataset == "mnist")
    state = "verified" if has_data else "not here, so scikit-learn's digits are taken without a network"
    parts.append(
        _Part("MNIST", "yes" if has_data else "no", state, "" if has_data else "ringside setup data")
    )
    columns: list[Column[_Part]] = [
        Column("part", lambda part: part.name, is_text=True),
        Column("here", lambda part: part.here, is_text=True),
        Column("what is there, or why not", lambda part: part.state, is_text=True),
        Column("command", lambda part: part.command, is_text=True),
    ]
    table = Table.of(
        columns, _by_cause(parts), style=lambda part: "doubtful" if part.command else "", is_prose=True
    )
    missing = sum(part.here != "yes" for part in parts)
    title = f"Parts that are not ready here: {missing} of {len(parts)}"
    note = "To begin with a model of your own: ringside setup workload train.py"
    show(Document(title=title, tables=[table], notes=[note]))


def _by_cause(parts: Sequence[_Part]) -> list[_Part]:
    """Return the parts; those with one cause and command become one, which has all of their names."""
    names: dict[tuple[str, ...], list[str]] = {}
    for part in parts:
        names.setdefault(part[1:] if part.command else tuple(part), []).append(part.name)
    causes = {part[1:] if part.command else tuple(part): part for part in parts}
    return [part._replace(name="\n".join(names[cause])) for cause, part in causes.items()]


def horovod(
    *,
    constraints: Annotated[
        Path | None, typer.Option(help="pip constraints for the packages that the build needs.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Build again, even if a wheel is in the cache.")
    ] = False,
) -> None:
    """Build Horovod for the installed torch.

    It is Horovod 0.28.1, from its unmodified source.
    """
    from compare.doctor.horovod.build import install_horovod

    install_horovod(constraints=constraints, force=force)


def mpich(
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Install again, even if it is in the cache.")
    ] = False,
) -> None:
    """Install MPICH for mpi:library=mpich.

    The environment's Open MPI stays beside it.
    """
    from compare.doctor.mpich import install_mpich

    install_mpich(force=force)


def data(
    *,
    folder: DataFolder = None,
    check: Annotated[
        bool, typer.Option("--check", help="Download nothing; exit with 3 if a file is missing or damaged.")
    ] = False,
    form: Annotated[Format, output_flag("--format", help="What to print with --check.")] = "table",
) -> None:
    """Download MNIST once, and verify it.

    With --check it downloads nothing, and lists the files of all data sets.
    """
    from compare import data as datasets

    root = folder or datasets.default_root()
    if check:
        _list_files(root, form)
        return
    place = datasets.fetch_mnist(root, progress=lambda line: typer.echo(line, err=True))
    typer.echo(f"MNIST is complete and verified in {place}")


def _list_files(root: Path, form: str) -> None:
    """Print the state of all data files in a folder; exit with 3 unless all are right."""
    from compare import data as datasets
    from compare.report.document import Column, Document, Table

    files = datasets.status(root)
    columns: list[Column[datasets.FileStatus]] = [
        Column("data", lambda file: file.dataset, is_text=True),
        Column("file", lambda file: file.name, is_text=True),
        Column("MB", lambda file: f"{file.size_bytes / 1e6:.1f}" if file.size_bytes else "–"),
        Column(
            "content", lambda file: "verified" if file.verified else file.problem or file.form, is_text=True
        ),
        Column("where", lambda file: file.path, is_text=True),
    ]
    table = Table.of(
        columns, files, style=lambda file: "" if file.verified else "bad" if file.problem else "aside"
    )
    show(Document(title="Files of the data sets", tables=[table], content=lambda: files), form)
    if not all(file.verified for file in files):
        raise typer.Exit(DataError.exit_code)


def workload(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, as train.py.")],
) -> None:
    """Write a model file to begin with.

    It runs at once, and its comments tell what to change.
    """
    from compare.system.files import write_text

    if file.suffix != ".py":
        raise UsageError(f"{file} is not the name of a Python file.", remedy="Use a name such as train.py.")
    if file.exists():
        raise OutputError(f"{file} is there already.", remedy="Choose another name, or remove it.")
    write_text(file, resources.files("compare.cli").joinpath("workload.py.txt").read_text())
    run = shlex.join(["ringside", "run", "--workload", f"{file}:make"])
    typer.echo(f"{file} runs as it is. Put your model, data and loss in it:\n  {run}")
