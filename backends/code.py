"""Quote the lines that synchronise, without importing their libraries."""

from __future__ import annotations

import ast
import re
import textwrap
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from backends import BACKENDS

if TYPE_CHECKING:
    from backends.base import Options

_OF_MODE = {
    "per_parameter": ("strategies.averaging:PerParameterReducer.reduce",),
    "flat": ("strategies.averaging:FlatReducer.reduce", "strategies.reducer:Bucket.collect"),
    "overlap": ("strategies.averaging:OverlapReducer._arrived", "strategies.averaging:OverlapReducer.reduce"),
    "shared_memory": ("shared_memory.sum:SharedSum.reduce",),
    "ring": ("strategies.primitives:ring", "strategies.primitives:_pass_on"),
    "reduce_broadcast": ("strategies.primitives:reduce_broadcast",),
    "reduce_scatter": ("strategies.primitives:reduce_scatter",),
    "all_gather": ("strategies.primitives:all_gather",),
    "optimizer": (
        "strategies.horovod_optimizer:HorovodReplica.__init__",
        "strategies.horovod_optimizer:HorovodReplica.sync",
    ),
}
_OF_BACKEND = {
    "none": ("strategies.local:LocalReplica.sync",),
    "ddp": ("strategies.ddp:DDPReplica._wrap",),
    "zero": ("strategies.ddp:DDPReplica._wrap", "strategies.zero:ZeroReplica.step"),
    "fsdp": ("strategies.fsdp:_shard",),
    "lightning": (
        "strategies.lightning:LightningReplica._wrap",
        "strategies.lightning:LightningReplica.backward",
    ),
    "localsgd": ("strategies.local_sgd:LocalSGDReplica.step", "strategies.local_sgd:LocalSGDReplica._means"),
    "modelparallel": ("strategies.pipeline:_Pass.run",),
    "pipeline": ("strategies.pipeline:_Pass.run",),
    "single": ("strategies.local:LocalReplica.sync",),
    "dataparallel": ("strategies.data_parallel:DataParallelReplica.__init__",),
    "own_torch": ("strategies.own:OwnReplica.learn",),
    "own_horovod": ("strategies.own:OwnReplica.learn",),
    "own_mpi": ("strategies.own:OwnReplica.learn",),
}
_SUMMARY_BY_MODE = {
    "shared_memory": "a sum in memory that all ranks of one host map",
    "ring": "an all-reduce by hand: parts travel around a ring",
    "reduce_broadcast": "an all-reduce by hand: a sum on rank 0, which sends it to all",
    "reduce_scatter": "an all-reduce by hand: each rank sums a part, and all gather the parts",
    "all_gather": "an all-reduce by hand: each rank gets all gradients, and sums them itself",
}
_FOR_TOOLS = re.compile(r" +# (?:noqa|type:).*")
_CALLS_OF_GROUP = {"per_parameter": "all_reduce_", "flat": "all_reduce_", "overlap": "all_reduce_start_"}


class Quote(NamedTuple):
    """The body of a function, as it stands in a file."""

    file: str
    """Its path, with slashes, from the folder above ``backends``."""
    line: int
    """Number of the first line that is quoted."""
    function: str
    """Name of the function, with its class."""
    text: str


def summary_of(backend: str, options: Options) -> str:
    """Return what an arm is, in a few words.

    Raises:
        KeyError: there is no such backend.
    """
    return _SUMMARY_BY_MODE.get(str(options.get("mode"))) or BACKENDS[backend].summary


def code_of(backend: str, options: Options) -> list[Quote]:
    """Quote what synchronises in an arm: its strategy, then its group.

    Raises:
        KeyError: there is no such backend.
    """
    mode = str(options.get("mode", ""))
    names = [f"backends.{name}" for name in _OF_MODE.get(mode) or _OF_BACKEND[backend]]
    if call := _CALLS_OF_GROUP.get(mode):
        names.append(f"{BACKENDS[backend].group}.{call}")
    return [quote(name) for name in names]


def quote(name: str) -> Quote:
    """Quote a function, given as ``module:Class.function``, without its docstring.

    Raises:
        LookupError: there is no such module or function.
    """
    module, _, function = name.partition(":")
    spec = find_spec(module)
    source = spec.loader.get_source(module) if spec and spec.loader else None  # type: ignore[attr-defined]
    if source is None:
        raise LookupError(name)
    found: ast.AST = ast.parse(source)
    for part in function.split("."):
        found = next(node for node in ast.iter_child_nodes(found) if getattr(node, "name", "") == part)
    assert isinstance(found, ast.FunctionDef)  # noqa: S101 -- only functions are quoted
    first = (found.body[0].end_lineno or 0) + 1 if ast.get_docstring(found) else found.body[0].lineno
    lines = [_FOR_TOOLS.sub("", line) for line in source.splitlines()[first - 1 : found.end_lineno]]
    file = f"{module.replace('.', '/')}.py"
    return Quote(file, first, function, textwrap.dedent("\n".join(lines)).strip("\n"))
