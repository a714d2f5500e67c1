"""Trains the ``ddp`` arm on the hosts of a lab: ``torchrun_parent.py JSON``, executed at its login.

An agent starts torchrun on every host; the ranks are those of a run. The JSON names ``hosts`` (a
hostfile's text), ``data`` (a folder of IDX files), ``mirrored`` and ``options`` of torchrun.
"""

import json
import os
import sys
import time
from pathlib import Path

import msgspec

from compare.arms import parse_arms
from compare.availability import environment_bin, find_launcher
from compare.channel import Begin
from compare.config import RunConfig
from compare.data import DatasetSource
from compare.host import Reach
from compare.hostfile import parse_hostfile
from compare.job import Job, LaunchFiles
from compare.launch.environment import settings
from compare.link import linked

MARK = "/tmp/ringside-torchrun"  # noqa: S108 -- in the private /tmp of every host


def main(text):
    asked = json.loads(text)
    hosts = parse_hostfile(asked["hosts"], "hosts.txt")
    ranks = sum(host.slots for host in hosts)
    arms = parse_arms(["ddp"])
    job = Job(
        config=RunConfig(arms=arms, baseline="ddp", ranks=ranks, steps=120, launch_timeout_seconds=60),
        arm=arms[0],
        launcher="torchrun",
        dataset=DatasetSource(name="digits", requested="digits", directory=asked["data"]),
        affinity=sorted(os.sched_getaffinity(0)),
        launched_at=time.time(),
    )
    files = LaunchFiles(Path(asked["mirrored"]))
    files.directory.mkdir(parents=True)
    with linked(hosts, python=sys.executable, reach=Reach()) as links:
        for number, link in enumerate(links):
            link.begin(launch(number, hosts, job, asked["address"]), files)
        while not all(link.ended for link in links):
            for link in links:
                link.tick()
            time.sleep(0.02)
    print(json.dumps([link.ended.status for link in links]))


def launch(number, hosts, job, address):
    directory = f"{MARK}-files"
    argv = (
        str(find_launcher("torchrun")),
        f"--nnodes={len(hosts)}",
        f"--nproc_per_node={hosts[number].slots}",
        f"--node_rank={number}",
        f"--master_addr={address}",
        "--master_port=29517",
        "--max_restarts=0",
        "--module",
        "compare.worker",
        f"{directory}/job.json",
    )
    return Begin(
        mark=MARK,
        directory=directory,
        files={"job.json": msgspec.json.encode(job)},
        argv=argv,
        environment=settings(threads=1, interface="eth0", executables=environment_bin()),
        deadline_seconds=90.0,
    )


if __name__ == "__main__":
    main(sys.argv[1])
