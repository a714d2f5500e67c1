"""``ringside submit``: what it prints where, and which flags belong together."""

import json

import pytest
from typer.testing import CliRunner

from compare.cli.main import app
from compare.errors import UsageError

POD = ["--engine", "kubernetes", "--image", "registry/ringside:1"]
VERIFY = ["verify", "--backend", "ddp"]


def submit(*arguments):
    return CliRunner().invoke(app, ["submit", *arguments])


def test_submit_to_kubernetes_prints_the_manifest_alone_on_stdout():
    done = submit(*POD, "--namespace", "team", "--shm", "2Gi", "-t", "5", "--dry-run", "--", *VERIFY)
    assert done.exit_code == 0, done.output
    job = json.loads(done.stdout)
    assert job["metadata"] == {"name": "ringside-verify", "namespace": "team"}
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == 300
    assert '"sizeLimit": "2Gi"\n' in done.stdout
    assert "| kubectl apply -f -" in done.stderr
    follow = "until kubectl -n team logs -f job/ringside-verify-launcher; do sleep 2; done"
    assert follow in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("more", "lost"), [((), True), (("--export", "-"), False), (("--output=/volume",), False)]
)
def test_submit_says_when_the_result_would_end_with_the_pod(more, lost):
    done = submit(*POD, "--", *VERIFY, *more)
    assert ("add: --export -" in done.stderr) is lost


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*POD, "--wait", "--", "run"], "--wait has no meaning with --engine kubernetes"),
        (["--gpus", "1", "--", "run"], "--gpus has no meaning with --engine slurm"),
        ([*POD, "--", "run", "--budget", "soon"], "--budget cannot be 'soon'"),
        (["--dry-run", "--", "run", "--export-json", "a.json"], "It is now: ringside run --export a.json"),
    ],
)
def test_submit_of_what_cannot_work_is_refused_and_prints_no_manifest(arguments, says):
    done = submit(*arguments)
    assert isinstance(done.exception, UsageError)
    assert done.stdout == ""
    assert says in str(done.exception)
