"""Control ``torch.compile``, and count the graphs that it makes.

Only a run with ``--compile`` loads the compiler, because that takes a second and memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from backends.base import Facts
from compare.schema.config import RunConfig


def load_compiler(config: RunConfig, device: torch.device) -> None:
    """Load the compiler by compiling a small function, if the run compiles.

    Loading then counts as start-up in every arm. Otherwise it would count with the first graph, which is one
    of the proof in most arms, but one of the training in the control, which has no proof.
    """
    if config.compile:
        tensor = torch.ones(2, device=device, requires_grad=True)
        torch.compile(torch.square)(tensor).sum().backward()


def compile_in_place(module: nn.Module) -> None:
    """Replace a module's ``forward`` by its compiled form; hooks still run uncompiled.

    The parameters keep their names, and copies of the module are not compiled. ``nn.Module.compile`` is of no
    use here, because it compiles none of torch's own modules, such as ``nn.Sequential``.
    """
    module.forward = _Compiled(module.forward)


class _Compiled:
    """A compiled method; its deep copy is a copy of the method before compilation."""

    def __init__(self, plain: Callable[..., Any]) -> None:
        self._method = plain
        self._compiled = torch.compile(plain)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self._compiled(*inputs, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        copied: Callable[..., Any] = copy.deepcopy(self._method, memo)
        return copied


@contextmanager
def compiled_for_proof(config: RunConfig) -> Iterator[None]:
    """Let compiled code draw the same random numbers as uncompiled code, and drop all graphs after the block.

    The reference is not compiled, so compiled dropout must draw the same numbers. The training after the
    proof has other dtypes and shapes, and must compile as if there had been no proof.
    """
    if not config.compile:
        yield
        return
    from torch._inductor import config as inductor

    with inductor.patch(fallback_random=True):
        yield
    torch.compiler.reset()


def not_compiled(config: RunConfig) -> AbstractContextManager[object]:
    """Return a context in which compiled models run uncompiled; it does nothing unless the run compiles."""
    return torch.compiler.set_stance("force_eager") if config.compile else nullcontext()


@contextmanager
def counting_graphs(config: RunConfig, facts: Facts) -> Iterator[None]:
    """Count the graphs that the block compiles, and the breaks between them, and add both to ``facts``.

    The keys are ``compiled_graphs`` and ``graph_breaks``; the values are 0 and None unless the run compiles.
    """
    if not config.compile:
        yield
        facts.update(compiled_graphs=0, graph_breaks=None)
        return
    from torch._dynamo.utils import counters

    counters.clear()
    yield
    facts.update(
        compiled_graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(counters["graph_break"].values()),
    )
