"""The manifest of an MPIJob, checked against the operator's own definition."""

import json
import re

import jsonschema
import pytest
import yaml

from compare.errors import UsageError
from compare.jobs import Resources
from compare.jobs.kubernetes import explain_time, write_manifest
from tests.comparing import ROOT

RESOURCES = Resources(3, 2, minutes=20, image="registry/ringside:1", cpus=5, gpus=2)
WORDS = ["run", "--backend", "ddp,horovod", "--workload", "my file.py:make"]


def a_manifest(words=WORDS, **changes):
    return json.loads(write_manifest(RESOURCES._replace(**changes), words))


@pytest.fixture(scope="module")
def definition():
    """Provide the schema of an MPIJob, which refuses unknown fields."""
    file = ROOT.parent / "shared" / "data" / "crds" / "kubeflow.org_mpijobs.yaml"
    if not file.exists():
        pytest.skip("the definition of an MPIJob is not in ../shared/data/crds beside the repository")
    (version,) = yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    assert version["name"] == "v2beta1"
    schema = closed(version["schema"]["openAPIV3Schema"])
    names = {"type": "string"}
    # Of the API server itself, and open in every definition.
    schema["properties"]["metadata"] = closed({"properties": {"name": names, "namespace": names}})
    return jsonschema.Draft202012Validator(schema)


def closed(schema):
    """Refuse fields that a schema does not name, at every depth."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and "additionalProperties" not in schema:
        inner["additionalProperties"] = False
    return inner


@pytest.mark.parametrize(
    "changes",
    [{}, {"gpus": 0, "cpus": None, "name": "mine", "namespace": "team-a", "shm": "512Mi"}],
)
def test_manifest_is_an_mpijob_by_its_definition(definition, changes):
    definition.validate(a_manifest(**changes))
    misspelt = write_manifest(RESOURCES, WORDS).replace('"slotsPerWorker"', '"slotsPerWorkers"')
    assert not definition.is_valid(json.loads(misspelt))


def pods_of(job):
    return {
        role: (each["replicas"], each["template"]["spec"]["containers"][0])
        for role, each in job["spec"]["mpiReplicaSpecs"].items()
    }


def test_manifest_has_the_pods_that_were_asked_for():
    job = a_manifest()
    assert job["spec"]["slotsPerWorker"] == 2
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == 1200
    pods = pods_of(job)
    (launchers, launcher), (workers, worker) = pods["Launcher"], pods["Worker"]
    assert (launchers, workers) == (1, 3)
    assert worker["resources"]["limits"] == {"cpu": "5", "memory": "8Gi", "nvidia.com/gpu": "2"}
    assert worker["command"][0] == "/usr/sbin/sshd"
    assert worker["readinessProbe"]["tcpSocket"]["port"] == 22
    added = ["--engine", "ssh:wait=400", "--budget", "740"]
    assert launcher["command"] == ["ringside", *WORDS, *added]
    for role, (_, container) in pods.items():
        assert container["image"] == "registry/ringside:1"
        (mount,) = container["volumeMounts"]
        (volume,) = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["volumes"]
        assert mount == {"name": volume["name"], "mountPath": "/dev/shm"}  # noqa: S108
        assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}


def test_manifest_keeps_every_word_and_the_users_own_flags():
    words = ["run", "--engine", "ssh:wait=30", "--backend", "ddp,a: b", "--output", '$(HOME)"', "no"]
    _, launcher = pods_of(a_manifest(words))["Launcher"]
    kept = [word.replace("$$", "$") for word in launcher["command"]]
    assert kept == ["ringside", *words, "--budget", "1110"]
    assert '$$(HOME)"' in launcher["command"], "Kubernetes expands $(HOME)"


@pytest.mark.parametrize(
    ("words", "minutes", "added"),
    [
        (["run"], 2, {"--engine": "ssh:wait=40", "--budget": "20"}),
        (["run"], 60, {"--engine": "ssh:wait=600", "--budget": "2940"}),
        (["run", "--budget=5m"], 60, {"--engine": "ssh:wait=600"}),
        (["run", "--repeats", "7"], 60, {"--engine": "ssh:wait=600"}),
        (["run", "--engine=ssh:wait=9", "--engine", "auto:wait=90"], 10, {"--budget": "450"}),
        (["run", "--engine", "ssh:port=2222"], 2, {"--engine": "ssh:port=2222,wait=40", "--budget": "20"}),
        (["verify"], 10, {"--engine": "ssh:wait=200"}),
    ],
)
def test_command_ends_before_kubernetes_deletes_its_log(words, minutes, added):
    _, launcher = pods_of(a_manifest(words, minutes=minutes))["Launcher"]
    more = launcher["command"][len(words) + 1 :]
    assert dict(zip(more[::2], more[1::2], strict=True)) == added


@pytest.mark.parametrize(
    ("words", "minutes", "left"),
    [
        (["run"], 2, "That leaves 20 s to measure (--budget). Verdicts may take 5 min: give the job -t 9."),
        (["run", "--engine", "ssh:wait=2m"], 4, "Verdicts may take 5 min: give the job -t 8."),
        (["run", "--budget", "2000"], 30, "give the job -t 45, or --budget 1140."),
        (["run", "--budget=1h", "--engine=ssh:wait=9"], 60, "give the job -t 62, or --budget 3531."),
        (["run", "--budget", "19m"], 30, "That leaves 19 min to measure: enough for --budget 19m."),
        (["run"], 9, "That leaves 5 min to measure (--budget)."),
        *(
            (words, 3, "A command that takes longer loses its result: in doubt, raise -t.")
            for words in (["run", "--repeats", "5"], ["verify"])
        ),
    ],
)
def test_time_of_a_job_is_explained(words, minutes, left):
    printed = explain_time(RESOURCES._replace(minutes=minutes), words, 300.0)
    assert printed.startswith(f"Of the job's {minutes} min, the workers may take ")
    assert printed.endswith(left)


@pytest.mark.parametrize("words", [["run"], ["run", "--engine", "ssh:wait=45"]])
@pytest.mark.parametrize("seconds", [1, 300, 1140, 1141, 1199, 2000, 86_400])
def test_least_time_of_a_job_is_named_to_the_minute(words, seconds):
    asked = [*words, "--budget", str(seconds)]
    told = explain_time(RESOURCES._replace(minutes=2), asked, 300.0)
    least = int(re.search(r"-t (\d+),", told)[1]) if "is longer" in told else 2
    assert "enough for" in explain_time(RESOURCES._replace(minutes=least), asked, 300.0)
    assert least == 2 or "is longer" in explain_time(RESOURCES._replace(minutes=least - 1), asked, 300.0)


@pytest.mark.parametrize(
    ("words", "changes", "says"),
    [
        ([], {}, "nothing to submit"),
        (["report"], {}, "not a command that can be submitted"),
        (["run", "-x", "TOKEN=hunter2"], {}, "value of -x"),
        (["run", "a\nb"], {}, "unprintable character"),
        (["run"], {"image": ""}, "needs an image"),
        (["run"], {"name": "Mine"}, "--name cannot be"),
        (["run"], {"minutes": 1}, "-t 1 leaves no time to measure"),
        (["scale", "--engine", "ssh:wait=540"], {"minutes": 10}, "-t 10 leaves no time"),
        (["run", "--engine", "ssh:wait=soon"], {}, "--engine ssh:wait cannot be 'soon'"),
        (["run", "--engine", "ssh:wait=inf"], {}, "--engine ssh:wait cannot be 'inf'"),
        (["run"], {"gpus": 1}, "cannot have 2 ranks and 1 GPU"),
        (["run"], {"memory": "8 GB"}, "--memory cannot be"),
        (["run"], {"memory": "8"}, "--memory cannot be"),
        (["run"], {"memory": "1G", "shm": "1Gi"}, "--shm 1Gi is more than --memory 1G"),
        (["run"], {"shm": "much"}, "--shm cannot be"),
    ],
)
def test_manifest_that_cannot_work_is_refused(words, changes, says):
    with pytest.raises(UsageError, match=says) as caught:
        write_manifest(RESOURCES._replace(**changes), words)
    assert "hunter2" not in str(caught.value)
