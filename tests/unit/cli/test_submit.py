"""``compare submit``: what it prints where, and which flags belong together."""

import pytest
import yaml
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
    job = yaml.safe_load(done.stdout)
    assert job["metadata"] == {"name": "compare-verify", "namespace": "team"}
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == 300
    assert 'sizeLimit: "2Gi"' in done.stdout
    assert "| kubectl apply -f -" in done.stderr
    follow = "until kubectl -n team logs -f job/compare-verify-launcher; do sleep 2; done"
    assert follow in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("more", "lost"), [((), True), (("--export-json", "-"), False), (("--output=/volume",), False)]
)
def test_submit_says_when_the_result_would_end_with_the_pod(more, lost):
    done = submit(*POD, "--", *VERIFY, *more)
    assert ("add: --export-json -" in done.stderr) is lost


def test_submit_of_a_budget_that_is_no_time_prints_no_manifest():
    done = submit(*POD, "--", "run", "--budget", "soon")
    assert "--budget cannot be 'soon'" in str(done.exception)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*POD, "--wait"], "--wait means nothing to --engine kubernetes"),
        (["--gpus", "1"], "--gpus means nothing to --engine slurm"),
    ],
)
def test_submit_refuses_flags_of_another_scheduler(arguments, says):
    done = submit(*arguments, "--", "run")
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)
