"""A small ResNet with BatchNorm, on images that are made here.

``ringside run --workload examples/resnet.py:make`` trains it through every backend.
"""

import torch
from torch import nn

from compare.workload import Workload

CLASSES = 4


class Block(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images to images of the same shape."""
        return torch.relu(images + self.path(images))


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross entropy."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def accuracy(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the share of right answers."""
    images, labels = batch
    return (model(images).argmax(1) == labels).float().mean()


def make() -> Workload:
    """Return the workload: noise with a brighter quarter, which is the class."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        Block(8),
        Block(8),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, CLASSES),
    )
    images, labels = torch.randn(1024, 1, 12, 12), torch.arange(1024) % CLASSES
    for quarter in range(CLASSES):
        top, left = 6 * (quarter // 2), 6 * (quarter % 2)
        images[labels == quarter, :, top : top + 6, left : left + 6] += 1.0
    data = torch.utils.data.TensorDataset(images, labels)
    return Workload(
        model=model,
        data=torch.utils.data.Subset(data, range(768)),
        test_data=torch.utils.data.Subset(data, range(768, 1024)),
        loss=loss,
        metric=accuracy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    )
