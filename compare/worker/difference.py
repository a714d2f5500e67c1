"""Measure the difference of two models, and of two updates of one model."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn


class Difference(NamedTuple):
    """The largest difference between two models, and the parameter that has it."""

    size: float
    """Largest absolute difference, relative to the largest number of the parameter in either model.

    NaN if one of them holds a NaN or an infinite number.
    """
    parameter: str
    """Name of the parameter; empty if the models have none."""


def largest_difference(found: nn.Module, expected: nn.Module, least: float = 0.0) -> Difference:
    """Return the largest relative difference between two models; NaN counts as the largest.

    A difference is divided by the largest number of its parameter, but at least by ``least``. A proof passes
    the model's largest update, because the gradient of a bias before BatchNorm is nothing but rounding.
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
    """Return the largest absolute number of ``difference``, over the largest of both tensors and ``least``.

    0 if the tensors are empty.
    """
    if not difference.numel():
        return 0.0
    # If one tensor is all zeros, the other's size counts, so nothing is divided by zero.
    size = max(float(one.abs().max()), float(other.abs().max()), least) or 1.0
    return float(difference.abs().max()) / size


class Update(NamedTuple):
    """An update of all parameters, compared with the right one; NaN if the right one is zero."""

    share: float
    """Component along the right update, over the size of that update.

    1 is right, 0 is no update, and the number of ranks shows a sum in place of the mean.
    """
    error: float
    """Distance from the right update, over the size of that update, by Euclidean norms."""
