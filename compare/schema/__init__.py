"""Define what travels between processes and what is saved."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compare.schema.config import RunConfig as RunConfig
    from compare.schema.results import Launch as Launch
    from compare.schema.results import RankResult as RankResult
    from compare.schema.results import Run as Run
    from compare.schema.store import read_run as read_run

_FACE = {
    "RunConfig": "config",
    "Launch": "results",
    "RankResult": "results",
    "Run": "results",
    "read_run": "store",
}


def __getattr__(name: str) -> Any:
    # On demand: a witness imports file names from here, and stays small.
    if name not in _FACE:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_FACE[name]}"), name)
