"""Register the commands, and turn errors into exit codes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from compare import __version__
from compare.cli import streams
from compare.cli.console import print_error, print_notes
from compare.cli.help import SUMMARIES
from compare.cli.nccl_tests import answer_to
from compare.cli.settings import ConfiguredCommand, configurable
from compare.errors import OutputError, RingsideError, UnavailableError, UsageError, system_reason
from compare.launch.signals import INTERRUPTED, end_in_good_order, ignore_interrupts

EITHER_SPELLING = {
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "help_option_names": ["-h", "--help"],
}

_WrongUsage: Any = typer.BadParameter.__mro__[1]
"""The parser's error for wrong usage: click's ``UsageError``, or the copy in newer versions of typer."""
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
    streams.take_over()
    try:
        sys.exit(_call())
    except KeyboardInterrupt:  # while a module was being loaded
        sys.exit(INTERRUPTED)
    except RingsideError as error:
        if not isinstance(error, streams.ClosedPipeError):
            with suppress(OutputError):
                print_notes(error)
                print_error(error)
        sys.exit(error.exit_code)
    finally:
        streams.leave_nothing_to_write()


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
        unknown = getattr(error, "option_name", "") if context.command_path == "compare collectives" else ""
        if answer := answer_to(unknown):
            raise UsageError(
                f"{unknown} is a flag of nccl-tests, not of this program.", remedy=answer
            ) from None
        raise UsageError(
            error.format_message().replace("Value error, ", ""),
            remedy=f"`{context.command_path} --help` shows every flag and its choices.",
        ) from None
    return code if isinstance(code, int) else 0


def _register(to: typer.Typer, command: Callable[..., None], name: str, **settings: Any) -> None:
    """Register a command, and turn Ctrl-C and errors of the system into exit codes.

    ``name`` includes the name of its group, as in ``data fetch``.
    """

    @wraps(command)
    def interruptible(*arguments: Any, **options: Any) -> None:
        try:
            _require_working_folder()
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
                    "The system refuses another process or open file.",
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

    *_, last = name.split()
    register = to.command(last, cls=ConfiguredCommand, context_settings=EITHER_SPELLING | settings)
    register(configurable(interruptible, name))


def _require_working_folder() -> None:
    """Raise an error if the folder in which this program runs was removed.

    Raises:
        UsageError: it was removed; libraries would fail in it with errors that explain nothing.
    """
    try:
        os.getcwd()  # noqa: PTH109 -- the folder itself is asked for
    except FileNotFoundError:
        raise UsageError(
            "The working folder does not exist any more.", remedy="Change to another one, with cd."
        ) from None


def _load_commands() -> dict[str, Any]:
    """Import and register every command, and return the commands and groups by name."""
    from compare.cli import (
        aa,
        backends,
        collectives,
        data,
        diff,
        doctor,
        explain,
        gate,
        history,
        install,
        predict,
        rehearse,
        report,
        run,
        scale,
        submit,
        verify,
    )

    every = typer.Typer(rich_markup_mode=None)
    commands: dict[str, Callable[..., None]] = {
        "run": run.run,
        "aa": aa.aa,
        "verify": verify.verify,
        "scale": scale.scale,
        "collectives": collectives.collectives,
        "predict": predict.predict,
        "submit": submit.submit,
        "report": report.report,
        "explain": explain.explain,
        "diff": diff.diff,
        "gate": gate.gate,
        "history": history.history,
        "backends": backends.backends,
        "doctor": doctor.doctor,
    }
    for name, command in commands.items():
        _register(every, command, name)
    # Flags behind the other command's name are that command's.
    _register(every, rehearse.rehearse, "rehearse", allow_interspersed_args=False)
    below: dict[str, tuple[Callable[..., None], ...]] = {
        "data": (data.fetch, data.status),
        "install": (install.horovod, install.mpich),
    }
    for name, of_group in below.items():
        group = typer.Typer(help=SUMMARIES[name], no_args_is_help=True, rich_markup_mode=None)
        every.add_typer(group, name=name)
        for member in of_group:
            _register(group, member, f"{name} {member.__name__}")
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
