"""Name the choices of flags, which ``--help`` lists and shells complete."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from importlib import import_module


class Order(StrEnum):
    """Orders of the arms in a report."""

    STEP = "step"
    NAME = "name"
    SYNC = "sync"


class Format(StrEnum):
    """Formats of what was measured or predicted."""

    TABLE = "table"
    MARKDOWN = "markdown"
    HTML = "html"
    CSV = "csv"
    JSON = "json"


class LessonFormat(StrEnum):
    """Formats of ``compare explain``."""

    TEXT = "text"
    MARKDOWN = "markdown"


class ChangeFormat(StrEnum):
    """Formats of ``compare diff`` and ``compare gate``."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"
    BENCHMARK = "github-benchmark"


class Interleave(StrEnum):
    """How the arms of a round run."""

    AUTO = "auto"
    BLOCKS = "blocks"
    LAUNCHES = "launches"


class EngineName(StrEnum):
    """How hosts are reached."""

    AUTO = "auto"
    LOCAL = "local"
    SSH = "ssh"
    SLURM = "slurm"


class Scheduler(StrEnum):
    """Where ``compare submit`` sends a command."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"


class Device(StrEnum):
    """What the ranks compute on."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Precision(StrEnum):
    """Arithmetic of the forward pass and of the loss."""

    FLOAT32 = "float32"
    BF16_AUTOCAST = "bf16-autocast"


class Optimizer(StrEnum):
    """Optimizers of the built-in models."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


class Dataset(StrEnum):
    """Data of the built-in models."""

    AUTO = "auto"
    MNIST = "mnist"
    DIGITS = "digits"


def complete_names(module: str, known: str) -> Callable[[str], list[str]]:
    """Return a function by which a shell completes the last of several names, separated by commas.

    The names are in the attribute ``known`` of ``module``, which only a completing shell imports, not
    ``--help``.
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        names = getattr(import_module(module), known)
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete
