"""Train in a single process, shard by shard."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import chain, combinations, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from backends.base import BackendError, Batch, Replica
from compare.schema.config import RunConfig
from compare.schema.parity import WrongStep
from compare.worker.randomness import seed_generators
from compare.worker.task import Task
from compare.worker.trees import tensors_of

_MOST_EXPLAINED = 30_000_000
"""Most numbers in the gradients of all shards; 800 MB with copies."""


class Difference(NamedTuple):
    """The largest difference between two models."""

    size: float
    """Relative to the largest number in the parameter.

    It is NaN if either model holds a NaN.
    """
    parameter: str


def largest_difference(found: nn.Module, expected: nn.Module, least: float = 0.0) -> Difference:
    """Return the largest relative difference within a parameter, over all parameters.

    ``least`` is the least size of a parameter that a difference is divided by. A bias before BatchNorm, with
    a gradient of rounding alone, is compared with the largest update of the model.
    """
    worst = Difference(0.0, "")
    pairs = zip(found.named_parameters(), expected.parameters(), strict=True)
    with torch.no_grad():
        for (name, f), e in pairs:
            size = _relative(f - e, f, e, least)
            if math.isnan(size) or size > worst.size or not worst.parameter:
                worst = Difference(size, name)
            if math.isnan(size):
                break
    return worst


def _relative(difference: torch.Tensor, one: torch.Tensor, other: torch.Tensor, least: float) -> float:
    """Return the size of a difference, relative to the larger tensor."""
    if not difference.numel():
        return 0.0
    # A parameter of zeros is compared with the other's size, so nothing is divided by zero.
    size = max(float(one.abs().max()), float(other.abs().max()), least) or 1.0
    return float(difference.abs().max()) / size


class Update(NamedTuple):
    """An update of all parameters, compared with the right one."""

    share: float
    """Component along the right update.

    1 is right, 0 is none, the number of ranks is a sum.
    """
    error: float
    """Distance from the right update, over its size."""


class Reference:
    """The same training in a single process, shard by shard.

    Where it ``drifts``, it is on the combined batch, and never starts again from the arm's parameters.
    """

    def __init__(self, model: nn.Module, task: Task, replica: Replica, *, drifts: bool) -> None:
        self.model = model
        self.first_batches: list[str] = []
        """SHA-256 of each shard's first batch."""
        self._samples: list[set[str]] = []
        self._largest_change = 0.0
        self._task = task
        self._drifts = drifts
        self._optimizer = task.make_optimizer(model.parameters())
        self._before_step = task.before_step()
        count = 1 if drifts else replica.shard[1]
        self._shards = [iter(task.batches((index, count))) for index in range(count)]
        self._batches: list[list[Batch]] = []
        self._buffers = [_buffers_of(model) for _ in range(count)]
        self._buffers_before = self._buffers
        self._own = 0 if drifts else replica.shard[0]
        self._parts: Callable[[Batch], list[Batch]] = (lambda batch: [batch]) if drifts else replica.parts
        self._broadcasts = replica.broadcasts_buffers
        self._start: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        self._anchor: list[torch.Tensor] = []
        self._used_by: dict[str, set[int]] = {}
        self._apart: list[torch.Tensor] = []

    @property
    def shard_count(self) -> int:
        """Return how many shards it trains."""
        return len(self._shards)

    @torch.no_grad()
    def anchor(self, found: nn.Module) -> None:
        """Start the next step from the parameters of another model."""
        if self._drifts and self._start:
            return
        for own, other in zip(self.model.parameters(), found.parameters(), strict=True):
            own.copy_(other)
        self._before, self._anchor = self._anchor, [p.detach().clone() for p in self.model.parameters()]
        self._start = self._start or self._anchor
        self._buffers[self._own] = _buffers_of(found)
        if self._broadcasts:
            self._buffers = [self._buffers[0]] * len(self._shards)

    def step(self, step: int) -> None:
        """Take a step, from 0, by the mean of all shards' gradients."""
        passes = self._task.config.accumulate
        self._batches = []
        self._buffers_before = list(self._buffers)
        self._optimizer.zero_grad()
        for index, batches in enumerate(self._shards):
            seed_step(self._task.config, step, index)
            taken = list(islice(batches, passes))
            self._batches.append(list(chain.from_iterable(map(self._parts, taken))))
            if self._task.has_own_loader:
                self._note_samples(index, taken)
            with self._noting_use(index) if step == 0 else nullcontext():
                self._backward(index, len(self._batches[index]) * len(self._shards))
            self._buffers[index] = _buffers_of(self.model)
        if self._before_step:
            self._before_step(self.model, [self._optimizer])
        self._optimizer.step()
        self._largest_change = self._find_largest_change()

    def _note_samples(self, shard: int, batches: list[Batch]) -> None:
        """Note the first batch of a shard, and every sample."""
        if shard == len(self.first_batches):
            self.first_batches.append(hash_batch(batches[0]))
            self._samples.append(set())
        self._samples[shard].update(sample for batch in batches for sample in _hash_samples(batch))

    @property
    def shared_samples(self) -> float:
        """Return the largest part of a shard that an earlier shard has."""
        pairs = combinations(self._samples, 2)
        return max((len(one & other) / len(other) for one, other in pairs if other), default=0.0)

    def _backward(self, shard: int, divisor: int) -> None:
        """Add the gradients of a shard's batches, over a divisor."""
        with torch.no_grad():
            for own, kept in zip(self.model.buffers(), self._buffers_before[shard], strict=True):
                own.copy_(kept)
        for batch in self._batches[shard]:
            (self._task.loss(self.model, batch) / divisor).backward()

    @contextmanager
    def _noting_use(self, shard: int) -> Iterator[None]:
        """Note which parameters get a gradient from a shard."""
        with ExitStack() as noting:
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    used = self._used_by.setdefault(name, set())
                    hook = parameter.register_post_accumulate_grad_hook(lambda _, used=used: used.add(shard))
                    noting.callback(hook.remove)
            yield

    def unused(self, shards: int) -> list[str]:
        """Name the parameters that got a gradient from so many shards."""
        return [name for name, used in self._used_by.items() if len(used) == shards]

    def require_every_gradient(self) -> None:
        """Require that every parameter got a gradient from every shard.

        Raises:
            BackendError: names those that did not.
        """
        count = len(self._shards)
        for where, names in (
            ("on any rank", self.unused(0)),
            ("on some ranks", [name for few in range(1, count) for name in self.unused(few)]),
        ):
            if names:
                raise BackendError(
                    f"these parameters take no part in the loss {where}: {', '.join(names)}. This arm cannot "
                    "average them. Leave them out of the model, set requires_grad to False, or use "
                    "ddp:find_unused_parameters=true."
                )

    @torch.no_grad()
    def update(self) -> float:
        """Return the size of this step's update, relative to its parameter."""
        pairs = zip(self.model.parameters(), self._anchor, strict=True)
        return max((_relative(p - a, p, a, self._largest_change) for p, a in pairs), default=0.0)

    def difference(self, found: nn.Module) -> Difference:
        """Return the largest relative difference of another model's step."""
        return largest_difference(found, self.model, self._largest_change)

    @torch.no_grad()
    def _find_largest_change(self) -> float:
        """Return the largest number of this step's update."""
        pairs = zip(self.model.parameters(), self._anchor, strict=True)
        changes = [float((p - a).abs().max()) for p, a in pairs if p.numel()]
        return max((change for change in changes if math.isfinite(change)), default=0.0)

    @torch.no_grad()
    def compare_update(self, found: nn.Module) -> Update:
        """Compare the first update of another model."""
        along, apart, whole = 0.0, 0.0, 0.0
        for f, e, s in zip(found.parameters(), self.model.parameters(), self._start, strict=True):
            right, wrong = (e - s).flatten(), (f - e).flatten()
            along += float(torch.dot((f - s).flatten(), right))
            apart += float(torch.dot(wrong, wrong))
            whole += float(torch.dot(right, right))
        return Update(along / whole, math.sqrt(apart / whole)) if whole else Update(math.nan, math.nan)

    def explain(self, found: nn.Module, step: int, difference: Difference) -> WrongStep:
        """Find how much of each shard's gradient is in another model's step.

        Both took the step from one anchor, by plain SGD. The step is a least-squares sum of the shards'
        gradients and of the step before. This model's gradients are lost.
        """
        size = difference.size if math.isfinite(difference.size) else None
        wrong = WrongStep(step=step + 1, parameter=difference.parameter, difference=size)
        numbers = sum(p.numel() for p in self.model.parameters())
        if size is None or numbers * (len(self._shards) + 2) > _MOST_EXPLAINED:
            return wrong
        rate = self._optimizer.param_groups[0]["lr"]
        taken = _joined(a - f for a, f in zip(self._anchor, found.parameters(), strict=True)) / rate
        right = _joined(a - e for a, e in zip(self._anchor, self.model.parameters(), strict=True)) / rate
        parts = torch.stack([self._gradient(step, shard) for shard in range(len(self._shards))])
        mean = parts.mean(0)
        if not mean.any():  # nothing to be a share of
            return wrong
        kept = float(right @ mean / (mean @ mean))
        if self._before:
            last = _joined(b - a for b, a in zip(self._before, self._anchor, strict=True)) / rate
            parts = torch.cat([parts, last[None]])
        found_shares = torch.linalg.lstsq(
            (parts @ parts.T), (parts @ taken)[:, None], driver="gelsd"
        ).solution[:, 0]
        rest = taken - found_shares @ parts
        count = len(self._shards)
        return WrongStep(
            step=wrong.step,
            parameter=wrong.parameter,
            difference=size,
            shares=(found_shares[:count] * count).tolist(),
            left_over=float(found_shares[count]) if self._before else 0.0,
            unexplained=float(rest.norm() / taken.norm()) if taken.any() else 0.0,
            kept=kept,
        )

    def _gradient(self, step: int, shard: int) -> torch.Tensor:
        """Return the gradient of one shard at the anchor, as one vector."""
        after = [p.detach().clone() for p in self.model.parameters()]
        with torch.no_grad():
            for own, anchor in zip(self.model.parameters(), self._anchor, strict=True):
                own.copy_(anchor)
        self._optimizer.zero_grad()
        seed_step(self._task.config, step, shard)
        self._backward(shard, len(self._batches[shard]))
        with torch.no_grad():
            for own, kept in zip(self.model.parameters(), after, strict=True):
                own.copy_(kept)
        return _joined(torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters())

    def is_finite(self) -> bool:
        """Return whether all parameters are numbers."""
        return all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters())

    def drop_start(self) -> None:
        """Free the start; no update can be compared after it."""
        self._start, self._before, self._anchor = [], [], []

    @torch.no_grad()
    def add_error(self, found: nn.Module) -> None:
        """Add another model's distance after this step to that of all steps."""
        self._apart = self._apart or [torch.zeros_like(p) for p in self.model.parameters()]
        for total, f, e in zip(self._apart, found.parameters(), self.model.parameters(), strict=True):
            total.add_(f).sub_(e)

    @torch.no_grad()
    def error_of_all(self, found: nn.Module) -> float:
        """Return the distance from all right updates together, over their size."""
        apart = sum(float(torch.dot(a.flatten(), a.flatten())) for a in self._apart)
        right = [f - s - a for f, s, a in zip(found.parameters(), self._start, self._apart, strict=True)]
        whole = sum(float(torch.dot(r.flatten(), r.flatten())) for r in right)
        return math.sqrt(apart / whole) if whole else math.nan


def seed_step(config: RunConfig, step: int, shard: int) -> None:
    """Set the random generators for a shard's part of a step."""
    seed_generators((config.seed * 1_000_003 + step) * 1_009 + shard)


class _LayerSeed:
    """Sets the generators before each call of a layer."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._calls = 0

    def __call__(self, *_: object) -> None:
        self._calls += 1
        torch.manual_seed(self._calls * 1_009 + self._index)


def seed_layers(layers: nn.Module, first: int) -> None:
    """Set the generators before each call of a layer, by its index."""
    assert isinstance(layers, nn.Sequential)  # noqa: S101 -- no other model is divided
    for index, layer in enumerate(layers, first):
        layer.register_forward_pre_hook(_LayerSeed(index))


def hash_batch(batch: Batch) -> str:
    """Return the SHA-256 of the bytes of a batch's tensors."""
    digest = hashlib.sha256()
    for tensor in tensors_of(batch):
        digest.update(bytes_of(tensor).data)
    return digest.hexdigest()


def _hash_samples(batch: Batch) -> Iterator[str]:
    """Yield the SHA-256 of each sample of a batch."""
    tensors = [tensor for tensor in tensors_of(batch) if tensor.dim()]
    for index in range(len(tensors[0]) if tensors else 0):
        yield hash_batch([tensor[index] for tensor in tensors if len(tensor) == len(tensors[0])])


def bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes of a tensor; NumPy has no bfloat16."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _joined(tensors: Iterator[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten().double().cpu() for tensor in tensors])


def _buffers_of(model: nn.Module) -> list[torch.Tensor]:
    return [buffer.detach().clone() for buffer in model.buffers()]
