"""Slow down arms, as ``injected.json`` describes."""

import hashlib
import json
import sys
import threading
import time
from pathlib import Path

from injecting import change_when_imported

_SECONDS_PER_CALL = 0.002
_SECONDS_PER_BYTE = 1 / 60e6
_STRAGGLING_SECONDS = 0.004


def _delay_all_reduce(module, seconds_of):
    reduce = module.TorchGroup.all_reduce_

    def slowly(self, tensor):
        time.sleep(seconds_of(tensor.numel() * tensor.element_size()))
        reduce(self, tensor)

    module.TorchGroup.all_reduce_ = slowly


def _compete(module):
    """Keep a core busy after a rank joins; hashing releases Python's lock."""
    join = module.TorchGroup.join.__func__
    data = bytes(1 << 22)

    def spin():
        while True:
            hashlib.sha256(data)

    def join_and_compete(cls, *arguments):
        threading.Thread(target=spin, daemon=True).start()
        return join(cls, *arguments)

    module.TorchGroup.join = classmethod(join_and_compete)


def _straggle(module):
    learn = module.Replica.learn

    def slowly(self, *arguments):
        if self.shard[0] == 1:
            until = time.perf_counter() + _STRAGGLING_SECONDS
            while time.perf_counter() < until:
                pass
        return learn(self, *arguments)

    module.Replica.learn = slowly


_CAUSES = {
    "latency": (
        "backends.groups.torch_group",
        lambda module: _delay_all_reduce(module, lambda _: _SECONDS_PER_CALL),
    ),
    "bandwidth": (
        "backends.groups.torch_group",
        lambda module: _delay_all_reduce(module, lambda nbytes: nbytes * _SECONDS_PER_BYTE),
    ),
    "background": ("backends.groups.torch_group", _compete),
    "straggler": ("backends.base", _straggle),
}


def _label(job_file):
    arm = json.loads(Path(job_file).read_text())["arm"]
    return ":".join([arm["backend"], *(f"{name}={value}" for name, value in arm["given"].items())])


# Only processes of ranks have a job as their last argument.
if sys.orig_argv[-1].endswith("/job.json") and "compare.worker" in sys.orig_argv:
    _causes = json.loads((Path(__file__).parent / "injected.json").read_text())
    _cause = _causes.get(_label(sys.orig_argv[-1]))
    if _cause:
        change_when_imported(*_CAUSES[_cause])
