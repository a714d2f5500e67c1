"""Run the benches: ``python -m tests.bench [--only NAME ...] [--quick] [--output FILE]``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tests.bench import by_hand, command_line, cost, in_turns, report
from tests.bench.estimate import Section
from tests.bench.launches import BenchError
from tests.bench.pairs import QuietWait
from tests.comparing import ROOT, find_mnist

BENCHES = {
    "loop": in_turns.bench_loop,
    "published": by_hand.bench_published,
    "by-hand": by_hand.bench,
    "averaging": in_turns.bench_averaging,
    "floor": in_turns.bench_floor,
    "measuring": in_turns.bench_measuring,
    "command-line": command_line.bench,
    "cost": cost.bench,
}


@dataclass(frozen=True)
class Settings:
    """What every bench is given."""

    data_dir: Path
    """Holds MNIST/raw."""
    folder: Path
    """For temporary files; removed at the end."""
    quick: bool
    """Run a smoke test: few pairs, wide intervals."""

    @property
    def raw(self) -> Path:
        return self.data_dir / "MNIST" / "raw"

    def pick(self, thorough, quick):
        """Return the number for a whole run or for a quick one."""
        return quick if self.quick else thorough


def main():
    given = _parse()
    output = given.output or (None if given.quick or given.only else ROOT / "docs" / "bench.md")
    QuietWait.seconds_left = given.quiet_wait
    console = Console()
    with tempfile.TemporaryDirectory(prefix="ringside-bench-") as folder:
        # Launchers leave files in the temporary folder. They are removed with this one.
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        settings = Settings(
            data_dir=find_mnist() or sys.exit("MNIST is missing: ringside setup data --data data"),
            folder=Path(folder),
            quick=given.quick,
        )
        failed = False
        for name in given.only or BENCHES:
            section = _run(console, name, settings)
            failed |= section.failed
            if output:  # at once, so that an interrupt does not lose minutes of measuring
                report.write(output, name, section, _command(given), order=list(BENCHES))
    if output:
        console.print(f"Written to {output}")
    sys.exit(failed)


def _run(console, name, settings):
    started_at = time.monotonic()
    try:
        with console.status(f"{name} ..."):
            section = BENCHES[name](settings)
    except BenchError as error:
        # The other benches still run.
        section = Section(name, f"Could not be measured:\n\n```\n{error}\n```", [], [], failed=True)
        console.print(section.text, style="red", markup=False)
    console.print(report.table(section))
    console.print(f"{name} took {time.monotonic() - started_at:.0f} s\n", style="dim")
    return section


def _parse():
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure Ringside itself.")
    parser.add_argument("--only", nargs="+", choices=BENCHES, metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--quick", action="store_true", help="a smoke test: few pairs, wide intervals")
    parser.add_argument(
        "--output",
        type=Path,
        help="write the results here [default: docs/bench.md after a whole run]. Results of other benches "
        "stay if machine and versions are the same",
    )
    parser.add_argument(
        "--quiet-wait",
        type=float,
        default=QuietWait.seconds_left,
        metavar="SECONDS",
        help="maximum time to wait in all for a quiet machine [default: %(default)g]",
    )
    return parser.parse_args()


def _command(given):
    flags = ["--quick"] if given.quick else []
    flags += ["--only", *given.only] if given.only else []
    return " ".join(["python -m tests.bench", *flags])


if __name__ == "__main__":
    main()
