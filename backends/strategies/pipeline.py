"""Divide the layers of a chain among the ranks.

With microbatches this is a pipeline, and without them model parallelism.

``torch.distributed.pipelining`` sends activations to the next rank, and their gradients back. Every rank has
the global batch. It calls the loss with a stand-in for the model, which keeps the inputs and ends the call.
The last rank then calls the loss for each microbatch, with a stand-in that returns what the pipeline
computed.

The bubble is the share of a pass in which a rank waits for other ranks. For n ranks with equal work and m
microbatches it is (n - 1) / (m + n - 1). On CPUs the strategy also measures the share in which ranks really
wait, which includes the time for messages.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from time import perf_counter
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from backends.base import UNCOPIED, BackendError, Batch, Facts, Group, Loss, MakeOptimizer, Options, Replica
from backends.strategies.models import copy_with, cut_batch, start_from_first_rank

SCHEDULES: dict[str, type[Schedule1F1B | ScheduleGPipe]] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class PipelineReplica(Replica):
    """A replica that holds some of the layers, and trains them on the global batch."""

    phases = ("backward", "step")
    unsupported = frozenset({UNCOPIED})

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, group: Group, options: Options
    ) -> None:
        layers = _layers_of(model)
        start_from_first_rank(model, group)
        # Without microbatches, a rank computes its layers for a whole batch while the others wait.
        self.schedule = str(options.get("schedule", "gpipe"))
        self.parts_per_pass = int(options.get("microbatches", 1))
        if self.schedule == "1f1b" and self.parts_per_pass < group.world_size:
            raise BackendError(
                f"schedule=1f1b needs as many microbatches as ranks, but there are {self.parts_per_pass} for "
                f"{group.world_size}. Set microbatches={group.world_size} or more, or schedule=gpipe."
            )
        self.starts = divide(layers, group.world_size)
        self.first_layer = self.starts[group.rank]
        end = [*self.starts, len(layers)][group.rank + 1]
        self._empty_model = copy_with(model, lambda tensor: torch.empty_like(tensor, device="meta"))
        self._pass: _Pass | None = None
        super().__init__(_Chain(*layers[self.first_layer : end]), make_optimizer, group, options)
        self.shard = (0, 1)

    def learn(self, batch: Batch, loss: Loss, on_phase: Callable[[str], None] = lambda _: None) -> None:
        if self._pass is None:
            self._pass = _Pass(self.model, self.group, SCHEDULES[self.schedule], self.parts_per_pass)
            self._pass.prepare(batch, loss)
        self._pass.run(batch, loss, 1 / (self.parts_per_pass * self.passes_per_step))
        on_phase("backward")

    def parts(self, batch: Batch) -> list[Batch]:
        return cut_batch(batch, self.parts_per_pass)

    @torch.no_grad()
    def whole(self) -> nn.Module:
        full: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(_layers_of(self._empty_model)):
            owner = sum(start <= index for start in self.starts) - 1
            held = (
                _tensors_of(_layers_of(self.model)[index - self.starts[owner]])
                if owner == self.group.rank
                else None
            )
            for number, empty in enumerate(_tensors_of(layer)):
                value = held[number].clone() if held else torch.empty_like(empty, device=self.group.device)
                self.group.broadcast_(value.view(torch.uint8) if value.dtype == torch.bool else value, owner)
                full[id(empty)] = value
        return copy_with(self._empty_model, lambda empty: full[id(empty)])

    def library_bytes(self) -> int | None:
        return None  # torch keeps the buffers of its messages to itself

    def attest(self) -> Facts:
        ranks, parts = self.group.world_size, self.parts_per_pass
        facts = super().attest() | {
            "reduce_op": "mean",
            "schedule": self.schedule,
            "microbatches": parts,
            "first_layers": self.starts,
            "bubble_in_theory": round((ranks - 1) / (parts + ranks - 1), 3),
        }
        if self._pass and self.group.device.type == "cpu":  # a GPU computes while this process goes on
            share = torch.tensor([self._pass.waiting_share / ranks])
            self.group.all_reduce_(share)
            facts["waiting_share"] = round(float(share), 3)
        return facts


# ---- the layers ----


class _Chain(nn.Sequential):
    """The layers of one rank; several inputs are passed to the first layer as one tuple."""

    def forward(self, *inputs: Any) -> Any:
        return super().forward(inputs[0] if len(inputs) == 1 else inputs)


def _layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model, which must be an ``nn.Sequential``, in their order.

    Raises:
        BackendError: the model is of another class, or has a ``forward`` of its own.
    """
    if not isinstance(model, nn.Sequential) or type(model).forward not in {
        nn.Sequential.forward,
        _Chain.forward,
    }:
        raise BackendError(
            f"the model is a {type(model).__name__}, but ranks can divide only an nn.Sequential. Make it "
            "one, or leave this arm out."
        )
    return list(model)


def _tensors_of(layer: nn.Module) -> list[torch.Tensor]:
    return [*layer.parameters(), *layer.buffers()]


def divide(layers: Sequence[nn.Module], ranks: int) -> list[int]:
    """Divide consecutive layers among ranks, and return the index of each rank's first layer.

    Every rank gets at least one layer with parameters. The layers are divided so that the rank with the most
    parameters has as few as possible.

    Raises:
        BackendError: fewer layers than ranks have parameters, or two ranks would share a parameter.
    """
    sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    # A layer without parameters stays with the one before it.
    cuts = [0, *[index for index, size in enumerate(sizes) if size and sum(sizes[:index])]]
    if len(cuts) < ranks:
        raise BackendError(
            f"{len(cuts)} layers with parameters cannot be divided among {ranks} ranks. Use fewer ranks, or "
            "leave this arm out."
        )
    sums = [0, *accumulate(sizes)]
    ends = [*cuts, len(layers)]

    @cache
    def divide_first(count: int, ranks: int) -> tuple[int, list[int]]:
        """Divide the first ``ends[count]`` layers; return the most parameters of a rank, and the starts."""
        if ranks == 1:
            return sums[ends[count]], [0]
        return min(
            (max(largest, sums[ends[count]] - sums[ends[before]]), [*starts, ends[before]])
            for before in range(ranks - 1, count)
            for largest, starts in [divide_first(before, ranks - 1)]
        )

    starts = divide_first(len(cuts), ranks)[1]
    owners: dict[int, int] = {}
    for index, layer in enumerate(layers):
        owner = sum(start <= index for start in starts)
        for name, parameter in layer.named_parameters():
            if owners.setdefault(id(parameter), owner) != owner:
                raise BackendError(
                    f"layer {index} shares its parameter {name} with a layer of another rank. Untie the two, "
                    "use fewer ranks, or leave this arm out."
                )
    return starts


# ---- one pass ----


class _Pass:
    """This rank's stage of the pipeline, which runs forward and backward passes."""

    def __init__(
        self, model: nn.Module, group: Group, schedule: type[Schedule1F1B | ScheduleGPipe], parts: int
    ) -> None:
        self._model = model
        self._group = group
        self._stage = _TimedStage(copy.deepcopy(model), group.rank, group.world_size, group.device)
        self._pipeline = schedule(self._stage, parts, loss_fn=self._loss_of_part, scale_grads=False)
        self._part_numbers = torch.arange(parts)
        self._parts: list[Batch] = []
        self._loss: Loss
        self._weight = 1.0
        self._outer_autocast = _autocast(group.device)
        self._shape: torch.Size | None = None
        self._seconds = 0.0

    def prepare(self, batch: Batch, loss: Loss) -> None:
        """Run a first pass, in which torch learns the shapes of all activations.

        It does not change the training, because it computes with copies of the layers, and the random
        generators are restored after it.
        """
        device = self._group.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            self.run(batch, loss, 1.0)
        self._stage.submod = self._model
        self._stage.busy_seconds = self._seconds = 0.0

    def run(self, batch: Batch, loss: Loss, weight: float) -> None:
        """Run the passes of all microbatches, and add their gradients to those of this rank's layers.

        The loss of each microbatch is multiplied by ``weight``. All ranks must call this with the same batch.
        """
        self._loss, self._weight, self._outer_autocast = loss, weight, _autocast(self._group.device)
        self._parts = cut_batch(batch, len(self._part_numbers))
        call = self._find_model_call(batch)
        inputs = [call.inputs] if self._stage.is_first else []
        begun = perf_counter()
        with call.autocast:
            # The library gives each call of the loss a part of the target, which is the microbatch's number.
            self._pipeline.step(*inputs, target=self._part_numbers, return_outputs=False)
        self._seconds += perf_counter() - begun

    @property
    def waiting_share(self) -> float:
        """Return the share of the passes' time, 0 to 1, in which this rank does not compute."""
        return 1 - self._stage.busy_seconds / self._seconds

    def _find_model_call(self, batch: Batch) -> _ModelCalled:
        """Return the inputs with which the loss calls the model, and the autocast that is then in effect.

        Raises:
            BackendError: the loss does not call the model, or passes inputs of another shape than before.
        """
        try:
            self._loss(_ModelStandIn(), batch)
        except _ModelCalled as caught:
            # Its traceback would hold the frames, and with them the batch.
            call, inputs = caught.with_traceback(None), caught.inputs
        else:
            raise BackendError("the loss never calls the model. Call it once, or leave this arm out.")
        if self._shape not in {None, inputs.shape}:
            raise BackendError(
                f"the model's inputs have the shape {tuple(inputs.shape)}, but in the first step they had "
                f"{tuple(self._shape or ())}. Pad them to one shape, or leave this arm out."
            )
        self._shape = inputs.shape
        return call

    def _loss_of_part(self, output: Any, number: torch.Tensor) -> torch.Tensor:
        begun = perf_counter()
        with self._outer_autocast:  # the loss sets its own autocast inside
            loss = self._loss(_ModelStandIn(output), self._parts[int(number)]) * self._weight
        self._stage.busy_seconds += perf_counter() - begun
        return loss


class _TimedStage(PipelineStage):
    """A stage of the pipeline that counts the seconds in which it computes."""

    busy_seconds = 0.0
    """Seconds of all calls so far."""

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        begun = perf_counter()
        output = super().forward_one_chunk(*arguments, **named)
        self.busy_seconds += perf_counter() - begun
        return output

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        begun = perf_counter()
        super().backward_one_chunk(*arguments, **named)
        self.busy_seconds += perf_counter() - begun


class _ModelStandIn:
    """A stand-in for the divided model, which the loss may call once with one tensor.

    The call returns ``output``, or raises ``_ModelCalled`` if that is None.
    """

    def __init__(self, output: Any = None) -> None:
        self._output = output
        self._calls = 0

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self._calls += 1
        if self._calls > 1 or len(inputs) != 1 or named or not isinstance(inputs[0], torch.Tensor):
            raise BackendError(
                "the loss calls the model more than once, or with other arguments than one tensor. This arm "
                "cannot do that, because its layers are on several ranks. Call the model once, with one "
                "tensor, or leave this arm out."
            )
        if self._output is None:
            raise _ModelCalled(inputs[0])
        return self._output

    def __getattr__(self, name: str) -> NoReturn:
        raise BackendError(
            f"the loss reads {name} of the model, whose layers are on several ranks. Let the loss only call "
            "the model, or leave this arm out."
        )


class _ModelCalled(BaseException):  # no error that a loss may catch
    """The exception that ends the loss when it calls the model; it holds the inputs and the autocast."""

    def __init__(self, inputs: torch.Tensor) -> None:
        super().__init__()
        self.inputs = inputs
        self.autocast = _autocast(inputs.device)


def _autocast(device: torch.device) -> torch.autocast:
    """Return a context that restores the autocast that is now in effect on this type of device."""
    kind = device.type
    return torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind))
