"""Follow how far a script's data loaders are, to know how many steps an epoch still has."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from compare.meter.found import class_of, objects_of


class Progress(NamedTuple):
    """Where the training is in an epoch, in steps; None if the script's loader does not tell."""

    left: int | None = None
    total: int | None = None


def shortest(progress: Iterable[Progress]) -> Progress:
    """Return the progress of the rank whose epoch ends first; without steps if no rank knows it."""
    known = [one for one in progress if one.left is not None]
    return min(known) if known else Progress()


class Loaders:
    """The iterators over batches that a script has at the moment.

    Nothing is wrapped, so warnings and tracebacks of loaders name the script's own lines. New iterators are
    looked for only where those that are known give no batches, because a search takes milliseconds.
    """

    def __init__(self, search: Callable[[], Iterable[Any]]) -> None:
        self._search = search
        self._iterators: dict[int, tuple[weakref.ref, int]] = {}
        self._per_step = 1
        self._add_new()

    def progress(self, steps: int) -> Progress:
        """Return where the training is, given the number of steps since the last call.

        If several loaders gave batches since then, the one that ends first counts.
        """
        found = self._advanced()
        if found:
            batches = min(found)[2]
            if batches > 0 and steps > 0:  # a loader that began anew gives a negative number
                self._per_step = max(1, round(batches / steps))
        else:
            found = self._add_new()
        if not found:
            return Progress()
        left, total, _ = min(found)
        return Progress(max(0, left // self._per_step), total // self._per_step)

    def _advanced(self) -> list[tuple[int, int, int]]:
        """Return, of each known iterator that went on, its batches: left, in all, and since the last call."""
        found = []
        for key, (reference, before) in list(self._iterators.items()):
            iterator = reference()
            if iterator is None:
                del self._iterators[key]
                continue
            now = _yielded(iterator)
            self._iterators[key] = (reference, now)
            total = _length(iterator)
            if now != before and total is not None:
                found.append((total - now, total, now - before))
        return found

    def _add_new(self) -> list[tuple[int, int, int]]:
        """Follow iterators that are new; return the batches of those that have begun."""
        found = []
        for iterator in self._search():
            known = self._iterators.get(id(iterator))
            if known is None or known[0]() is not iterator:
                now, total = _yielded(iterator), _length(iterator)
                self._iterators[id(iterator)] = (weakref.ref(iterator), now)
                if total is not None and 0 < now < total:
                    found.append((total - now, total, now))
        return found


def find_iterators() -> list[Any]:
    """Return all iterators over the batches of data loaders."""
    kind = class_of("torch.utils.data.dataloader", "_BaseDataLoaderIter")
    return objects_of(kind) if kind else []


def _yielded(iterator: Any) -> int:
    return getattr(iterator, "_num_yielded", 0)


def _length(iterator: Any) -> int | None:
    try:
        return len(iterator)
    except TypeError:  # a stream has no length
        return None
