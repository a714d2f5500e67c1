"""Measure what synchronising costs in a user's own script: ``ringside meter``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from compare.cli.options import Format, Formats, RankFlags, hosts_flag, length_flag, output_option, with_flags
from compare.cli.output import export, make_console, make_say, print_error, print_result
from compare.cli.requests import read_allocation
from compare.cli.settings import command_line
from compare.errors import LaunchError, RingsideError, UnmeasuredError
from compare.launch.signals import INTERRUPTED
from compare.schema.metered import MeterSettings

if TYPE_CHECKING:
    from compare.experiment.meter import Measured
    from compare.schema.metered import Metered

DEFAULTS = MeterSettings()
_FAILED_BY_SIGNAL = 128
"""Shells add the number of a signal to this, for the exit code of a command that it killed."""


@with_flags(RankFlags, output=Annotated[Path | None, output_option(name="runs/<time>-<script>-np<n>-meter")])
def meter(
    flags: RankFlags,
    *,
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT.py", show_default=False, help="Your training script, unchanged.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", show_default=False, help="All after it belongs to the script."),
    ] = None,
    launcher: Annotated[
        Literal["torchrun", "horovodrun", "mpirun", "none"],
        hosts_flag(
            help="What starts the script's ranks; on other hosts torchrun alone. With none the script does."
        ),
    ] = "torchrun",
    pairs: Annotated[
        int, length_flag(min=0, help="Pairs of blocks, with and without synchronising; 0 only counts steps.")
    ] = DEFAULTS.pairs,
    block: Annotated[int, length_flag(min=1, help="Timed steps of a block.")] = DEFAULTS.block,
    warmup: Annotated[int, length_flag(min=1, help="Steps before the first block.")] = DEFAULTS.warmup,
    aa: Annotated[
        bool, length_flag("--aa", help="Synchronise in both blocks of a pair: an A/A test of the meter.")
    ] = False,
    form: Formats = "table",
) -> None:
    """Measure what synchronising costs in a training script as it is.

    The script keeps its output and trains as before. Steps that are measured without synchronising are put
    back. Under a launcher of your own: torchrun … -m ringside.meter SCRIPT.py
    """
    from compare.experiment.meter import MeterRequest, measure_script
    from compare.schema.environment import read_env_flags
    from compare.schema.store import require_writable

    allocation = read_allocation(flags)
    for _, path in flags.exports:
        require_writable(path, to_be_made=flags.output)
    measured = measure_script(
        MeterRequest(
            allocation=allocation,
            exported=read_env_flags(flags.env or [], os.environ, of_script=True),
            output=flags.output,
            launcher=launcher,
            script=script,
            arguments=arguments or [],
            settings=MeterSettings(pairs=pairs, block=block, warmup=warmup, aa=aa),
            command=command_line(),
        ),
        make_say(make_console(stderr=True), quiet=not flags.verbose),
    )
    _show(measured, flags, form)
    raise typer.Exit(_exit_code(measured, script, launcher))


def _show(measured: Measured, flags: RankFlags, form: Format) -> None:
    """Print and export what was measured; nothing if no rank wrote anything."""
    from compare.report import document_of

    if measured.metered is not None and (measured.metered.steps or measured.metered.unswitched):
        export(measured.metered, flags.exports)
        print_result(document_of(measured.metered, form), measured.directory, flags, form)


def _exit_code(measured: Measured, script: Path, launcher: str) -> int:
    """Return the exit code of the command, after printing why it is not 0.

    It is the launcher's if the script failed, because that is what the script alone would have given.
    """
    ended, error = measured.ended, _error_of(measured, script, launcher)
    if ended.was_interrupted and ended.status:
        typer.echo("Interrupted.", err=True)
        return INTERRUPTED
    if error is None:
        return 0
    print_error(error)
    if measured.unfetched:
        print_error(measured.unfetched)
    if ended.status and isinstance(error, LaunchError):
        return ended.status if ended.status > 0 else _FAILED_BY_SIGNAL - ended.status
    return error.exit_code


def _error_of(measured: Measured, script: Path, launcher: str) -> RingsideError | None:
    """Return what went wrong: the script failed, or nothing could be measured in it; None if neither."""
    metered, ended = measured.metered, measured.ended
    if metered is not None and metered.unswitched and not metered.steps:
        return UnmeasuredError(
            f"{script} cannot be measured under {launcher}.",
            found=_why_not(metered),
            remedy="docs/meter.md says what a script must do to be measured.",
        )
    if ended.status:
        program = "python" if launcher == "none" else f"{launcher} …"
        by = f"with {ended.status}" if ended.status > 0 else f"by signal {-ended.status}"
        return LaunchError(
            f"{script} failed, so it was measured only up to there.",
            found=f"{'The script' if launcher == 'none' else launcher} ended {by}.",
            remedy="Its messages stand above. It fails in the same way without the meter: "
            f"{program} {script}; if it does not, please report this as a bug.",
        )
    if metered is not None and (metered.complete_pairs or not metered.settings.pairs):
        return None
    return UnmeasuredError(
        f"{script} ran to its end, but what synchronising costs in it was not measured.",
        found=_why_not(metered),
        remedy="docs/meter.md says what a script must do to be measured.",
    )


def _why_not(metered: Metered | None) -> str:
    """Return why nothing was measured, as a sentence."""
    if metered is not None and metered.unswitched:
        one = metered.unswitched[0]
        return f"{one.name}: {one.why}"
    if metered is None or not metered.steps:
        return "No rank took a step of an optimizer of torch."
    return metered.ended or "The script ended without a word."
