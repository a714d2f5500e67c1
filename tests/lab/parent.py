"""Start ranks on many hosts as a launch does: ``parent.py JSON``.

The JSON names ``hosts`` (a hostfile's text), ``mark``, ``mirrored`` (a folder here), and what a rank does.
It prints a line of JSON for every event.
"""

import json
import sys
import time
from pathlib import Path

from compare.errors import HostError
from compare.launch.agent.connection import connected
from compare.launch.agent.protocol import Start
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
    with connected(hosts, python=asked.get("python", sys.executable), carrier=Ssh()) as agents:
        begin(agents, asked, files)
        try:
            watch(agents)
        except HostError as error:
            say(error=str(error))
    say(closed=True)


def begin(agents, asked, files):
    for number, agent in enumerate(agents):
        directory = asked["mark"]
        agent.start(
            Start(
                directory=directory,
                files={"job.json": b"{}"},
                argv=(sys.executable, str(RANK), directory, str(number), *asked["rank"]),
                environment={"PYTHONPATH": str(RANK.parents[2]), "SECRET": "hunter2"},
                deadline_seconds=60.0,
            ),
            files,
        )


def watch(agents):
    told = set()
    while not all(agent.exited for agent in agents):
        for agent in agents:
            agent.tick()
            name = agent.host.name
            if agent.ready and ("ready", name) not in told:
                told.add(("ready", name))
                say(ready=agent.ready.hostname)
            if agent.exited and ("ended", name) not in told:
                told.add(("ended", name))
                say(ended=name, status=agent.exited.status)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
