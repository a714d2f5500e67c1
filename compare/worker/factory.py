"""Call the function that makes the user's workload, as often as a launch needs one."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

import torch

from compare.data.own import changed_files, code_digest
from compare.worker.randomness import same_randomness, seed_generators
from compare.worker.user_file import call_factory
from compare.workload import Workload, WorkloadError

if TYPE_CHECKING:
    from compare.data import DatasetSource
    from compare.schema.config import RunConfig

_CALLS = 12
"""Calls of the factory in a launch, besides three for each rank's shard."""
_MOST_SECONDS = 5.0
"""Most time that all these calls may take; a slower factory is called only once."""

MakeWorkload: TypeAlias = "Callable[[], Workload]"
"""A call of the user's factory, which returns a new workload."""


def load_workload(source: DatasetSource) -> MakeWorkload:
    """Check the user's folder, and return a function that calls the factory in it.

    Raises:
        WorkloadError: a Python file in the folder has changed since the run began.
    """
    folder = Path(source.directory)
    if code_digest(folder) != source.sha256:
        raise WorkloadError(
            f"{folder} is not the folder that the run began with: {changed_files(source)}. Run again, and "
            "save no Python file below it meanwhile."
        )
    return partial(make_workload, source)


def make_workload(source: DatasetSource) -> Workload:
    """Call the user's factory, and return its workload; only the first call imports the file.

    Raises:
        WorkloadError: the factory returns no workload.
        Exception: any error of the user's own code.
    """
    made = call_factory(source)
    if not isinstance(made, Workload):
        raise WorkloadError(
            f"{Path(source.directory, source.workload)} returned {type(made).__name__}: return a "
            "compare.workload.Workload."
        )
    return made


class Factory:
    """A callable that returns a new workload for each use.

    All but the data and the loader is new, so each use has its own state in the model and in closures. A slow
    factory is called only once. Then each use gets a copy of its model, and all share its closures.
    """

    def __init__(self, make: MakeWorkload, config: RunConfig, device: torch.device) -> None:
        self._make, self._seed, self._device = make, config.seed, device
        begun = monotonic()
        self.first = self._call()
        calls = _CALLS + 3 * config.ranks
        self._copied = None
        if (monotonic() - begun) * calls > _MOST_SECONDS:
            with suppress(RuntimeError, TypeError):  # a model that cannot be copied is made anew instead
                self._copied = copy.deepcopy(self.first.model)

    @property
    def is_slow(self) -> bool:
        """Return whether the user's factory is called only once, and its model copied for each use."""
        return self._copied is not None

    def __call__(self) -> Workload:
        """Return a new workload, with the data and the loader of the first one."""
        if self._copied is not None:
            return dataclasses.replace(self.first, model=copy.deepcopy(self._copied))
        first = self.first
        return dataclasses.replace(
            self._call(), data=first.data, test_data=first.test_data, loader=first.loader
        )

    def _call(self) -> Workload:
        with same_randomness(self._device):
            seed_generators(self._seed)
            return self._make()
