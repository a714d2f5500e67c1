"""Register the commands, and turn errors into exit codes."""

from __future__ import annotations

import errno
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from compare import __version__
from compare.cli.help import GROUPS, SUMMARIES
from compare.cli.output import (
    ClosedPipeError,
    flush_standard_streams,
    print_error,
    print_notes,
    wrap_standard_streams,
)
from compare.cli.replaced import refuse_former
from compare.cli.settings import ConfiguredCommand
from compare.errors import OutputError, RingsideError, UnavailableError, UsageError, system_reason
from compare.launch.signals import INTERRUPTED, end_in_good_order, ignore_interrupts
from compare.system.collector import collect_rarely

CONTEXT_SETTINGS = {
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "help_option_names": ["-h", "--help"],
}
"""Settings of the parser: flags may be written with ``_`` for ``-``, and ``-h`` shows the help."""

_WrongUsage: Any = typer.BadParameter.__mro__[1]
"""The parser's error for wrong usage: click's ``UsageError``, or the copy in newer versions of typer."""
_MEMBERS = {"setup": ("horovod", "mpich", "data", "workload")}
"""The commands of a command that has some; alone, it is a command as well."""
_PARSING = {"meter": {"allow_interspersed_args": False}}
"""Settings of a command's own parser: what follows a user's script belongs to the script."""
_LIMIT_ERRORS = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
"""Errors by which the system refuses another process or another open file."""

EXIT_CODES = {
    0: "done",
    2: "wrong usage",
    3: "data",
    4: "something is not available",
    5: "output",
    6: "a launch failed",
    7: "a launch stalled",
    8: "an arm does not train what it should, or a sum is wrong",
    9: "a host cannot be used",
    10: "--strict found different conditions",
    11: "the budget was too small",
    12: "arms that cannot take turns",
    13: "the scheduler ended the job",
    14: "slower than a gate allows",
    15: "open whether it is slower than a gate allows",
    16: "ringside verify: nothing failed, but an arm is not proven",
    17: "ringside meter: the script ran, but nothing could be measured",
    130: "interrupted",
}


class _Commands(TyperGroup):
    """The group of all commands, which are imported only when one of them is needed.

    The program's own ``--help`` needs none, because it takes the summaries from ``compare.cli.help``.
    """

    _loaded: dict[str, Any] | None = None

    @property  # type: ignore[override]  # the class above has an attribute
    def commands(self) -> dict[str, Any]:
        """Return every command by its name; the first use imports all of them."""
        if self._loaded is None:
            self._loaded = _load_commands()
        return self._loaded

    @commands.setter
    def commands(self, _: Any) -> None:
        """Ignore the commands of ``app`` itself, which typer sets here: there are none."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its summary, in groups."""
        del ctx
        for name, commands in GROUPS.items():
            with formatter.section(name):
                formatter.write_dl(list(commands.items()))


app = typer.Typer(
    name="ringside",
    cls=_Commands,
    help="Which way of synchronising gradients should I use on my machines, what does it cost me, and why?"
    "\n\nIt runs on Linux.",
    no_args_is_help=True,
    rich_markup_mode=None,  # coloured help takes as long to load as all the rest
    pretty_exceptions_enable=False,
    context_settings=CONTEXT_SETTINGS,
    epilog="Exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()),
)


def main() -> None:
    """Run the command line.

    A user's mistake ends in a message of three parts and an exit code, never in a traceback.
    """
    collect_rarely()
    end_in_good_order()
    wrap_standard_streams()
    try:
        sys.exit(_call())
    except KeyboardInterrupt:  # while a module was being loaded
        sys.exit(INTERRUPTED)
    except RingsideError as error:
        if not isinstance(error, ClosedPipeError):
            with suppress(OutputError):
                print_notes(error)
                print_error(error)
        sys.exit(error.exit_code)
    finally:
        flush_standard_streams()


def _call() -> int:
    """Call the command that the program's arguments name, and return its exit code.

    Raises:
        UsageError: an argument is wrong; the error tells how to find the right ones.
    """
    try:
        code = app(prog_name="ringside", standalone_mode=False)
    except _WrongUsage as error:
        message = error.format_message()
        if message.startswith("Usage:"):  # no command: the help lists all of them
            error.show()
            return error.exit_code
        path = error.ctx.command_path if error.ctx else "ringside"
        if message.startswith("No such"):
            refuse_former(sys.argv[1:])
        if path == "ringside collectives":
            from compare.cli.collectives import replacement_for

            flag = getattr(error, "option_name", "")
            if advice := replacement_for(flag):
                raise UsageError(
                    f"{flag} is a flag of nccl-tests, not of this program.", remedy=advice
                ) from None
        raise UsageError(
            message.replace("Value error, ", ""),
            remedy=f"`{path} --help` shows every flag and its choices.",
        ) from None
    return code if isinstance(code, int) else 0


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that turns Ctrl-C and errors of the system into exit codes."""

    @wraps(command)
    def interruptible(*arguments: Any, **options: Any) -> None:
        try:
            os.getcwd()  # noqa: PTH109 -- without it, libraries would fail with errors that explain nothing
        except FileNotFoundError:
            raise UsageError(
                "The working folder no longer exists.", remedy="Change to another folder with cd."
            ) from None
        try:
            command(*arguments, **options)
        except KeyboardInterrupt as interrupt:
            # Nothing is left to stop: another Ctrl-C must not change how this ends.
            ignore_interrupts()
            typer.echo("Interrupted.", err=True)
            print_notes(interrupt)
            raise typer.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno in _LIMIT_ERRORS:
                raise UnavailableError(
                    "The system refuses to start another process or to open another file.",
                    found=f"{system_reason(error)}.",
                    remedy="Raise its limits (`ulimit -a` shows them), or end other programs.",
                ) from error
            # ``Path`` raises for a name that is too long, and for a folder that may not be searched.
            if error.filename is None:
                raise
            raise OutputError(
                f"{error.filename} cannot be used.",
                found=f"{system_reason(error)}.",
                remedy="Choose another path, or change its permissions.",
            ) from error

    interruptible.__signature__ = inspect.signature(command, eval_str=True)  # type: ignore[attr-defined]
    return interruptible


def _load_commands() -> dict[str, Any]:
    """Import and register every command, and return the commands and groups by name.

    The function of a command has the command's name, and is in the module of that name or of its group.
    """
    register = partial(typer.Typer.command, cls=ConfiguredCommand, context_settings=CONTEXT_SETTINGS)
    root = typer.Typer(rich_markup_mode=None)
    for name, summary in SUMMARIES.items():
        module = import_module(f"compare.cli.{name}")
        if name in _MEMBERS:
            group = typer.Typer(help=summary, rich_markup_mode=None)
            group.callback(invoke_without_command=True)(_interruptible(getattr(module, name)))
            root.add_typer(group, name=name)
            for member in _MEMBERS[name]:
                register(group, member)(_interruptible(getattr(module, member)))
        else:
            settings = CONTEXT_SETTINGS | _PARSING.get(name, {})
            command = _interruptible(getattr(module, name))
            register(root, name, context_settings=settings)(command)
    return dict(typer.main.get_group(root).commands)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ringside {__version__}")
        raise typer.Exit


@app.callback()
def program(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and stop."
        ),
    ] = False,
) -> None:
    """Compare ways of synchronising gradients on your own machines."""
