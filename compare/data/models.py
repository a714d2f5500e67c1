"""Define the names of the built-in models, which classify MNIST's images of digits."""

from __future__ import annotations

import re
from itertools import pairwise

from compare.data.catalogue import IMAGE_SIDE_PIXELS

PIXELS = IMAGE_SIDE_PIXELS**2
CLASSES = 10
MLPS = {"mlp": (PIXELS, 256, CLASSES), "wide": (PIXELS, 4096, 4096, CLASSES)}
"""Multilayer perceptrons by name, each with the widths of its layers, input and output included."""
MODELS = (*MLPS, "convnet")
MOST_WEIGHTS = 10**9
"""A multilayer perceptron may have no more weights than this, which is far more than any real run needs."""
_WIDTHS_PATTERN = re.compile(r"mlp:([1-9][0-9]{0,9}(?:-[1-9][0-9]{0,9})+)")


def layer_widths(model: str) -> tuple[int, ...]:
    """Return the widths of a multilayer perceptron's layers, input and output included.

    ``model`` is a name in ``MLPS``, or the widths as in ``mlp:784-4096-10``.

    Raises:
        ValueError: the text names no multilayer perceptron.
    """
    if model in MLPS:
        return MLPS[model]
    matched = _WIDTHS_PATTERN.fullmatch(model)
    if not matched:
        raise ValueError(model)
    return tuple(int(width) for width in matched[1].split("-"))


def right_names(model: str) -> str:
    """Return a phrase for what to write in place of the model name; empty if ``model`` is a right one."""
    if not model.startswith("mlp:"):
        right = f"{' or '.join(MODELS)}, or widths of your own: mlp:{PIXELS}-4096-{CLASSES}"
        return "" if model in MODELS else right
    if not _WIDTHS_PATTERN.fullmatch(model):
        return f"whole numbers above 0, joined by dashes: mlp:{PIXELS}-4096-{CLASSES}"
    first, *_, last = widths = layer_widths(model)
    if (first, last) != (PIXELS, CLASSES):
        return f"{PIXELS} as the first width (pixels) and {CLASSES} as the last (digits)"
    weights = sum(inputs * outputs for inputs, outputs in pairwise(widths))
    return "" if weights <= MOST_WEIGHTS else f"at most {MOST_WEIGHTS} weights; these widths have {weights}"
