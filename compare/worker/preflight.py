"""Try a workload in one process, before its ranks form a group.

A new copy of the workload trains on one batch and is tested on one. An error has the user's line, what was
found, and what to do. Without this trial, a library would report the problem later, or would stall.
"""

from __future__ import annotations

import copy
import gc
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.weight_norm import WeightNorm

from backends.base import REPEATED, SPARSE, STRIDED, UNCOPIED, UNREACHED, Batch, Options, Replica, Trait
from compare.schema.job import Job
from compare.text import listed
from compare.worker.messages import describe_error, user_line_of
from compare.worker.meters import reset_peak_memory
from compare.worker.observed import graph_nodes
from compare.worker.own import BATCH_FORMS, OwnTask, tensors_of
from compare.worker.randomness import same_randomness, seed_generators
from compare.worker.user_file import pretended_group, refused_calls_to_ranks, require_threads
from compare.workload import WorkloadError

_TRAIT_PROBLEMS: dict[Trait, tuple[str, str]] = {
    SPARSE: (
        "sparse gradients of {names}: this arm cannot average them.",
        "Use sparse=False, or leave this arm out: ddp averages them.",
    ),
    STRIDED: (
        "parameters that are not contiguous: {names}. This arm cannot average them.",
        "Store them row by row (p.data = p.data.contiguous()), or leave this arm out.",
    ),
    REPEATED: (
        (
            "gradients arrive more than once in a backward pass, as re-entrant checkpoints make them: "
            "{names}. This arm counts only one."
        ),
        "Use checkpoint(…, use_reentrant=False), or an arm that counts all: manual, ddp:static_graph=true.",
    ),
    UNREACHED: (
        (
            "parameters that change the model's output, but get no gradient from the loss: {names}. This arm "
            "cannot average them, and find_unused_parameters=true would not help."
        ),
        "Set requires_grad to False for them, or leave this arm out.",
    ),
}
"""For each trait of a model that an arm may be unable to train, the problem and the remedy."""
_COMPUTE_ALONE = (
    "Let it use only the samples of its own rank. If ranks must communicate in it, set own_step, and "
    "reference_step for what one process does: docs/own-model.md."
)
_OWN_ARGUMENTS = "loader(rank, ranks, batch_size) gets the rank and the number of ranks. Use these arguments."
_PICKLE_REMEDY = (
    "The loader's workers are new processes, and its parts are pickled for them. Define these parts at the "
    "top of the file, not as a lambda or within a function, or use multiprocessing_context='fork'."
)
_SCHEDULE = "Let it return a factor for the number of each step, from 0. The factor 1.0 keeps the rate."
_TRY = "Try one batch without Ringside: make the workload, and call its loss and backward()."


def preflight(
    job: Job, task: OwnTask, strategy: type[Replica], shard: tuple[int, int], note: Callable[[], None]
) -> None:
    """Try a new copy of the job's workload, and set ``test_needs_gradients`` of the run's ``task``.

    The random generators are restored, and the peak of memory is reset. ``note`` is called before each batch.

    Raises:
        WorkloadError: the workload cannot be trained by this arm, or by any arm.
    """
    with same_randomness(task.device):
        trial = _Trial(task.anew(), job, shard, note)
        trial.require_trainable()
        task.test_needs_gradients = trial.test_needs_gradients()
        if not job.arm.traits.own_step:
            trial.require_supported_by(strategy, job.arm.options)
    require_threads(job.config.threads_per_rank)
    del trial
    gc.collect()
    reset_peak_memory(task.device)


class _Trial:
    """The trial of a workload in one process, with one training batch and one test batch."""

    def __init__(self, task: OwnTask, job: Job, shard: tuple[int, int], note: Callable[[], None]) -> None:
        self._task, self._shard, self._note = task, shard, note
        self._folder, self._config = job.dataset.directory, job.config
        # If the user wrote the step of one process, the loss may need several processes.
        self._has_reference_step = bool(job.arm.traits.own_step) and task.workload.reference_step is not None
        self._model: nn.Module = nn.Module()
        self._arrivals: Counter[str] = Counter()
        """How often each parameter's gradient arrived in the backward pass, by the parameter's name."""
        self._outputs: list[torch.Tensor] = []

    # ---- what any arm needs ----

    def require_trainable(self) -> None:
        """Raise ``WorkloadError`` if no arm can train the workload; one batch and its gradients are tried."""
        _require_parameters(self._task.workload.model)
        with self._explained("the optimizer cannot be made of the model's parameters", _TRY):
            optimizer = self._task.make_optimizer(self._task.build_model().parameters())
        _require_plain_step(optimizer)
        if schedule := self._task.workload.schedule:
            with self._explained("the schedule returns no factor of the learning rate", _SCHEDULE):
                float(schedule(0))
        if self._has_reference_step:
            return
        proof = self._task.for_proof("float64")
        batch = self._first_batch(proof)
        try:
            self._learn(proof, batch, "")
        except WorkloadError as error:
            in_own_dtype = self._task.anew()
            self._learn(in_own_dtype, self._first_batch(in_own_dtype), _TRY)
            raise WorkloadError(
                f"{error}The model works in its own dtype, but the proof computes in float64. Take dtypes "
                "from the parameters or the inputs.",
                where=error.where,
            ) from None

    def _learn(self, task: Any, batch: Batch, remedy: str) -> None:
        """Compute the loss and the gradients of one batch; ``remedy`` ends the message of an error."""
        self._model = model = task.build_model()
        self._arrivals.clear()
        seed_generators(self._config.seed)
        what = "the loss fails on a training batch"
        with self._noting_gradients(model), self._in_one_process("the loss", what, remedy):
            loss = task.loss(model, batch)
            _require_scalar(loss)
            loss.backward()

    def _first_batch(self, task: Any) -> Batch:
        """Return the first training batch, or raise ``WorkloadError`` if that fails or it has no tensor."""
        with self._explained("the first training batch cannot be made", self._remedy_for_loader):
            batch = next(iter(task.batches(task.shard_of(self._shard))))
        if not any(True for _ in tensors_of(batch)):
            raise WorkloadError(
                f"a batch is a {type(batch).__name__}, in which no tensor was found.\nUse {BATCH_FORMS}."
            )
        return batch

    @staticmethod
    def _remedy_for_loader(error: Exception) -> str:
        """Return what to do if the data or the loader raises an error."""
        text = str(error)
        if "pickle" in f"{type(error).__name__} {text}".lower():
            return _PICKLE_REMEDY
        return _OWN_ARGUMENTS if "been initialized" in text else _TRY

    @contextmanager
    def _noting_gradients(self, model: nn.Module) -> Iterator[None]:
        """Count how often each gradient arrives during the block, and keep what the model returns."""
        with ExitStack() as noting:
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(
                        lambda _, name=name: self._arrivals.update([name])
                    )
                    noting.callback(hook.remove)
            if not isinstance(model, torch.jit.ScriptModule):  # which takes no such hook
                hook = model.register_forward_hook(lambda *given: self._outputs.extend(tensors_of(given[2])))
                noting.callback(hook.remove)
            yield

    def test_needs_gradients(self) -> bool:
        """Test one batch, and return whether that works only with gradients enabled."""
        first = next(self._task.test_batches(self._shard), None)
        if first is None:
            return False
        model = self._task.anew().build_model().eval()
        try:
            self._test(model, *first)
        except WorkloadError:
            self._task.test_needs_gradients = True
            # Other libraries have their groups later.
            with suppress(*[WorkloadError] * self._has_reference_step):
                self._test(model, *first)
        return self._task.test_needs_gradients

    def _test(self, model: nn.Module, samples: int, batch: Batch) -> None:
        what = "the loss or the metric fails on a test batch, in eval mode"
        with self._in_one_process("the test", what, _TRY):
            self._task.test_batch(model, batch, samples)

    @contextmanager
    def _in_one_process(self, name: str, what: str, remedy: str) -> Iterator[None]:
        """Run the block, which computes one batch, and refuse its calls to other ranks.

        If the user wrote the step of one process, they are allowed, and do nothing. In messages, ``name``
        stands for what the block computes, and ``what`` states that it failed.
        """
        self._note()
        group = (
            pretended_group(self._config.ranks)
            if self._has_reference_step
            else refused_calls_to_ranks(name, self._folder, self._config.ranks, _COMPUTE_ALONE)
        )
        with self._explained(what, remedy), group:
            yield

    @contextmanager
    def _explained(self, what: str, remedy: str | Callable[[Exception], str]) -> Iterator[None]:
        """Turn an error of the block into a ``WorkloadError``: ``what`` failed, the error, and a remedy."""
        try:
            yield
        except WorkloadError:
            raise
        except Exception as error:
            raise WorkloadError(
                f"{what}.\n{describe_error(error)}\n{remedy if isinstance(remedy, str) else remedy(error)}",
                where=user_line_of(error, self._folder),
            ) from error

    # ---- what some arms cannot do ----

    def require_supported_by(self, strategy: type[Replica], options: Options) -> None:
        """Raise ``WorkloadError`` if a strategy cannot copy the model as it must, or average a gradient."""
        unsupported = strategy.unsupported_with(options)
        self._note()
        if UNCOPIED in unsupported:
            _require_copyable(self._task.anew().workload.model)
        trained = [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]
        reached = {id(node.variable) for node in graph_nodes(self._outputs) if hasattr(node, "variable")}
        names_by_trait: dict[Trait, list[str]] = {
            SPARSE: [name for name, p in trained if p.grad is not None and p.grad.layout != torch.strided],
            STRIDED: [name for name, p in trained if not p.is_contiguous()],
            REPEATED: [name for name, times in self._arrivals.items() if times > 1],
            UNREACHED: [name for name, p in trained if p.grad is None and id(p) in reached],
        }
        for trait in sorted(unsupported & names_by_trait.keys()):
            if names := names_by_trait[trait]:
                what, remedy = _TRAIT_PROBLEMS[trait]
                raise WorkloadError(f"{what.format(names=listed(names))}\n{remedy}")


def _require_parameters(model: nn.Module) -> None:
    """Raise ``WorkloadError`` if a parameter has no shape or no values, or if none can be trained."""
    lazy = [n for n, p in model.named_parameters() if is_lazy(p)]
    if lazy:
        raise WorkloadError(
            f"lazy parameters have no shape before the first batch: {listed(lazy)}.\n"
            "Call the model on one batch in your factory, or give the layers their sizes."
        )
    meta = [n for n, p in [*model.named_parameters(), *model.named_buffers()] if p.is_meta]
    if meta:
        raise WorkloadError(
            f"parameters on the meta device have no values: {listed(meta)}.\n"
            "Build the model on the CPU, or call to_empty() and initialise it in your factory."
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise WorkloadError(
            "no parameter of the model requires a gradient.\nSet requires_grad for some of them."
        )


def _require_copyable(model: nn.Module) -> None:
    """Raise ``WorkloadError`` if a model cannot be copied, as with torch's old ``weight_norm``."""
    try:
        copy.deepcopy(model)
    except Exception as error:
        remedy = (
            "Keep locks, files and the like out of the model, and detach() tensors that it computed. Or "
            "leave this arm out."
        )
        for name, module in model.named_modules():
            if any(isinstance(hook, WeightNorm) for hook in module._forward_pre_hooks.values()):  # noqa: SLF001
                remedy = (
                    f"Layer {name or 'of the model'} has torch's old weight_norm. Use "
                    "torch.nn.utils.parametrizations.weight_norm, or leave this arm out."
                )
        raise WorkloadError(
            f"this arm copies the model, which cannot be copied.\n{describe_error(error)}\n{remedy}"
        ) from error


def _require_plain_step(optimizer: torch.optim.Optimizer) -> None:
    """Raise ``WorkloadError`` if an optimizer's step requires a closure, as that of L-BFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise WorkloadError(
            f"{type(optimizer).__name__}.step() requires a closure, because it may compute the loss and its "
            "gradients several times in one step. Arms average the gradients only once a step.\nChoose an "
            "optimizer whose step() works without a closure, such as SGD or Adam."
        )


def _require_scalar(loss: Any) -> None:
    """Raise ``WorkloadError`` unless a loss is a scalar tensor with a graph."""
    if isinstance(loss, torch.Tensor) and not loss.dim() and loss.requires_grad:
        return
    found = type(loss).__name__
    if isinstance(loss, torch.Tensor):
        found = f"a tensor of shape {tuple(loss.shape)}" if loss.dim() else "a number without a graph"
    raise WorkloadError(
        f"the loss returned {found}.\n"
        "Return the mean over the samples of the batch: a scalar tensor with its graph."
    )
