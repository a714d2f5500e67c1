"""Count the steps of a script, which may have several optimizers."""

from __future__ import annotations

import weakref
from typing import Any

_RARE = 10
"""An optimizer with less than one step in so many of another's does not count the steps of the script."""
_UNUSED = 10 * _RARE
"""Number of steps of others, for each optimizer of the warm-up, after which one is clearly used no more."""


_GONE = -1
"""Stands for an optimizer that counted and no longer lives, because another may get its place in memory."""


class Steps:
    """The steps that optimizers take, and those of the script among them.

    At first a step of the script is over when some optimizer has taken as many. After ``settle``, it is each
    step of one of them, until that one is used no more. Optimizers are held by weak references alone.

    Attributes:
        count: number of the script's steps so far.
        lost_pace: whether another optimizer counts now than the one that ``settle`` chose.
    """

    def __init__(self) -> None:
        self.count = 0
        self._stepping: int | None = None
        self._optimizers: dict[int, weakref.ref] = {}
        self._taken: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._pace: int | None = None
        self._begun = 0
        self._beside = 0
        self.lost_pace = False

    @property
    def optimizers(self) -> list[Any]:
        """Return the optimizers that took steps and still live, in the order of their first steps."""
        return [found for reference in self._optimizers.values() if (found := reference()) is not None]

    def knows(self, optimizer: Any) -> bool:
        """Return whether an optimizer has begun a step before."""
        known = self._optimizers.get(id(optimizer))
        return known is not None and known() is optimizer

    def taken(self, optimizer: Any) -> int:
        """Return how many steps an optimizer has taken."""
        return self._taken[id(optimizer)] if self.knows(optimizer) else 0

    def begin(self, optimizer: Any) -> bool:
        """Begin a step; return False within another optimizer's step, such as that of Horovod's."""
        if self._stepping is not None:
            return False
        key = self._stepping = id(optimizer)
        if not self.knows(optimizer):
            if key == self._pace:
                self._pace = _GONE
            self._taken[key] = 0
            self._begun += self._pace is None
            self._optimizers[key] = weakref.ref(optimizer)
        return True

    def end(self, optimizer: Any) -> bool:
        """End a step; return whether the optimizer had begun one, which may be a step of the script."""
        key = id(optimizer)
        if key != self._stepping:
            return False
        self._stepping = None
        self._taken[key] += 1
        return True

    def counts(self, optimizer: Any) -> bool:
        """Return whether the step that an optimizer has ended is one of the script, and count it if so."""
        key = id(optimizer)
        if self._pace is not None and key != self._pace:
            self._beside += 1
            if self._beside > _UNUSED * self._begun:
                self._pace, self.lost_pace = key, True
        is_one = self._taken[key] > self.count if self._pace is None else key == self._pace
        if is_one:
            self._beside = 0
        self.count += is_one
        self._last[key] = self.count
        return is_one

    def settle(self) -> None:
        """Let one optimizer count from now on: of those that step often, the one that does so least often.

        One that a script has replaced, or uses no more, is none of them.
        """
        used = {id(one): self.taken(one) for one in self.optimizers if 2 * self._last[id(one)] >= self.count}
        often = {key: count for key, count in used.items() if count * _RARE >= max(used.values())}
        self._pace = min(often, key=lambda key: often[key])
