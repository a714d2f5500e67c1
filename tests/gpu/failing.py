"""Kill or stop a rank of a proof: the command must end, name the rank, and leave no process behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from backends.launchers.request import MARKER
from tests.gpu.parts import compare

STALL_SECONDS = 20
END_SECONDS = 60.0
FAULTS = {"kill": (signal.SIGKILL, 6), "stop": (signal.SIGSTOP, 7)}
"""The signal of each fault, and the exit code of a command whose rank got it."""


def main(fault, device, folder, *data):
    number, code = FAULTS[fault]
    output, printed = Path(folder) / "run", Path(folder) / "verify.txt"
    options = ["-np", 2, "--device", device, "--timeout", f"5m:stall={STALL_SECONDS}", "--output", output]
    with printed.open("w") as file:
        command = compare("verify", "--backend", "ddp", *options, *data)
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        rank = wait_for_rank(output, process)
        rank.send_signal(number)
        began = time.monotonic()
        ended = process.wait(STALL_SECONDS + END_SECONDS)
    finally:
        process.kill()
    text = printed.read_text()
    print(f"{fault}: exit code {ended} after {time.monotonic() - began:.0f} s.\n{text}")
    left = [each.cmdline() for each in processes_of(output)]
    if ended != code or "rank 1" not in text or left:
        sys.exit(f"Expected exit code {code}, an error that names rank 1, and no process left but {left}.")


def wait_for_rank(output, process):
    """Return the process of rank 1, as soon as its proof has begun.

    Raises:
        SystemExit: the command ended before.
    """
    while process.poll() is None:
        for file in output.glob("launches/*/rank-1.progress"):
            if '"parity"' in file.read_text():
                witness = psutil.Process(int(file.with_name("rank-1.witness").read_text()))
                return witness.children()[0]
        time.sleep(0.02)
    sys.exit("The command ended before its proof began.")


def processes_of(output):
    """Return the living processes of all launches of a command."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARKER, "").startswith(f"{output.resolve()}/"):
                found.append(process)
    return [process for process in found if process.is_running() and process.status() != "zombie"]


if __name__ == "__main__":
    main(*sys.argv[1:])
