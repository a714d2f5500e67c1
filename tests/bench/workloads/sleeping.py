"""A model whose layers sleep instead of computing.

Ranks that sleep share no core. So steps show how communication overlaps, not how ranks fight for cores.
"""

import time
from typing import Any

import torch
from torch import nn

from compare.workload import Workload

LAYERS = 4
WIDTH = 512
LAYER_SECONDS = 0.010
"""Time of a layer, forward and backward each."""


class Sleep(torch.autograd.Function):
    """Pass on a tensor and its gradient, each after a sleep."""

    @staticmethod
    def forward(_context: Any, inputs: torch.Tensor) -> torch.Tensor:
        """Return the inputs after a layer's time."""
        time.sleep(LAYER_SECONDS)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient after a layer's time."""
        time.sleep(LAYER_SECONDS)
        return gradient


class Layer(nn.Linear):
    """A linear layer of 1 MiB, whose time is a sleep."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs of shape (batch, WIDTH)."""
        # The proof of parity computes in float64. It needs no sleep.
        slept = Sleep.apply(inputs) if inputs.dtype == torch.float32 else inputs
        return super().forward(slept)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean squared error."""
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def make() -> Workload:
    """Return the workload."""
    inputs = torch.randn(512, WIDTH)
    return Workload(
        model=nn.Sequential(*(Layer(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))),
        data=torch.utils.data.TensorDataset(inputs, inputs.roll(1, 1)),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    )
