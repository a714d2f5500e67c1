"""Make every step longer by the share in ``injected.json``."""

import json
import time
from pathlib import Path

from injecting import change_when_imported

_SHARE = json.loads(Path(__file__).with_name("injected.json").read_text())["share"]
_LONGEST_SECONDS = 0.01
"""A wait between two turns is no step."""


def _slow_down(module):
    step, last = module.SGD.step, [time.perf_counter()]

    def slowly(self, *arguments, **options):
        answer = step(self, *arguments, **options)
        now = time.perf_counter()
        until = now + min(_SHARE * (now - last[0]), _LONGEST_SECONDS)
        while time.perf_counter() < until:
            pass
        last[0] = time.perf_counter()
        return answer

    module.SGD.step = slowly


change_when_imported("torch.optim.sgd", _slow_down)
