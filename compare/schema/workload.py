"""Name the models that can be trained."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from compare.errors import UsageError

PIXELS = 784
CLASSES = 10
MLPS = {"mlp": (PIXELS, 256, CLASSES), "wide": (PIXELS, 4096, 4096, CLASSES)}
"""The multilayer perceptrons that have a name, and the widths of their layers."""
MODELS = (*MLPS, "convnet")
# Far above any real run, and within what JSON, the watchdog and torch's generators can hold.
LARGEST_NUMBER = 10**9
_WIDTHS = re.compile(r"mlp:([1-9][0-9]{0,9}(?:-[1-9][0-9]{0,9})+)")


def layer_widths(model: str) -> tuple[int, ...]:
    """Return the widths of a multilayer perceptron's layers, input and output included.

    Args:
        model: a name in ``MLPS``, or ``mlp:784-4096-10``.

    Raises:
        ValueError: it is no multilayer perceptron, or not written like one.
    """
    if model in MLPS:
        return MLPS[model]
    written = _WIDTHS.fullmatch(model)
    if not written:
        raise ValueError(model)
    return tuple(int(width) for width in written[1].split("-"))


def require_model(model: str) -> None:
    """Refuse a model that has no name here, or widths that cannot be.

    Raises:
        UsageError: naming the flag, the value found and the right ones.
    """
    if not model.startswith("mlp:"):
        right = f"{' or '.join(MODELS)}, or widths of your own: mlp:{PIXELS}-4096-{CLASSES}"
        require(model in MODELS, "--model", model, right)
        return
    example = f"mlp:{PIXELS}-4096-{CLASSES}: whole numbers above 0, as many as you like"
    require(bool(_WIDTHS.fullmatch(model)), "--model", model, example)
    first, *_, last = widths = layer_widths(model)
    right = f"{PIXELS} as the first width and {CLASSES} as the last: pixels in, digits out"
    require((first, last) == (PIXELS, CLASSES), "--model", model, right)
    weights = sum(inputs * outputs for inputs, outputs in pairwise(widths))
    require(
        weights <= LARGEST_NUMBER,
        "--model",
        model,
        f"widths that make at most {LARGEST_NUMBER} weights; these make {weights}",
    )


def require(holds: bool, flag: str, found: Any, right: str) -> None:  # noqa: FBT001 -- reads as a sentence
    """Refuse a flag's value.

    Args:
        holds: whether the value is right.
        flag: as the user writes it.
        found: the value.
        right: the values that are right.

    Raises:
        UsageError: it is not right.
    """
    if not holds:
        raise UsageError(f"{flag} cannot be {found}.", remedy=f"Use {right}.")
