"""The Slurm engine: command lines, launchers' ``ssh``, and jobs.

A real Slurm is in tests/lab.
"""

import math
import os
import shlex
import subprocess
import time

import pytest

from compare.errors import AllocationError, HostError, UnavailableError, UsageError
from compare.launch.engines import Answer, slurm
from compare.launch.engines.commands import host_error, join_errors
from compare.launch.engines.detect import ENGINES
from compare.launch.engines.slurm import Slurm, detect
from compare.schema.hosts import Host, local_host
from compare.system import scontrol

THERE = Host("n2", 1, source="Slurm job 17")
SHOWN = (
    "JobId=17 JobName=x UserId={user} JobState={state} Reason={reason} RunTime=00:01:00 TimeLimit={limit} "
    "NodeList=n[1-2] NumNodes=2 NumCPUs=3 NumTasks={tasks} CPUs/Task=1 "
    "Nodes=n1 CPU_IDs=0-1 Mem=0 GRES={gres} "
    "Nodes=n2 CPU_IDs=0 Mem=0 GRES={gres} StdErr={output}\n"
)
RUNNING = {"state": "RUNNING", "reason": "None", "limit": "01:00:00", "tasks": 2, "gres": "", "output": ""}
RUNNING["user"] = f"me({os.getuid()})"
STOPPED = "slurmstepd: error: *** STEP 1.0 ON n2 CANCELLED AT 2026"
JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}


@pytest.fixture
def controller(programs):
    """Let a stand-in for ``scontrol`` describe the job."""

    def write(**described):
        programs("scontrol", f"cat <<'END'\n{SHOWN.format(**RUNNING | described)}END")

    return write


def slots(allocation):
    return {host.name: host.slots for host in allocation.hosts}


def test_srun_gets_no_variable_of_the_job_and_hands_on_names_alone(programs, controller, monkeypatch):
    controller()
    programs("srun", "")
    monkeypatch.setenv("SLURM_EXPORT_ENV", "NONE")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    environ = JOB | {"PATH": "/bin", "MY_TOKEN": "hunter2", "SLURM_CONF": "/etc/its.conf"}
    carrier = detect(environ).carrier
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


@pytest.mark.parametrize("words", ["-x n2 'echo one' two", "-o A=no n2 -p 22 -oBatchMode=yes 'echo one two'"])
def test_ssh_of_slurm_drops_options_and_starts_a_step(programs, tmp_path, words):
    steps = 'for word; do shift; case $word in --nodelist=*) echo "$word" ;; --) exec "$@" ;; esac; done'
    programs("srun", steps)
    programs("ssh", Slurm(job="17").remote_shell([THERE]))
    done = subprocess.run([tmp_path / "ssh", *shlex.split(words)], capture_output=True, text=True, check=True)
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
    error = host_error(Answer(THERE, 3, b"", printed.encode(), 1.0), Slurm(job="17"))
    assert type(error) is kind
    assert says in str(error)
    assert isinstance(join_errors([HostError("another"), error], of=2), kind)


def test_job_has_tasks_cpus_and_time(controller):
    controller()
    found = detect(JOB | {"SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"})
    job = found.job
    assert slots(found) == {"n1": 2, "n2": 1}
    assert job.cpus == {"n1": 2, "n2": 1}
    assert job.ends_at - time.time() == pytest.approx(3600 - 60 - 60, abs=5)
    job.require_share(Host("n1", 2), 2, 0)
    assert job.share(Host("n1", 2), 64) == 2
    with pytest.raises(HostError, match="sees 1 CPU of the 2") as caught:
        job.require_share(Host("n1", 2), 1, 0)
    assert "srun -n1 --cpu-bind=none --cpus-per-task=2" in caught.value.remedy


STEP = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}


@pytest.mark.parametrize(
    ("environ", "described", "expected"),
    [
        (JOB, {}, (1, 1)),
        (JOB, {"gres": "gpu:a100:4(IDX:0-3)"}, (4, 4)),
        (JOB | STEP, {"tasks": 2}, (1, 1)),
        (JOB | STEP, {"tasks": 3}, (2, 1)),
        (JOB | STEP, {"tasks": 4}, (2, 2)),
        ({"SLURM_JOB_ID": "17"}, {"tasks": 4}, (2, 2)),
        ({"SLURM_JOBID": "17"}, {"tasks": 4}, (2, 2)),
    ],
)
def test_job_has_the_tasks_of_all_its_steps_or_a_rank_for_each_gpu(controller, environ, described, expected):
    controller(**described)
    assert slots(detect(environ)) == dict(zip(("n1", "n2"), expected, strict=True))


def test_job_without_a_time_limit_has_no_end(controller):
    controller(limit="UNLIMITED")
    assert detect(JOB).job.ends_at == math.inf


NUMBERS = ("", "0", "-1", "17_3", "seventeen", "017")


@pytest.mark.parametrize(
    ("environ", "described", "says"),
    [
        *(
            ({"SLURM_JOB_ID": number}, {}, f"SLURM_JOB_ID is '{number}', which is not a job number")
            for number in NUMBERS
        ),
        (JOB, {"user": f"alice({os.getuid() + 1})"}, "Slurm job 17 is not yours.\nIt belongs to alice"),
        (JOB, {"state": "COMPLETED"}, "Slurm job 17 is not running.\nIts state is COMPLETED"),
        (JOB, {"state": "TIMEOUT"}, "Its state is TIMEOUT"),
        (JOB, {"state": "PENDING"}, "Its state is PENDING"),
        (JOB | {"SLURM_ARRAY_TASK_ID": "3"}, {}, "a task of a job array"),
        (JOB | {"SLURM_HET_SIZE": "2"}, {}, "is heterogeneous"),
    ],
)
def test_job_that_is_no_simple_running_one_of_this_user_is_refused(controller, environ, described, says):
    controller(**described)
    with pytest.raises(UsageError) as caught:
        detect(environ)
    assert says in str(caught.value)
    assert "--engine local" in caught.value.remedy


@pytest.mark.parametrize(
    ("answers", "error", "says"),
    [
        ("echo 'error: Invalid job id specified' >&2; exit 1", UsageError, "Slurm does not know a job 17"),
        ("echo 'no controller' >&2; exit 1", UnavailableError, "about job 17.\nno controller\n"),
        ("exec sleep 20", UnavailableError, "No answer within 0.5 s.\n"),
    ],
)
def test_job_that_the_controller_does_not_describe_is_refused(programs, monkeypatch, answers, error, says):
    monkeypatch.setattr(scontrol, "_ANSWER_SECONDS", 0.5)
    programs("scontrol", answers)
    with pytest.raises(error) as caught:
        detect(JOB)
    assert says in str(caught.value)
    assert "--engine local" in caught.value.remedy


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_JOBID"])
def test_shell_that_outlived_its_job_leaves_it_as_the_error_says(controller, name):
    controller(state="COMPLETED")
    environ = {name: "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"}
    with pytest.raises(UsageError, match=f"{name} names this job") as caught:
        detect(environ)
    unset = caught.value.remedy.split("`unset ")[1].split("`")[0].split()
    rest = {key: value for key, value in environ.items() if key not in unset}
    assert not any(engine(rest) for engine in ENGINES)


CANCELLED = "CANCELLED AT 2026-11-25T16:51:00"


@pytest.mark.parametrize(
    ("described", "printed", "says"),
    [
        ({"state": "TIMEOUT", "reason": "TimeLimit"}, "", "its time limit"),
        ({"state": "PREEMPTED"}, "", "preempted"),
        ({"state": "CANCELLED"}, "", "cancelled"),
        ({"state": "RUNNING"}, "", None),
        ({"state": "RUNNING", "limit": "00:01:00"}, "", "its time limit"),  # before Slurm ends it
        # Its own script sees it complete, and no later state.
        ({"state": "COMPLETING", "reason": "TimeLimit"}, "", "its time limit"),
        ({"state": "COMPLETING"}, "", "was ended by Slurm"),
        ({"state": "COMPLETING"}, f"JOB 17 ON n1 {CANCELLED}", "was cancelled"),
        ({"state": "COMPLETING"}, f"JOB 17 ON n1 {CANCELLED} DUE TO PREEMPTION", "was preempted"),
        ({"state": "COMPLETING"}, f"JOB 17 ON n1 {CANCELLED} DUE TO TIME LIMIT", "its time limit"),
        ({"state": "COMPLETING"}, f"JOB 18 ON n1 {CANCELLED}", "was ended by Slurm"),
    ],
)
def test_job_tells_why_it_ended(controller, monkeypatch, tmp_path, described, printed, says):
    monkeypatch.setattr(slurm, "_COMPLETING_SECONDS", 0.0)
    output = tmp_path / "out"
    output.write_text(f"round 1\nslurmstepd: error: *** {printed} ***\n")
    controller()
    job = detect(JOB).job
    controller(**described, output=output if printed else "")
    ended = job.why_it_ended()
    assert ended is None if says is None else says in ended.what


def test_job_that_the_controller_has_forgotten_tells_no_ending(controller, programs):
    controller()
    job = detect(JOB).job
    programs("scontrol", "echo 'error: Invalid job id specified' >&2; exit 1")
    assert job.why_it_ended() is None
