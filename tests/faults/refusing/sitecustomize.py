"""Let the agent find that arms cannot take turns.

The file ``injected.json`` beside this one says why: ``memory`` or ``stop``.
"""

import json
import os
import types
from pathlib import Path

from injecting import change_when_imported

_why = json.loads((Path(__file__).parent / "injected.json").read_text())


def _little_memory(module):
    module.memory_left_bytes = lambda: 50 << 20


def _refuse(*_):
    raise PermissionError(1, "Operation not permitted")


def _no_stop(module):
    module.os = types.SimpleNamespace(**vars(os) | {"kill": _refuse})


def _also_in_agents(module):
    module.PACKAGE_ROOT = f"{Path(__file__).parent}{os.pathsep}{module.PACKAGE_ROOT}"


change_when_imported("compare.launch.engines.commands", _also_in_agents)
if _why == "memory":
    change_when_imported("compare.launch.agent.launch", _little_memory)
else:
    change_when_imported("compare.launch.agent.turn_gate", _no_stop)
