"""Stands in for a launch on many hosts: ``parent.py JSON``, executed at the login of a lab.

The JSON names ``hosts`` (a hostfile's text), ``mark``, ``mirrored`` (a folder here), and for every host
what its rank is to do. Prints a line of JSON for everything that happens.
"""

import json
import sys
import time
from pathlib import Path

from compare.errors import HostError
from compare.launch.agent.connection import linked
from compare.launch.agent.protocol import Begin
from compare.launch.engines.ssh import Ssh
from compare.schema.hostfile import parse_hostfile
from compare.schema.launch_files import LaunchFiles

RANK = Path(__file__).with_name("rank.py")


def say(**what):
    print(json.dumps(what | {"at": time.time()}), flush=True)


def main(text):
    asked = json.loads(text)
    hosts = parse_hostfile(asked["hosts"], "hosts.txt")
    files = LaunchFiles(Path(asked["mirrored"]))
    files.directory.mkdir(parents=True)
    with linked(hosts, python=asked.get("python", sys.executable), carrier=Ssh()) as links:
        begin(links, asked, files)
        try:
            watch(links)
        except HostError as error:
            say(error=str(error))
    say(closed=True)


def begin(links, asked, files):
    for number, link in enumerate(links):
        directory = asked["mark"]
        link.begin(
            Begin(
                directory=directory,
                files={"job.json": b"{}"},
                argv=(sys.executable, str(RANK), directory, str(number), *asked["rank"]),
                environment={"PYTHONPATH": str(RANK.parents[2]), "SECRET": "hunter2"},
                deadline_seconds=60.0,
            ),
            files,
        )


def watch(links):
    told = set()
    while not all(link.ended for link in links):
        for link in links:
            link.tick()
            name = link.host.name
            if link.ready and ("ready", name) not in told:
                told.add(("ready", name))
                say(ready=link.ready.hostname)
            if link.ended and ("ended", name) not in told:
                told.add(("ended", name))
                say(ended=name, status=link.ended.status)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
