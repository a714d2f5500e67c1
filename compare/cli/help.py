"""The summary and the examples of each command, for its help."""

from __future__ import annotations

_ARGUMENTS = {
    "run": (
        "--backend ddp,horovod --data-dir data",
        "--backend 'ddp:bucket_cap_mb={1,25}' --model wide --budget 300 --export-html run.html",
    ),
    "aa": ("--backend ddp", "--backend mpi --comparisons 4 --steps 300"),
    "verify": ("", "--workload train.py:make --backend own_torch"),
    "scale": ("-np 1,2,4 --backend ddp,mpi", "-np 1,2 --strong --batch-size 128 --backend ddp"),
    "rehearse": ("--hosts 4 --link 1gbit,2ms -- run --backend ddp", "--hosts 2 -- doctor"),
    "collectives": (
        "--group gloo,mpi -b 1K -e 4M",
        "--collective all_gather,all_to_all --dtype float16 --hostfile hosts.txt",
    ),
    "submit": (
        "--nodes 2 --wait -- run --backend ddp,horovod",
        "--engine kubernetes --image registry/ringside:1 -- run --backend ddp",
    ),
    "report": ("last --detail", "runs/first runs/second --format html --output both.html"),
    "explain": ("last", "runs/first --arm ddp --format markdown"),
    "diff": ("runs/before last", "runs/before runs/after --export-markdown diff.md"),
    "gate": (
        "--against ../before/.venv/bin/python",
        "--against old/bin/python --fail-if-slower 10% --budget 240 --export-junit gate.xml",
    ),
    "history": ("", "runs --json"),
    "predict": ("last --hosts 2,4,8 --link 10gbit", "last --bucket-cap 1,25 --format markdown"),
    "backends": ("", "--json"),
    "doctor": ("--quick", "--hostfile hosts.txt --export-markdown doctor.md"),
    "data fetch": ("", "--data-dir data"),
    "data status": ("", "--data-dir data --json"),
    "install horovod": ("", "--constraints constraints.txt"),
    "install mpich": ("", "--help"),
}
EXAMPLES = {
    command: [f"ringside {command} {arguments}".rstrip() for arguments in pair]
    for command, pair in _ARGUMENTS.items()
}
"""Two examples of command lines for each command."""


SUMMARIES = {
    "run": "Run the same training through every arm, side by side.",
    "aa": "Compare an arm with itself, as an A/A test.",
    "verify": "Prove that every arm trains what a single process would.",
    "scale": "Run arms with several numbers of ranks; find where they bend.",
    "collectives": "Time each group's collectives alone over sizes, and check the results.",
    "predict": "Predict step times with other hosts, links and bucket sizes.",
    "submit": "Submit a command as a job of Slurm, or print an MPIJob.",
    "report": "Show a run again in any format, also one that was stopped.",
    "explain": "Explain a run's figures as a lesson, with the code that synchronises.",
    "diff": "Compare what synchronising costs in two runs, as ratios within each.",
    "gate": "Compare this environment with another one, in turns of one run.",
    "history": "List the runs of a folder, and the trend of every arm.",
    "backends": "List the backends with version, transport and options.",
    "doctor": "Examine the hosts, or this machine.",
    "rehearse": "Execute a command on hosts that are made for it.",
    "data": "The data that every arm trains on.",
    "install": "Install what pip alone cannot.",
}
"""The summary of each command, which is also the first line of its own help."""
