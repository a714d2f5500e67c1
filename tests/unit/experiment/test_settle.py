"""Test how a request is settled by what is available."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from backends import BACKENDS
from compare import __version__
from compare.doctor import availability
from compare.doctor.availability import Availability, Survey, survey
from compare.doctor.facts import Library
from compare.errors import OutputError, UnavailableError, UsageError
from compare.experiment import settle
from compare.experiment.run import new_run
from compare.schema import environment, store
from compare.schema.arms import Arm, parse_arms
from compare.schema.hosts import Host
from compare.schema.store import create_directory
from tests.unit.factories import DIGITS, a_cluster, a_config

MISSING = {"horovod": "horovod is not installed", "mpi": "mpi4py is not installed"}


@pytest.mark.parametrize(
    ("wanted", "backends", "libraries"),
    [
        (["manual", "ddp", "manual"], ["manual", "ddp"], ["torch"]),
        (["mpi"], ["mpi"], ["torch", "mpi4py"]),
        ([], [*BACKENDS], ["torch", "horovod", "mpi4py"]),
    ],
)
def test_survey_loads_only_the_libraries_of_wanted_backends(monkeypatch, wanted, backends, libraries):
    unloaded = SimpleNamespace(read=lambda _: {"problem": "broken"}, end=lambda: None)
    monkeypatch.setattr(availability, "Probe", lambda name, _: SimpleNamespace(name=name, **vars(unloaded)))
    found = survey(wanted)
    assert [*found.backends] == backends
    assert {name: library.problem for name, library in found.libraries.items()} == {
        name: f"{name} does not load: broken" for name in libraries
    }


def test_survey_interrupted_ends_every_process(monkeypatch):
    processes = []

    class Interrupted(availability.Probe):
        def read(self, _):
            raise KeyboardInterrupt

        def end(self):
            super().end()
            processes.append(self._process)

    monkeypatch.setattr(availability, "Probe", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        survey(["mpi"])
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2


def a_survey(*, gpus=0, missing=(), controllers=("gloo", "mpi")):
    return Survey(
        {
            name: Availability(
                backend=name,
                launcher=backend.launcher,
                problem=MISSING[name] if name in missing else "",
                remedy=backend.install if name in missing else "",
            )
            for name, backend in BACKENDS.items()
        },
        {
            "torch": Library(facts={"gpus": gpus}),
            "horovod": Library(facts={"controllers": list(controllers)}),
            "mpi4py": Library(),
        },
    )


# ---- device ----


@pytest.mark.parametrize(
    ("asked", "ranks", "gpus", "taken"),
    [
        ("auto", 2, 0, "cpu"),
        ("auto", 2, 2, "cuda"),
        ("auto", 1, 8, "cuda"),
        ("cpu", 2, 0, "cpu"),
        ("cpu", 2, 8, "cpu"),
        ("cuda", 2, 2, "cuda"),
    ],
)
def test_the_device_is_what_was_asked_for_or_what_there_is(asked, ranks, gpus, taken):
    assert settle.choose_device(asked, [Host("here", ranks)], [gpus]) == taken


@pytest.mark.parametrize(
    ("asked", "gpus", "remedy"),
    [("cuda", 0, "--device cpu"), ("cuda", 1, "1 of its slots"), ("auto", 1, "--device cpu")],
)
def test_too_few_gpus_are_an_error_and_never_the_cpu_instead(asked, gpus, remedy):
    with pytest.raises(UnavailableError) as caught:
        settle.choose_device(asked, [Host("n1", 1), Host("n2", 2)], [1, gpus])
    assert caught.value.what == "2 ranks on n2 need 2 GPUs."
    assert f"has {gpus}" in caught.value.found
    assert remedy in caught.value.remedy


def test_an_unknown_device_is_left_to_the_config_to_refuse():
    assert settle.choose_device("tpu", [Host("here", 2)], [8]) == "tpu"


# ---- arms ----


def test_choose_arms_refuses_cuda_options_on_the_cpu():
    arms = parse_arms(["ddp,ddp:comm_hook=bf16"])
    with pytest.raises(UnavailableError) as caught:
        settle.choose_arms(arms, "cpu", a_survey(), one_host=True)
    assert caught.value.what == "ddp:comm_hook=bf16 cannot run on the CPU."
    assert "comm_hook=bf16 for CUDA alone" in caught.value.found
    assert settle.choose_arms(arms, "cuda", a_survey(gpus=2), one_host=True) == (arms, {})


def test_all_that_can_run_are_taken_where_none_is_named():
    arms, left_out = settle.choose_arms((), "cpu", a_survey(), one_host=True)
    assert [arm.label for arm in arms] == ["ddp", "manual", "manual:mode=shared_memory", "horovod", "mpi"]
    assert left_out == {}


def test_choose_arms_takes_zero_and_single_only_by_name():
    arms, left_out = settle.choose_arms((), "cpu", a_survey(), one_host=True)
    assert {"zero", "single"}.isdisjoint({arm.backend for arm in arms} | set(left_out))
    named = parse_arms(["zero,single"])
    assert settle.choose_arms(named, "cpu", a_survey(), one_host=True) == (named, {})


def test_choose_arms_leaves_shared_memory_out_with_the_reason():
    survey = a_survey()
    survey.libraries["torch"].facts["shared_memory_problem"] = "memory cannot be shared here (why)"
    arms, left_out = settle.choose_arms((), "cpu", survey, one_host=True)
    assert [arm.label for arm in arms] == ["ddp", "manual", "horovod", "mpi"]
    assert left_out == {"manual:mode=shared_memory": "memory cannot be shared here (why)"}


@pytest.mark.parametrize(("device", "one_host"), [("cpu", False), ("cuda", True)])
def test_over_hosts_and_on_gpus_shared_memory_is_not_taken_unasked(device, one_host):
    arms, _ = settle.choose_arms((), device, a_survey(gpus=2), one_host=one_host)
    assert not [arm.label for arm in arms if "shared_memory" in arm.label]


def test_what_cannot_run_is_left_out_with_reason_and_remedy():
    arms, left_out = settle.choose_arms((), "cpu", a_survey(missing=["horovod", "mpi"]), one_host=True)
    assert [arm.label for arm in arms] == ["ddp", "manual", "manual:mode=shared_memory"]
    assert list(left_out) == ["horovod", "mpi"]
    assert "horovod is not installed" in left_out["horovod"]
    assert "compare install horovod" in left_out["horovod"]


def test_on_gpus_what_cannot_average_there_is_left_out_with_the_reason():
    arms, left_out = settle.choose_arms((), "cuda", a_survey(gpus=2), one_host=True)
    assert [arm.label for arm in arms] == ["ddp", "manual", "horovod"]
    assert "--device cpu" in left_out["mpi"]


def test_arms_that_are_named_are_taken_as_they_are():
    named = parse_arms(["mpi,ddp:bucket_cap_mb=1,horovod:controller=mpi"])
    assert settle.choose_arms(named, "cpu", a_survey(), one_host=True) == (named, {})


def test_an_arm_that_is_named_and_cannot_run_is_an_error():
    with pytest.raises(UnavailableError) as caught:
        settle.choose_arms(parse_arms(["ddp,horovod"]), "cpu", a_survey(missing=["horovod"]), one_host=True)
    assert "horovod" in caught.value.what
    assert "not installed" in caught.value.found
    assert "compare install horovod" in caught.value.remedy


def test_an_arm_that_is_named_and_cannot_use_the_device_is_an_error():
    with pytest.raises(UnavailableError) as caught:
        settle.choose_arms(parse_arms(["ddp,mpi"]), "cuda", a_survey(gpus=2), one_host=True)
    assert "mpi" in caught.value.what
    assert "--device cpu" in caught.value.remedy


def test_a_second_backend_over_horovod_needs_only_its_controller(monkeypatch):
    monkeypatch.setitem(BACKENDS, "mpi", dataclasses.replace(BACKENDS["horovod"], name="mpi"))
    a_survey().require("mpi", {"controller": "gloo"})
    with pytest.raises(UnavailableError, match="Horovod was built without its mpi controller"):
        a_survey(controllers=["gloo"]).require("mpi", {"controller": "mpi"})


@pytest.mark.parametrize(("text", "controller"), [("horovod:controller=mpi", "mpi"), ("horovod", "gloo")])
def test_a_controller_that_was_not_built_is_an_error(text, controller):
    survey = a_survey(controllers=[name for name in ("gloo", "mpi") if name != controller])
    with pytest.raises(UnavailableError) as caught:
        settle.choose_arms(parse_arms([text]), "cpu", survey, one_host=True)
    assert f"without its {controller} controller" in caught.value.what


def test_it_is_an_error_where_nothing_can_run():
    backends = {
        name: Availability(
            backend=name, launcher=backend.launcher, problem="torch does not load", remedy="mend it"
        )
        for name, backend in BACKENDS.items()
    }
    with pytest.raises(UnavailableError) as caught:
        settle.choose_arms(
            (), "cpu", Survey(backends, {"torch": Library(problem="torch does not load")}), one_host=True
        )
    assert "torch does not load" in caught.value.found


# ---- control and baseline ----


@pytest.mark.parametrize(
    ("named", "control", "run"),
    [
        ("ddp,mpi", True, ["none", "ddp", "mpi"]),
        ("ddp,mpi", False, ["ddp", "mpi"]),
        ("ddp,none,mpi", True, ["none", "ddp", "mpi"]),
        # Who names the control wants it.
        ("ddp,none", False, ["none", "ddp"]),
        ("none", False, ["none"]),
    ],
)
def test_the_control_runs_first_unless_it_is_not_wanted(named, control, run):
    assert [arm.label for arm in settle.with_control(parse_arms([named]), control=control)] == run


@pytest.mark.parametrize(
    ("asked", "named", "baseline"),
    [
        (None, "ddp,mpi", "ddp"),
        (None, "none,mpi,ddp", "mpi"),
        (None, "none", "none"),
        ("mpi", "ddp,mpi", "mpi"),
        ("ddp:bucket_cap_mb=1", "ddp,ddp:bucket_cap_mb=1", "ddp:bucket_cap_mb=1"),
        # However it is spelled, as long as it is the same arm.
        ("ddp:bucket-cap-mb=1.0", "ddp,ddp:bucket_cap_mb=1", "ddp:bucket_cap_mb=1"),
        (
            "manual:bucket_mb=2:mode=overlap",
            "manual:mode=overlap:bucket_mb=2",
            "manual:mode=overlap:bucket_mb=2",
        ),
        # The config refuses it, with the arms that there are.
        ("horovod", "ddp,mpi", "horovod"),
    ],
)
def test_choose_baseline_takes_the_named_arm_or_the_first(asked, named, baseline):
    assert settle.choose_baseline(asked, parse_arms([named])) == baseline


def test_a_baseline_that_is_no_arm_is_refused():
    with pytest.raises(UsageError, match="'dpp'"):
        settle.choose_baseline("dpp", parse_arms(["ddp"]))


# ---- data and hosts ----


@pytest.mark.parametrize("name", ["auto", "mnist", "digits"])
def test_a_data_set_is_taken_by_its_name(name):
    assert settle.choose_dataset(name) == name


def test_an_unknown_data_set_is_answered_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        settle.choose_dataset("cifar")
    assert "'cifar'" in caught.value.what
    assert "auto or mnist or digits" in caught.value.remedy


@pytest.fixture
def hostfile(tmp_path):
    def write(text):
        path = tmp_path / "hosts"
        path.write_text(text)
        return path

    return write


def slots(hosts):
    return [(host.name, host.slots) for host in hosts]


def test_without_a_hostfile_this_machine_takes_every_rank():
    assert slots(settle.choose_hosts(None, 3)) == [("localhost", 3)]
    assert slots(settle.choose_hosts(None, None)) == [("localhost", 2)]


def test_the_hostfile_says_how_many_ranks_there_are(hostfile):
    assert slots(settle.choose_hosts(hostfile("localhost slots=4\n"), None)) == [("localhost", 4)]
    assert slots(settle.choose_hosts(hostfile("localhost slots=4\n"), 3)) == [("localhost", 3)]


@pytest.mark.parametrize(
    ("text", "ranks", "named"),
    [
        ("localhost slots=2\n", 3, "3 ranks do not fit"),
        ("far.example slots=2\n", 3, "3 ranks do not fit"),
        ("localhost slots=2\n127.0.0.1 slots=2\n", 2, "hosts:2: this machine is named twice"),
        ("", 2, "no host is named"),
    ],
)
def test_choose_hosts_refuses_a_wrong_hostfile(hostfile, text, ranks, named):
    with pytest.raises(UsageError) as caught:
        settle.choose_hosts(hostfile(text), ranks)
    assert named in caught.value.what
    assert caught.value.remedy


def test_other_machines_are_taken_from_a_file_or_from_the_command_line(hostfile):
    text = "n1 slots=2\nn2 slots=2\nn3 slots=2\n"
    assert slots(settle.choose_hosts(hostfile(text), 3)) == [("n1", 2), ("n2", 1)]
    assert slots(settle.choose_hosts(None, None, named="n[1-2]:2,n3")) == [("n1", 2), ("n2", 2), ("n3", 1)]
    assert slots(settle.choose_hosts(hostfile(text), None, exclude=["n2"])) == [("n1", 2), ("n3", 2)]
    assert slots(settle.choose_hosts(hostfile(text), None, include=["n[2-3]"])) == [("n2", 2), ("n3", 2)]


def test_hosts_are_named_once(hostfile):
    with pytest.raises(UsageError, match="both name hosts"):
        settle.choose_hosts(hostfile("n1\n"), None, named="n1")
    with pytest.raises(UsageError, match="need named hosts"):
        settle.choose_hosts(None, None, include=["n1"])


def test_threads_are_shared_out_by_the_fullest_host():
    hosts = (Host("n1", 1), Host("n2", 2))
    assert settle.default_threads(hosts, [range(8), range(8)]) == 4
    assert settle.default_threads(hosts, [range(2), range(8)]) == 2
    assert settle.default_threads(hosts, [range(8), range(1)]) == 1


def test_what_is_given_to_the_ranks_is_read_and_never_shown():
    read = environment.read_exports(["A=1=2", "TOKEN", "B="], {"TOKEN": "hunter2"})
    assert read == {"A": "1=2", "TOKEN": "hunter2", "B": ""}
    words = ["run", "-x", "A=1", "-xB=2", "--env", "C=3", "--env=D=4", "-x", "TOKEN", "--backend", "x:y=1"]
    assert environment.masked(words) == [
        *("run", "-x", "A=***", "-xB=***", "--env", "C=***", "--env=D=***", "-x", "TOKEN"),
        *("--backend", "x:y=1"),
    ]
    more = [
        "run",
        "-vx",
        "A=1",
        "-vxB=2=3",
        "--env",
        "C=4",
        "--en=D=5",
        "--en",
        "E=6",
        "--export-json",
        "a=b",
    ]
    assert environment.masked(more) == [
        *("run", "-vx", "A=***", "-vxB=***", "--env", "C=***", "--en=D=***", "--en", "E=***"),
        *("--export-json", "a=b"),
    ]


@pytest.mark.parametrize(
    "asked", ["MISSING", "PATH=/tmp", "RANK=3", "A B=1", "=1", "RINGSIDE_LAUNCH=x", "LD_PRELOAD=x"]
)
def test_what_cannot_be_given_to_the_ranks_is_refused(asked):
    with pytest.raises(UsageError, match="-x"):
        environment.read_exports([asked], {})


# ---- what is written ----


def test_a_new_file_in_a_folder_can_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store.require_writable(tmp_path / "out.json", to_be_made=None)
    store.require_writable(Path("out.json"), to_be_made=None)
    (tmp_path / "out.json").touch()
    store.require_writable(tmp_path / "out.json", to_be_made=None)
    assert (tmp_path / "out.json").read_bytes() == b""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("gone/out.json", "gone is not a folder"),
        ("file/out.json", "file is not a folder"),
        ("folder", "is a folder"),
    ],
)
def test_a_file_that_could_not_be_written_is_refused(tmp_path, path, found):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError) as caught:
        store.require_writable(tmp_path / path, to_be_made=None)
    assert str(tmp_path / path) in caught.value.what
    assert found in caught.value.found
    assert caught.value.remedy


@pytest.mark.parametrize("exists", [True, False], ids=["file", "folder"])
def test_what_is_read_only_is_refused(tmp_path, monkeypatch, exists):
    # root may write everywhere, so the kernel's answer is given here.
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    path = tmp_path / "out.json"
    if exists:
        path.touch()
    with pytest.raises(OutputError) as caught:
        store.require_writable(path, to_be_made=None)
    assert caught.value.found == f"{path if exists else tmp_path} is read-only."


@pytest.mark.parametrize(("model", "shown"), [("wide", "wide"), ("mlp:784-64-10", "mlp-784-64-10")])
def test_a_runs_folder_is_named_by_time_and_what_it_is(model, shown):
    name = store.default_output(a_config(model=model, ranks=3))
    assert name.parent == Path("runs")
    assert name.name.endswith(f"-{shown}-np3")
    assert ":" not in name.name


def test_a_new_run_records_what_it_begins_with(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/opt/env/bin/compare", "run", "-np", "2"])
    here = a_cluster(cpus=sorted(os.sched_getaffinity(0)))
    run = new_run(a_config(), DIGITS, here, {"mpi": "not here"})
    assert run.command == ["compare", "run", "-np", "2"]
    assert run.ringside_version == __version__
    assert run.cores == len(os.sched_getaffinity(0))
    assert (run.dataset, run.left_out, run.launches, run.complete) == (DIGITS, {"mpi": "not here"}, [], False)
    assert run.config.arms == (Arm("none"), Arm("ddp"))
    # With its zone: a table that travels says when, wherever it is read.
    assert run.started_at[-6] in "+-"


def test_a_folder_is_claimed_by_the_first_run(tmp_path):
    """Two runs of the same second must not share a folder."""
    create_directory(tmp_path / "run")
    with pytest.raises(OutputError, match="not empty"):
        create_directory(tmp_path / "run")


def test_an_export_may_lie_in_the_folder_that_the_run_makes(tmp_path):
    store.require_writable(tmp_path / "run" / "x.json", to_be_made=tmp_path / "run")
