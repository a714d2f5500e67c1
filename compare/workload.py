"""Define what a file of your own hands over.

``compare run --workload train.py:make`` calls ``make()`` in every rank, after the seed is set. It returns a
``Workload``. No command imports your file; the ranks alone do. docs/own-model.md shows an example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


__all__ = ["Workload", "WorkloadError"]


class WorkloadError(RuntimeError):
    """A workload that cannot be trained, with what to change in it.

    ``where`` is the file:line of the user's that caused it; nothing, if that is where it was raised.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model with its data, loss and optimizer.

    A batch is what ``collate`` returns: tensors in tuples, lists or dictionaries. It is moved to the device
    of the rank. Any backend then averages the gradients.

    The function that returns it is called several times: for the training, for its proof, and there for each
    rank's part. So all that remembers, a model or a closure, must be made inside it. Only the data and the
    loader are those of the first call.
    """

    model: nn.Module
    """It may have dropout, buffers, tied weights, and parameters of several dtypes."""
    data: Sequence[Any] | torch.utils.data.Dataset[Any]
    """Training samples, with ``len()`` and an index.

    Each epoch is a new permutation. Every rank takes its shard, with ``--batch-size`` samples. Random changes
    of a sample may use the generators of torch, NumPy and ``random``. The ranks set their seeds.
    """
    loss: Callable[[Callable[..., Any], Any], torch.Tensor]
    """Map the model and a batch to the mean loss, a scalar.

    Call the model that is handed over, not your own: it may be DDP's wrapper.
    """
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    """Make the optimizer of the parameters that it is given, and of no others."""
    collate: Callable[[list[Any]], Any] | None = None
    """Make a batch of samples; by default, as torch does."""
    test_data: Sequence[Any] | torch.utils.data.Dataset[Any] | None = None
    """Samples of the test; by default, the first 1000 training samples."""
    metric: Callable[[Callable[..., Any], Any], float | torch.Tensor] | None = None
    """Map the model and a batch to a mean, such as accuracy."""
    before_step: Callable[[list[nn.Parameter]], object] | None = None
    """Change the averaged gradients before the optimizer's step: clip them, for example."""
    schedule: Callable[[int], float] | None = None
    """Map the steps so far to a factor of the learning rates."""
    loader: Callable[[int, int, int], Iterable[Any]] | None = None
    """Make your own loader of a shard: rank, ranks and batch size.

    It yields an epoch's batches each time. A smaller last batch is left out. The proof compares the ranks'
    samples in its steps, and the length of an epoch.
    """
    own_step: Callable[[nn.Module, Callable[..., torch.optim.Optimizer]], Callable[[Any], object]] | None = (
        None
    )
    """Make your own distributed step, for ``own_torch``, ``own_horovod`` or ``own_mpi``.

    It gets the model on its device, and ``make_optimizer(parameters)``. Wrap the model, and return
    ``step(batch)``: forward, backward, synchronisation, clipping, schedule and optimizer. The library has
    joined its group already. ``loss``, ``before_step`` and ``schedule`` say what one process trains.
    """
    reference_step: (
        Callable[[nn.Module, Callable[..., torch.optim.Optimizer]], Callable[[list[Any]], object]] | None
    ) = None
    """Make the step of one process, if ``own_step`` is no plain step of one loss.

    It is written as ``own_step`` is, without any communication. But its ``step`` takes a list with the batch
    of each rank, and ends where all ranks together must end. Two optimizers, two backward passes or weights
    that move between them can be proven by it alone. Random numbers belong into the data, not into the step.
    """
