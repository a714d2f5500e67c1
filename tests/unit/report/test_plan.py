"""Test the document of a dry run: its commands can be copied, and what they leave out is stated once."""

import shlex

from backends.launchers.request import Command
from compare.report.formats import write
from compare.report.of_plan import document_of
from compare.schema.arms import parse_arms
from compare.schema.hosts import Host
from compare.schema.job import Job
from compare.schema.plan import LaunchPlan, Plan
from compare.schema.results import Interleaved
from tests.unit.factories import DIGITS, MNIST, a_run

HOSTS = [Host("node1", 2, source="hosts.txt:1"), Host("node2", 1, source="hosts.txt:2")]
LONG_PATH = f"/home/ann/{'of-many-projects/' * 4}runs/job.json"
QUOTED = "env MARK='its mark' orted"


def a_plan(**changes):
    """Return the plan of two arms on two hosts; torchrun has a command for each host."""
    fields = {"config": {"ranks": 3, "rounds": 1000, "settle_seconds": 300.0}, "hosts": HOSTS}
    fields |= {"interleaved": Interleaved(mode="blocks"), "cores_by_host": [2, 2]}
    run = a_run({"ddp": [], "mpi": []}, **fields | changes)
    torchrun = [
        Command(
            ("/opt/env/bin/torchrun", "--nnodes=2", f"--nproc_per_node={host.slots}", f"--node_rank={rank}")
            + ("--master_addr=node1", "--module", "compare.worker", "torchrun", LONG_PATH),
            {"OMP_NUM_THREADS": "1", "NAME": "two words"},
            host,
        )
        for rank, host in enumerate(HOSTS)
    ]
    mpirun = [Command(("/opt/env/bin/mpirun", "--mca", "orte_launch_agent", QUOTED, LONG_PATH), {})]
    launches = [
        LaunchPlan(
            Job(config=run.config, arm=arm, affinity=[0, 1], number=1, launched_at=0.0, dataset=run.dataset),
            commands,
        )
        for arm, commands in zip(parse_arms(["mpi,ddp"]), (mpirun, torchrun), strict=True)
    ]
    assumptions = ["No host was asked. Each is assumed to be like this machine, with 2 CPUs and no GPU."]
    return Plan(run=run, hosts_source="2 of hosts.txt", launches=launches, assumptions=assumptions)


def test_plan_lists_each_arm_once_and_states_how_other_hosts_differ():
    document = document_of(a_plan())
    _, hosts, arms = document.tables
    assert [row.cells for row in hosts.rows] == [("node1", "2", "hosts.txt:1"), ("node2", "1", "hosts.txt:2")]
    assert [row.cells for row in arms.rows] == [
        ("ddp", "torchrun", "3", "2", "1"),
        ("mpi", "mpirun", "3", "2", "1"),
    ]
    assert [listing.place for listing in arms.listings] == ["ddp on node1", "mpi"]
    assert "except that node2 has --nproc_per_node=1 --node_rank=1." in document.notes[0]
    assert not any("OMP_NUM_THREADS" in listing.text for listing in arms.listings)


def test_verbose_plan_adds_environment_and_job_of_each_arm():
    *_, arms = document_of(a_plan(), verbose=True).tables
    ddp, job, *_ = arms.listings
    assert ddp.text.startswith("OMP_NUM_THREADS=1 \\\nNAME='two words' \\\n/opt/env/bin/torchrun ")
    assert job.place == "job.json of ddp on node1"
    assert job.language == "json"


def test_plan_states_the_data_and_how_to_get_it():
    (_, data, length, baseline), *_ = ([row.cells for row in t.rows] for t in document_of(a_plan()).tables)
    assert data == ("data", "MNIST in /data/MNIST/raw")
    assert length[1].endswith("By the starts and turns alone, 5 rounds take at least 46 s.")
    assert baseline == ("baseline", "ddp")
    (_, data, *_), *_ = ([row.cells for row in t.rows] for t in document_of(a_plan(dataset=DIGITS)).tables)
    assert data[1].endswith(f"in /data/digits/v1. {DIGITS.note}")
    assert MNIST.note == ""


def test_markdown_of_a_plan_marks_commands_as_shell():
    text = write(document_of(a_plan(left_out={"horovod": "it is not installed"})), "markdown")
    assert f"`mpi`:\n\n```sh\n{shlex.join(['/opt/env/bin/mpirun', '--mca'])} " in text
    assert "- **horovod would not run: it is not installed.**" in text
