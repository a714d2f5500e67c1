"""The Slurm engine: command lines, launchers' ``ssh``, and jobs.

A real Slurm is in tests/lab.
"""

import math
import os
import subprocess
import time

import pytest

from compare.errors import AllocationError, HostError, UnavailableError, UsageError
from compare.launch.engines import Answer, slurm_job
from compare.launch.engines.commands import host_error, join_errors
from compare.launch.engines.slurm import Slurm, carrier_of
from compare.launch.engines.slurm_job import read_job
from compare.schema.hosts import Host, local_host

THERE = Host("n2", 1, source="Slurm job 17")
SHOWN = (
    "JobId=17 JobName=x UserId={user} JobState={state} Reason={reason} RunTime=00:01:00 TimeLimit={limit} "
    "NodeList=n[1-2] NumNodes=2 NumCPUs=3 NumTasks={tasks} CPUs/Task=1 "
    "Nodes=n1 CPU_IDs=0-1 Mem=0 GRES={gres} "
    "Nodes=n2 CPU_IDs=0 Mem=0 GRES={gres} StdErr={output}\n"
)
STOPPED = "slurmstepd: error: *** STEP 1.0 ON n2 CANCELLED AT 2026"
JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}


@pytest.fixture
def controller(programs):
    """Let a stand-in for ``scontrol`` describe the job."""

    def write(*, state="RUNNING", reason="None", limit="01:00:00", tasks=2, gres="", output="", user=None):
        user = user or f"me({os.getuid()})"
        shown = SHOWN.format(
            state=state, reason=reason, limit=limit, tasks=tasks, gres=gres, output=output, user=user
        )
        programs("scontrol", f"cat <<'END'\n{shown}END")

    return write


def slots(job):
    return {host.name: host.slots for host in job.hosts}


def test_srun_gets_no_variable_of_the_job_and_hands_on_names_alone(programs, monkeypatch):
    programs("srun", "")
    monkeypatch.setenv("SLURM_EXPORT_ENV", "NONE")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    carrier = carrier_of("17", {"PATH": "/bin", "MY_TOKEN": "hunter2", "SLURM_CONF": "/etc/its.conf"})
    argv = carrier.argv(THERE, ["python", "a b"])
    assert argv[0] == "env"
    assert {"-uSLURM_EXPORT_ENV", "-uSLURM_NTASKS", "SLURM_CONF=/etc/its.conf", "--export=PATH"} < set(argv)
    assert argv[-4:] == ("--nodelist=n2", "--", "python", "a b")
    assert {"--jobid=17", "--overlap", "--unbuffered", "--mpi=none"} < set(argv)
    assert carrier.argv(local_host(1), ["a"]) == ("a",)


def test_srun_that_is_not_installed_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="srun is not installed"):
        Slurm(job="17").argv(THERE, ["true"])


@pytest.mark.parametrize(
    "words",
    [
        ["-x", "n2", "echo one", "two"],
        ["-o", "StrictHostKeyChecking=no", "n2", "-p", "22", "-oBatchMode=yes", "echo one two"],
    ],
)
def test_ssh_of_slurm_drops_options_and_starts_a_step(programs, tmp_path, words):
    programs(
        "srun", 'for word; do shift; case $word in --nodelist=*) echo "$word" ;; --) exec "$@" ;; esac; done'
    )
    files = Slurm(job="17").remote_shell(tmp_path, [THERE])
    programs("ssh", files["bin/ssh"])
    done = subprocess.run([tmp_path / "ssh", *words], capture_output=True, text=True, check=True)
    assert done.stdout == "--nodelist=n2\none two\n"


@pytest.mark.parametrize(
    ("printed", "kind", "says"),
    [
        (f"{STOPPED} DUE TO TIME LIMIT ***", AllocationError, "its time limit"),
        (f"{STOPPED} DUE TO PREEMPTION ***", AllocationError, "was preempted"),
        (f"{STOPPED} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", HostError, "cannot be reached"),
        (f"{STOPPED} ***", HostError, "lost its step"),  # of the job or of the step: the controller knows
        ("srun: error: Authentication failure", HostError, "srun failed"),
        ("the training timed out: name not found in the list", HostError, "failed with status 3"),
        ("srun: error: Unable to create step for job 17: busy", HostError, "takes no further step"),
        ("srun: error: n2: task 0: Exited with exit code 3", HostError, "failed with status 3"),
    ],
)
def test_failed_step_is_explained(printed, kind, says):
    carrier = Slurm(job="17")
    error = host_error(Answer(THERE, 3, b"", printed.encode(), 1.0), carrier)
    assert type(error) is kind
    assert says in str(error)
    joined = join_errors([HostError("another"), error], of=2)
    assert isinstance(joined, kind)


def test_job_has_tasks_cpus_and_time(controller):
    controller()
    job = read_job(JOB | {"SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"})
    assert slots(job) == {"n1": 2, "n2": 1}
    assert job.cpus == {"n1": 2, "n2": 1}
    assert job.ends_at - time.time() == pytest.approx(3600 - 60 - 60, abs=5)
    job.require_share(Host("n1", 2), 2, 0)
    assert job.share(Host("n1", 2), 64) == 2
    with pytest.raises(HostError, match="sees 1 CPU of the 2") as caught:
        job.require_share(Host("n1", 2), 1, 0)
    assert "srun -n1 --cpu-bind=none --cpus-per-task=2" in caught.value.remedy


def test_job_without_tasks_has_a_rank_for_each_gpu(controller):
    controller(gres="gpu:a100:4(IDX:0-3)", limit="UNLIMITED")
    job = read_job(JOB)
    assert slots(job) == {"n1": 4, "n2": 4}
    assert job.ends_at == math.inf
    controller()
    assert slots(read_job(JOB)) == {"n1": 1, "n2": 1}


@pytest.mark.parametrize(("tasks", "expected"), [(2, [1, 1]), (3, [2, 1]), (4, [2, 2])])
def test_job_of_a_step_has_its_own_tasks(controller, tasks, expected):
    controller(tasks=tasks)
    step = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}
    assert list(slots(read_job(JOB | step)).values()) == expected


def test_job_whose_number_alone_is_known_has_its_tasks(controller):
    controller(tasks=4)
    assert slots(read_job({"SLURM_JOB_ID": "17"})) == {"n1": 2, "n2": 2}
    assert slots(read_job({"SLURM_JOBID": "17"})) == {"n1": 2, "n2": 2}


@pytest.mark.parametrize("number", ["", "0", "-1", "17_3", "seventeen", "017"])
def test_job_whose_number_is_none_is_refused(controller, number):
    controller()
    with pytest.raises(
        UsageError, match=f"SLURM_JOB_ID is '{number}', which is no number of a job"
    ) as caught:
        read_job({"SLURM_JOB_ID": number})
    assert "--engine local" in caught.value.remedy


@pytest.mark.parametrize(
    ("described", "says"),
    [
        ({"user": f"alice({os.getuid() + 1})"}, "Slurm job 17 is not yours.\nIt belongs to alice"),
        ({"state": "COMPLETED"}, "Slurm job 17 does not run.\nIts state is COMPLETED"),
        ({"state": "TIMEOUT"}, "Its state is TIMEOUT"),
        ({"state": "PENDING"}, "Its state is PENDING"),
    ],
)
def test_job_that_is_no_running_one_of_this_user_is_refused(controller, described, says):
    controller(**described)
    with pytest.raises(UsageError) as caught:
        read_job(JOB)
    assert says in str(caught.value)
    assert "--engine local" in caught.value.remedy


def test_job_that_slurm_has_forgotten_is_refused(programs):
    programs("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(UsageError, match="Slurm knows no job 17") as caught:
        read_job(JOB)
    assert "--engine local" in caught.value.remedy


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"SLURM_ARRAY_TASK_ID": "3"}, "a part of a job array"),
        ({"SLURM_HET_SIZE": "2"}, "is heterogeneous"),
    ],
)
def test_job_that_is_not_simple_is_refused(environ, says):
    with pytest.raises(UsageError, match=says):
        read_job(JOB | environ)


def test_job_whose_controller_is_silent_is_unavailable(programs):
    programs("scontrol", "echo no controller >&2; exit 1")
    with pytest.raises(UnavailableError, match="what job 17 has") as caught:
        read_job(JOB)
    assert caught.value.found == "no controller"


@pytest.mark.parametrize(
    ("state", "reason", "says"),
    [
        ("TIMEOUT", "TimeLimit", "its time limit"),
        ("PREEMPTED", "None", "preempted"),
        ("CANCELLED", "None", "cancelled"),
        ("COMPLETING", "TimeLimit", "its time limit"),
        ("COMPLETING", "None", "was ended by Slurm"),
        ("RUNNING", "None", None),
    ],
)
def test_job_tells_why_it_ended(controller, monkeypatch, state, reason, says):
    """Its own script sees it complete, and no later state."""
    monkeypatch.setattr(slurm_job, "_COMPLETING_SECONDS", 0.0)
    controller()
    job = read_job(JOB)
    controller(state=state, reason=reason)
    ended = job.why_it_ended()
    assert ended is None if says is None else says in ended.what


def test_job_over_its_limit_is_ended_before_slurm_says_so(controller):
    controller()
    job = read_job(JOB)
    controller(limit="00:01:00")
    assert "its time limit" in job.why_it_ended().what


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("JOB 17 ON n1 CANCELLED AT 2026-11-25T16:51:00", "was cancelled"),
        ("JOB 17 ON n1 CANCELLED AT 2026-11-25T16:51:00 DUE TO PREEMPTION", "was preempted"),
        ("JOB 17 ON n1 CANCELLED AT 2026-11-25T16:51:00 DUE TO TIME LIMIT", "its time limit"),
        ("JOB 18 ON n1 CANCELLED AT 2026-11-25T16:51:00", "was ended by Slurm"),
    ],
)
def test_script_of_a_job_reads_the_ending_in_its_output(controller, monkeypatch, tmp_path, printed, says):
    monkeypatch.setattr(slurm_job, "_COMPLETING_SECONDS", 0.0)
    output = tmp_path / "out"
    output.write_text(f"round 1\nslurmstepd: error: *** {printed} ***\n")
    controller()
    job = read_job(JOB)
    controller(state="COMPLETING", output=output)
    assert says in job.why_it_ended().what
