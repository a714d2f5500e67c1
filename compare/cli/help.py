"""The summary and the examples of each command, for its help."""

from __future__ import annotations

_ARGUMENTS = {
    "run": (
        "--backend ddp,fsdp,mpi --budget 10m",
        "--backend 'ddp:bucket_cap_mb={1,25}' --export run.html",
    ),
    "gate": (
        "--against ../before/.venv/bin/python",
        "--against old/bin/python --fail-if-slower 10% --export gate.xml",
    ),
    "scale": ("-np 1,2,4 --backend ddp,mpi", "-np 1,2 --strong --batch-size 128 --backend ddp"),
    "collectives": (
        "--group gloo,mpi -b 1K -e 4M",
        "--collective all_gather,all_to_all --dtype float16 -np 4",
    ),
    "report": ("last --detail", "runs/before last --export both.html"),
    "verify": ("", "--workload train.py:make --backend own_torch"),
    "meter": ("train.py", "-np 4 --launcher horovodrun --pairs 30 train.py --epochs 3"),
    "predict": ("last --hosts 2,4,8 --link 10gbit", "last --bucket-cap 1,25 --format markdown"),
    "doctor": ("--quick", "--hostfile hosts.txt --export doctor.md"),
    "backends": ("", "ddp fsdp"),
    "submit": (
        "--nodes 2 --wait -- run --backend ddp,horovod",
        "--engine kubernetes --image registry/ringside:1 -- run",
    ),
    "setup horovod": ("", "--constraints constraints.txt"),
    "setup mpich": ("", "--force"),
    "setup data": ("", "--check --data data"),
    "setup workload": ("train.py", "own/train.py"),
}
EXAMPLES = {
    command: [f"ringside {command} {arguments}".rstrip() for arguments in pair]
    for command, pair in _ARGUMENTS.items()
}
"""Two examples of command lines for each command."""


GROUPS = {
    "Compare": {
        "run": "Run the same training through every arm, side by side.",
        "gate": "Compare this environment with another one, in turns of one run.",
        "scale": "Run arms with several numbers of ranks; find where they bend.",
        "collectives": "Time each group's collectives alone over sizes, and check the results.",
    },
    "Understand": {
        "report": "Show a run again, two runs side by side, or a list of all.",
        "meter": "Measure what synchronising costs in a training script as it is.",
        "verify": "Prove that every arm trains what a single process would.",
        "predict": "Predict step times elsewhere, or the memory of a larger model.",
    },
    "Machines": {
        "doctor": "Examine the hosts, or this machine.",
        "backends": "List the backends with version, transport and options.",
        "submit": "Submit a command as a job of Slurm, or print an MPIJob.",
    },
    "Set up": {
        "setup": "Show what is set up here and what is missing, with the command for each.",
    },
}
"""The commands in the order of the usual workflow, in groups, each with its summary."""
MOST_USED = {
    "run": [
        *("--backend", "--model", "--workload", "--data", "--steps"),
        *("--budget", "--num-proc", "--hosts", "--export", "--dry-run"),
    ],
}
"""The flags of a command that its help shows first, in this order."""
SUMMARIES = {name: summary for commands in GROUPS.values() for name, summary in commands.items()}
"""The summary of each command, which is also the first line of its own help."""
