"""The script of a Slurm job, and what follows its submission."""

import subprocess
from pathlib import Path

import pytest

from compare.errors import AllocationError, UnavailableError, UsageError
from compare.jobs import Resources, slurm
from compare.jobs.slurm import follow, submit, write_script

RESOURCES = Resources(2, 4, 30, "short", ["--gres=gpu:4"])


def test_script_asks_for_resources_and_executes_the_command(tmp_path):
    script = write_script(RESOURCES, ["run", "--workload", "my file.py:make"], Path("/runs/out"))
    asked = [
        "job-name=ringside-run",
        "nodes=2",
        "ntasks-per-node=4",
        "time=30",
        "partition=short",
        "output=/runs/out",
        "gres=gpu:4",
    ]
    assert [option for option in asked if f"#SBATCH --{option}\n" not in script] == []
    assert script.endswith("-m compare run --workload 'my file.py:make' --engine slurm\n")
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert write_script(RESOURCES, ["run", "--engine", "ssh"], tmp_path).endswith("run --engine ssh\n")


@pytest.mark.parametrize(
    ("words", "option", "says"),
    [
        ([], "--exclusive", "nothing to submit"),
        (["report"], "--exclusive", "not a command that can be submitted"),
        (["run", "-x", "MY_TOKEN=hunter2"], "--exclusive", "value of -x"),
        *((["run"], own, "names the file") for own in ("--output=mine", "--out=mine", "--ou=mine", "-omine")),
        *((["run"], array, "job array") for array in ("--array=1-3", "--arr=1-3", "-a1-3")),
        *((["run"], several, "heterogeneous") for several in ("hetjob", "packjob", "--het-group=0")),
        (["run"], "--comment=a\ncurl evil", "unprintable character"),
    ],
)
def test_script_of_no_launch_of_a_secret_or_of_another_job_is_refused(words, option, says):
    with pytest.raises(UsageError, match=says) as caught:
        write_script(RESOURCES._replace(option=[option]), words, Path("out"))
    assert "hunter2" not in str(caught.value)


def test_script_keeps_blanks_and_the_users_import_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    script = write_script(RESOURCES, ["run"], Path("/my runs/out"))
    assert "#SBATCH '--output=/my runs/out'\n" in script
    assert ":/mine PYTHONSAFEPATH=1" in script
    assert "|| exit 5\n" in script


def test_submitted_job_has_a_number_or_the_reason_against_it(programs, tmp_path):
    programs("sbatch", 'echo "17;cluster"')
    assert submit("a script", tmp_path / "runs" / "job.sh") == "17"
    assert (tmp_path / "runs" / "job.sh").read_text() == "a script"
    programs("sbatch", "echo no such partition >&2; exit 1")
    with pytest.raises(UnavailableError, match="Slurm refused the job") as caught:
        submit("a script", tmp_path / "job.sh")
    assert caught.value.found == "no such partition"


def test_followed_job_shows_its_output_and_gives_its_status(programs, tmp_path):
    output, shown = tmp_path / "out", []
    output.write_text("result\n")
    programs("scontrol", "echo JobState=FAILED ExitCode=8:0")
    assert follow("17", output, shown.append) == 8
    assert shown == ["result\n"]
    programs("scontrol", "echo JobState=CANCELLED ExitCode=0:15")
    with pytest.raises(AllocationError, match="was ended before it finished"):
        follow("17", output, shown.append)


def test_silent_controller_is_no_end_of_the_job(programs, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "_POLL_SECONDS", 0.05)
    asked = tmp_path / "asked"
    programs("scontrol", f"[ -e {asked} ] || {{ : >{asked}; exit 1; }}; echo JobState=COMPLETED ExitCode=0:0")
    assert follow("17", tmp_path / "out", lambda _: None) == 0
    monkeypatch.setattr(slurm, "_SILENT_SECONDS", 0.2)
    for answer in ("exit 1", "exit 0"):
        programs("scontrol", answer)
        with pytest.raises(UnavailableError, match="does not report"):
            follow("17", tmp_path / "out", lambda _: None)
