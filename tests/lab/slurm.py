"""Run a real Slurm on the hosts of a lab.

The login has the controller, and every host a slurmd. Its daemons, state and logs are in the namespaces and
the folder of the lab, so they end with it.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.lab.hosts import LabError, find_program, packages
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.lab.hosts import Lab, Machine

_START_SECONDS = 20.0
_CONFIG = """\
ClusterName=lab
SlurmctldHost=login
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=/run/munge/munge.socket.2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/{task}
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd.log
SlurmdTimeout=20
MessageTimeout=10
NodeName={nodes} CPUs=2 State=UNKNOWN
PartitionName=normal Nodes={nodes} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes={nodes} MaxTime=INFINITE State=UP PriorityTier=2
"""


def why_no_slurm() -> str:
    """Return why no Slurm can be started here."""
    for program, package in packages("debian-packages-slurm").items():
        if find_program(program) is None:
            return f"no Slurm here: {program} is missing (apt-get install {package})"
    return ""


class Slurm:
    """A Slurm over all hosts of a lab.

    Args:
        lab: the lab, which must be up.
        task: the task plugin: ``none``, or ``affinity``, which binds.
    """

    def __init__(self, lab: Lab, *, task: str = "none") -> None:
        self.lab = lab
        folder = lab.folder / "etc-slurm"
        folder.mkdir()
        nodes = ",".join(host.name for host in lab.hosts)
        (folder / "slurm.conf").write_text(_CONFIG.format(nodes=nodes, task=task))
        key = lab.folder / "munge.key"
        key.write_bytes(b"a key of this lab alone".ljust(128, b"."))
        key.chmod(0o400)
        for machine in (lab.login, *lab.hosts):
            self._start_munge(machine)
        self._daemon(lab.login, "slurmctld", "-D", "-c")
        for host in lab.hosts:
            self._daemon(host, "slurmd", "-D", "-N", host.name)
        wait_until(self._is_up, _START_SECONDS)

    def _start_munge(self, machine: Machine) -> None:
        prepare = (
            "mount --bind /run/lab/etc-slurm /etc/slurm; mkdir -p /run/slurm/state /run/slurm/spool; "
            "mkdir -m 755 /run/munge"
        )
        done = machine.run(["sh", "-ec", prepare])
        if done.returncode:
            raise LabError(f"{machine.name}: {done.stderr.strip()}")
        files = ["socket=/run/munge/munge.socket.2", "pid-file=/run/munge/pid", "seed-file=/run/munge/seed"]
        options = [f"--{file}" for file in [*files, "log-file=/run/munge/log", "key-file=/run/lab/munge.key"]]
        self._daemon(machine, "munged", "--foreground", "--force", *options)
        wait_until(lambda: machine.run(["munge", "-n"]).returncode == 0, _START_SECONDS)

    def _daemon(self, machine: Machine, program: str, *options: str) -> None:
        machine.start(
            [find_program(program), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _is_up(self) -> bool:
        states = self.lab.login.run(["sinfo", "-h", "-N", "-p", "normal", "-o", "%T"]).stdout.split()
        return states == ["idle"] * len(self.lab.hosts)
