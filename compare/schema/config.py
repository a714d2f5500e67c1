"""What a run is to do: one frozen value, validated once, that travels as JSON to every rank."""

from __future__ import annotations

import msgspec

from compare.data.catalogue import TRAIN_COUNT
from compare.errors import UsageError
from compare.schema.arms import CONTROL, Arm
from compare.schema.workload import LARGEST_NUMBER, require, require_model

OPTIMIZERS = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001}
"""Each optimizer with the learning rate it takes when none is given."""
DEFAULT_ROUNDS = 5
"""Fewer settle nothing, see ``verdict.FIRST_LOOK``."""
DEVICES = ("auto", "cpu", "cuda")
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
            require(1 <= value <= LARGEST_NUMBER, flag, value, f"a whole number from 1 to {LARGEST_NUMBER}")
        require(0 <= self.max_reruns <= LARGEST_NUMBER, "--max-reruns", self.max_reruns, "0 or more rounds")
        require(self.warmup_steps >= 0, "--warmup", self.warmup_steps, "0 or more steps")
        require(0 <= self.seed < _SEEDS, "--seed", self.seed, f"a whole number from 0 to {_SEEDS - 1}")
        for flag, seconds in (
            ("--timeout", self.launch_timeout_seconds),
            ("--stall", self.stall_seconds),
            ("--budget", 1.0 if self.budget_seconds is None else self.budget_seconds),
        ):
            require(
                0 < seconds <= LARGEST_NUMBER,
                flag,
                seconds,
                f"a number of seconds above 0, at most {LARGEST_NUMBER}",
            )
        require(0 < self.learning_rate < float("inf"), "--lr", self.learning_rate, "a number above 0")
        for flag, name, known in (
            ("--optimizer", self.optimizer, tuple(OPTIMIZERS)),
            ("--device", self.device, DEVICES),
        ):
            require(name in known, flag, name, " or ".join(known))
        require_model(self.model)
        require(
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
        require(
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


def total_launches(config: RunConfig) -> int:
    """Count the launches of a whole run in which no round is taken again."""
    return config.rounds * len(config.arms)
