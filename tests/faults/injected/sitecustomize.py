"""Let one rank of a launch fail.

The file ``injected.json`` beside this one says how. This changes the product's modules in one rank alone.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from injecting import change_when_imported

_FOLDER = Path(__file__).parent
_RANK_VARIABLES = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def _note_time():
    (_FOLDER / "injected_at").write_text(repr(time.time()))


def _allocate_too_much():
    import resource

    import torch

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    torch.ones(1 << 30)


def _exceed_memory_group():
    (Path(_fault["group"]) / "cgroup.procs").write_text(str(os.getpid()))
    os.urandom(1 << 30)


def _kill_witness():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1e6)


def _crash():
    import ctypes

    ctypes.string_at(0)


def _wait_alone():
    _groups[0].barrier()


def _raise():
    raise RuntimeError("injected by the test")


EARLY = "before its first progress record"
FAULTS = {
    "raise": _raise,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    f"kill {EARLY}": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill its witness": _kill_witness,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exit 0": lambda: os._exit(0),
    "exit 3": lambda: os._exit(3),
    f"exit 0 {EARLY}": lambda: os._exit(0),
    f"be slow {EARLY}": lambda: time.sleep(8),
    "crash": _crash,
    "abort": os.abort,
    "hang": lambda: time.sleep(1e6),
    "hang before rendezvous": lambda: time.sleep(1e6),
    "hang in a collective": _wait_alone,
    "hang while loading": lambda: time.sleep(1e6),
    "out of memory": _allocate_too_much,
    "be killed out of memory": _exceed_memory_group,
}


_groups = []


def _remember_groups(backends):
    """Keep the group of a rank, for a collective of one rank."""
    load = backends.load

    def load_and_remember(*which):
        group, replica = load(*which)

        class Remembered(group):
            @classmethod
            def join(cls, *arguments):
                _groups.append(super().join(*arguments))
                return _groups[-1]

        return Remembered, replica

    backends.load = load_and_remember


def _is_meant(fault):
    return any(os.environ.get(name) == str(fault["rank"]) for name in _RANK_VARIABLES)


def _spoil_beginning(fault):
    if _is_meant(fault):
        others = Path(sys.orig_argv[-1]).with_name("rank-0.progress")
        while not others.exists():
            time.sleep(0.01)
        _note_time()
        FAULTS[fault["kind"]]()


def _spoil_start(module, fault):
    """Hold up the process between horovodrun and a rank, except the first.

    Not as it is imported: other tests take its semaphores for traces until it has opened them.
    """
    execute = module._exec_middleman

    def execute_late(*arguments):
        try:
            (_FOLDER / "first").touch(exist_ok=False)
        except FileExistsError:
            _note_time()
            FAULTS[fault["kind"]]()
        execute(*arguments)

    if "--multiprocessing-fork" in sys.orig_argv:
        module._exec_middleman = execute_late


def _spoil_rank(module, fault):
    if not _is_meant(fault):
        return

    def strike():
        _note_time()
        FAULTS[fault["kind"]]()

    if fault["kind"] == "hang while loading":
        module.backends.load = lambda *_: strike()
        return
    if fault["kind"] == "hang before rendezvous":
        from compare import data

        load = data.load_split
        data.load_split = lambda *which: strike() or load(*which)
        return

    if fault["kind"] == "hang in a collective":
        _remember_groups(module.backends)

    load_task = module._load_task

    def load_spoiled(*arguments):
        task = load_task(*arguments)

        class SpoiledTask(type(task)):
            def batches(self, shard):
                batches = super().batches(shard)
                # The tasks of the proof are copies of this one.
                return _Spoiled(batches, fault["step"], strike) if self is task else batches

        task.__class__ = SpoiledTask
        return task

    module._load_task = load_spoiled


class _Spoiled:
    """Batches that strike at a step."""

    def __init__(self, batches, step, strike):
        self.attest, self._batches, self._step, self._strike = batches.attest, batches, step, strike

    def __iter__(self):
        for step, batch in enumerate(self._batches):
            if step == self._step:
                self._strike()
            yield batch


def _spoil_port(cluster, fault):
    """Hand out a port that is taken, once."""
    free_port, taken = cluster.free_port, [fault["port"]]
    cluster.free_port = lambda self: taken.pop() if taken else free_port(self)


_SPOILERS = {
    "compare.worker.watchdog": lambda _, fault: _spoil_beginning(fault),
    "compare.worker.rank": _spoil_rank,
    "horovod.runner.common.util.safe_shell_exec": _spoil_start,
    "compare.launch.cluster": lambda module, fault: _spoil_port(module.Cluster, fault),
}


if (_FOLDER / "injected.json").exists():
    _fault = json.loads((_FOLDER / "injected.json").read_text())
    change_when_imported(_fault["module"], lambda module: _SPOILERS[_fault["module"]](module, _fault))
