"""Test the reasons under the table by injecting each cause into launches."""

import os

import pytest

from compare.analysis import analyse
from compare.schema.store import read_run
from compare.text import counted
from tests.comparing import compare, inject

CORES = len(os.sched_getaffinity(0))
SLOW = {
    "manual:mode=per_parameter": "latency",
    "manual": "bandwidth",
    "ddp": "background",
}
# With much to compute, a small slowdown stays within the noise.
MUCH = ("--batch-size", 4096, "--steps", "16:warmup=3")
LITTLE = ("--batch-size", 1, "--steps", 200)

# A run of 25 launches, with 15 more on a busy machine. One takes 15 s where torch loads in three.
LONGEST_SECONDS = 650

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(LONGEST_SECONDS + 20),
    pytest.mark.skipif(CORES < 2, reason="two ranks would share one core, which is a cause by itself"),
]


@pytest.fixture(scope="module")
def measure(tmp_path_factory, mnist_dir):
    """Run arms with injected slowdowns; return reasons, table and run."""

    def carry_out(arms, *flags, causes=None):
        folder = tmp_path_factory.mktemp("explained")
        done = compare(
            *("run", "--backend", ",".join(arms), *flags),
            *("--data", mnist_dir, "--output", folder / "run"),
            environment=inject("e2e/slowed", folder / "injection", causes or {}),
            timeout=LONGEST_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        run = read_run(folder / "run")
        return (
            analyse(run).causes,
            " ".join(compare("report", folder / "run", "--detail").stdout.split()),
            run,
        )

    return carry_out


@pytest.fixture(scope="module")
def slowed(measure, requires_backend):
    """Give every arm except mpi a slowdown of its own."""
    requires_backend("mpi")
    return measure([*SLOW, "mpi"], *MUCH, "--repeats", 5, causes=SLOW)


@pytest.mark.parametrize("arm", SLOW)
def test_causes_of_a_slowed_arm_are_named_for_this_arm_only(slowed, arm):
    reasons, text, _ = slowed
    assert [reason.arm for reason in reasons if reason.key == SLOW[arm]] == [arm], reasons
    assert text.count("Why: ") == len({reason.key for reason in reasons})


def test_causes_evidence_matches_the_injected_delay(slowed):
    of = {reason.key: reason.evidence for reason in slowed[0]}
    # Four calls of 2 ms; 814,120 bytes at 60 MB/s.
    assert 0.008 < of["latency"]["fixed_seconds"] < 0.018
    assert of["latency"]["calls"] == 4
    assert 0.0115 < of["bandwidth"]["growing_seconds"] < 0.020


def test_causes_name_tcp_on_one_host_beside_shared_memory(slowed):
    reasons, text, _ = slowed
    seen = {reason.arm: reason.evidence for reason in reasons if reason.key == "transport"}
    assert {"manual", "manual:mode=per_parameter"} <= set(seen)
    assert {evidence["other_arm"] for evidence in seen.values()} == {"mpi"}
    assert "by shared memory" in text


def test_causes_do_not_include_enough_compute_or_even_ranks(slowed):
    assert not {reason.key for reason in slowed[0]} & {"little_compute", "straggler", "oversubscription"}


def test_sweep_measures_several_sizes_on_every_rank_except_the_control(slowed):
    run = slowed[2]
    for launch in run.launches:
        for rank in launch.ranks:
            sizes = [sweep.message_bytes for sweep in rank.sweep]
            assert sizes == sorted(sizes)
            assert len(sizes) >= 3 if launch.arm != "none" else not sizes


def test_causes_of_a_straggler_name_its_rank(measure):
    reasons, text, _ = measure(
        ["manual"], *LITTLE, "--no-control", "--repeats", 3, causes={"manual": "straggler"}
    )
    (straggler,) = (reason for reason in reasons if reason.key == "straggler")
    assert straggler.evidence["rank"] == 1
    assert 0.0018 < straggler.evidence["excess_seconds"] < 0.0035  # half of 4 ms
    assert "straggler: rank 1 on" in text


def test_causes_of_little_compute_do_not_include_the_only_transport(measure):
    reasons, text, _ = measure(["manual:mode=per_parameter"], *LITTLE, "--no-control", "--repeats", 3)
    keys = {reason.key for reason in reasons}
    assert "little_compute" in keys
    assert not keys & {"straggler", "transport", "background", "oversubscription"}
    assert "too little computation per step: manual:mode=per_parameter's own computing takes" in text


def test_causes_with_more_threads_than_cores_are_nothing_else(measure):
    reasons, text, _ = measure(
        ["manual"], *LITTLE, "--no-control", "--repeats", 1, "--threads", CORES, "--num-proc", 2
    )
    assert [reason.key for reason in reasons] == ["oversubscription"]
    assert f"2 ranks × {counted(CORES, 'thread')} wait for {counted(CORES, 'core')}" in text
