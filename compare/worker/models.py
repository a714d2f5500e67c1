"""Build the built-in models, their loss and their optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise

import torch
from torch import nn

from backends.base import BackendError
from compare.data.models import CLASSES, layer_widths
from compare.schema.config import RunConfig

loss_function = nn.functional.cross_entropy


def classify(model: Callable[..., torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross-entropy of a classifier on a batch of inputs and targets."""
    inputs, targets = batch
    return loss_function(model(inputs), targets)


def build_model(name: str, *, dropout: bool = True) -> nn.Module:
    """Build a model that maps (batch, 784) pixels to (batch, 10) logits.

    Args:
        name: ``mlp`` (784-256-10), ``wide`` (784-4096-4096-10) or ``mlp:`` with widths of your own.
            ``convnet`` is the network of pytorch/examples' mnist.
        dropout: whether the convnet has dropout; without it, a forward pass draws no random numbers.

    Raises:
        ValueError: no model has this name.
    """
    if name == "convnet":
        return nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            *(nn.Conv2d(1, 32, 3), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Dropout(0.25 if dropout else 0.0), nn.Flatten()),
            *(nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5 if dropout else 0.0)),
            nn.Linear(128, CLASSES),
        )
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(layer_widths(name)):
        layers += [nn.ReLU(), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers[1:])


def optimizer_maker(config: RunConfig) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """Return a function that makes the run's optimizer of given parameters, without hooks."""
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    make: Callable[..., torch.optim.Optimizer] = without_hooks(kinds[config.optimizer])
    return lambda parameters: make(parameters, lr=config.learning_rate)


@cache
def without_hooks(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of an optimizer, with torch's own ``step`` but without the wrapper around it.

    torch wraps the ``step`` of an optimizer class for hooks and for a profiler's label. The wrapper takes
    nearly as long as the MLP's update. Registering a step hook raises ``BackendError``. Horovod derives a
    class from this one, and torch wraps the ``step`` of that class.
    """
    step = inspect.unwrap(kind.step, stop=lambda function: not hasattr(function, "hooked"))

    def plain_step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        return step(self, closure)

    def refuse(_: torch.optim.Optimizer, hook: object) -> None:
        raise BackendError(
            f"An optimizer of a run steps without hooks, so {hook} is never called: "
            "call it in the replica's step() instead"
        )

    plain_step.hooked = True  # type: ignore[attr-defined]  # so that torch does not wrap it
    members = {"step": plain_step, "register_step_pre_hook": refuse, "register_step_post_hook": refuse}
    return type(kind.__name__, (kind,), members)
