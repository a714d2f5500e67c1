"""Try what only a machine with a GPU can show.

``python -m tests.gpu FOLDER`` needs no network and installs nothing. Each part is a program of its own: a
part that fails or hangs ends alone. Parts that measure no time run side by side. FOLDER keeps what each part
printed and measured. ``summary.md`` in it has the outcomes, and is written anew after every part.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

from compare.errors import UnavailableError
from compare.launch.engines.rehearsal import Rehearsal
from tests.comparing import ROOT, find_mnist
from tests.gpu.parts import Machine, Part, counted, parts

LIMIT_SECONDS = 480
"""Time for all parts; what has not begun by then is skipped."""
PART_SECONDS = 150
CORES_OF_PART = 5
"""Cores for each of the parts that run side by side."""
MOST_AT_ONCE = 3
Outcome = Literal["passed", "FAILED", "NOT RUN", "skipped"]
_RUNNING: set[int] = set()
"""The process groups of the parts that run."""


class Done(NamedTuple):
    """The outcome of a part."""

    name: str
    outcome: Outcome
    why: str
    seconds: float
    command: str


def execute_all(parts: Sequence[Part], at_once: int, folder: Path, ends_at: float) -> Iterator[Done]:
    """Carry out parts in their order, so many at once, and yield the outcome of each that ends."""
    with ThreadPoolExecutor(at_once) as pool:
        started = [pool.submit(execute, part, folder, ends_at) for part in parts]
        try:
            for done in as_completed(started):
                yield done.result()
        except BaseException:  # Ctrl-C ends what runs, and begins nothing more
            pool.shutdown(wait=False, cancel_futures=True)
            for group in tuple(_RUNNING):
                _kill(group)
            raise


def execute(part: Part, folder: Path, ends_at: float) -> Done:
    """Carry out one part, and keep all that it prints."""
    began, left = time.monotonic(), ends_at - time.monotonic()
    written = " ".join(part.command)
    if part.skipped:
        return Done(part.name, "skipped", part.skipped, 0, written)
    if left <= 0:
        return Done(part.name, "NOT RUN", "No time was left.", 0, written)
    own = folder / part.name
    own.mkdir()
    with (own / "output.txt").open("w") as output:
        try:
            status = _run(part.command, output, min(PART_SECONDS, left))
            why = f"It exited with status {status}." if status != part.status else part.check(own)
        except subprocess.TimeoutExpired as error:
            why = f"It took longer than {error.timeout:.0f} s."
        except Exception as error:  # noqa: BLE001 -- a check that breaks is an outcome, too
            why = f"{type(error).__name__}: {error}"
    return Done(part.name, "FAILED" if why else "passed", why, time.monotonic() - began, written)


def _run(command: list[str], output: TextIO, seconds: float) -> int:
    """Run a program, and return its status.

    Raises:
        subprocess.TimeoutExpired: it took too long; its ranks were ended with it.
    """
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        _RUNNING.add(process.pid)
        try:
            return process.wait(seconds)
        except BaseException:
            _kill(process.pid)
            raise
        finally:
            _RUNNING.discard(process.pid)


def _kill(group: int) -> None:
    """Kill the processes of a part."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def summarise(found: list[Done], machine: Machine) -> str:
    """Write the outcomes as a table in Markdown."""
    rows = [
        f"| {one.name} | {one.outcome} | {one.seconds:.0f} s | {one.why} | `{one.command}` |" for one in found
    ]
    head = f"# On {machine.device}, {counted(machine.gpus)}, {time.strftime('%Y-%m-%d')}"
    return "\n".join(
        [head, "", "| part | outcome | time | why | command |", "|---|---|---:|---|---|", *rows, ""]
    )


def status_of(found: list[Done]) -> int:
    """Return the exit status: 1 if a part failed, or had no time left, because it then shows nothing."""
    return int(any(one.outcome in {"FAILED", "NOT RUN"} for one in found))


def look(device: str) -> Machine:
    """Find out what this machine has.

    Raises:
        SystemExit: it has no GPU, and no other device was asked for.
    """
    import torch

    gpus = torch.cuda.device_count()
    if device == "cuda" and not gpus:
        sys.exit("torch finds no GPU here. --device cpu rehearses the parts that need none.")
    found = find_mnist()
    data = ["--data", str(found)] if found else ["--data", "digits"]
    return Machine(device, gpus, data, why_no_rehearsal())


def why_no_rehearsal() -> str:
    """Return why this machine can rehearse no hosts; empty if it can."""
    try:
        with Rehearsal(1).opened():
            return ""
    except UnavailableError as error:
        return error.found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Try Ringside on a GPU.")
    parser.add_argument("folder", type=Path, help="where results go; it must not exist")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu rehearses the parts")
    given = parser.parse_args()
    machine, folder = look(given.device), given.folder.resolve()
    folder.mkdir(parents=True)
    ends_at, found = time.monotonic() + LIMIT_SECONDS, list[Done]()
    listed = parts(machine, folder)
    at_once = max(1, min(MOST_AT_ONCE, len(os.sched_getaffinity(0)) // CORES_OF_PART))
    for timed, beside in ((False, at_once), (True, 1)):
        for done in execute_all([part for part in listed if part.timed == timed], beside, folder, ends_at):
            found.append(done)
            (folder / "summary.md").write_text(summarise(found, machine))
            print(f"{done.name}: {done.outcome}. {done.why}", flush=True)
    sys.exit(status_of(found))


if __name__ == "__main__":
    main()
