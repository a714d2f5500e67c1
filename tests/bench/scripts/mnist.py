"""Read the training set of MNIST for the scripts."""

from __future__ import annotations

from compare import data


def training_set(folder):
    """Return the images and the labels in a folder, as unsigned bytes."""
    source = data.DatasetSource(name="mnist", requested="mnist", directory=str(folder))
    return data.load_split(source, "train")
