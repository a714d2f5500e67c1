"""Time MPI's collectives beside programs of others: ``python -m tests.bench.other_programs FOLDER``.

IMB-MPI1 of Intel's ``impi-rt``, and the OSU demos of mpi4py's sources, are fetched into the folder. Each
takes turns with Ringside's loop over the same MPI library. It writes the table of docs/collectives.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from tests.bench import report
from tests.bench.estimate import at_least, at_most
from tests.bench.launches import BenchError, Outcome
from tests.bench.machine import LoadMeter, family_seconds
from tests.bench.pairs import take_launches
from tests.comparing import ROOT

TURNS = 5
RANKS = 2
BEGIN_BYTES, END_BYTES, FACTOR = 1 << 10, 4 << 20, 4
SIZES = [BEGIN_BYTES * FACTOR**power for power in range(7)]
LIMIT, LIMIT_FROM_BYTES = 0.15, 32 << 10
MOST_MICROSECONDS = 3.0
"""Below ``LIMIT_FROM_BYTES`` the time of Python itself shows."""
IMB = {"Allreduce": "all_reduce", "Allgather": "all_gather", "Alltoall": "all_to_all"}
OSU = {"osu_allgather": "all_gather", "osu_alltoall": "all_to_all"}
_IMPI = "impi-rt==2021.19.0"
_DOCUMENT = ROOT / "docs" / "collectives.md"
_BEGIN, _END = "<!-- others: begin -->", "<!-- others: end -->"
_TIMEOUT_SECONDS = 120
_MARKS = {"holds": "", "holds, within noise": " ~", "MISSED, within noise": " ✗~", "MISSED": " ✗"}
"""The mark of a verdict in the table, the best verdict first."""


def fetch(folder: Path) -> None:
    """Fetch both programs, unless they are there."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if not (folder / "bin" / "IMB-MPI1").exists():
        subprocess.run([*pip, "install", "-q", "--no-deps", "--prefix", folder, _IMPI], check=True)
    if not (folder / "demo").exists():
        source = f"mpi4py=={version('mpi4py')}"
        subprocess.run(
            [*pip, "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", folder, source], check=True
        )
        (archive,) = folder.glob("mpi4py-*.tar.gz")
        (folder / "demo").mkdir()
        with tarfile.open(archive) as sources:
            for name in OSU:
                file = sources.extractfile(f"{archive.name.removesuffix('.tar.gz')}/demo/{name}.py")
                (folder / "demo" / f"{name}.py").write_bytes(file.read())


def programs_of(folder: Path):
    """Return each program with what starts it and Ringside's loop."""
    intel = {
        "I_MPI_FABRICS": "shm",
        "I_MPI_ROOT": str(folder),
        "I_MPI_HYDRA_BOOTSTRAP": "fork",
        "LD_LIBRARY_PATH": str(folder / "lib"),
        "MPI4PY_LIBMPI": str(folder / "lib" / "libmpi.so.12"),
    }
    open_mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    hydra, mpirun = folder / "bin" / "mpiexec.hydra", Path(sys.executable).parent / "mpirun"
    ours_as_imb = partial(_ours, hydra, intel, IMB.values(), "IMB")
    ours_as_osu = partial(_ours, mpirun, open_mpi, OSU.values(), "OSU")
    return {
        "IMB-MPI1": (partial(_imb, folder, hydra, intel), ours_as_imb),
        "OSU": (partial(_osu, folder, mpirun, open_mpi), ours_as_osu),
    }


def _imb(folder, launcher, environment):
    powers = ":".join(str(nbytes.bit_length() - 1) for nbytes in (BEGIN_BYTES // RANKS, END_BYTES))
    command = [folder / "bin" / "IMB-MPI1", "-npmin", RANKS, "-msglog", powers, "-iter", 400]
    found, current = {}, ""
    for line in _execute(launcher, [*command, "-time", 1.5, *IMB], environment):
        if begun := re.match(r"# Benchmarking (\w+)", line):
            current = IMB[begun[1]]
        columns = line.split()  # bytes, repetitions, least, largest and mean microseconds over ranks
        if len(columns) == 5 and columns[0].isdigit():
            found[current, _larger_bytes(current, int(columns[0]))] = float(columns[3])
    return found


def _osu(folder, launcher, environment):
    found = {}
    for program, collective in OSU.items():
        for line in _execute(launcher, [sys.executable, folder / "demo" / f"{program}.py"], environment):
            columns = line.split()
            if len(columns) == 2 and columns[0].isdigit():
                found[collective, _larger_bytes(collective, int(columns[0]))] = float(columns[1])
    return found


def _larger_bytes(collective, nbytes):
    """Return the bytes of the larger buffer, which is our size."""
    return nbytes if collective == "all_reduce" else nbytes * RANKS


def _ours(launcher, environment, collectives, like):
    script = [sys.executable, "-m", "tests.bench.scripts.collectives", ",".join(collectives)]
    lines = _execute(launcher, [*script, BEGIN_BYTES, END_BYTES, FACTOR, like], environment)
    columns = [line.split() for line in lines]
    return {(name, int(nbytes)): float(microseconds) for name, nbytes, microseconds in columns}


def _execute(launcher, command, environment):
    argv = [str(part) for part in (launcher, "-n", RANKS, *command)]
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"{' '.join(argv)}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout.splitlines()


def compare(name, theirs, ours, turns):
    """Take turns, and return the cells of each collective, with the conditions."""
    found = theirs()  # no first start counts
    wanted = sorted(key for key in ours() if key in found)
    members = {"theirs": partial(_measure, theirs, wanted), "ours": partial(_measure, ours, wanted)}
    taken = take_launches(members, turns)
    rows = {f"{name} {collective}": dict.fromkeys(SIZES, "–") for collective, _ in wanted}
    for key in wanted:
        (collective, nbytes), ratio = key, taken.ratio("ours", "theirs", key)
        mark = _MARKS[judge(nbytes, taken.median("theirs", key), ratio)]
        rows[f"{name} {collective}"][nbytes] = f"{ratio.ratio:.2f} ({ratio.low:.2f}–{ratio.high:.2f}){mark}"
    return rows, taken.conditions


def judge(nbytes, their_microseconds, found):
    """Judge a ratio by its limits; the worst verdict counts."""
    if nbytes < LIMIT_FROM_BYTES:
        targets = [at_most(1 + MOST_MICROSECONDS / their_microseconds)]
    else:
        targets = [at_least(1 - LIMIT), at_most(1 + LIMIT)]
    return max((target.judge(found) for target in targets), key=list(_MARKS).index)


def _measure(program, wanted):
    meter = LoadMeter(family_seconds)
    found = program()
    return Outcome({key: found[key] for key in wanted}, meter.read())


def main() -> None:
    """Fetch what is missing, measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.other_programs", description=__doc__)
    parser.add_argument("folder", type=Path, help="for the programs, fetched if they are missing")
    parser.add_argument("--turns", type=int, default=TURNS)
    given = parser.parse_args()
    folder = given.folder.resolve()
    fetch(folder)
    rows = [f"| | {' | '.join(map(str, SIZES))} |", f"|:--|{'--:|' * len(SIZES)}"]
    today = f"{datetime.now().astimezone():%Y-%m-%d}"
    notes = [f"Measured on {today} on {report.place().machine}, with {_IMPI}."]
    for name, (theirs, ours) in programs_of(folder).items():
        found, conditions = compare(name, theirs, ours, given.turns)
        rows += [f"| {head} | {' | '.join(cells.values())} |" for head, cells in found.items()]
        notes.append(f"{name}: {conditions}.")
    written = "\n".join([*rows, "", " ".join(notes)])
    before, _, rest = _DOCUMENT.read_text().partition(_BEGIN)
    _DOCUMENT.write_text(f"{before}{_BEGIN}\n{written}\n{_END}{rest.partition(_END)[2]}")
    print(written)


if __name__ == "__main__":
    main()
