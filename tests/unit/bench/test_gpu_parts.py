"""Test what `make test-gpu` would try on a machine with a GPU."""

import time

import pytest

from tests.contract.plan import arms_of
from tests.gpu.__main__ import execute, status_of
from tests.gpu.parts import ARMS, Machine, arms_over_nccl, parse_arm, parts

TIMED = {"run", "collectives"}


@pytest.mark.parametrize(("gpus", "sharing"), [(1, {2, 4}), (2, {4}), (4, set())])
def test_ranks_share_gpus_only_where_there_are_too_few(tmp_path, gpus, sharing):
    commands = [part.command for part in parts(Machine("cuda", gpus, []), tmp_path)]
    proofs = [words for words in commands if "verify" in words and words[words.index("-np") + 1] != "1"]
    assert {words[words.index("-np") + 1] for words in proofs} == {"2", "4"}
    for words in proofs:
        shared = int(words[words.index("-np") + 1]) in sharing
        assert words[words.index("--device") + 1] == ("cuda:shared" if shared else "cuda")


def test_parts_that_measure_times_run_alone_and_never_share(tmp_path):
    for part in parts(Machine("cuda", 1, []), tmp_path):
        assert part.timed or TIMED.isdisjoint(part.command)
        assert not part.timed or "cuda:shared" not in part.command


def test_every_arm_and_choice_over_nccl_is_among_the_proofs(tmp_path):
    commands = [part.command for part in parts(Machine("cuda", 1, []), tmp_path)]
    proven = {word for words in commands if "verify" in words for word in words}
    listed = arms_over_nccl("cuda")
    assert set(listed) <= proven
    assert {"ddp:comm_hook=bf16", "fsdp:offload=cpu", "manual:mode=ring", "pipeline:schedule=gpipe"} <= proven
    found = [parse_arm(label).options for label in listed]
    for backend in (arm for arm in ARMS if arm.name in {"ddp", "zero", "fsdp", "pipeline", "localsgd"}):
        assert [label for label in arms_of(backend) if parse_arm(label).options not in found] == []
    assert not [label for label in listed if "shared_memory" in label or label.startswith("mpi")]


def test_part_for_which_no_time_is_left_does_not_count_as_passed(tmp_path):
    part = parts(Machine("cuda", 1, []), tmp_path)[0]
    done = execute(part, tmp_path, ends_at=time.monotonic() - 1)
    assert (done.outcome, done.why) == ("NOT RUN", "No time was left.")
    assert status_of([done]) == 1
    assert status_of([done._replace(outcome="skipped")]) == 0
