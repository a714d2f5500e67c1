"""Replace strategies with wrong ones.

A process loads this if the folder is on its PYTHONPATH. The arms that average by hand get one fault each. So
do DDP with compression, and the arms in shards. The registry holds strings, so this loads only the registry.
"""

import dataclasses

from backends import BACKENDS

for _name in ("manual", "mpi"):
    BACKENDS[_name] = dataclasses.replace(BACKENDS[_name], strategy="wrong_strategies:choose")
BACKENDS["ddp"] = dataclasses.replace(BACKENDS["ddp"], strategy="wrong_strategies:choose_ddp")
for _name, _fault in (
    ("fsdp", "LosesAShard"),
    ("zero", "KeepsAStaleShard"),
    ("pipeline", "SkipsAMicrobatch"),
):
    BACKENDS[_name] = dataclasses.replace(BACKENDS[_name], strategy=f"tests.contract.broken:{_fault}")
