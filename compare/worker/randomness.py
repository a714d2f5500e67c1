"""Seed and restore the random generators of torch, NumPy and ``random``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_NUMPY_SEEDS = 2**32


def seed_generators(seed: int) -> None:
    """Seed the generators of torch, NumPy and ``random``."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)  # noqa: NPY002 -- users draw from the global generator


def states_of_generators() -> tuple[object, ...]:
    """Return the states of all generators on the CPU; they differ from earlier ones after any random draw."""
    _, numbers, position, *_ = np.random.get_state()  # noqa: NPY002 -- as above
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.asarray(numbers).tobytes(), position


@contextmanager
def same_randomness(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Restore all generators after the block, so that its random draws do not change the training.

    These are the generators of the CPU and of ``device``. If a ``seed`` is given, the block begins with it.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 -- as above
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if seed is not None:
            seed_generators(seed)
        yield
    random.setstate(of_python)
    np.random.set_state(of_numpy)  # noqa: NPY002 -- as above
