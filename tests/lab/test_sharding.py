"""Hold the bytes that a lesson states for arms that shard against the kernel's counters."""

from __future__ import annotations

import json
import statistics
import sys

import pytest

from compare.analysis.measured import sent_by_call
from tests.lab.steps import PARAMETERS

pytestmark = pytest.mark.lab

ARMS = ("zero", "fsdp", "fsdp:reshard_after_forward=false", "fsdp:units=model", "fsdp:param_dtype=bf16")
REPLICATED = "fsdp:replicate=2"
TOLERANCE = 0.03


def steps_of(lab, arms, *, per_host=1):
    """Train the arms on all hosts of a lab, and return what each rank recorded of each arm."""
    world = per_host * len(lab.hosts)
    module = [sys.executable, "-m", "tests.lab.steps"]
    ranks = [
        lab.hosts[rank // per_host].start(
            [*module, rank, world, per_host, lab.hosts[0].address, *arms], stdout=-1, stderr=-1
        )
        for rank in range(world)
    ]
    outputs = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def stated(calls, world):
    """Return the bytes that a lesson says a rank sends in these calls."""
    library = "torch.distributed gloo"
    return sum(
        call["message_bytes"] * sent_by_call(library, call["collective"], len(call["ranks"]) or world)
        for call in calls
    )


def is_norm(call):
    """Return whether a call reduces the norms of the parameters' shards, which clipping needs."""
    return call["collective"] == "all_reduce" and call["message_bytes"] == 4 * PARAMETERS


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.rest)])
def test_bytes_of_arms_that_shard_are_those_that_the_kernel_counts(make_lab, hosts):
    found = steps_of(make_lab(hosts), ARMS)
    for arm in ARMS:
        calls = found[0][arm]["calls"]
        assert any(map(is_norm, calls)) == arm.startswith("fsdp"), arm
        assert all(of_rank[arm]["calls"] == calls for of_rank in found)
        counted = statistics.fmean(of_rank[arm]["sent"] for of_rank in found)
        print(f"{arm}: {stated(calls, hosts):.0f} bytes stated, {counted:.0f} counted")
        assert stated(calls, hosts) == pytest.approx(counted, rel=TOLERANCE), arm


@pytest.mark.rest
def test_between_hosts_replicas_send_only_their_all_reduces(make_lab):
    found = steps_of(make_lab(2), [REPLICATED], per_host=2)
    calls = [call for call in found[0][REPLICATED]["calls"] if not is_norm(call)]
    inside, across = ([call for call in calls if call["ranks"] == ranks] for ranks in ([0, 1], [0, 2]))
    assert {call["collective"] for call in inside} == {"all_gather", "reduce_scatter"}
    assert {call["collective"] for call in across} == {"all_reduce"}
    assert len(calls) == len(inside) + len(across)
    # The two ranks of a host share its counter.
    counted = statistics.fmean(of_rank[REPLICATED]["sent"] for of_rank in found)
    print(f"{REPLICATED}: {2 * stated(across, 4):.0f} bytes stated, {counted:.0f} counted")
    assert 2 * stated(across, 4) == pytest.approx(counted, rel=TOLERANCE)
