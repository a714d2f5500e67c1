"""What a run is to do: one frozen value, validated once, that travels as JSON to every rank."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import msgspec

from compare.data.catalogue import TRAIN_COUNT
from compare.errors import UsageError
from compare.schema.arms import CONTROL, Arm

PIXELS = 784
CLASSES = 10
MLPS = {"mlp": (PIXELS, 256, CLASSES), "wide": (PIXELS, 4096, 4096, CLASSES)}
"""The multilayer perceptrons that have a name, and the widths of their layers."""
MODELS = (*MLPS, "convnet")
OPTIMIZERS = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001}
"""Each optimizer with the learning rate it takes when none is given."""
DEFAULT_ROUNDS = 5
"""Fewer settle nothing, see ``verdict.FIRST_LOOK``."""
DEVICES = ("auto", "cpu", "cuda")
# Far above any real run, and within what JSON, the watchdog and torch's generators can hold.
_MOST = 10**9
_WIDTHS = re.compile(r"mlp:([1-9][0-9]{0,9}(?:-[1-9][0-9]{0,9})+)")
_SEEDS = 2**32


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what a run measures. The arms share all of it but their options."""

    arms: tuple[Arm, ...]
    """In the order named; the control first where there is one."""
    baseline: str = ""
    """Label of the arm that the others are compared with; none as long as there are no arms."""
    ranks: int = 2
    model: str = "mlp"
    """One of ``MODELS``, or ``mlp:784-4096-10`` with any widths between the first and the last."""
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    """As given, whatever the number of ranks: never scaled."""
    batch_size_per_rank: int = 64
    """Samples per forward pass on each rank."""
    accumulate: int = 1
    """Forward and backward passes per step, of which only the last communicates."""
    epochs: int = 1
    steps: int | None = None
    """Training steps instead of epochs."""
    warmup_steps: int = 30
    """The first steps of the training: they train, but are not timed."""
    rounds: int = DEFAULT_ROUNDS
    budget_seconds: float | None = None
    """Rounds go on until every verdict is settled, but no longer than this; ``rounds`` is then the most."""
    comparisons: int | None = None
    """For `compare aa`: the rounds are so many comparisons of equal length, one after the other."""
    max_reruns: int = 3
    """How many rounds may be taken again in all, because others used the machine."""
    seed: int = 0
    device: str = "cpu"
    threads_per_rank: int = 1
    launch_timeout_seconds: float = 300.0
    stall_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Refuse what cannot be run.

        Raises:
            UsageError: naming the flag, the value found and the right ones.
        """
        for flag, value in (
            ("-np/--num-proc", self.ranks),
            ("--batch-size", self.batch_size_per_rank),
            ("--accumulate", self.accumulate),
            ("--repeats", self.rounds),
            ("--threads", self.threads_per_rank),
            ("--epochs", self.epochs),
            ("--steps", 1 if self.steps is None else self.steps),
        ):
            _require(1 <= value <= _MOST, flag, value, f"a whole number from 1 to {_MOST}")
        _require(0 <= self.max_reruns <= _MOST, "--max-reruns", self.max_reruns, "0 or more rounds")
        _require(self.warmup_steps >= 0, "--warmup", self.warmup_steps, "0 or more steps")
        _require(0 <= self.seed < _SEEDS, "--seed", self.seed, f"a whole number from 0 to {_SEEDS - 1}")
        for flag, seconds in (
            ("--timeout", self.launch_timeout_seconds),
            ("--stall", self.stall_seconds),
            ("--budget", 1.0 if self.budget_seconds is None else self.budget_seconds),
        ):
            _require(0 < seconds <= _MOST, flag, seconds, f"a number of seconds above 0, at most {_MOST}")
        _require(0 < self.learning_rate < float("inf"), "--lr", self.learning_rate, "a number above 0")
        for flag, name, known in (
            ("--optimizer", self.optimizer, tuple(OPTIMIZERS)),
            ("--device", self.device, DEVICES),
        ):
            _require(name in known, flag, name, " or ".join(known))
        _require_model(self.model)
        _require(
            self.global_batch_size <= TRAIN_COUNT,
            "--batch-size",
            self.batch_size_per_rank,
            f"a batch of which {self.ranks} ranks find {self._theirs()} among {TRAIN_COUNT} training samples",
        )
        self._require_arms_that_accumulate()
        if self.total_steps <= self.untimed_steps:
            raise UsageError(
                "There would be nothing left to time.",
                found=f"{self.total_steps} training steps, the first {self.untimed_steps} of them warm-up.",
                remedy="Train more --steps or --epochs, or take fewer --warmup steps.",
            )
        labels = [arm.label for arm in self.arms]
        _require(
            not self.baseline or self.baseline in labels, "--baseline", self.baseline, " or ".join(labels)
        )

    def _theirs(self) -> str:
        return "theirs" if self.accumulate == 1 else f"{self.accumulate} each"

    def _require_arms_that_accumulate(self) -> None:
        for arm in self.arms:
            if self.accumulate > 1 and arm.never_accumulates:
                raise UsageError(
                    f"{arm.label} cannot accumulate gradients.",
                    found=f"--accumulate {self.accumulate} needs passes that do not communicate; with "
                    f"{' and '.join(arm.never_accumulates)} there are none.",
                    remedy="Leave out one of them.",
                )

    @property
    def global_batch_size(self) -> int:
        """Samples that all ranks together train on in one step."""
        return self.ranks * self.batch_size_per_rank * self.accumulate

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches in an epoch; the rest is left out, so that shards are equal."""
        return TRAIN_COUNT // self.global_batch_size

    @property
    def total_steps(self) -> int:
        """Training steps of a launch, warm-up included."""
        return self.steps or self.epochs * self.steps_per_epoch

    @property
    def untimed_steps(self) -> int:
        """Steps before the clock starts: the warm-up, and always the first, in which buffers are made."""
        return max(1, self.warmup_steps)

    @property
    def backends(self) -> list[str]:
        """Name the arms' backends, each as often as it comes."""
        return [arm.backend for arm in self.arms]

    @property
    def control(self) -> Arm | None:
        """The arm without communication, if it runs."""
        return next((arm for arm in self.arms if arm.backend == CONTROL), None)


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


def _require_model(model: str) -> None:
    if not model.startswith("mlp:"):
        right = f"{' or '.join(MODELS)}, or widths of your own: mlp:{PIXELS}-4096-{CLASSES}"
        _require(model in MODELS, "--model", model, right)
        return
    example = f"mlp:{PIXELS}-4096-{CLASSES}: whole numbers above 0, as many as you like"
    _require(bool(_WIDTHS.fullmatch(model)), "--model", model, example)
    first, *_, last = widths = layer_widths(model)
    right = f"{PIXELS} as the first width and {CLASSES} as the last: pixels in, digits out"
    _require((first, last) == (PIXELS, CLASSES), "--model", model, right)
    weights = sum(inputs * outputs for inputs, outputs in pairwise(widths))
    _require(
        weights <= _MOST, "--model", model, f"widths that make at most {_MOST} weights; these make {weights}"
    )


def _require(holds: bool, flag: str, found: Any, right: str) -> None:  # noqa: FBT001 -- reads as a sentence
    if not holds:
        raise UsageError(f"{flag} cannot be {found}.", remedy=f"Use {right}.")
