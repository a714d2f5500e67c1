"""Put on PYTHONPATH, this lets the arms that average by hand train through strategies with one fault each,
and DDP where it compresses.

The registry holds strings, so nothing is loaded here but itself.
"""

import dataclasses

from backends import BACKENDS

for _name in ("manual", "mpi"):
    BACKENDS[_name] = dataclasses.replace(BACKENDS[_name], strategy="wrong_strategies:choose")
BACKENDS["ddp"] = dataclasses.replace(BACKENDS["ddp"], strategy="wrong_strategies:choose_ddp")
