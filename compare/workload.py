"""Define the ``Workload`` that a file of your own returns, to be trained in place of a built-in model.

``ringside run --workload train.py:make`` calls ``make()`` in every rank, after the seed is set. Only the
ranks import your file, never the command itself. docs/own-model.md shows an example.
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
    """The user's workload cannot be trained; the message states what to change.

    ``where`` is the "file:line" of the user's code that caused the error. It is empty where the traceback
    shows that line, or where no single line is the cause.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model with its data, loss and optimizer.

    A batch is what ``collate`` returns: tensors in tuples, lists or dictionaries. The rank moves it to its
    device. Any backend can then average the gradients.

    The function that returns a ``Workload`` is called several times: for the training, for its proof, and in
    the proof for each rank's shard. So make everything that keeps a state inside this function, such as the
    model or a closure. Only the data and the loader of the first call are used throughout.
    """

    model: nn.Module
    """The model, which may have dropout, buffers, tied weights, and parameters of several dtypes."""
    data: Sequence[Any] | torch.utils.data.Dataset[Any]
    """Training samples, with ``len()`` and an index.

    Each epoch shuffles them anew, and every rank takes ``--batch-size`` samples of its shard in each pass.
    Random changes of a sample may use torch, NumPy and ``random``, whose seeds the ranks set.
    """
    loss: Callable[[Callable[..., Any], Any], torch.Tensor]
    """Map the model and a batch to the loss: a scalar tensor, the mean over the samples of the batch.

    Call the model that the function is given, not your own, because it may be DDP's wrapper.
    """
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    """Make the optimizer of the parameters that it is given, and of no others."""
    collate: Callable[[list[Any]], Any] | None = None
    """Make a batch of a list of samples; by default torch's ``default_collate``."""
    test_data: Sequence[Any] | torch.utils.data.Dataset[Any] | None = None
    """Samples on which the trained model is tested; by default, the first 1000 training samples."""
    metric: Callable[[Callable[..., Any], Any], float | torch.Tensor] | None = None
    """Map the model and a batch of ``test_data`` to a mean over its samples, such as the accuracy."""
    before_step: Callable[[list[nn.Parameter]], object] | None = None
    """Change the averaged gradients in place before the optimizer's step: clip them, for example.

    The function gets the list of parameters that have a gradient.
    """
    schedule: Callable[[int], float] | None = None
    """Map the number of finished steps to a factor for the optimizer's initial learning rates."""
    loader: Callable[[int, int, int], Iterable[Any]] | None = None
    """Return a loader of one rank's batches, given the rank, the number of ranks and the batch size.

    Each iteration over the loader yields the batches of one epoch, and a smaller last batch is skipped. The
    proof compares which samples the ranks get, and how many samples an epoch has.
    """
    own_step: Callable[[nn.Module, Callable[..., torch.optim.Optimizer]], Callable[[Any], object]] | None = (
        None
    )
    """Make your own distributed step, for the arms ``own_torch``, ``own_horovod`` and ``own_mpi``.

    The function gets the model on its device, and a function ``make_optimizer(parameters)``. Wrap the model,
    and return ``step(batch)``: forward, backward, synchronisation, clipping, schedule and optimizer. The
    library has joined its group already. ``loss``, ``before_step`` and ``schedule`` define what one process
    trains, with which the proof compares your step.
    """
    reference_step: (
        Callable[[nn.Module, Callable[..., torch.optim.Optimizer]], Callable[[list[Any]], object]] | None
    ) = None
    """Make the step of one process, if ``own_step`` is more than one backward pass and one optimizer step.

    Write it like ``own_step``, but without communication. Its ``step`` takes a list with the batch of each
    rank, and changes the model as one step of all ranks must. Steps with two optimizers, two backward passes
    or weights that move in between can be proven only with this field. Draw random numbers in the data, not
    in the step.
    """
