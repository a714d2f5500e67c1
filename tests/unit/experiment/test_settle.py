"""Test how a request is settled by what is available."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from backends import BACKENDS
from compare import __version__
from compare.doctor import availability
from compare.doctor.availability import survey
from compare.errors import OutputError, UnavailableError, UsageError
from compare.experiment import settle
from compare.experiment.run import new_run
from compare.schema import environment, store
from compare.schema.arms import Arm, parse_arms
from compare.schema.config import RunConfig
from compare.schema.hosts import Host, Link, Network
from compare.schema.store import create_directory
from tests.unit.factories import DIGITS, AnAgent, a_cluster, a_config, a_survey, cluster_of


@pytest.mark.parametrize(
    ("wanted", "backends", "libraries"),
    [
        (["manual", "ddp", "manual"], ["manual", "ddp"], ["torch"]),
        (["mpi"], ["mpi"], ["torch", "mpi4py", "mpich"]),
        ([], [*BACKENDS], ["torch", "horovod", "lightning_fabric", "mpi4py", "mpich"]),
    ],
)
def test_survey_loads_only_the_libraries_of_wanted_backends(monkeypatch, wanted, backends, libraries):
    unloaded = SimpleNamespace(read=lambda *_: {"problem": "broken"}, end=lambda: None)
    monkeypatch.setattr(availability, "Probe", lambda name, _: SimpleNamespace(name=name, **vars(unloaded)))
    found = survey(wanted)
    assert [*found.backends] == backends
    assert [*found.libraries] == libraries
    assert {each.problem for each in found.backends.values()} == {"torch does not load: broken"}


def test_library_without_an_answer_is_unknown_rather_than_broken(monkeypatch):
    """Beside a load, a library that loads well may not answer in time."""
    outcomes = {"torch": {"facts": {"version": "2"}}}
    silent = {"unanswered": "no answer in 60 s, beside a load of 14.1 on 2 cores"}
    started = []

    def probe(name, _):
        started.append(name)
        read = lambda *_: outcomes.get(name, silent)  # noqa: E731 -- it depends on the name
        return SimpleNamespace(name=name, read=read, end=lambda: None)

    monkeypatch.setattr(availability, "Probe", probe)
    found = survey(["horovod", "ddp"])
    assert (found.backends["ddp"].here, found.backends["horovod"].here) == ("yes", "?")
    with pytest.raises(UnavailableError, match="Whether horovod can run here is not known") as caught:
        found.require("horovod", {})
    assert caught.value.found == "horovod gave no answer in 60 s, beside a load of 14.1 on 2 cores"
    assert "-m backends.probe horovod" in caught.value.remedy
    assert "quieter" in caught.value.remedy
    assert "setup" not in caught.value.remedy
    assert started == ["torch", "horovod"], "an environment was suspected"


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 0), (1.0, 1)])
def test_survey_names_what_it_waits_for_only_if_it_waits(monkeypatch, seconds, lines):
    def probe(name, _):
        def read(*_):
            time.sleep(seconds)
            return {"facts": {"version": "2"}}

        return SimpleNamespace(name=name, read=read, end=lambda: None)

    monkeypatch.setattr(availability, "Probe", probe)
    monkeypatch.setattr(availability, "_SILENT_SECONDS", 0.3)
    printed = []
    survey(["ddp"], printed.append)
    line = "Loading torch, each in a process, to see which arms can run here …"
    assert printed == [line] * lines


def test_survey_interrupted_ends_every_process(monkeypatch):
    processes = []

    class Interrupted(availability.Probe):
        def read(self, *_):
            raise KeyboardInterrupt

        def end(self):
            super().end()
            processes.append(self._process)

    monkeypatch.setattr(availability, "Probe", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        survey(["mpi"])
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 3


# ---- device ----


@pytest.mark.parametrize(
    ("asked", "ranks", "gpus", "taken"),
    [
        *(("auto", 2, 0, "cpu"), ("auto", 2, 2, "cuda"), ("auto", 1, 8, "cuda")),
        *(("cpu", 2, 0, "cpu"), ("cpu", 2, 8, "cpu"), ("cuda", 2, 2, "cuda")),
        *(("cuda:shared", 2, 1, "cuda"), ("cuda:shared", 2, 2, "cuda")),
        ("tpu", 2, 8, "tpu"),  # the config refuses it
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
    assert caught.value.what == "n2 has too few GPUs for 2 ranks."
    assert f"has {gpus}" in caught.value.found
    assert remedy in caught.value.remedy


def test_a_host_without_a_gpu_has_none_to_share():
    with pytest.raises(UnavailableError) as caught:
        settle.choose_device("cuda:shared", [Host("n1", 2), Host("n2", 2)], [1, 0])
    assert caught.value.what == "n2 has no GPU to share."


@pytest.mark.parametrize(
    ("asked", "hosts", "gpus", "expected"),
    [
        *(("auto", 2, 0, ("cpu", False)), ("cpu", 2, 1, ("cpu", False)), ("cuda", 2, 1, ("cuda", True))),
        # Each host takes its first GPUs, so those of two hosts are the same however many there are.
        *(("cuda", 2, 8, ("cuda", True)), ("cuda", 1, 1, ("cuda", True)), ("cuda", 1, 2, ("cuda", False))),
    ],
)
def test_hosts_of_a_rehearsal_share_gpus_if_asked_to(asked, hosts, gpus, expected):
    agents = [AnAgent(host=Host(f"rehearsal-{number}", 2)) for number in range(hosts)]
    for agent in agents:
        agent.ready = msgspec.structs.replace(agent.ready, gpus=gpus)
    cluster = cluster_of(agents, agents[0], network=Network(rehearsed=Link()))
    assert settle.settle_device(asked, cluster, a_survey(gpus=0)) == expected


@pytest.mark.parametrize(
    ("asked", "gpus", "shares"), [("cuda:shared", 1, True), ("cuda:shared", 2, False), ("cuda", 2, False)]
)
def test_ranks_share_gpus_where_they_are_asked_to_and_must(monkeypatch, asked, gpus, shares):
    monkeypatch.setattr(availability, "survey", lambda _: a_survey(gpus=gpus))
    cluster = a_cluster(slots=2)
    monkeypatch.setattr(cluster, "require_launchers", lambda _: None)
    request = SimpleNamespace(
        arms=parse_arms(["ddp"]), config={"device": asked}, threads_per_rank=1, against=None, baseline=None
    )
    request.control = False
    config, _ = settle.settle(request, cluster, lambda _: None)
    assert (config.device, config.shares_gpus) == ("cuda", shares)


# ---- arms ----


ALL = ["ddp", "manual", "manual:mode=shared_memory", "horovod", "mpi"]


@pytest.mark.parametrize(
    ("device", "one_host", "missing", "labels", "left_out"),
    [
        ("cpu", True, [], ALL, {}),
        ("cpu", True, ["shared_memory"], [*ALL[:2], *ALL[3:]], {ALL[2]: ["memory cannot be shared (why)"]}),
        ("cpu", False, [], [*ALL[:2], *ALL[3:]], {}),
        ("cuda", True, [], ["ddp", "manual", "horovod"], {"mpi": ["--device cpu"]}),
        (
            *("cpu", True, ["horovod", "mpi"], ALL[:3]),
            {"horovod": ["horovod is not installed", "ringside setup horovod"], "mpi": ["mpi4py"]},
        ),
    ],
)
def test_choose_arms_unnamed_takes_what_can_run(device, one_host, missing, labels, left_out):
    survey = a_survey(gpus=2 if device == "cuda" else 0, missing=missing)
    if "shared_memory" in missing:
        survey.libraries["torch"].facts["shared_memory_problem"] = "memory cannot be shared (why)"
    arms, reasons = settle.choose_arms((), device, survey, one_host=one_host)
    assert [arm.label for arm in arms] == labels
    assert list(reasons) == list(left_out)
    assert all(part in reasons[arm] for arm, parts in left_out.items() for part in parts)


@pytest.mark.parametrize(
    ("text", "device", "there"),
    [
        ("zero,single", "cpu", {}),
        ("mpi,ddp:bucket_cap_mb=1,horovod:controller=mpi", "cpu", {}),
        ("ddp,ddp:comm_hook=bf16", "cuda", {"gpus": 2}),
        ("mpi:library=mpich:mode=overlap", "cpu", {"missing": ["mpi"], "has_mpich": True}),
    ],
)
def test_choose_arms_takes_named_arms_as_they_are(text, device, there):
    named = parse_arms([text])
    assert settle.choose_arms(named, device, a_survey(**there), one_host=True) == (named, {})


MPICH, BF16, OFFLOAD = "mpi:library=mpich", "ddp:comm_hook=bf16", "fsdp:offload=cpu"


@pytest.mark.parametrize(
    ("text", "device", "without", "what", "found", "remedy"),
    [
        ("horovod", "cpu", {"missing": ["horovod"]}, "horovod", "not installed", "ringside setup horovod"),
        ("ddp,mpi", "cuda", {"gpus": 2}, "mpi", "", "--device cpu"),
        ("horovod:controller=mpi", "cpu", {"controllers": ["gloo"]}, "without its mpi controller", "", ""),
        (f"mpi,{MPICH}", "cpu", {}, f"{MPICH} cannot run", "not installed", "ringside setup mpich"),
        (f"ddp,{BF16}", "cpu", {}, f"{BF16} cannot run on the CPU.", "comm_hook=bf16 only on CUDA", ""),
        (f"ddp,{OFFLOAD}", "cpu", {}, f"{OFFLOAD} cannot run on the CPU.", "offload=cpu only on CUDA", ""),
        ("dataparallel", "cpu", {}, "cannot run on the CPU.", "returns the plain module", "--device cuda"),
        ("", "cpu", {"missing": list(BACKENDS)}, "No backend can run here.", "ddp is not installed", ""),
    ],
)
def test_choose_arms_refuses_what_cannot_run(text, device, without, what, found, remedy):
    with pytest.raises(UnavailableError) as caught:
        settle.choose_arms(parse_arms([text] if text else []), device, a_survey(**without), one_host=True)
    assert what in caught.value.what
    assert found in caught.value.found
    assert remedy in caught.value.remedy


def test_replicas_that_do_not_divide_the_ranks_are_refused():
    arms = parse_arms(["ddp", "fsdp:replicate=3"])
    settle.require_divisible(arms, 6)
    with pytest.raises(UsageError, match="fsdp:replicate=3 cannot divide 2 ranks") as caught:
        settle.require_divisible(arms, 2)
    assert "replicate=3" in caught.value.found


def test_one_process_beside_replicas_has_a_config_of_one_rank():
    config = a_config("single,fsdp:replicate=2", ranks=4)
    assert config.as_run_by(config.arms[0], slots=4).ranks == 1


def test_mpich_is_refused_on_other_hosts():
    settle.require_other_hosts(parse_arms(["ddp,mpi,horovod:controller=mpi"]))
    with pytest.raises(UnavailableError) as caught:
        settle.require_other_hosts(parse_arms(["mpi,mpi:library=mpich"]))
    assert caught.value.what == "mpi:library=mpich cannot run on other hosts than this machine."
    assert "daemons on other hosts" in caught.value.found


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
        # However it is spelled, as long as it is the same arm.
        ("ddp:bucket-cap-mb=1.0", "ddp,ddp:bucket_cap_mb=1", "ddp:bucket_cap_mb=1"),
        # The config refuses it, with the arms that there are.
        ("horovod", "ddp,mpi", "horovod"),
    ],
)
def test_choose_baseline_takes_the_named_arm_or_the_first(asked, named, baseline):
    assert settle.choose_baseline(asked, parse_arms([named])) == baseline


# ---- threads and what ranks are given ----


def test_unknown_baseline_is_refused():
    with pytest.raises(UsageError, match="'dpp'"):
        settle.choose_baseline("dpp", parse_arms(["ddp"]))


@pytest.mark.parametrize(("cores", "threads"), [([8, 8], 4), ([2, 8], 2), ([8, 1], 1)])
def test_threads_are_shared_out_by_the_fullest_host(cores, threads):
    hosts = [Host("n1", 1), Host("n2", 2)]
    cluster = SimpleNamespace(hosts=hosts, cores=lambda: cores, network=Network())
    assert settle.choose_threads(None, cluster) == threads


def test_threads_of_a_rehearsal_share_the_cores_of_one_machine():
    cluster = a_cluster(cpus=range(8))
    cluster.network = Network(rehearsed=Link())
    cluster.hosts = tuple(Host(f"rehearsal-{n}", 1) for n in range(4))
    assert settle.choose_threads(None, cluster) == 2
    assert settle.choose_threads(3, cluster) == 3


def test_what_is_given_to_the_ranks_is_read_and_never_shown():
    read = environment.read_env_flags(["A=1=2", "TOKEN", "B="], {"TOKEN": "hunter2"})
    assert read == {"A": "1=2", "TOKEN": "hunter2", "B": ""}
    written = "run -x A=1 -xB=2 --env C=3 --env=D=4 -x TOKEN --backend x:y=1 -vx A=1 -vxB=2=3 --en=D=5"
    shown = (
        "run -x A=*** -xB=*** --env C=*** --env=D=*** -x TOKEN --backend x:y=1 -vx A=*** -vxB=*** --en=D=***"
    )
    assert environment.hide_exports(written.split()) == shown.split()
    assert environment.hide_exports(["--en", "E=6", "--export", "a=b"]) == [
        "--en",
        "E=***",
        "--export",
        "a=b",
    ]


@pytest.mark.parametrize(
    "asked", ["MISSING", "PATH=/tmp", "RANK=3", "A B=1", "=1", "RINGSIDE_LAUNCH=x", "LD_PRELOAD=x"]
)
def test_what_cannot_be_given_to_the_ranks_is_refused(asked):
    with pytest.raises(UsageError, match="-x"):
        environment.read_env_flags([asked], {})


def test_a_script_may_get_what_ringside_sets_for_arms():
    assert environment.read_env_flags(["OMP_NUM_THREADS=1"], {}, of_script=True) == {"OMP_NUM_THREADS": "1"}
    with pytest.raises(UsageError, match="OMP_NUM_THREADS"):
        environment.read_env_flags(["OMP_NUM_THREADS=1"], {})
    with pytest.raises(UsageError, match="RANK"):
        environment.read_env_flags(["RANK=1"], {}, of_script=True)


# ---- what is written ----


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("gone/out.json", "There is no folder"),
        ("file/out.json", "There is no folder"),
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


@pytest.mark.parametrize(
    "name", ["results.json", "collectives.json", "scale.json", "verification.json", "config.json", "hostfile"]
)
def test_an_export_over_a_file_of_the_run_itself_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="the run itself writes this file"):
        store.require_writable(tmp_path / "run" / name, to_be_made=tmp_path / "run")


DEEP = f"mlp:784{'-32' * 100}-10"


@pytest.mark.parametrize(
    ("model", "shown"),
    [("wide", "wide"), ("mlp:784-64-10", "mlp-784-64-10"), (DEEP, DEEP.replace(":", "-")[:100])],
)
def test_a_runs_folder_is_named_by_time_and_what_it_is(model, shown):
    name = store.default_output(a_config(model=model, ranks=3))
    assert name.parent == Path("runs")
    assert name.name.endswith(f"-{shown}-np3")
    assert ":" not in name.name


def test_a_new_run_records_what_it_begins_with():
    here = a_cluster(cpus=sorted(os.sched_getaffinity(0)))
    run = new_run(a_config(), DIGITS, here, {"mpi": "not here"}, ["ringside", "run", "-np", "2"])
    assert (run.command, run.ringside_version) == (["ringside", "run", "-np", "2"], __version__)
    assert (run.dataset, run.left_out, run.complete) == (DIGITS, {"mpi": "not here"}, False)
    assert run.cores == len(os.sched_getaffinity(0))
    # With its zone: a table that travels says when, wherever it is read.
    assert run.started_at[-6] in "+-"


def test_a_folder_is_claimed_by_the_first_run(tmp_path):
    """Two runs of the same second must not share a folder."""
    store.require_writable(tmp_path / "run" / "x.json", to_be_made=tmp_path / "run")
    create_directory(tmp_path / "run")
    with pytest.raises(OutputError, match="not empty"):
        create_directory(tmp_path / "run")


def test_runs_that_start_at_once_get_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(16) as threads:
        made = list(threads.map(lambda _: store.create_output(None, "mlp", 2), range(64)))
    assert len(set(made)) == 64
    assert {path.parent for path in made} == {(tmp_path / "runs").resolve()}


def test_runs_that_is_a_dangling_link_is_an_output_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to("nowhere")
    with pytest.raises(OutputError, match="runs"):
        store.create_output(None, "mlp", 2)


@pytest.fixture
def workload(tmp_path):
    (tmp_path / "train.py").write_text("")
    return f"{tmp_path}/train.py:make"


def test_choose_own_takes_the_place_of_a_model(workload):
    source = settle.read_own_workload(workload, {"--model": None}, epochs=1)
    assert RunConfig(arms=(Arm("ddp"),), model=source.workload, steps=settle.OWN_STEPS).is_own


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"conflicting": {"--model": None, "--optimizer": "sgd"}}, "--optimizer"),
        ({"conflicting": {"--data": "/data"}}, "--data"),
        ({"epochs": 2}, "Epochs in --steps"),
    ],
)
def test_choose_own_refuses_flags_that_contradict_it(workload, given, says):
    with pytest.raises(UsageError, match=f"{says} and --workload contradict each other"):
        settle.read_own_workload(workload, **({"conflicting": {}, "epochs": 1} | given))
