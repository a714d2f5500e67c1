"""Let one rank of a launch fail as ``fault.json`` beside it says.

The product has no hooks for faults: this changes its modules as they are imported, in one rank alone.
"""

import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import time
from pathlib import Path

_FOLDER = Path(__file__).parent
_RANK_VARIABLES = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")


def _say_when():
    (_FOLDER / "injected_at").write_text(repr(time.time()))


def _allocate_too_much():
    import resource

    import torch

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    torch.ones(1 << 30)


def _crash():
    import ctypes

    ctypes.string_at(0)


def _wait_alone():
    _groups[0].barrier()


def _raise():
    raise RuntimeError("injected by the test")


FAULTS = {
    "raise": _raise,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill before the first record": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exit 0": lambda: os._exit(0),
    "exit 3": lambda: os._exit(3),
    "exit 0 before the first record": lambda: os._exit(0),
    "delay the first record": lambda: time.sleep(8),
    "crash": _crash,
    "hang": lambda: time.sleep(1e6),
    "hang before rendezvous": lambda: time.sleep(1e6),
    "hang in a collective": _wait_alone,
    "hang while loading": lambda: time.sleep(1e6),
    "out of memory": _allocate_too_much,
}


_groups = []


def _remember_groups(backends):
    """Keep the group of a rank, for a collective of its own."""
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
        _say_when()
        FAULTS[fault["kind"]]()


def _spoil_start(module, fault):
    """Delay the process between horovodrun and a rank, but the first.

    Not as it is imported: until it has opened its semaphores, other tests take them for left behind.
    """
    execute = module._exec_middleman

    def execute_late(*arguments):
        try:
            (_FOLDER / "first").touch(exist_ok=False)
        except FileExistsError:
            _say_when()
            FAULTS[fault["kind"]]()
        execute(*arguments)

    if "--multiprocessing-fork" in sys.orig_argv:
        module._exec_middleman = execute_late


def _spoil_rank(module, fault):
    if not _is_meant(fault):
        return

    def strike():
        _say_when()
        FAULTS[fault["kind"]]()

    if fault["kind"] == "hang while loading":
        module.backends.load = lambda *_: strike()
        return
    if fault["kind"] == "hang before rendezvous":
        load = module.data.load_split
        module.data.load_split = lambda *which: strike() or load(*which)
        return

    if fault["kind"] == "hang in a collective":
        _remember_groups(module.backends)

    class Spoiled(module.Batches):
        def __iter__(self):
            for step, batch in enumerate(super().__iter__()):
                if step == fault["step"]:
                    strike()
                yield batch

    module.Batches = Spoiled


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


class _Spoiler(importlib.abc.MetaPathFinder):
    def __init__(self, name, fault):
        self._name, self._fault = name, fault

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def then_spoil(module):
            execute(module)
            _SPOILERS[self._name](module, self._fault)

        spec.loader.exec_module = then_spoil
        return spec


if (_FOLDER / "fault.json").exists():
    _fault = json.loads((_FOLDER / "fault.json").read_text())
    sys.meta_path.insert(0, _Spoiler(_fault["module"], _fault))
