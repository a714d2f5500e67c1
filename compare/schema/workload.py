"""Name the models that can be trained."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from compare.errors import UsageError

PIXELS = 784
CLASSES = 10
MLPS = {"mlp": (PIXELS, 256, CLASSES), "wide": (PIXELS, 4096, 4096, CLASSES)}
"""The named multilayer perceptrons, with the widths of their layers."""
MODELS = (*MLPS, "convnet")
# Far above any real run; JSON, the watchdog and torch's generators can hold it.
LARGEST_NUMBER = 10**9
_OWN = re.compile(r"[^/]+\.py:[A-Za-z_][A-Za-z0-9_]*")
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


def is_own(model: str) -> bool:
    """Return whether a model is a workload of the user's own: ``file.py:factory``."""
    return bool(_OWN.fullmatch(model))


def require_model(model: str) -> None:
    """Refuse an unknown model, or impossible widths.

    Raises:
        UsageError: names the flag, its value and the right values.
    """
    if not model.startswith("mlp:"):
        right = f"{' or '.join(MODELS)}, or widths of your own: mlp:{PIXELS}-4096-{CLASSES}"
        require(model in MODELS, "--model", model, right)
        return
    example = f"mlp:{PIXELS}-4096-{CLASSES}: any number of whole numbers above 0"
    require(bool(_WIDTHS.fullmatch(model)), "--model", model, example)
    first, *_, last = widths = layer_widths(model)
    right = f"{PIXELS} as the first width (pixels) and {CLASSES} as the last (digits)"
    require((first, last) == (PIXELS, CLASSES), "--model", model, right)
    weights = sum(inputs * outputs for inputs, outputs in pairwise(widths))
    require(
        weights <= LARGEST_NUMBER,
        "--model",
        model,
        f"at most {LARGEST_NUMBER} weights; these widths have {weights}",
    )


def require(holds: bool, flag: str, found: Any, right: str) -> None:  # noqa: FBT001 -- reads as a sentence
    """Refuse a flag's value, and name the right ones.

    Raises:
        UsageError: the value is wrong.
    """
    if not holds:
        raise UsageError(f"{flag} cannot be {found}.", remedy=f"Use {right}.")
