"""Start short runs at the login of a lab."""

from __future__ import annotations

import signal
import subprocess
import sys

ARMS = "mpi,horovod,horovod:controller=mpi,ddp"
RUN = "/run/lab/run"


def arguments(hosts, mnist_dir, *more, steps=30, within=()):
    """Return the command line of a run.

    ``hosts`` are those of -H, or None. ``within`` is a command that starts it, such as salloc.
    """
    data = [] if "--workload" in more else ["--data", f"mnist:folder={mnist_dir}"]
    return [
        *within,
        *(sys.executable, "-m", "compare", "run"),
        *(("-H", hosts) if hosts else ()),
        *data,
        *("--output", RUN),
        *("--no-control", "--repeats", 1, "--steps", f"{steps}:warmup=5"),
        *("--interleave", "launches:reruns=0"),
        *more,
    ]


def compare(lab, hosts, mnist_dir, *more, environment=None, **options):
    """Execute a run to its end."""
    return lab.login.run(
        arguments(hosts, mnist_dir, *more, **options),
        timeout_seconds=280,
        environment={"COLUMNS": "200"} | (environment or {}),
    )


def start(lab, hosts, mnist_dir, *more, environment=None, **options):
    """Start a run that the test will break."""
    return lab.login.start(
        arguments(hosts, mnist_dir, *more, **options),
        environment={"COLUMNS": "200"} | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell may ignore SIGINT in a background job.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def left(lab, machines=None):
    """List the processes and private files that a run left on hosts."""
    found = []
    for machine in machines or lab.running():
        found += [f"{machine.name}: {line}" for line in machine.command_lines()]
        listed = machine.run(["ls", "/tmp", "/dev/shm"]).stdout.split()  # noqa: S108
        found += [f"{machine.name}: {name}" for name in listed if "ringside" in name or "vader" in name]
    return found
