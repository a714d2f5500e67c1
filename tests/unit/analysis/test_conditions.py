"""What could make arms unlike: found where it is, declared where it was asked for, else silent."""

from __future__ import annotations

import copy

import msgspec
import pytest

from compare.analysis import analyse
from compare.analysis.conditions import compare_conditions
from compare.report import render
from compare.schema.environment import library_settings
from compare.schema.hosts import Host
from tests.unit.factories import a_launch, a_rank, a_run

SHARED = {
    "device": "cpu",
    "threads": 1,
    "interop_threads": 2,
    "matmul_precision": "highest",
    "affinity": [0, 1],
    "python": "3.11.7",
    "torch": "2.13.0",
    "malloc": {"MALLOC_TRIM_THRESHOLD_": "1"},
    "environment": {"OMP_NUM_THREADS": "1"},
    "parameter_dtypes": ["torch.float32"],
    "optimizer": {"class": "SGD", "groups": [{"lr": 0.01, "momentum": 0}]},
}
GROUPS = {
    "none": {"library": "none", "transport": "none", "versions": {}},
    "ddp": {
        "library": "torch.distributed gloo",
        "transport": "TCP over lo",
        "versions": {"torch": "2.13.0"},
    },
    "horovod": {
        "library": "Horovod 0.28.1",
        "transport": "TCP over lo",
        "controller": "gloo",
        "fusion_bytes": 134_217_728,
        "cycle_milliseconds": 1.0,
        "versions": {"torch": "2.13.0", "horovod": "0.28.1"},
    },
    "mpi": {"library": "Open MPI v4.1.8", "transport": "shared memory", "versions": {"torch": "2.13.0"}},
}
REPLICAS = {
    "none": {"reduce_op": "none"},
    "ddp": {"reduce_op": "mean", "bucket_bytes": [814_120], "comm_hook": "none"},
    "horovod": {"reduce_op": "average", "compression": "none"},
    "mpi": {"reduce_op": "divided by the number of ranks in backward, then summed"},
}


def attested(arm, rank):
    backend = arm.partition(":")[0]
    batch = {"samples": 64, "dtype": "torch.float32", "shard": [rank, 2], "training_samples": 60_000}
    own = {"group": GROUPS[backend], "replica": REPLICAS[backend], "batch": batch}
    return copy.deepcopy(SHARED | own)


def a_fair_run(*arms, change=lambda arm, round_, rank, facts: None, inherited=None, **fields):
    """Two rounds of the arms; ``change`` may alter what a rank attests, or give its other fields."""

    def result(arm, round_, rank):
        facts = attested(arm, rank)
        other = change(arm, round_, rank, facts) or {}
        return a_rank(rank, milliseconds=5.0, attestation=facts, **other)

    launches = [
        a_launch(arm, r, ranks=[result(arm, r, 0), result(arm, r, 1)], inherited=inherited or {})
        for arm in arms
        for r in (1, 2)
    ]
    return a_run({arm: [5.0, 5.0] for arm in arms}, launches=launches, **fields)


def found(run):
    return {finding.item: finding for finding in compare_conditions(run)}


def names_of_unlike(run):
    return [finding.item for finding in compare_conditions(run) if finding.kind == "different"]


EVERY_ARM = ("none", "ddp", "horovod", "mpi")


def test_where_everything_is_alike_nothing_is_found():
    assert names_of_unlike(a_fair_run(*EVERY_ARM)) == []
    assert all(f.kind == "same" for f in compare_conditions(a_fair_run("ddp", "ddp:static_graph=true")))


def test_everything_that_ranks_attest_is_in_the_answer():
    assert set(found(a_fair_run(*EVERY_ARM))) >= {
        *("threads", "affinity", "transport", "buckets in bytes", "fusion in bytes", "cycle time in ms"),
        *("reduce op", "optimizer", "batch size per rank", "shard", "parameter dtypes", "compression"),
        *("malloc settings", "python", "torch", "version of horovod"),
    }


def test_what_makes_a_backend_itself_is_declared_and_transport_is_a_confounder():
    items = found(a_fair_run(*EVERY_ARM))
    assert {n for n, f in items.items() if f.kind == "declared"} == {
        *("transport", "library", "controller", "buckets in bytes", "fusion in bytes", "cycle time in ms"),
    }
    assert items["transport"].role == "confounder"
    assert items["fusion in bytes"].role == "compared"
    assert items["transport"].values["mpi"] == "shared memory"
    assert items["transport"].values["none"] == "–"


CONDITIONS = {
    "threads": ("threads", 2),
    "affinity": ("affinity", [0]),
    "malloc settings": ("malloc", {}),
    "optimizer": ("optimizer", {"class": "SGD", "groups": [{"lr": 0.02, "momentum": 0}]}),
    "parameter dtypes": ("parameter_dtypes", ["torch.float16"]),
    "torch": ("torch", "2.12.0"),
    "python": ("python", "3.12.1"),
    "device": ("device", "NVIDIA H200"),
}


@pytest.mark.parametrize("item", CONDITIONS)
@pytest.mark.parametrize("where", ["arm", "rank", "round"])
def test_a_condition_that_differs_is_found_wherever_it_does(item, where):
    key, value = CONDITIONS[item]

    def change(arm, round_, rank, facts):
        if arm == "mpi" and (
            where == "arm" or (where == "rank" and rank == 1) or (where == "round" and round_ == 2)
        ):
            facts[key] = value

    run = a_fair_run(*EVERY_ARM, change=change)
    assert names_of_unlike(run) == [item]
    finding = found(run)[item]
    if where != "arm":
        assert f"{where} " in finding.values["mpi"]
        assert "mpi differ among themselves" in finding.why


def test_a_batch_or_a_shard_that_differs_is_found():
    def larger(arm, round_, rank, facts):
        facts["batch"]["samples"] = 128 if arm == "ddp" else 64

    def unsharded(arm, round_, rank, facts):
        facts["batch"]["shard"] = [0, 1] if arm == "ddp" else [rank, 2]

    assert names_of_unlike(a_fair_run(*EVERY_ARM, change=larger)) == ["batch size per rank"]
    assert names_of_unlike(a_fair_run(*EVERY_ARM, change=unsharded)) == ["shard"]


def test_other_first_parameters_are_found():
    def change(arm, round_, rank, facts):
        return {"initial_hash": "1" * 64} if arm == "mpi" else None

    assert names_of_unlike(a_fair_run(*EVERY_ARM, change=change)) == ["initial parameters"]


def test_versions_that_differ_between_ranks_are_found():
    def change(arm, round_, rank, facts):
        if arm == "horovod" and rank == 1:
            facts["group"]["versions"]["horovod"] = "0.27.0"

    run = a_fair_run(*EVERY_ARM, change=change)
    assert names_of_unlike(run) == ["version of horovod"]
    assert found(run)["version of horovod"].values["horovod"] == "rank 0: 0.28.1, rank 1: 0.27.0"


def test_a_version_that_differs_between_arms_is_found():
    def change(arm, round_, rank, facts):
        if arm == "mpi":
            facts["group"]["versions"]["torch"] = "2.11.0"

    assert names_of_unlike(a_fair_run(*EVERY_ARM, change=change)) == ["version of torch"]


def test_a_sum_is_no_mean():
    def change(arm, round_, rank, facts):
        if arm == "mpi":
            facts["replica"]["reduce_op"] = "sum"

    assert names_of_unlike(a_fair_run(*EVERY_ARM, change=change)) == ["reduce op"]


@pytest.mark.parametrize(
    "earlier", ["sum, then divided by the number of ranks", "divided by the number of ranks, then summed"]
)
def test_what_earlier_runs_call_a_mean_is_one(earlier):
    def change(arm, round_, rank, facts):
        if arm == "mpi":
            facts["replica"]["reduce_op"] = earlier

    assert names_of_unlike(a_fair_run(*EVERY_ARM, change=change)) == []


def test_compression_that_no_option_declares_is_found():
    def change(arm, round_, rank, facts):
        if arm == "horovod":
            facts["replica"]["compression"] = "FP16Compressor"

    assert names_of_unlike(a_fair_run(*EVERY_ARM, change=change)) == ["compression"]


def compressed(*compressing):
    def change(arm, round_, rank, facts):
        if arm in compressing:
            facts["replica"]["comm_hook"] = "fp16"

    return change


def test_compression_that_an_option_declares_is_declared_with_what_it_does():
    arm = "ddp:comm_hook=fp16"
    run = a_fair_run("none", "ddp", arm, change=compressed(arm))
    assert names_of_unlike(run) == []
    finding = found(run)["compression"]
    assert (finding.kind, finding.values[arm], finding.values["ddp"]) == ("declared", "fp16", "none")
    assert "comm_hook: what travels is not what was computed" in finding.why


def test_an_option_declares_the_difference_of_its_own_arm_alone():
    run = a_fair_run("ddp:comm_hook=fp16", "ddp", "mpi", change=compressed("ddp:comm_hook=fp16", "ddp"))
    assert names_of_unlike(run) == ["compression"]


def test_a_variable_that_an_arm_declares_is_declared():
    arm = "ddp:env.GLOO_SOCKET_MODE=1"

    def change(label, round_, rank, facts):
        if label == arm:
            facts["environment"]["GLOO_SOCKET_MODE"] = "1"

    run = a_fair_run("none", "ddp", arm, change=change)
    assert names_of_unlike(run) == []
    assert found(run)["GLOO_SOCKET_MODE"].kind == "declared"


@pytest.mark.parametrize("shell", [{}, {"MALLOC_ARENA_MAX": "2"}])
def test_an_allocator_setting_that_an_arm_declares_is_declared_once(shell):
    arm = "ddp:env.MALLOC_ARENA_MAX=1"

    def change(label, round_, rank, facts):
        own = {"MALLOC_ARENA_MAX": "1"} if label == arm else shell
        facts["environment"] |= own
        facts["malloc"] |= own

    items = found(a_fair_run("none", "ddp", arm, change=change, inherited=shell))
    assert items["malloc settings"].kind == "same"
    assert items["MALLOC_ARENA_MAX"].kind == "declared"


def test_an_allocator_setting_beside_the_declared_one_is_found():
    arm = "ddp:env.MALLOC_ARENA_MAX=1"

    def change(label, round_, rank, facts):
        if label == arm:
            facts["malloc"] |= {"MALLOC_ARENA_MAX": "1", "MALLOC_TOP_PAD_": "1"}
            facts["environment"]["MALLOC_ARENA_MAX"] = "1"

    assert names_of_unlike(a_fair_run("none", "ddp", arm, change=change)) == ["malloc settings"]


UNDECLARED = {
    "the arm asked for none": ("horovod:compression=none", "ddp", {"horovod:compression=none": "fp16"}),
    "another arm asked for none": ("horovod:compression=none", "ddp", {"ddp": "fp16"}),
    "the arm asked for another": ("ddp:comm_hook=powersgd", "ddp", {"ddp:comm_hook=powersgd": "fp16"}),
    "beside one that is as asked": (
        *("ddp:comm_hook=powersgd", "horovod:compression=none"),
        {"ddp:comm_hook=powersgd": "powersgd", "horovod:compression=none": "fp16"},
    ),
}


@pytest.mark.parametrize("case", UNDECLARED)
def test_an_option_declares_only_what_it_asked_for(case):
    *arms, attests = UNDECLARED[case]

    def change(label, round_, rank, facts):
        if label in attests:
            facts["replica"]["compression"] = attests[label]

    assert names_of_unlike(a_fair_run(*arms, change=change)) == ["compression"]


def test_a_variable_that_did_not_reach_its_arm_as_declared_is_found():
    arm = "ddp:env.GLOO_SOCKET_MODE=1"

    def change(label, round_, rank, facts):
        if label == arm:
            facts["environment"]["GLOO_SOCKET_MODE"] = "2"

    assert names_of_unlike(a_fair_run("ddp", arm, change=change)) == ["GLOO_SOCKET_MODE"]


OF_DDP = {
    "gradients as bucket views": ("gradient_as_bucket_view", True),
    "static graph": ("static_graph", True),
    "PowerSGD rank": ("powersgd_rank", 4),
    "PowerSGD start": ("powersgd_start", 25),
}


@pytest.mark.parametrize("item", OF_DDP)
def test_what_an_option_of_ddp_makes_different_is_among_what_is_compared(item):
    option, value = OF_DDP[item]
    needed = "comm_hook=powersgd:" if option.startswith("powersgd") else ""
    arm = f"ddp:{needed}{option}={str(value).lower()}"

    def change(label, round_, rank, facts):
        facts["replica"]["comm_hook"] = "powersgd" if label == arm and needed else "none"
        if label == arm:
            facts["replica"][option] = value

    run = a_fair_run("none", "ddp", "mpi", arm, change=change)
    assert names_of_unlike(run) == []
    finding = found(run)[item]
    assert (finding.role, finding.kind) == ("compared", "declared")
    assert finding.values[arm] == ("on" if value is True else str(value))
    assert finding.values["ddp"] == finding.values["mpi"]
    assert "by the arms' option" in finding.why
    assert option in finding.why
    assert not finding.by_library


@pytest.mark.parametrize(
    ("arm", "key"),
    [("none", "passes_per_step"), ("mpi", "passes_per_step"), ("horovod", "backward_passes_per_step")],
)
def test_other_passes_in_a_step_are_found(arm, key):
    def change(label, round_, rank, facts):
        facts["replica"]["passes_per_step"] = 1
        if label == arm:
            facts["replica"][key] = 2

    assert names_of_unlike(a_fair_run(*EVERY_ARM, change=change)) == ["passes per step"]


def test_results_in_which_horovod_alone_attested_its_passes_are_no_less_alike():
    def change(label, round_, rank, facts):
        if label == "horovod":
            facts["replica"]["backward_passes_per_step"] = 1

    assert names_of_unlike(a_fair_run(*EVERY_ARM, change=change)) == []


def names_of_own_ways(run):
    return [finding.item for finding in compare_conditions(run) if finding.by_library]


def test_what_backends_do_differently_by_themselves_is_told_from_what_options_ask_for():
    def other_buckets(label, round_, rank, facts):
        if label == "ddp:bucket_cap_mb=1":
            facts["replica"]["bucket_bytes"] = [400_000, 414_120]

    assert names_of_own_ways(a_fair_run("none", "ddp")) == []
    assert names_of_own_ways(a_fair_run("none", "ddp", "horovod")) == [
        *("buckets in bytes", "fusion in bytes", "cycle time in ms")
    ]
    assert names_of_own_ways(a_fair_run("horovod", "mpi"))[0] == "transport"
    run = a_fair_run("ddp", "ddp:bucket_cap_mb=1", change=other_buckets)
    assert names_of_own_ways(run) == []
    assert found(run)["buckets in bytes"].why == "by the arms' option bucket_cap_mb: this is what is compared"
    run = a_fair_run("mpi", "ddp:bucket_cap_mb=1", change=other_buckets)
    assert "buckets in bytes" in names_of_own_ways(run)


def test_buckets_that_differ_between_rounds_of_one_arm_are_found():
    def change(arm, round_, rank, facts):
        if arm == "ddp":
            facts["replica"]["bucket_bytes"] = [round_]

    assert names_of_unlike(a_fair_run(*EVERY_ARM, change=change)) == ["buckets in bytes"]


# ---- ranks on several hosts ----


def on_two_hosts(*transports, arms=EVERY_ARM):
    """Two ranks on host a and one on host b; what each attests of the transport in mpi."""
    launches = [
        a_launch(
            arm,
            round_,
            ranks=[
                a_rank(rank, host="aab"[rank], milliseconds=5.0, attestation=attested(arm, rank))
                for rank in range(3)
            ],
        )
        for arm in arms
        for round_ in (1, 2)
    ]
    for launch in launches:
        for result, transport in zip(launch.ranks, transports, strict=True):
            if launch.arm == "mpi":
                result.attestation["group"]["transport"] = transport
    return a_run({arm: [5.0, 5.0] for arm in arms}, launches=launches, hosts=[Host("a", 2), Host("b", 1)])


MIXED = "shared memory, TCP over eth0"


@pytest.mark.parametrize("arms", [EVERY_ARM, ("mpi",), ("none", "mpi", "mpi:mode=flat")])
def test_a_rank_alone_on_its_host_has_another_transport_and_that_is_a_confounder(arms):
    finding = found(on_two_hosts(MIXED, MIXED, "TCP over eth0", arms=arms))["transport"]
    assert (finding.role, finding.kind) == ("confounder", "declared")
    assert finding.values["mpi"] == f"rank 0: {MIXED}, rank 1: {MIXED}, rank 2: TCP over eth0"
    assert finding.why


def test_ranks_of_one_host_must_have_one_transport():
    run = on_two_hosts(MIXED, "TCP over eth0", "TCP over eth0")
    assert names_of_unlike(run) == ["transport"]


def test_a_transport_that_differs_between_rounds_is_found_on_any_host():
    def change(arm, round_, rank, facts):
        if arm == "mpi" and round_ == rank + 1:
            facts["group"]["transport"] = "TCP over lo"
        return {"host": "ab"[rank]}

    run = a_fair_run(*EVERY_ARM, change=change, hosts=[Host("a", 1), Host("b", 1)])
    assert names_of_unlike(run) == ["transport"]


def test_hosts_are_no_excuse_for_any_other_item():
    def change(arm, round_, rank, facts):
        if arm == "mpi" and rank == 1:
            facts["threads"] = 2
        return {"host": "ab"[rank]}

    run = a_fair_run(*EVERY_ARM, change=change, hosts=[Host("a", 1), Host("b", 1)])
    assert names_of_unlike(run) == ["threads"]


# ---- what stood in the shell ----


def shell(**variables):
    def change(arm, round_, rank, facts):
        facts["environment"] |= variables

    return {"change": change, "inherited": variables}


def test_a_setting_of_one_library_alone_is_found():
    run = a_fair_run(*EVERY_ARM, **shell(HOROVOD_FUSION_THRESHOLD="0"))
    assert names_of_unlike(run) == ["HOROVOD_FUSION_THRESHOLD"]
    values = found(run)["HOROVOD_FUSION_THRESHOLD"].values
    assert values == {"none": "–", "ddp": "–", "horovod": "0", "mpi": "–"}


def test_a_setting_that_every_arm_reads_is_alike():
    assert names_of_unlike(a_fair_run(*EVERY_ARM, **shell(MALLOC_ARENA_MAX="2"))) == []
    assert found(a_fair_run(*EVERY_ARM, **shell(MALLOC_ARENA_MAX="2")))["MALLOC_ARENA_MAX"].kind == "same"
    run = a_fair_run("none", "horovod", **shell(HOROVOD_FUSION_THRESHOLD="0"))
    assert names_of_unlike(run) == []


def test_a_setting_that_no_arm_reads_is_harmless():
    run = a_fair_run(*EVERY_ARM, **shell(NCCL_ALGO="Ring"))
    assert names_of_unlike(run) == []
    assert found(run)["NCCL_ALGO"].why == "no arm of this run reads it"


def test_a_setting_that_a_launcher_lost_is_found():
    def change(arm, round_, rank, facts):
        if arm != "mpi":
            facts["environment"]["MALLOC_ARENA_MAX"] = "2"

    run = a_fair_run(*EVERY_ARM, change=change, inherited={"MALLOC_ARENA_MAX": "2"})
    assert names_of_unlike(run) == ["MALLOC_ARENA_MAX"]


def test_what_is_recorded_of_an_environment_holds_no_secret_and_no_address():
    environ = {
        "NCCL_ALGO": "Ring",
        "TORCH_API_KEY": "hunter2",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:4",
        "OMPI_MCA_orte_precondition_transports": "f1c6-4a6e",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "OMPI_MCA_btl": "tcp,self",
        "HOME": "/root",
    }
    assert library_settings(environ) == {"NCCL_ALGO": "Ring", "OMPI_MCA_btl": "tcp,self"}


# ---- where it is shown ----


def two_threads(arm, round_, rank, facts):
    facts["threads"] = 2 if arm == "mpi" else 1


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_what_is_unlike_is_said_under_the_table(form):
    run = a_fair_run(*EVERY_ARM, change=two_threads)
    text = " ".join(render(run, analyse(run), form).split())
    assert "NOT ALIKE: threads (none 1; ddp 1; horovod 1; mpi 2)" in text
    fair = a_fair_run(*EVERY_ARM)
    assert "NOT ALIKE" not in render(fair, analyse(fair), form)


def test_messages_that_nobody_could_tell_are_no_others():
    def untold(label, round_, rank, facts):
        return {"message_bytes": []} if "fp16" in label else None

    run = a_fair_run("mpi", "ddp:comm_hook=fp16", change=untold)
    assert found(run)["messages in bytes"].kind == "same"
    assert "messages in bytes" not in names_of_own_ways(run)


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_what_backends_do_differently_by_themselves_is_named_under_the_table(form):
    run = a_fair_run("none", "ddp", "horovod")
    text = render(run, analyse(run), form)
    assert "Not alike by the arms' own ways: buckets, fusion, cycle time (--detail)." in text
    run = a_fair_run("none", "ddp", "ddp:static_graph=true")
    assert "own ways" not in render(run, analyse(run), form)


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_the_detail_lists_what_was_not_alike_and_why(form):
    run = a_fair_run(*EVERY_ARM, change=two_threads)
    text = " ".join(render(run, analyse(run), form, detail=True).split())
    assert "What was not alike" in text
    for said in ("threads", "transport", "confounder", "fusion in bytes", "horovod: 134217728"):
        assert said in text
    assert "What was not alike" not in render(run, analyse(run), form)


def test_json_holds_every_finding():
    run = a_fair_run(*EVERY_ARM, change=two_threads)
    read = msgspec.json.decode(render(run, analyse(run), "json"))["summary"]["conditions"]
    assert {f["item"]: f["kind"] for f in read} == {f.item: f.kind for f in compare_conditions(run)}
