"""Test averaging in shared memory with 1, 2 and 3 real processes.

``python -m tests.unit.backends.test_shared_memory FOLDER`` loads torch once, and forks the ranks of every
world size. Each rank writes what it saw, and the tests check that.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from backends.base import BackendError, Placement
from backends.groups.torch_group import TorchGroup
from backends.shared_memory import memory
from backends.shared_memory.sum import RESULTS, Layout, SharedSum
from backends.strategies.averaging import AveragingReplica
from backends.strategies.reducers import REDUCERS
from compare.analysis import analyse
from compare.worker.loop import train
from compare.worker.mnist import classify
from tests.unit.factories import a_launch, a_rank, a_run

CPU = torch.device("cpu")
WORLDS = (1, 2, 3)
ROOT = Path(__file__).resolve().parents[3]
SECONDS = 150

SHAPES = {
    "one": [(1,)],
    "smaller than a page": [(7, 3), (7,)],
    "cut across": [(3,), (1000, 37), (), (5, 5), (333, 77), (0,), (9,)],
    "one is much the largest": [(2,), (700, 701), (11,)],
    "of pages": [(4096,), (4096,)],
    "ends in nothing": [(4096,), (0,), (4096,), (0,)],
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
DELAYED_STEPS = 200
ON_TWO_HOSTS = (
    "mode=shared_memory needs all ranks on one host, but rank 2 and rank 0 are on different hosts. "
    "Put all ranks on one host, or use mode=flat."
)


def launch(folder):
    """Run the ranks of all world sizes, and return what each of them wrote, by the number of ranks."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.backends.test_shared_memory", str(folder)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return {
        world: [json.loads((folder / f"{rank}-of-{world}.json").read_text()) for rank in range(world)]
        for world in WORLDS
    }


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """Launch the ranks once, and return what each of them saw, by the number of ranks."""
    return launch(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(params=WORLDS, ids=["1 rank", "2 ranks", "3 ranks"])
def seen(request, launched):
    return launched[request.param]


# ---- the sum ----


def test_shared_sum_is_the_sum_of_all_gradients_and_equal_on_every_rank(seen):
    for rank in seen:
        assert len(rank["sums"]) == len(SHAPES) * len(DTYPES)
        assert [case for case, right in rank["sums"].items() if not right] == []
        assert rank["strided"], "gradients may have any memory layout"


def test_shared_sum_with_late_ranks_is_torn_only_without_a_meeting(seen):
    """Delay a rank's gradients, its reduction, or its reading."""
    assert [rank["wrong_steps"] for rank in seen] == [0] * len(seen)
    if len(seen) > 1:
        assert sum(rank["wrong_steps_without_first_meeting"] for rank in seen) > 0
        assert sum(rank["wrong_steps_without_second_meeting"] for rank in seen) > 0


def test_shared_memory_reports_gradients_that_are_written_to(seen):
    for rank in seen:
        assert set(rank["written_to"]) == {"clipped", "zeroed in place", "accumulated"}
        for message in rank["written_to"].values():
            assert message.startswith("averaged gradients were written to")


# ---- traces and attestation ----


def test_shared_memory_has_no_name_and_ends_with_the_last_gradient(seen):
    """It ends after errors, too."""
    for rank in seen:
        assert rank["named_files"] == []
        assert rank["mapped_while_it_lives"] >= rank["attestation"]["message_bytes"][0]
        assert rank["mapped_after"] == 0
        assert rank["descriptors_after"] == []


def test_shared_memory_attests_its_transport(seen):
    for rank in seen:
        assert rank["attestation"] == {
            "reduce_op": "divided by the number of ranks in backward, then summed",
            "passes_per_step": 1,
            "mode": "shared_memory",
            "message_bytes": [4 * 5 * 3 + 4 * 3],
            "transport": "shared memory" if len(seen) > 1 else "none (one rank)",
            "shared_bytes": seen[0]["attestation"]["shared_bytes"],
        }


def test_summary_shows_the_strategys_transport_before_the_groups():
    group = {"group": {"transport": "TCP over lo"}}
    for replica, shown in (
        ({"replica": {"transport": "shared memory"}}, "shared memory"),
        ({"replica": {"reduce_op": "mean"}}, "TCP over lo"),
    ):
        ranks = [a_rank(rank, attestation=group | replica) for rank in range(2)]
        run = a_run(launches=[a_launch("ddp", ranks=ranks)])
        assert [arm.transport for arm in analyse(run).summary.arms] == [shown]


# ---- errors ----


@pytest.mark.parametrize(
    ("case", "starts", "last_ends"),
    [
        ("another host", ON_TWO_HOSTS, ""),
        (
            "another container",
            "mode=shared_memory: ranks 1, 2 cannot open the memory of rank 0 on the same host. ",
            " (the process ID of rank 0 belongs to another process here)",
        ),
        (
            "no boot identity",
            "mode=shared_memory: ranks 0, 1, 2 cannot open the memory of rank 0 on the same host. ",
            "",
        ),
        (
            "no room",
            "mode=shared_memory needs 12.0 MB of memory on this host, and ranks 0, 1, 2 could not reserve ",
            " (File too large)",
        ),
    ],
)
def test_shared_memory_is_refused_by_name_on_every_rank(launched, case, starts, last_ends):
    messages = [rank["refused"][case] for rank in launched[3]]
    assert [message.startswith(starts) for message in messages] == [True] * 3, messages
    assert messages[2].endswith(last_ends)


def test_shared_memory_refuses_gpus_and_mixed_dtypes():
    alone = Placement(0, 0, 1, 1, "here")
    with pytest.raises(BackendError, match="averages in host memory, but the gradients are on cuda"):
        SharedSum([nn.Parameter(torch.ones(2))], TorchGroup(alone, torch.device("cuda", 0)))
    mixed = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float64))]
    with pytest.raises(BackendError, match=r"the parameters have torch\.float32, torch\.float64"):
        SharedSum(mixed, TorchGroup(alone, CPU))


# ---- the layout ----


def chunk_of(layout, rank):
    size = layout.chunk_elements
    return range(min(layout.elements, rank * size), min(layout.elements, (rank + 1) * size))


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("elements", [1, 1023, 1024, 1025, 203_530])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_layout_gives_every_element_one_owner_which_reserves_its_pages(world, elements, size):
    layout = Layout(world, elements, size)
    chunks = [chunk_of(layout, rank) for rank in range(world)]
    assert [element for chunk in chunks for element in chunk] == list(range(elements))
    reserved = sorted(part for rank in range(world) for part in layout.reserved_by(rank))
    assert all(offset % 4096 == 0 for offset, _ in reserved)
    ends = [0, *(offset + length for offset, length in reserved)]
    assert [*(offset for offset, _ in reserved), layout.nbytes] == ends
    planes_of_shares = range(layout.planes - RESULTS + 1)  # each result uses the same further planes
    for owner, chunk in enumerate(chunks):
        for element in {chunk.start, chunk.stop - 1} if chunk else ():
            planes = [layout.plane_of_share(rank, element) for rank in range(world)]
            shares = [plane for rank, plane in enumerate(planes) if rank != owner or world == 1]
            assert sorted(shares) == list(planes_of_shares)
            assert world == 1 or planes[owner] is None
            for plane in map(layout.plane_offset, range(layout.planes)):
                at = plane + size * element
                assert any(offset <= at < offset + length for offset, length in layout.reserved_by(owner))


# ---- the code of a rank ----


def what_a_rank_sees(group):
    return {
        "sums": _sums(group),
        "strided": _strided(group),
        "wrong_steps": _wrong_steps(group),
        "wrong_steps_without_first_meeting": _wrong_steps(group, forgotten=1),
        "wrong_steps_without_second_meeting": _wrong_steps(group, forgotten=2),
        "written_to": _written_to(group),
        "refused": _refused(group) if group.world_size > 2 else {},
        **_traces(group),
    }


def _refused(group):
    """Return the errors of everything that must be refused."""
    # A million elements of four bytes: two results, and a plane for the third rank's shares.
    parameters = [nn.Parameter(torch.ones(1_000_000))]
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        if group.rank == 2:
            patch.setattr(memory, "_boot_identity", lambda: "another")
        found["another host"] = _refusal(lambda: SharedSum(parameters, group))
    with pytest.MonkeyPatch.context() as patch:
        if group.rank == 0:
            patch.setattr(memory, "_boot_identity", lambda: Path("/nowhere").read_text())
        found["no boot identity"] = _refusal(lambda: SharedSum(parameters, group))
    with pytest.MonkeyPatch.context() as patch:
        if group.rank > 0:  # as in another process namespace, where the number is another process's
            true_open = memory._open
            patch.setattr(memory, "_open", lambda path, name: true_open(f"/proc/{os.getpid()}/fd/0", name))
        found["another container"] = _refusal(lambda: SharedSum(parameters, group))
    # The limit is set for every rank, because any rank may be the first to enlarge the memory.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    found["no room"] = _refusal(lambda: SharedSum(parameters, group))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return found


def _gradients(shapes, dtype, *seed):
    """Return small whole numbers, whose sums are exact."""
    generator = torch.Generator().manual_seed(hash(seed))  # every rank hashes numbers to the same seed
    return [torch.randint(-9, 10, shape, generator=generator).to(dtype) for shape in shapes]


def _are_sums(found, everyones):
    """Return whether tensors are the sums of all ranks' gradients; each rank's are a list."""
    return all(map(torch.equal, found, (sum(same) for same in zip(*everyones, strict=True))))


def _sums(group):
    found = {}
    for dtype in DTYPES:
        for name, shapes in SHAPES.items():
            shared = SharedSum([nn.Parameter(torch.empty(shape, dtype=dtype)) for shape in shapes], group)
            right = []
            for step in range(3):
                everyones = [_gradients(shapes, dtype, step, rank) for rank in range(group.world_size)]
                shared.reduce(everyones[group.rank])
                right.append(_are_sums(shared.views, everyones))
            found[f"{name}, {dtype}"] = all(right)
    return found


def _strided(group):
    shape = (60, 50, 4)
    shared = SharedSum([nn.Parameter(torch.empty(shape))], group)
    everyones = [_gradients([shape], torch.float32, rank) for rank in range(group.world_size)]
    other_layout = everyones[group.rank][0].permute(2, 0, 1).contiguous().permute(1, 2, 0)
    shared.reduce([other_layout])
    return not other_layout.is_contiguous() and _are_sums(shared.views, everyones)


def _wrong_steps(group, forgotten=None):
    """Count the steps whose result was not the sum until the end.

    Ranks are late with their gradients, with reducing them, and with reading the result. This is random,
    or, if a meeting is left out, rank 0 is always late.
    """
    shapes = [(3000,), (40, 100)]
    shared = SharedSum([nn.Parameter(torch.empty(shape)) for shape in shapes], group)
    chance = random.Random(group.rank)

    def pause():
        always = 0.01 if group.rank == 0 else 0
        time.sleep(always if forgotten else chance.choice([0, 0, 0.0005, 0.003]))

    _hinder(shared._barrier, pause, forgotten)
    wrong = 0
    for step in range(10 if forgotten else DELAYED_STEPS):
        everyones = [
            [torch.full(shape, float(step * (rank + 1))) for shape in shapes]
            for rank in range(group.world_size)
        ]
        pause()
        shared.reduce(everyones[group.rank])
        at_once = _are_sums(shared.views, everyones)
        pause()
        wrong += not (at_once and _are_sums(shared.views, everyones))
    group.barrier()
    return wrong


def _hinder(barrier, pause, forgotten):
    """Pause after every wait, and leave out one wait of every step."""
    true_wait, numbers = barrier.wait, cycle((1, 2))

    def wait():
        if next(numbers) != forgotten:
            true_wait()
        pause()

    barrier.wait = wait


def _written_to(group):
    """Return the errors after gradients were changed between two calls."""
    messages = {}
    for name, write in {
        "clipped": lambda parameter: nn.utils.clip_grad_norm_([parameter], 0.01),
        "zeroed in place": lambda parameter: parameter.grad.zero_(),
        "accumulated": lambda parameter: parameter.square().sum().backward(),
    }.items():
        parameter = nn.Parameter(torch.ones(10))
        reducer = REDUCERS["shared_memory"]([parameter], group, {})
        parameter.square().sum().backward()
        reducer.reduce()
        group.barrier()
        write(parameter)
        group.barrier()
        messages[name] = _refusal(reducer.reduce)
    return messages


def _traces(group):
    no_optimizer = SimpleNamespace(step=lambda: None)  # torch's own ones need a second to import
    options = {"mode": "shared_memory"}
    replica = AveragingReplica(nn.Linear(5, 3), lambda _: no_optimizer, group, options)
    named = [path.name for path in Path("/dev/shm").iterdir() if "ringside-gradients" in path.name]  # noqa: S108 -- looked into
    train(replica, [(torch.ones(2, 5), torch.zeros(2, dtype=torch.int64))], classify, 1)
    attestation = replica.attest()
    mapped = memory.mapped_bytes("ringside-gradients-")
    del replica
    return {
        "named_files": named,
        "attestation": attestation,
        "mapped_while_it_lives": mapped,
        "mapped_after": memory.mapped_bytes("ringside-gradients-"),
        "descriptors_after": _descriptors(),
    }


def _descriptors():
    """List the open descriptors of shared memory."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor that reads the folder
            found.append(str(path.readlink()))
    return [target for target in found if "memfd:ringside-gradients-" in target]


def _refusal(attempt):
    try:
        attempt()
    except BackendError as error:
        return str(error)
    return "not refused"


def main(folder):
    """Fork the ranks of one world size after another."""
    torch.set_num_threads(1)  # threads do not survive a fork
    for world in WORLDS:
        pids = {_fork(rank, world, folder) for rank in range(world)}
        while pids:
            pid, status = os.wait()
            pids.remove(pid)
            if status:
                for other in pids:
                    os.kill(other, signal.SIGKILL)
                sys.exit(f"One of {world} ranks ended with {os.waitstatus_to_exitcode(status)}.")


def _fork(rank, world, folder):
    if pid := os.fork():
        return pid
    signal.alarm(SECONDS)
    try:
        store = dist.FileStore(str(folder / f"store-{world}"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        group = TorchGroup(Placement(rank, rank, world, world, "here"), CPU)
        (folder / f"{rank}-of-{world}.json").write_text(json.dumps(what_a_rank_sees(group)))
        group.leave()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(1)  # a rank never returns into the loop of its parent


if __name__ == "__main__":
    main(Path(sys.argv[1]))
