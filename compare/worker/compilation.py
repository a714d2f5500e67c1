"""Control torch.compile, and count what it did.

Only a run with ``--compile`` loads the compiler, which takes a second and memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from backends.base import Facts
from compare.schema.config import RunConfig


def load_compiler(config: RunConfig, device: torch.device) -> None:
    """Load the compiler with its headers, if the run compiles.

    So it belongs to the start-up of every arm alike. Otherwise the first graph would pay for it. That is the
    proof's, and only the control has none.
    """
    if config.compile:
        tensor = torch.ones(2, device=device, requires_grad=True)
        torch.compile(torch.square)(tensor).sum().backward()


def compile_in_place(module: nn.Module) -> None:
    """Let calls of a module run compiled, without its hooks.

    Its parameters keep their names. Copies of it are not compiled. ``nn.Module.compile`` compiles none of
    torch's own modules, such as ``nn.Sequential``.
    """
    module.forward = _Compiled(module.forward)


class _Compiled:
    """A compiled method, which is the plain one in copies."""

    def __init__(self, plain: Callable[..., Any]) -> None:
        self._plain = plain
        self._compiled = torch.compile(plain)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self._compiled(*inputs, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        copied: Callable[..., Any] = copy.deepcopy(self._plain, memo)
        return copied


@contextmanager
def compiled_for_proof(config: RunConfig) -> Iterator[None]:
    """Compile as a proof needs it, and forget all graphs afterwards.

    The reference is not compiled, so compiled dropout must draw the same random numbers. The training after
    it has other dtypes and shapes, and compiles as if there had been no proof.
    """
    if not config.compile:
        yield
        return
    from torch._inductor import config as inductor

    with inductor.patch(fallback_random=True):
        yield
    torch.compiler.reset()


@contextmanager
def not_compiled(config: RunConfig) -> Iterator[None]:
    """Run compiled models as they were written."""
    if not config.compile:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def counting_graphs(config: RunConfig, found: Facts) -> Iterator[None]:
    """Count the graphs that are compiled meanwhile, and the breaks between them."""
    if not config.compile:
        yield
        found.update(compiled_graphs=0, graph_breaks=None)
        return
    from torch._dynamo.utils import counters

    counters.clear()
    yield
    found.update(
        compiled_graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(counters["graph_break"].values()),
    )
