"""Summarise what a training changed, in a few numbers."""

from __future__ import annotations

import torch
from torch import nn

NUMBERS = 256
"""Numbers in a sketch.

The squared distance of two sketches has a relative standard error of 9 %, the square root of 2 / 256.
"""
_PIECE = 1 << 20


def unmoved(trained: nn.Module, start: nn.Module) -> list[str]:
    """Return the names of the trainable parameters that equal those of the start, bit for bit."""
    pairs = zip(trained.named_parameters(), start.parameters(), strict=True)
    return [name for (name, one), other in pairs if one.requires_grad and torch.equal(one, other)]


@torch.no_grad()
def sketch(trained: nn.Module, start: nn.Module) -> list[float]:
    """Return a random projection of the change of all parameters: a count sketch.

    Each number of the change is added to one of ``NUMBERS`` numbers, or subtracted from it. Which one, and
    with which sign, is random but the same in every call. So the distance of two sketches is about that of
    the parameters (Charikar, Chen and Farach-Colton, 2002). Empty if a change is not finite.
    """
    chance = torch.Generator().manual_seed(0)
    found = torch.zeros(NUMBERS, dtype=torch.float64)
    for one, other in zip(trained.parameters(), start.parameters(), strict=True):
        change = (one.detach() - other.detach()).flatten().cpu()
        real = torch.view_as_real(change).flatten() if change.is_complex() else change
        for piece in real.double().split(_PIECE):
            places = torch.randint(NUMBERS, (len(piece),), generator=chance)
            signs = torch.randint(2, (len(piece),), generator=chance) * 2 - 1
            found.index_add_(0, places, piece * signs)
    return found.tolist() if bool(torch.isfinite(found).all()) else []
