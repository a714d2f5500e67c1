"""Start a script as ``python script.py`` would, with the meter switched on in its process.

The process becomes the script's by ``exec``, so arguments, exit code, signals and tracebacks are its own. The
meter comes in by a ``sitecustomize`` of its own (``hook/``), which Python imports before any script.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from compare.meter import OUTPUT_VARIABLE, SETTINGS_VARIABLE
from compare.schema.metered import MeterSettings

HOOK = Path(__file__).parent / "hook"
"""The folder whose ``sitecustomize`` switches the meter on."""
DEFAULTS = MeterSettings()


def main(arguments: Sequence[str] | None = None) -> None:
    """Become the script that the arguments name, with the meter switched on."""
    chosen = _parser().parse_args(arguments)
    program = ["-m", *chosen.module] if chosen.module else chosen.script
    if not program:
        _parser().error("no script is named: python -m ringside.meter train.py")
    if sys.flags.ignore_environment or sys.flags.no_site:
        sys.stderr.write(
            "ringside meter: nothing is measured, because Python ignores its environment (-E, -I or -S).\n"
        )
    sys.stdout.flush()
    os.execve(  # noqa: S606 -- the meter starts the user's own script
        sys.executable, [sys.executable, *_interpreter_flags(), *program], _environment(chosen)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ringside.meter",
        description="Run a training script, and measure what synchronising its gradients costs.",
        epilog="Example: torchrun --nproc-per-node 2 -m ringside.meter train.py --epochs 3",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--pairs", type=int, default=DEFAULTS.pairs, help="pairs of blocks (default: %(default)s)")
    add("--block", type=int, default=DEFAULTS.block, help="timed steps of a block (default: %(default)s)")
    add("--warmup", type=int, default=DEFAULTS.warmup, help="steps before (default: %(default)s)")
    add("--seed", type=int, default=DEFAULTS.seed, help="seed of the order of blocks (default: %(default)s)")
    add("--aa", action="store_true", help="synchronise in both blocks of a pair: an A/A test")
    add("--no-measure", action="store_true", help="only count steps, to see what the meter itself costs")
    add("--output", help="the folder of the record (default: a new one in runs/)")
    add("-m", dest="module", nargs=argparse.REMAINDER, help="run a module in place of a script")
    add("script", nargs=argparse.REMAINDER, help="the script with its arguments")
    return parser


def _environment(chosen: argparse.Namespace) -> dict[str, str]:
    """Return the environment of the script, in which the meter is switched on."""
    pairs = 0 if chosen.no_measure else chosen.pairs
    settings = {"pairs": pairs, "block": chosen.block, "warmup": chosen.warmup, "seed": chosen.seed}
    try:
        meter = msgspec.convert(settings | {"aa": chosen.aa}, MeterSettings)
    except msgspec.ValidationError as error:
        _parser().error(str(error))
    return os.environ | variables_of(meter, Path(chosen.output) if chosen.output else None)


def variables_of(settings: MeterSettings, output: Path | None) -> dict[str, str]:
    """Return the environment variables that switch the meter on in a Python process.

    ``output`` is the folder of the record; None for a new one in ``runs``.
    """
    path = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH", "")]))
    variables = {"PYTHONPATH": path, SETTINGS_VARIABLE: msgspec.json.encode(settings).decode()}
    return variables | ({OUTPUT_VARIABLE: str(output.absolute())} if output else {})


def _interpreter_flags() -> list[str]:
    """Return the flags of this interpreter, such as ``-u``, without ``-m`` and the module's name."""
    flags = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    *flags, name = flags or [""]
    if name.startswith("-"):  # -mringside.meter
        return flags
    *flags, last = flags or ["-m"]
    return [*flags, *([last[:-1]] if last != "-m" else [])]
