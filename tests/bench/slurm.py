"""Compare the start-up over srun with that over ssh: ``python -m tests.bench.slurm``.

Both ways take turns on the same hosts of a lab with sshd and Slurm. Every pair swaps their order, and the
first pair does not count. A start goes from the command to the first step of the last rank. So every arm's
start includes that of the run, which is a row of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from compare.schema.store import read_run
from tests.comparing import find_mnist
from tests.lab.hosts import Lab
from tests.lab.slurm import Slurm

# The clock starts within the job: the time in Slurm's queue is no start-up.
_STAMP = 'date +%s.%N >"$1"; shift; exec "$@"'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--arms", default="ddp,horovod,mpi")
    given = parser.parse_args()
    data_dir = find_mnist() or sys.exit("MNIST is missing: ringside setup data --data data")
    taken = {"ssh": [], "srun": []}
    with Lab(2) as lab:
        Slurm(lab)
        for pair in range(given.pairs + 1):
            for way in ("ssh", "srun") if pair % 2 else ("srun", "ssh"):
                starts = _start_up(lab, way, data_dir, given.arms, f"{way}-{pair}")
                print(way, *(f"{part} {seconds:.2f} s" for part, seconds in starts.items()), flush=True)
                taken[way] += [starts] if pair else []
    print("\n| start of | ssh | srun | srun − ssh, median of pairs |\n|---|---:|---:|---:|")
    for part in taken["ssh"][0]:
        ssh, srun = ([each[part] for each in taken[way]] for way in taken)
        differences = [ours - theirs for ours, theirs in zip(srun, ssh, strict=True)]
        cells = (*map(statistics.median, (ssh, srun, differences)), min(differences), max(differences))
        print("| {} | {:.2f} s | {:.2f} s | {:+.2f} s ({:+.2f} to {:+.2f}) |".format(part, *cells))


def _start_up(lab, way, data_dir, arms, name):
    """Return the seconds until a run's first launch, and until first steps."""
    within = [] if way == "ssh" else ["salloc", "--quiet", "-N2"]
    stamp, output = lab.folder / f"{name}.began", lab.folder / name
    done = lab.login.run(
        [*within, "sh", "-c", _STAMP, "sh", f"/run/lab/{stamp.name}", sys.executable, "-m", "compare", "run"]
        + (["-H", "n1,n2"] if way == "ssh" else [])
        + ["--backend", arms, "--no-control", "--interleave", "launches:reruns=0", "--repeats", 1]
        + ["--steps", "10:warmup=1", "--threads", 1, "--output", f"/run/lab/{name}"]
        + ["--data", Path(data_dir).resolve()],
        timeout_seconds=120,
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    launches = sorted(read_run(output).launches, key=lambda launch: launch.number)
    opened = launches[0].started_at - float(stamp.read_text())
    starts = {launch.arm: max(rank.moments.first_step_done for rank in launch.ranks) for launch in launches}
    return {"run": opened} | {arm: opened + seconds for arm, seconds in sorted(starts.items())}


if __name__ == "__main__":
    main()
