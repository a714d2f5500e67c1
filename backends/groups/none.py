"""Join the ranks of the control without a communication library."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import ClassVar, NoReturn, Self

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, though not in __all__

from backends.base import BackendError, Facts, Group, Options, Placement


class NoGroup(Group):
    """A group whose only collective is a barrier, through the store of torchrun's agent.

    The store needs one socket and no thread, so a step is as fast as in a process without a group.
    """

    name: ClassVar[str] = "none"

    def __init__(self, placement: Placement, device: torch.device, store: TCPStore) -> None:
        super().__init__(placement, device)
        self._store = store
        self._barriers = 0

    @classmethod
    def join(
        cls, placement: Placement, device: torch.device, options: Options, timeout_seconds: float
    ) -> Self:
        del options
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=timedelta(seconds=timeout_seconds),
        )
        return cls(placement, device, store)

    def barrier(self) -> None:
        self._barriers += 1
        key = f"ringside/barrier/{self._barriers}"
        if self._store.add(key, 1) == self.world_size:
            self._store.set(f"{key}/open", "1")
        self._store.wait([f"{key}/open"])

    def all_reduce_start_(self, tensor: torch.Tensor) -> NoReturn:
        del tensor
        raise BackendError("this group has no collectives: its ranks do not communicate")

    def broadcast_(self, tensor: torch.Tensor, root: int = 0) -> NoReturn:
        del root
        self.all_reduce_start_(tensor)

    def attest(self) -> Facts:
        # torch itself is asked, because the user's code may have started a process group in the control.
        started = torch.distributed.is_initialized()
        return {"library": "none", "transport": "none" if not started else "a process group", "versions": {}}

    def leave(self) -> None:
        del self._store
