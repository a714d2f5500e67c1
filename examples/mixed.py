"""A regression whose last layer computes in float64, for exact sums.

``ringside run --workload examples/mixed.py:make`` trains it through every backend that takes several dtypes.
"""

import torch
from torch import nn

from compare.workload import Workload


class Mixed(nn.Module):
    """A float32 layer, then a float64 layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(20, 64), nn.ReLU())
        self.answer = nn.Linear(64, 1, dtype=torch.float64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs, shape (batch, 20), to answers, shape (batch, 1)."""
        return self.answer(self.features(inputs).to(self.answer.weight.dtype))


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean squared error."""
    inputs, targets = batch
    answers = model(inputs)
    return nn.functional.mse_loss(answers, targets.to(answers.dtype))


def make() -> Workload:
    """Return the workload: sums of twenty numbers."""
    inputs = torch.randn(2048, 20)
    return Workload(
        model=Mixed(),
        data=torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)),
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    )
