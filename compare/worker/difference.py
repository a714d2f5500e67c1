"""Compare two models, or two updates of one."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn


class Difference(NamedTuple):
    """The largest difference between two models."""

    size: float
    """Relative to the largest number in the parameter.

    It is NaN if either model holds a NaN.
    """
    parameter: str


def largest_difference(found: nn.Module, expected: nn.Module, least: float = 0.0) -> Difference:
    """Return the largest relative difference within a parameter, over all parameters.

    ``least`` is the least size of a parameter that a difference is divided by. A bias before BatchNorm, with
    a gradient of rounding alone, is compared with the largest update of the model.
    """
    worst = Difference(0.0, "")
    pairs = zip(found.named_parameters(), expected.parameters(), strict=True)
    with torch.no_grad():
        for (name, f), e in pairs:
            size = relative_difference(f - e, f, e, least)
            if math.isnan(size) or size > worst.size or not worst.parameter:
                worst = Difference(size, name)
            if math.isnan(size):
                break
    return worst


def relative_difference(
    difference: torch.Tensor, one: torch.Tensor, other: torch.Tensor, least: float
) -> float:
    """Return the size of a difference, relative to the larger tensor."""
    if not difference.numel():
        return 0.0
    # A parameter of zeros is compared with the other's size, so nothing is divided by zero.
    size = max(float(one.abs().max()), float(other.abs().max()), least) or 1.0
    return float(difference.abs().max()) / size


class Update(NamedTuple):
    """An update of all parameters, compared with the right one."""

    share: float
    """Component along the right update.

    1 is right, 0 is none, the number of ranks is a sum.
    """
    error: float
    """Distance from the right update, over its size."""
