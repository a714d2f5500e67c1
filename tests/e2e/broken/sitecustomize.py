"""Replace strategies with wrong ones.

A process loads this if the folder is on its PYTHONPATH. The arms that average by hand get one fault each, and
so does fsdp. The registry holds strings, so this loads only the registry.
"""

import dataclasses

from backends import BACKENDS

for _name, _strategy in (
    ("manual", "wrong_strategies:choose"),
    ("fsdp", "tests.contract.broken:LosesAShard"),
):
    BACKENDS[_name] = dataclasses.replace(BACKENDS[_name], strategy=_strategy)
