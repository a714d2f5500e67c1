"""Register the commands, and turn errors into exit codes."""

from __future__ import annotations

import errno
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from compare import __version__
from compare.cli.help import SUMMARIES
from compare.cli.output import ClosedPipeError, leave_nothing_to_write, print_error, print_notes, take_over
from compare.cli.settings import ConfigFile, ConfiguredCommand
from compare.errors import OutputError, RingsideError, UnavailableError, UsageError, system_reason
from compare.launch.signals import INTERRUPTED, end_in_good_order, ignore_interrupts

EITHER_SPELLING = {
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "help_option_names": ["-h", "--help"],
}

_WrongUsage: Any = typer.BadParameter.__mro__[1]
"""The parser's error for wrong usage: click's ``UsageError``, or the copy in newer versions of typer."""
_GROUPS = {"data": ("fetch", "status"), "install": ("horovod", "mpich")}
"""The groups of commands, with the commands of each."""
_REFUSALS = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}

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
    15: "too noisy to tell whether it is slower",
    16: "compare verify: nothing failed, but an arm is not proven",
    130: "interrupted",
}


class _Commands(TyperGroup):
    """The group of all commands, which are imported when one of them is needed.

    The program's own ``--help`` needs none of them, because it lists their summaries.
    """

    _loaded: dict[str, Any] | None = None

    @property  # type: ignore[override]  # the class above has an attribute
    def commands(self) -> dict[str, Any]:
        """Return every command by its name, after importing all at the first use."""
        if self._loaded is None:
            self._loaded = _load_commands()
        return self._loaded

    @commands.setter
    def commands(self, _: Any) -> None:
        """Ignore what typer sets: the commands registered with ``app`` itself, which has none."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its summary."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


app = typer.Typer(
    name="compare",
    cls=_Commands,
    help="Which way of synchronising gradients should I use on my machines, what does it cost me, and why?"
    "\n\nIt runs on Linux.",
    no_args_is_help=True,
    rich_markup_mode=None,  # coloured help takes as long to load as all the rest
    pretty_exceptions_enable=False,
    context_settings=EITHER_SPELLING,
    epilog="Exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()),
)


def main() -> None:
    """Run the command line.

    A user's mistake ends in three lines and an exit code, never in a traceback.
    """
    end_in_good_order()
    take_over()
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
        leave_nothing_to_write()


def _call() -> int:
    """Call the command that the arguments name, and return its exit code.

    Raises:
        UsageError: an argument is wrong.
    """
    try:
        code = app(prog_name="compare", standalone_mode=False)
    except _WrongUsage as error:
        context = error.ctx
        if context is None or error.format_message().startswith("Usage:"):  # no command: all of them
            error.show()
            return error.exit_code
        if context.command_path == "compare collectives":
            from compare.cli.collectives import answer_to

            flag = getattr(error, "option_name", "")
            if answer := answer_to(flag):
                raise UsageError(
                    f"{flag} is a flag of nccl-tests, not of this program.", remedy=answer
                ) from None
        raise UsageError(
            error.format_message().replace("Value error, ", ""),
            remedy=f"`{context.command_path} --help` shows every flag and its choices.",
        ) from None
    return code if isinstance(code, int) else 0


def _register(to: typer.Typer, command: Callable[..., None], name: str, **settings: Any) -> None:
    """Register a command with ``--config``, and turn Ctrl-C and errors of the system into exit codes."""

    @wraps(command)
    def interruptible(*arguments: Any, config: Path | None = None, **options: Any) -> None:
        del config  # the parser has read it
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
            if error.errno in _REFUSALS:
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

    signature = inspect.signature(command, eval_str=True)
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile)
    interruptible.__signature__ = signature.replace(  # type: ignore[attr-defined]  # typer reads it
        parameters=[*signature.parameters.values(), config]
    )
    register = to.command(name, cls=ConfiguredCommand, context_settings=EITHER_SPELLING | settings)
    register(interruptible)


def _load_commands() -> dict[str, Any]:
    """Import and register every command, and return the commands and groups by name.

    A command is the function of its module that has its name.
    """
    every = typer.Typer(rich_markup_mode=None)
    for name, summary in SUMMARIES.items():
        module = import_module(f"compare.cli.{name}")
        if name in _GROUPS:
            group = typer.Typer(help=summary, no_args_is_help=True, rich_markup_mode=None)
            every.add_typer(group, name=name)
            for member in _GROUPS[name]:
                _register(group, getattr(module, member), member)
        else:
            # Flags behind the command that is rehearsed are those of that command.
            _register(every, getattr(module, name), name, allow_interspersed_args=name != "rehearse")
    return dict(typer.main.get_group(every).commands)


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
