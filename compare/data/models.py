"""Name the built-in models, which read the images' digits."""

from __future__ import annotations

import re
from itertools import pairwise

from compare.data.catalogue import IMAGE_SIDE_PIXELS

PIXELS = IMAGE_SIDE_PIXELS**2
CLASSES = 10
MLPS = {"mlp": (PIXELS, 256, CLASSES), "wide": (PIXELS, 4096, 4096, CLASSES)}
"""The named multilayer perceptrons, with the widths of their layers."""
MODELS = (*MLPS, "convnet")
MOST_WEIGHTS = 10**9
"""Far above any real run."""
_WIDTHS = re.compile(r"mlp:([1-9][0-9]{0,9}(?:-[1-9][0-9]{0,9})+)")


def layer_widths(model: str) -> tuple[int, ...]:
    """Return the widths of a multilayer perceptron's layers, input and output included.

    It is a name in ``MLPS``, or written as ``mlp:784-4096-10``.

    Raises:
        ValueError: the model is no multilayer perceptron, or is not written like one.
    """
    if model in MLPS:
        return MLPS[model]
    written = _WIDTHS.fullmatch(model)
    if not written:
        raise ValueError(model)
    return tuple(int(width) for width in written[1].split("-"))


def right_names(model: str) -> str:
    """Return right names in place of a wrong one; empty otherwise."""
    if not model.startswith("mlp:"):
        right = f"{' or '.join(MODELS)}, or widths of your own: mlp:{PIXELS}-4096-{CLASSES}"
        return "" if model in MODELS else right
    if not _WIDTHS.fullmatch(model):
        return f"mlp:{PIXELS}-4096-{CLASSES}: any number of whole numbers above 0"
    first, *_, last = widths = layer_widths(model)
    if (first, last) != (PIXELS, CLASSES):
        return f"{PIXELS} as the first width (pixels) and {CLASSES} as the last (digits)"
    weights = sum(inputs * outputs for inputs, outputs in pairwise(widths))
    return "" if weights <= MOST_WEIGHTS else f"at most {MOST_WEIGHTS} weights; these widths have {weights}"
