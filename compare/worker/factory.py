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
"""Calls of the factory in a launch, apart from three for each rank's shard."""
_MOST_SECONDS = 5.0
"""Most time that all these calls may take."""

MakeWorkload: TypeAlias = "Callable[[], Workload]"
"""The user's factory."""


def load_workload(source: DatasetSource) -> MakeWorkload:
    """Return the factory of a file.

    Raises:
        WorkloadError: the folder differs from the parent's.
    """
    folder = Path(source.directory)
    if code_digest(folder) != source.sha256:
        raise WorkloadError(
            f"{folder} is not the folder that the run began with: {changed_files(source)}. Run again, and "
            "save no Python file below it meanwhile."
        )
    return partial(make_workload, source)


def make_workload(source: DatasetSource) -> Workload:
    """Call the factory of a file anew, but import the file once.

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
    """Makes a workload anew, as often as a proof needs one.

    Everything is new but the data and the loader, so state in a model or in a closure is that of one use.
    A factory that takes long is not called again: its model is copied, and its closures are shared.
    """

    def __init__(self, make: MakeWorkload, config: RunConfig, device: torch.device) -> None:
        self._make, self._seed, self._device = make, config.seed, device
        begun = monotonic()
        self.first = self._call()
        calls = _CALLS + 3 * config.ranks
        self._copied = None
        if (monotonic() - begun) * calls > _MOST_SECONDS:
            with suppress(RuntimeError, TypeError):  # a model that cannot be copied is made anew all the same
                self._copied = copy.deepcopy(self.first.model)

    @property
    def is_slow(self) -> bool:
        """Return whether it was called once, and its model is copied."""
        return self._copied is not None

    def __call__(self) -> Workload:
        """Return a new workload with the data of the first."""
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
