"""Test which conditions count as the same, as declared, and as different."""

from __future__ import annotations

import copy
import json

import pytest

from compare.analysis import analyse
from compare.analysis.causes import compare_conditions
from compare.schema.arms import Arm
from compare.schema.environment import library_settings
from compare.schema.hosts import Host
from tests.unit.factories import a_launch, a_rank, a_run
from tests.unit.pages import render

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
    "fsdp": {"reduce_op": "mean"},
}
GROUPS["fsdp"] = GROUPS["ddp"]


def attested(arm, rank):
    backend = arm.partition(":")[0]
    batch = {"samples": 64, "dtype": "torch.float32", "shard": [rank, 2], "training_samples": 60_000}
    own = {"group": GROUPS[backend], "replica": REPLICAS[backend], "batch": batch}
    return copy.deepcopy(SHARED | own)


def a_run_of(*arms, ranks=2, change=lambda arm, round_, rank, facts: None, inherited=None, **fields):
    """Return two rounds; ``change`` alters what a rank attests."""

    def result(arm, round_, rank):
        facts = attested(arm, rank)
        other = change(arm, round_, rank, facts) or {}
        return a_rank(rank, milliseconds=5.0, attestation=facts, **other)

    launches = [
        a_launch(arm, r, ranks=[result(arm, r, rank) for rank in range(ranks)], inherited=inherited or {})
        for arm in arms
        for r in (1, 2)
    ]
    return a_run({arm: [5.0, 5.0] for arm in arms}, launches=launches, **fields)


def attests(path, value, *arms, rank=None, round_=None):
    """Return a change: some arms, ranks or rounds attest another value."""

    def change(arm, its_round, its_rank, facts):
        chosen = {arm, "*"}.intersection(arms or "*")
        if chosen and rank in {None, its_rank} and round_ in {None, its_round}:
            *parents, last = path.split("/")
            for parent in parents:
                facts = facts[parent]
            if isinstance(value, dict) and last in facts:
                facts[last] |= value
            else:
                facts[last] = value

    return change


def both(*changes):
    def change(*where):
        for one in changes:
            one(*where)

    return change


def found(run):
    return {condition.item: condition for condition in compare_conditions(run)}


def different(run):
    return [condition.item for condition in compare_conditions(run) if condition.kind == "different"]


def by_library(run):
    return [condition.item for condition in compare_conditions(run) if condition.by_library]


EVERY_ARM = ("none", "ddp", "horovod", "mpi")
HOOK = "ddp:comm_hook=fp16"
ARENA = "ddp:env.MALLOC_ARENA_MAX=1"


# ---- the same, or compared ----


def test_conditions_same_everywhere_have_no_difference():
    assert different(a_run_of(*EVERY_ARM)) == []
    assert all(f.kind == "same" for f in compare_conditions(a_run_of("ddp", "ddp:static_graph=true")))


def test_conditions_of_backends_are_declared():
    items = found(a_run_of(*EVERY_ARM))
    assert {n for n, f in items.items() if f.kind == "declared"} == {
        *("transport", "library", "controller", "buckets in bytes", "fusion in bytes", "cycle time in ms"),
    }
    assert items["transport"].role == "confounder"
    assert items["fusion in bytes"].role == "compared"
    assert items["transport"].values["mpi"] == "shared memory"
    assert items["transport"].values["none"] == "–"


# ---- different ----

CONTROLLED = {
    "threads": ("threads", 2),
    "affinity": ("affinity", [0]),
    "malloc settings": ("malloc", {"MALLOC_TOP_PAD_": "1"}),
    "optimizer": ("optimizer", {"groups": [{"lr": 0.02, "momentum": 0}]}),
    "parameter dtypes": ("parameter_dtypes", ["torch.float16"]),
    "torch": ("torch", "2.12.0"),
    "python": ("python", "3.12.1"),
    "device": ("device", "NVIDIA H200"),
}


@pytest.mark.parametrize("item", CONTROLLED)
@pytest.mark.parametrize("where", [{}, {"rank": 1}, {"round_": 2}], ids=["arm", "rank", "round"])
def test_conditions_controlled_item_differs(item, where):
    path, value = CONTROLLED[item]
    run = a_run_of(*EVERY_ARM, change=attests(path, value, "mpi", **where))
    assert different(run) == [item]
    for name in where:
        assert f"{name.strip('_')} " in found(run)[item].values["mpi"]
        assert found(run)[item].why == "ranks or rounds of mpi differ"


# The arms of a run (* for all), what some of them attest, and the items that differ.
CHANGES = """
* ; ddp batch/samples=128 ; global batch size
* ; ddp batch/shard=[0, 1] ; global batch size, shard
* ; mpi group/versions/torch="2.11.0" ; version of torch
mpi mpi:library=mpich ; mpi group/versions={"Open MPI": "v4.1.8"} \
& mpi:library=mpich group/versions={"MPICH": "5.0.2"} ;
* ; mpi replica/reduce_op="sum" ; reduce op
* ; mpi replica/reduce_op="none" ;
* ; mpi replica/reduce_op="none" & horovod replica/reduce_op="sum" ; reduce op
* ; mpi replica/reduce_op="sum, then divided by the number of ranks" ;
* ; mpi replica/reduce_op="divided by the number of ranks, then summed" ;
* ; horovod replica/compression="FP16Compressor" ; compression
none ddp ddp:comm_hook=fp16 ; ddp:comm_hook=fp16 replica/comm_hook="fp16" ;
mpi ddp ddp:comm_hook=fp16 ; ddp:comm_hook=fp16 replica/comm_hook="fp16" \
& ddp replica/comm_hook="fp16" ; compression
ddp horovod:compression=none ; horovod:compression=none replica/compression="fp16" ; compression
ddp ddp:comm_hook=powersgd ; ddp:comm_hook=powersgd replica/compression="fp16" ; compression
ddp:comm_hook=powersgd horovod:compression=none ; ddp:comm_hook=powersgd replica/compression="powersgd" \
& horovod:compression=none replica/compression="fp16" ; compression
none ddp ddp:env.GLOO_SOCKET_MODE=1 ; ddp:env.GLOO_SOCKET_MODE=1 environment/GLOO_SOCKET_MODE="1" ;
ddp ddp:env.GLOO_SOCKET_MODE=1 ; ddp:env.GLOO_SOCKET_MODE=1 environment/GLOO_SOCKET_MODE="2" \
; GLOO_SOCKET_MODE
none ddp ddp:env.MALLOC_ARENA_MAX=1 ; ddp:env.MALLOC_ARENA_MAX=1 environment/MALLOC_ARENA_MAX="1" \
& ddp:env.MALLOC_ARENA_MAX=1 malloc={"MALLOC_ARENA_MAX": "1", "MALLOC_TOP_PAD_": "1"} ; malloc settings
* ; * replica/passes_per_step=1 & none replica/passes_per_step=2 ; passes per step
* ; * replica/passes_per_step=1 & horovod replica/backward_passes_per_step=2 ; passes per step
* ; horovod replica/backward_passes_per_step=1 ;
"""


@pytest.mark.parametrize("line", CHANGES.strip().splitlines())
def test_conditions_attested_by_some_arms_differ(line):
    labels, changes, items = (part.strip() for part in line.split(";"))
    attested_by = (change.strip().split(" ", 1) for change in changes.split(" & "))
    named = ((arm, *fact.split("=", 1)) for arm, fact in attested_by)
    change = both(*(attests(path, json.loads(value), arm) for arm, path, value in named))
    arms = EVERY_ARM if labels == "*" else labels.split()
    assert different(a_run_of(*arms, change=change)) == [item for item in items.split(", ") if item]


# ---- declared ----


def test_conditions_compression_by_option_is_declared():
    run = a_run_of("none", "ddp", HOOK, change=attests("replica/comm_hook", "fp16", HOOK))
    condition = found(run)["compression"]
    assert (condition.kind, condition.values[HOOK], condition.values["ddp"]) == ("declared", "fp16", "none")
    assert condition.why.startswith("set by the option comm_hook: compressed gradients differ")


@pytest.mark.parametrize("shell", [{}, {"MALLOC_ARENA_MAX": "2"}])
def test_conditions_allocator_setting_of_an_arm_is_declared_once(shell):
    def change(label, round_, rank, facts):
        own = {"MALLOC_ARENA_MAX": "1"} if label == ARENA else shell
        facts["environment"] |= own
        facts["malloc"] |= own

    items = found(a_run_of("none", "ddp", ARENA, change=change, inherited=shell))
    assert items["malloc settings"].kind == "same"
    assert items["MALLOC_ARENA_MAX"].kind == "declared"


@pytest.mark.parametrize(
    ("item", "option", "value", "needed"),
    [
        ("gradients as bucket views", "gradient_as_bucket_view", True, {}),
        ("static graph", "static_graph", True, {}),
        ("PowerSGD rank", "powersgd_rank", 4, {"comm_hook": "powersgd"}),
        ("PowerSGD start", "powersgd_start", 25, {"comm_hook": "powersgd"}),
    ],
)
def test_conditions_option_of_ddp_is_compared(item, option, value, needed):
    arm = Arm("ddp", needed | {option: value}).label
    change = both(
        attests("replica", {"comm_hook": "none"}), attests("replica", needed | {option: value}, arm)
    )
    run = a_run_of("none", "ddp", "mpi", arm, change=change)
    assert different(run) == []
    condition = found(run)[item]
    assert (condition.role, condition.kind, condition.by_library) == ("compared", "declared", False)
    assert condition.values[arm] == ("on" if value is True else str(value))
    assert condition.values["ddp"] == condition.values["mpi"]
    assert condition.why.startswith("set by the option")
    assert option in condition.why


def test_conditions_by_library_exclude_options():
    buckets = attests("replica/bucket_bytes", [400_000, 414_120], "ddp:bucket_cap_mb=1")
    assert by_library(a_run_of("none", "ddp")) == []
    of_libraries = ["buckets in bytes", "fusion in bytes", "cycle time in ms"]
    assert by_library(a_run_of("none", "ddp", "horovod")) == of_libraries
    assert by_library(a_run_of("horovod", "mpi"))[0] == "transport"
    run = a_run_of("ddp", "ddp:bucket_cap_mb=1", change=buckets)
    assert by_library(run) == []
    assert found(run)["buckets in bytes"].why == "set by the option bucket_cap_mb: this is what is compared"
    assert "buckets in bytes" in by_library(a_run_of("mpi", "ddp:bucket_cap_mb=1", change=buckets))


def test_conditions_unknown_messages_are_the_same():
    run = a_run_of("mpi", HOOK, change=lambda arm, *_: {"message_bytes": []} if arm == HOOK else None)
    assert found(run)["messages in bytes"].kind == "same"
    assert "messages in bytes" not in by_library(run)


# ---- ranks on several hosts ----


def on_two_hosts(*transports, arms=EVERY_ARM):
    """Return two ranks on host a and one on host b."""

    def change(arm, round_, rank, facts):
        if arm == "mpi":
            facts["group"]["transport"] = transports[rank]
        return {"host": "aab"[rank]}

    return a_run_of(*arms, ranks=3, change=change, hosts=[Host("a", 2), Host("b", 1)])


def on_own_hosts(change):
    """Return a run with each rank on a host of its own."""

    def and_host(arm, round_, rank, facts):
        change(arm, round_, rank, facts)
        return {"host": "ab"[rank]}

    return a_run_of(*EVERY_ARM, change=and_host, hosts=[Host("a", 1), Host("b", 1)])


MIXED = "shared memory, TCP over eth0"
ARENA_MAX = "MALLOC_ARENA_MAX"
KEPT_BY_SOME = attests(f"environment/{ARENA_MAX}", "2", "none", "ddp", "horovod")
OTHER_BUCKETS = (attests("replica/bucket_bytes", [r], "ddp", round_=r) for r in (1, 2))
OTHER_TRANSPORTS = (attests("group/transport", "TCP over lo", "mpi", rank=r, round_=r + 1) for r in range(2))


def other_start(arm, *_):
    return {"initial_hash": "1" * 64} if arm == "mpi" else None


@pytest.mark.parametrize(
    ("run", "item"),
    [
        (a_run_of(*EVERY_ARM, change=both(*OTHER_BUCKETS)), "buckets in bytes"),
        (a_run_of(*EVERY_ARM, change=other_start), "initial parameters"),
        (on_two_hosts(MIXED, "TCP over eth0", "TCP over eth0"), "transport"),
        (on_own_hosts(attests("threads", 2, "mpi", rank=1)), "threads"),
        (on_own_hosts(both(*OTHER_TRANSPORTS)), "transport"),
        (on_own_hosts(attests("nice", 19, "mpi", rank=1)), "nice"),
        (a_run_of(*EVERY_ARM, change=attests("nice", 19, "mpi", rank=1)), "nice"),
        (a_run_of(*EVERY_ARM, change=KEPT_BY_SOME, inherited={ARENA_MAX: "2"}), ARENA_MAX),
    ],
    ids=["rounds", "start", "transport within a host", "threads by host", "transport by round"]
    + ["nice of an arm", "nice within a host", "shell variable lost by a launcher"],
)
def test_conditions_must_not_differ_by_round_rank_or_host(run, item):
    assert different(run) == [item]


@pytest.mark.parametrize("arms", [EVERY_ARM, ("mpi",), ("none", "mpi", "mpi:mode=flat")])
def test_conditions_transport_of_a_lone_rank_is_a_confounder(arms):
    condition = found(on_two_hosts(MIXED, MIXED, "TCP over eth0", arms=arms))["transport"]
    assert (condition.role, condition.kind) == ("confounder", "declared")
    assert condition.values["mpi"] == f"ranks 0–1: {MIXED}, rank 2: TCP over eth0"
    assert condition.why


@pytest.mark.parametrize(
    ("key", "name", "value"), [("core_quota", "CPU quota in cores", 2.0), ("nice", "nice", 19)]
)
def test_conditions_limits_of_a_host_are_its_own(key, name, value):
    condition = found(on_own_hosts(attests(key, value, rank=1)))[name]
    assert condition.kind == "declared"
    assert "each host has limits of its own" in condition.why


# ---- variables of the shell ----


def shell(**variables):
    return {"change": attests("environment", variables), "inherited": variables}


def test_conditions_shell_variable_differs_if_some_arms_read_it():
    fusion = {"HOROVOD_FUSION_THRESHOLD": "0"}
    run = a_run_of(*EVERY_ARM, **shell(**fusion))
    assert different(run) == [*fusion]
    values = found(run)["HOROVOD_FUSION_THRESHOLD"].values
    assert values == {"none": "–", "ddp": "–", "horovod": "0", "mpi": "–"}
    assert different(a_run_of("none", "horovod", **shell(**fusion))) == []
    arena, ring = (
        a_run_of(*EVERY_ARM, **shell(**v)) for v in ({"MALLOC_ARENA_MAX": "2"}, {"NCCL_ALGO": "Ring"})
    )
    assert different(arena) == different(ring) == []
    assert found(arena)["MALLOC_ARENA_MAX"].kind == "same"
    assert found(ring)["NCCL_ALGO"].why == "no arm of this run reads it"


@pytest.mark.parametrize(
    ("name", "value", "apart"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", True),
        ("TORCH_NCCL_BLOCKING_WAIT", "1", True),
        ("TORCH_CPP_LOG_LEVEL", "INFO", True),
        ("TORCH_LOGS", "+distributed", True),
        ("TORCH_LOGS", "+dynamo", False),
        ("TORCH_SHOW_CPP_STACKTRACES", "1", False),
        ("HOROVOD_TIMELINE", "t.json", True),
    ],
)
def test_conditions_setting_for_which_one_library_pays_differs(name, value, apart):
    run = a_run_of("none", "ddp", "horovod", "mpi", **shell(**{name: value}))
    assert different(run) == ([name] if apart else [])


OF_OTHERS = """
TORCH_API_KEY AWS_SECRET_ACCESS_KEY OMPI_MCA_orte_hnp_uri OMPI_MCA_orte_precondition_transports
HOROVOD_GLOO_RENDEZVOUS_ADDR HOME NVIDIA_REQUIRE_CUDA NVIDIA_PRODUCT_NAME NVIDIA_VISIBLE_DEVICES
NV_CUDA_LIB_VERSION CUDA_VERSION NCCL_VERSION TORCH_CUDA_ARCH_LIST
"""


def test_library_settings_hold_no_secret_address_or_name_of_an_image():
    kept = dict.fromkeys(["CUDA_LAUNCH_BLOCKING", "NCCL_ALGO", "NVIDIA_TF32_OVERRIDE", "OMPI_MCA_btl"], "1")
    assert library_settings(kept | dict.fromkeys(OF_OTHERS.split(), "13.0")) == kept


# ---- in reports ----

TWO_THREADS = a_run_of(*EVERY_ARM, change=attests("threads", 2, "mpi"))


def shown(run, form, *, detail=False):
    return " ".join(render(run, analyse(run), form, detail=detail).split())


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_render_names_conditions_that_differ_and_lists_them_in_detail(form):
    brief, text = shown(TWO_THREADS, form), shown(TWO_THREADS, form, detail=True)
    assert "CONDITIONS DIFFER: threads (none 1; ddp 1; horovod 1; mpi 2)" in brief
    assert "Conditions that differ" not in brief
    parts = ("Conditions that differ", "threads", "DIFFERENT", "transport", "confounder", "fusion in bytes")
    assert [part for part in (*parts, "horovod: 134217728") if part not in text] == []
    assert "CONDITIONS DIFFER" not in shown(a_run_of(*EVERY_ARM), form)


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_render_names_differences_of_libraries_and_not_of_options(form):
    line = "The libraries differ in: buckets, fusion, cycle time."
    assert line in shown(a_run_of("none", "ddp", "horovod"), form, detail=True)
    of_options = shown(a_run_of("none", "ddp", "ddp:static_graph=true"), form, detail=True)
    assert "The libraries differ" not in of_options


@pytest.mark.parametrize(("arm", "kind"), [("fsdp:param_dtype=bf16", "declared"), ("fsdp", "different")])
def test_layers_may_compute_in_the_precision_that_an_option_names(arm, kind):
    run = a_run_of("none", "ddp", arm, change=attests("activation_dtypes", ["torch.bfloat16"], arm))
    condition = found(run)["activation dtypes"]
    assert condition.kind == kind
    assert ("param_dtype" in condition.why) is (kind == "declared")


def test_conditions_of_hundreds_of_ranks_that_differ_are_listed_by_value():
    run = a_run_of("ddp", ranks=512, change=lambda _arm, _round, rank, facts: facts.update(nice=rank // 500))
    assert found(run)["nice"].values["ddp"] == "ranks 0–499: 0, ranks 500–511: 1"
    run = a_run_of("ddp", ranks=512, change=lambda _arm, _round, rank, facts: facts.update(nice=rank))
    assert found(run)["nice"].values["ddp"].endswith("rank 5: 5 and 506 more")
