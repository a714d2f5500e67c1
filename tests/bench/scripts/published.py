"""The training loop as the examples of PyTorch and Horovod publish it.

Every image of every epoch is made a PIL image, a tensor, and normalised, one by one, by a Dataset that
a DataLoader in the same process collates. Written after pytorch/examples (mnist) and torchvision's
``MNIST``, ``ToTensor`` and ``Normalize``, without their checks: if anything it is faster than they are.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

LOG_EVERY = 10


class Images(Dataset):
    """MNIST, sample by sample."""

    def __init__(self, images, labels):
        self.images, self.labels = torch.from_numpy(images), torch.from_numpy(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = Image.fromarray(self.images[index].numpy(), mode="L")
        pixels = torch.from_numpy(np.array(image, np.uint8, copy=True))
        pixels = pixels.view(image.size[1], image.size[0], 1).permute((2, 0, 1)).contiguous()
        return normalise(pixels.to(torch.float32).div(255)), int(self.labels[index])


def normalise(tensor):
    tensor = tensor.clone()
    mean = torch.as_tensor((0.1307,)).view(-1, 1, 1)
    deviation = torch.as_tensor((0.3081,)).view(-1, 1, 1)
    return tensor.sub_(mean).div_(deviation)


def endless(images, labels, batch_size, sampler=None):
    loader = DataLoader(Images(images, labels), batch_size, shuffle=sampler is None, sampler=sampler)
    while True:
        yield from loader


def train(model, optimizer, batches, steps):
    for step, (inputs, targets) in enumerate(islice(batches, steps)):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs.flatten(1)), targets)
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0:
            loss.item()
