"""Define the settings of a run, which every rank receives."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, TypeAlias, TypedDict, get_args

import msgspec

from compare.data.catalogue import TRAIN_COUNT
from compare.data.models import right_names
from compare.errors import UsageError
from compare.schema.arms import CONTROL, Arm

OPTIMIZERS = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001}
"""The optimizers, each with its default learning rate."""
MOST_ROUNDS = 1000
"""Maximum number of rounds where time decides."""
DEVICES = ("auto", "cpu", "cuda")
_SEEDS = 2**32
# Far above any real run; JSON, the watchdog and torch's generators can hold it.
LARGEST_NUMBER = 10**9
_OWN = re.compile(r"[^/]+\.py:[A-Za-z_][A-Za-z0-9_]*")
Interleave: TypeAlias = Literal["auto", "blocks", "launches"]
"""``blocks``: in turns. ``launches``: one after another. ``auto``: in turns if possible."""
Precision: TypeAlias = Literal["float32", "bf16-autocast"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
INTERLEAVES: tuple[Interleave, ...] = get_args(Interleave)


class LaunchFields(TypedDict, total=False):
    """What a user settles of any launch, before its hosts are known: fields of ``LaunchConfig``."""

    device: str
    launch_timeout_seconds: float
    stall_seconds: float


class Length(TypedDict):
    """How long a run takes."""

    rounds: int
    budget_seconds: float | None
    settle_seconds: float | None


class RunFields(LaunchFields, total=False):
    """The same for a run: fields of ``RunConfig``."""

    model: str
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
    """Settings of every launch, of a training or of collectives alone."""

    ranks: int = 2
    device: str = "cpu"
    threads_per_rank: int = 1
    launch_timeout_seconds: float = 300.0
    stall_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot launch.

        Raises:
            UsageError: names the flag, its value and the right values.
        """
        for flag, value in (("-np/--num-proc", self.ranks), ("--threads", self.threads_per_rank)):
            require_count(flag, value)
        for flag, seconds in (("--timeout", self.launch_timeout_seconds), ("--stall", self.stall_seconds)):
            _require_seconds(flag, seconds)
        require(self.device in DEVICES, "--device", self.device, " or ".join(DEVICES))

    def as_run_by(self, arm: Arm, slots: int) -> Self:
        """Return the config that the ranks of an arm read.

        ``slots`` are the ranks on the first host.
        """
        del arm, slots
        return self


def require_count(flag: str, value: int) -> None:
    """Require a whole number above 0.

    Raises:
        UsageError: names the flag, its value and the right values.
    """
    require(1 <= value <= LARGEST_NUMBER, flag, value, f"a whole number from 1 to {LARGEST_NUMBER}")


def _require_seconds(flag: str, seconds: float) -> None:
    right = f"a number of seconds above 0, at most {LARGEST_NUMBER}"
    require(0 < seconds <= LARGEST_NUMBER, flag, seconds, right)


class RunConfig(LaunchConfig, frozen=True, kw_only=True):
    """All settings that decide what a run measures, common to its arms."""

    arms: Annotated[tuple[Arm, ...], msgspec.Meta(min_length=1)]
    """In the user's order; the control, if any, comes first."""
    baseline: str = ""
    """Label of the arm that the others are compared with."""
    model: str = "mlp"
    """A built-in model, or an own ``file.py:factory``."""
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    """Never scaled by the number of ranks."""
    batch_size_per_rank: int = 64
    """Samples per forward pass on each rank."""
    accumulate: int = 1
    """Forward and backward passes per step; only the last communicates."""
    epochs: int = 1
    steps: int | None = None
    """Training steps instead of epochs."""
    warmup_steps: int = 30
    """The first steps of the training, which are not timed."""
    rounds: int = 5
    """Exact number, or the maximum where time decides."""
    interleave: Interleave = "launches"
    """Whether the arms of a round train in turns, side by side."""
    budget_seconds: float | None = None
    """Maximum time for rounds that settle every verdict; ``rounds`` is their maximum."""
    settle_seconds: float | None = None
    """Time in which rounds beyond the fifth begin; it ends no launch."""
    comparisons: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Number of comparisons of `compare aa`, which share the rounds equally."""
    slower_limit: float | None = None
    """Largest slowdown that `compare gate` allows, as a fraction; None for other runs."""
    max_reruns: int = 3
    """Maximum number of noisy rounds to repeat."""
    seed: int = 0
    precision: Precision = "float32"
    """``bf16-autocast``: the forward pass and the loss run in torch.autocast with bfloat16."""
    compile: bool = False
    """Whether torch.compile compiles the model."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot run.

        Raises:
            UsageError: names the flag, its value and the right values.
        """
        super().__post_init__()
        for flag, value in (
            ("--batch-size", self.batch_size_per_rank),
            ("--accumulate", self.accumulate),
            ("--repeats", self.rounds),
            ("--epochs", self.epochs),
            ("--steps", 1 if self.steps is None else self.steps),
        ):
            require_count(flag, value)
        require(0 <= self.max_reruns <= LARGEST_NUMBER, "--max-reruns", self.max_reruns, "0 or more rounds")
        require(self.warmup_steps >= 0, "--warmup", self.warmup_steps, "0 or more steps")
        require(0 <= self.seed < _SEEDS, "--seed", self.seed, f"a whole number from 0 to {_SEEDS - 1}")
        _require_seconds("--budget", 1.0 if self.limit_seconds is None else self.limit_seconds)
        require(0 < self.learning_rate < float("inf"), "--lr", self.learning_rate, "a number above 0")
        for flag, name, known in (
            ("--optimizer", self.optimizer, tuple(OPTIMIZERS)),
            ("--interleave", self.interleave, INTERLEAVES),
            ("--precision", self.precision, PRECISIONS),
        ):
            require(name in known, flag, name, " or ".join(known))
        if not self.is_own:
            right = right_names(self.model)
            require(not right, "--model", self.model, right)
            require(
                self.global_batch_size <= TRAIN_COUNT,
                "--batch-size",
                self.batch_size_per_rank,
                f"a batch so that {self.ranks} ranks with {self._batches()} need at most {TRAIN_COUNT} "
                "samples",
            )
        self._require_arms_that_fit()
        self._require_arms_that_compile()
        if self.total_steps <= self.untimed_steps:
            raise UsageError(
                "No training step is left to time.",
                found=f"{self.total_steps} training steps; the first {self.untimed_steps} are warm-up.",
                remedy="Use more --steps or --epochs, or fewer --warmup steps.",
            )
        labels = [arm.label for arm in self.arms]
        require(
            not self.baseline or self.baseline in labels, "--baseline", self.baseline, " or ".join(labels)
        )

    @property
    def is_own(self) -> bool:
        """Return whether the workload is the user's own.

        Then the ranks alone know its samples, its optimizer and its learning rate.
        """
        return bool(_OWN.fullmatch(self.model))

    def _batches(self) -> str:
        return "one each" if self.accumulate == 1 else f"{self.accumulate} each"

    def _require_arms_that_fit(self) -> None:
        for arm in self.arms:
            if arm.traits.own_step and not self.is_own:
                raise UsageError(
                    f"{arm.label} trains by a step of your own.",
                    remedy="Hand it over: --workload train.py:make, whose Workload has own_step.",
                )
            if self.accumulate > 1 and arm.traits.own_step:
                raise UsageError(
                    f"{arm.label} cannot take --accumulate {self.accumulate}.",
                    found="Its step is your own, and takes one batch.",
                    remedy="Leave out --accumulate, and accumulate inside your step.",
                )
            if self.accumulate > 1 and arm.never_accumulates:
                raise UsageError(
                    f"{arm.label} cannot accumulate gradients.",
                    found=f"--accumulate {self.accumulate} needs passes that do not communicate. "
                    f"With {' and '.join(arm.never_accumulates)} every pass communicates.",
                    remedy="Leave out one of the two.",
                )

    def _require_arms_that_compile(self) -> None:
        for arm in self.arms:
            if arm.traits.own_step and self.precision != "float32":
                raise UsageError(
                    f"{arm.label} cannot take --precision {self.precision}.",
                    found="Its step is your own.",
                    remedy="Leave out --precision, and use torch.autocast inside your step and your loss.",
                )
            if self.compile and (arm.traits.in_layers or arm.traits.own_step):
                raise UsageError(
                    f"{arm.label} cannot be compiled from outside.",
                    found="Its step is your own." if arm.traits.own_step else "Its ranks hold layers alone.",
                    remedy="Leave out --compile, or compile in a step of your own.",
                )
            if self.compile and arm.never_compiles:
                raise UsageError(
                    f"{arm.label} cannot be compiled.",
                    found=f"torch.compile fails with {' and '.join(arm.never_compiles)}.",
                    remedy="Use a larger number, or leave out --compile.",
                )

    def ranks_of(self, arm: Arm) -> int:
        """Return the number of processes of an arm."""
        return 1 if arm.traits.one_process else self.ranks

    def as_run_by(self, arm: Arm, slots: int) -> Self:
        """Return the config that the ranks of an arm read.

        An arm of one process gets the global batch, and the threads of all ranks of its host. ``slots`` are
        the ranks that other arms have on the first host.
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
        """Return the time in which rounds begin; None for exactly ``rounds``."""
        return self.settle_seconds if self.budget_seconds is None else self.budget_seconds

    @property
    def synchronising(self) -> list[Arm]:
        """Return all arms but the control."""
        return [arm for arm in self.arms if arm.traits.synchronises]

    @property
    def rivals(self) -> list[Arm]:
        """Return the arms that are compared with the baseline."""
        return [arm for arm in self.synchronising if arm.label != self.baseline]

    @property
    def global_batch_size(self) -> int:
        """Return the samples of all ranks in one step."""
        return self.ranks * self.batch_size_per_rank * self.accumulate

    @property
    def steps_per_epoch(self) -> int:
        """Return the whole global batches in an epoch; shards are equal."""
        return TRAIN_COUNT // self.global_batch_size

    @property
    def total_steps(self) -> int:
        """Return the training steps of a launch, with the warm-up."""
        return self.steps or self.epochs * self.steps_per_epoch

    @property
    def untimed_steps(self) -> int:
        """Return the steps before the clock starts.

        These are the warm-up, and always the first step, which allocates buffers.
        """
        return max(1, self.warmup_steps)

    @property
    def compile_limit_seconds(self) -> float:
        """Return the maximum time of a first step, which compiles.

        It may take as long as a launch. 0 without ``compile``.
        """
        return self.launch_timeout_seconds if self.compile else 0.0

    @property
    def control(self) -> Arm | None:
        """Return the arm without communication, if there is one.

        A gate has none: its environments may compute at different speeds.
        """
        if self.slower_limit is not None:
            return None
        return next((arm for arm in self.arms if arm.backend == CONTROL), None)

    @property
    def total_launches(self) -> int | None:
        """Count the launches without repeated rounds; None if time decides."""
        return self.rounds * len(self.arms) if self.limit_seconds is None else None


def require(holds: bool, flag: str, found: Any, right: str) -> None:  # noqa: FBT001 -- reads as a sentence
    """Refuse a flag's value, and name the right ones.

    Raises:
        UsageError: the value is wrong.
    """
    if not holds:
        raise UsageError(f"{flag} cannot be {found}.", remedy=f"Use {right}.")
