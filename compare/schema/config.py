"""Define the settings of a launch and of a run, which every rank receives."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, TypeAlias, TypedDict

import msgspec

from compare.data.catalogue import TRAIN_COUNT
from compare.data.models import right_names
from compare.errors import UsageError
from compare.schema.arms import CONTROL, Arm
from compare.text import counted

OPTIMIZERS = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001}
"""The optimizers, each with its default learning rate."""
MOST_ROUNDS = 1000
"""Maximum number of rounds in a run that ends by time."""
_SEEDS = 2**32
LARGEST_NUMBER = 10**9
"""The largest value of most settings, far above any real run; the watchdog and torch can hold it."""
_OWN_WORKLOAD = re.compile(r"[^/]+\.py:[A-Za-z_][A-Za-z0-9_]*")
Interleave: TypeAlias = Literal["auto", "blocks", "launches"]
"""The order in which the arms of a round are measured.

With ``blocks``, all arms are launched together and take turns, a few blocks of steps each. With ``launches``,
one launch follows another. ``auto`` means ``blocks`` where that is possible.
"""
Precision: TypeAlias = Literal["float32", "bf16-autocast"]
SHARED_GPUS = "cuda:shared"
"""The device that lets several ranks of a host use one GPU."""


class LaunchFields(TypedDict, total=False):
    """The fields of ``LaunchConfig`` that a user may set before the hosts are known."""

    device: str
    launch_timeout_seconds: float
    stall_seconds: float


class Length(TypedDict):
    """The three fields of ``RunConfig`` that decide how many rounds a run has."""

    rounds: int
    budget_seconds: float | None
    settle_seconds: float | None


class RunFields(LaunchFields, total=False):
    """The fields of ``RunConfig`` that a user may set before the hosts are known."""

    model: str
    optimizer: str
    learning_rate: float
    batch_size_per_rank: int
    accumulate: int
    epochs: int
    steps: int | None
    warmup_steps: int
    rounds: int
    interleave: Interleave
    budget_seconds: float | None
    settle_seconds: float | None
    comparisons: int | None
    slower_limit: float | None
    max_reruns: int
    seed: int
    precision: Precision
    compile: bool


class LaunchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that every launch has, whether it trains or times collectives without training."""

    ranks: int = 2
    device: str = "cpu"
    shares_gpus: bool = False
    """Whether ranks share a GPU; times then mean nothing, because the ranks wait for each other.

    They do on a host with more ranks than GPUs, and on the hosts of a rehearsal, which have the same GPUs.
    """
    threads_per_rank: int = 1
    launch_timeout_seconds: float = 300.0
    stall_seconds: float = 30.0
    """Maximum time in which a rank makes no progress before the launch is ended."""

    def __post_init__(self) -> None:
        """Refuse settings that no launch can have.

        Raises:
            UsageError: a setting is wrong; the error names its flag, its value and the right values.
        """
        for flag, value in (("-np/--num-proc", self.ranks), ("--threads", self.threads_per_rank)):
            require_count(flag, value)
        for flag, seconds in (
            ("--timeout", self.launch_timeout_seconds),
            ("stall of --timeout", self.stall_seconds),
        ):
            _require_seconds(flag, seconds)

    def as_run_by(self, arm: Arm, slots: int) -> Self:
        """Return the config that the ranks of an arm read, which is this one unless a subclass changes it.

        ``slots`` is the number of ranks on the first host.
        """
        del arm, slots
        return self


def require_count(flag: str, value: int) -> None:
    """Require a value from 1 to ``LARGEST_NUMBER``.

    Raises:
        UsageError: the value is out of range; the error names the flag, the value and the range.
    """
    require(1 <= value <= LARGEST_NUMBER, flag, value, f"a whole number from 1 to {LARGEST_NUMBER}")


def _require_seconds(flag: str, seconds: float) -> None:
    allowed = f"a number of seconds above 0, at most {LARGEST_NUMBER}"
    require(0 < seconds <= LARGEST_NUMBER, flag, seconds, allowed)


class RunConfig(LaunchConfig, frozen=True, kw_only=True):
    """All settings of a run, which are the same for all of its arms."""

    arms: Annotated[tuple[Arm, ...], msgspec.Meta(min_length=1)]
    """The arms in the user's order; the control comes first if there is one."""
    baseline: str = ""
    """Label of the arm with which the others are compared; empty while it is not chosen yet."""
    model: str = "mlp"
    """Name of a built-in model, or ``file.py:factory`` for a workload of the user's own."""
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    """Learning rate, which is never scaled by the number of ranks."""
    batch_size_per_rank: int = 64
    """Number of samples in a forward pass of each rank."""
    accumulate: int = 1
    """Number of forward and backward passes in a step; only the last one communicates."""
    epochs: int = 1
    """Number of epochs; it counts only if ``steps`` is None."""
    steps: int | None = None
    """Number of training steps including the warm-up, or None to train for ``epochs``."""
    warmup_steps: int = 30
    """Number of steps at the start of the training that are not timed."""
    rounds: int = 5
    """Exact number of rounds, or their maximum if ``budget_seconds`` or ``settle_seconds`` is set."""
    interleave: Interleave = "launches"
    """The order in which the arms of a round are measured."""
    budget_seconds: float | None = None
    """The seconds of ``--budget``: rounds go on until every verdict is settled or this time is over.

    It is None if the user gave no budget.
    """
    settle_seconds: float | None = None
    """The seconds in which rounds beyond the fifth may begin, as long as a verdict is not settled.

    A round that is running then is finished. It is None for a run with ``--repeats`` or ``--budget``.
    """
    comparisons: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Number of comparisons of an A/A test, among which the rounds are divided; None for other runs."""
    slower_limit: float | None = None
    """The slowdown that `ringside gate` allows, as a fraction of the step time; None for other runs."""
    max_reruns: int = 3
    """Maximum number of noisy rounds that are repeated."""
    seed: int = 0
    precision: Precision = "float32"
    """With ``bf16-autocast``, the forward pass and the loss run in torch.autocast with bfloat16."""
    compile: bool = False
    """Whether torch.compile compiles the model."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot run.

        Raises:
            UsageError: a setting is wrong; the error names its flag or arm, and what to use instead.
        """
        super().__post_init__()
        for flag, value in (
            ("--batch-size", self.batch_size_per_rank),
            ("--accumulate", self.accumulate),
            ("--repeats", self.rounds),
            ("epochs of --steps", self.epochs),
            ("--steps", 1 if self.steps is None else self.steps),
        ):
            require_count(flag, value)
        allowed = f"a whole number from 0 to {LARGEST_NUMBER}"
        require(0 <= self.max_reruns <= LARGEST_NUMBER, "reruns of --interleave", self.max_reruns, allowed)
        require(self.warmup_steps >= 0, "warmup of --steps", self.warmup_steps, "0 or more steps")
        require(0 <= self.seed < _SEEDS, "--seed", self.seed, f"a whole number from 0 to {_SEEDS - 1}")
        _require_seconds("--budget", 1.0 if self.limit_seconds is None else self.limit_seconds)
        require(
            0 < self.learning_rate < float("inf"), "lr of --optimizer", self.learning_rate, "a number above 0"
        )
        if not self.is_own:
            allowed = right_names(self.model)
            require(not allowed, "--model", self.model, allowed)
            require(
                self.global_batch_size <= TRAIN_COUNT,
                "--batch-size",
                self.batch_size_per_rank,
                f"a smaller batch. A step of all ranks would take {self.global_batch_size} samples, and the "
                f"training set has {TRAIN_COUNT}",
            )
        for arm in self.arms:
            self._require_fit(arm)
        if self.total_steps <= self.untimed_steps:
            raise UsageError(
                "No training step is left to time.",
                found=f"Of {counted(self.total_steps, 'training step')}, the first {self.untimed_steps} are "
                "not timed.",
                remedy="Use more --steps, or a shorter warm-up: --steps N:warmup=N.",
            )
        labels = [arm.label for arm in self.arms]
        require(
            not self.baseline or self.baseline in labels, "--baseline", self.baseline, " or ".join(labels)
        )

    @property
    def is_own(self) -> bool:
        """Return whether ``model`` names a workload of the user's own.

        Only the ranks know the samples, the optimizer and the learning rate of such a workload.
        """
        return bool(_OWN_WORKLOAD.fullmatch(self.model))

    def _require_fit(self, arm: Arm) -> None:
        """Raise a ``UsageError`` for an arm that cannot run with these settings."""
        if arm.traits.own_step and not self.is_own:
            raise UsageError(
                f"{arm.label} needs a training step of your own, and none was given.",
                remedy="Name your file: --workload train.py:make, where make returns a Workload with "
                "own_step.",
            )
        flags_in_use = {
            f"--accumulate {self.accumulate}": self.accumulate > 1,
            f"--precision {self.precision}": self.precision != "float32",
            "--compile": self.compile,
        }
        flags = " ".join(flag for flag, in_use in flags_in_use.items() if in_use)
        if flags and arm.traits.own_step:
            raise UsageError(
                f"{arm.label} cannot take {flags}.",
                found="Its training step is your own code.",
                remedy=f"Leave out {flags}, and do the same inside your step.",
            )
        if self.accumulate > 1 and arm.never_accumulates:
            raise UsageError(
                f"{arm.label} cannot accumulate gradients.",
                found=f"--accumulate {self.accumulate} needs passes that do not communicate. "
                f"With {' and '.join(arm.never_accumulates)} every pass communicates.",
                remedy=f"Leave out --accumulate, or {' and '.join(arm.never_accumulates)}.",
            )
        if self.compile and (arm.traits.in_layers or arm.never_compiles):
            settings = " and ".join(arm.never_compiles)
            raise UsageError(
                f"{arm.label} cannot be compiled.",
                found="Each of its ranks holds only some of the layers."
                if arm.traits.in_layers
                else f"torch.compile fails with {settings}.",
                remedy=f"Leave out --compile, or {'this arm' if arm.traits.in_layers else settings}.",
            )

    def as_run_by(self, arm: Arm, slots: int) -> Self:
        """Return the config that the ranks of an arm read.

        It is this config, unless the arm is one process. Such an arm has one rank with the batches of all
        ranks, and with the threads of the ``slots`` ranks that other arms have on the first host.
        """
        if not arm.traits.one_process:
            return self
        return msgspec.structs.replace(
            self,
            ranks=1,
            batch_size_per_rank=self.ranks * self.batch_size_per_rank,
            threads_per_rank=slots * self.threads_per_rank,
        )

    @property
    def limit_seconds(self) -> float | None:
        """Return the run's time limit in seconds; None if it has exactly ``rounds`` rounds.

        With ``budget_seconds``, a round that is running at the limit is cut short. With ``settle_seconds``,
        no round beyond the fifth starts after the limit.
        """
        return self.settle_seconds if self.budget_seconds is None else self.budget_seconds

    @property
    def synchronising(self) -> list[Arm]:
        """Return all arms except the control."""
        return [arm for arm in self.arms if arm.traits.synchronises]

    @property
    def rivals(self) -> list[Arm]:
        """Return the arms that are compared with the baseline: all except the baseline and the control."""
        return [arm for arm in self.synchronising if arm.label != self.baseline]

    @property
    def global_batch_size(self) -> int:
        """Return the number of samples of all ranks in one step, over all its passes."""
        return self.ranks * self.batch_size_per_rank * self.accumulate

    @property
    def total_steps(self) -> int:
        """Return the number of training steps of a launch, including the warm-up.

        An epoch has one step for each whole global batch in a built-in model's training set.
        """
        return self.steps or self.epochs * (TRAIN_COUNT // self.global_batch_size)

    @property
    def untimed_steps(self) -> int:
        """Return the number of steps at the start of a launch that are not timed.

        They are the warm-up steps, but at least one, because the first step allocates buffers.
        """
        return max(1, self.warmup_steps)

    @property
    def compile_limit_seconds(self) -> float:
        """Return the maximum time of a step that compiles the model; 0 without ``compile``.

        Such a step may take as long as a whole launch.
        """
        return self.launch_timeout_seconds if self.compile else 0.0

    @property
    def control(self) -> Arm | None:
        """Return the arm whose ranks do not communicate, or None if the run has no such arm.

        It is always None in `ringside gate`, whose two environments may compute at different speeds.
        """
        if self.slower_limit is not None:
            return None
        return next((arm for arm in self.arms if arm.backend == CONTROL), None)

    @property
    def total_launches(self) -> int | None:
        """Return the number of launches, not counting repeated rounds; None if the run ends by time."""
        return self.rounds * len(self.arms) if self.limit_seconds is None else None


def require(holds: bool, flag: str, value: Any, allowed: str) -> None:  # noqa: FBT001 -- reads as a sentence
    """Refuse the ``value`` of a flag unless ``holds`` is true.

    Raises:
        UsageError: ``holds`` is false; the error names the flag, its value and the ``allowed`` ones.
    """
    if not holds:
        raise UsageError(f"{flag} cannot be {value}.", remedy=f"Use {allowed}.")
