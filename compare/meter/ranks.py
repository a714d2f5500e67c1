"""Let ranks compare what they did, without their libraries' collectives and without a thread of one's own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import torch.distributed as dist

_TIMEOUT_SECONDS = 300.0
"""Maximum time to wait for another rank, which may wait for this one in a collective meanwhile."""
_SHORTEST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.0002, 0.02


class DisagreementError(Exception):
    """Ranks are at different steps, or one of them cannot be reached, so measuring must end."""

    @classmethod
    def of(cls, error: Exception) -> DisagreementError:
        """Return the error for one of a library, with the first line of its text."""
        first, *_ = str(error).splitlines() or [type(error).__name__]
        return cls(f"Ranks could not be compared: {first}")


class Ranks(Protocol):
    """The ranks that train together."""

    rank: int
    size: int
    members: Sequence[int]
    """Their numbers among all ranks of the script, because others may train beside them."""

    def exchange(self, value: Any) -> list[Any]:
        """Return what each rank gave at the same call, in the order of ranks, as decoded JSON.

        Raises:
            DisagreementError: a rank did not come in time, or cannot be reached.
        """
        ...

    def leave(self, why: str) -> None:
        """Tell ranks that wait, or will wait, that this rank measures no more."""
        ...


class StoreRanks:
    """Ranks of torch.distributed, which exchange through the store by which they found each other.

    ``meeting`` tells their keys in the store from those of other sessions.
    """

    def __init__(self, group: Any, meeting: int = 1) -> None:
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.rank, self.size = members.index(dist.get_rank()), len(members)
        self.members: Sequence[int] = members
        names = map(str, members if self.size < dist.get_world_size() else ["all"])
        self._prefix = f"ringside/{meeting}/{'-'.join(names)}"
        self._store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 -- torch shows it nowhere else
        self._left = f"{self._prefix}/left"
        self._calls = 0

    def exchange(self, value: Any) -> list[Any]:
        """Return what each rank gave at the same call; see ``Ranks``."""
        self._calls += 1
        keys = [f"{self._prefix}/{self._calls}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], msgspec.json.encode(value).decode())
            self._wait(keys)
            return [msgspec.json.decode(text) for text in self._store.multi_get(keys)]
        except (RuntimeError, ValueError) as error:  # the store's host has exited, or the group was destroyed
            raise DisagreementError.of(error) from None

    def leave(self, why: str) -> None:
        """Tell ranks that wait, or will wait, that this rank measures no more."""
        with suppress(RuntimeError, ValueError):
            self._store.set(self._left, why)

    def _wait(self, keys: list[str]) -> None:
        """Wait until all keys are set, in short waits, so that Ctrl-C ends the script as always."""
        end, wait = time.monotonic() + _TIMEOUT_SECONDS, _SHORTEST_WAIT_SECONDS
        while True:
            if self._store.check([self._left]):  # also where a rank left after it had come
                raise DisagreementError(self._store.get(self._left).decode())
            if self._store.check(keys):
                return
            if time.monotonic() > end:
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                raise DisagreementError(
                    f"Rank {missing[0]} did not reach the end of a block within {_TIMEOUT_SECONDS:.0f} s."
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
