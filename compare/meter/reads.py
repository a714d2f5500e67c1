"""Notice that a script reads or evaluates its model within a block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def noticing_reads(notice: Callable[[str], None]) -> Iterator[None]:
    """Call ``notice`` with what the script does, before each read of its state and each evaluation."""
    with ExitStack() as stack:
        for owner, name, words in (
            (torch.nn.Module, "state_dict", "it read the state of a model"),
            (torch.optim.Optimizer, "state_dict", "it read the state of an optimizer"),
            (torch, "save", "it saved a file"),
        ):
            stack.enter_context(_replaced(owner, name, lambda *_, words=words, **__: notice(words)))
        stack.enter_context(
            _replaced(
                torch.nn.Module,
                "train",
                lambda _, mode=True: None if mode else notice("it evaluated a model"),
            )
        )
        yield


@contextmanager
def _replaced(owner: Any, name: str, first: Callable[..., None]) -> Iterator[None]:
    """Call ``first`` before each call of a function or method."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        first(*arguments, **named)
        return original(*arguments, **named)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)
