"""Read and write arms: ``backend:option=value:option=value``.

Commas separate arms, and braces make a sweep. ``env.NAME=value`` sets an environment variable for the ranks
of this arm only. In a value, put a backslash before a colon, a comma, a brace or a backslash.

The registry in ``backends`` defines the backends and their options. An error about a wrong name or value
states those that are allowed.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias

import msgspec

from backends import BACKENDS, Backend, Option, Runtime
from compare.errors import UsageError
from compare.schema.environment import refusal_of

OptionValue: TypeAlias = bool | float | str

CONTROL = "none"
"""Name of the backend whose ranks do not communicate.

The sync cost of another arm is its step time minus that of this backend.
"""

_VARIABLE_PREFIX = "env."
"""The prefix of settings that are environment variables of the ranks, not options of the backend."""

_MAX_SWEEP_ARMS = 1000
# Text outside braces; a backslash escapes the next character.
_NO_BRACES = r"(?:\\.|\\$|[^\\{}])*"
_SWEEP = re.compile(rf"{{({_NO_BRACES})}}", re.DOTALL)
_TEXT_WITH_SWEEPS = re.compile(rf"{_NO_BRACES}(?:{_SWEEP.pattern}{_NO_BRACES})*", re.DOTALL)

_SPECIALS = re.compile(r"[\\:,{}]")
_ARMS_BY_OTHER_NAME = {
    "allreduce": "manual",
    "torch": "ddp",
    "torchddp": "ddp",
    "distributeddataparallel": "ddp",
    "hvd": "horovod",
    "openmpi": "mpi",
    "gloo": "ddp:process_group=gloo",
    "nccl": "ddp:process_group=nccl",
}
"""The arms that users mean by names that no backend has.

The names are in lower case, without dashes, underscores and blanks.
"""
_COUNT = re.compile(r"[0-9]{1,9}")

_SWITCH_VALUES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """A Python interpreter and the versions of its libraries, as the interpreter itself reported them."""

    executable: str
    """Path of the interpreter. Symbolic links are kept, because they choose the virtual environment."""
    prefix: str
    """The interpreter's ``sys.prefix``, which every rank must report as well."""
    python: str
    """Version of Python."""
    torch: str
    """Version of torch."""
    ringside: str
    """Version of the worker's code."""
    sources: str
    """Folder of the worker's code, which every rank must report as well."""
    own_sources: bool
    """Whether ``sources`` is a package in the interpreter's own environment, not the one of this command."""


class Arm(msgspec.Struct, frozen=True):
    """A backend with the values that the user gave to its options."""

    backend: str
    given: dict[str, OptionValue] = {}
    """The values by name of the option, or by ``env.NAME`` for variables; other options have defaults."""
    twin: int = 0
    """1 or 2 for the two equal arms of an A/A test, otherwise 0."""
    against: Interpreter | None = None
    """The other interpreter of `ringside gate` if this arm's ranks run in it; otherwise None."""

    def __post_init__(self) -> None:
        """Refuse an unknown backend, which a result of another version may have.

        Raises:
            ValueError: there is no such backend. Decoding from JSON raises ``msgspec.ValidationError``.
        """
        if self.backend not in BACKENDS:
            raise ValueError(f"There is no backend called {self.backend!r}.")

    @property
    def label(self) -> str:
        """Return the name of the arm in tables and results: what a user writes, and sometimes a suffix.

        The suffix is ``#1`` or ``#2`` in an A/A test, and ``@against`` for the other interpreter of a gate.
        """
        given = (f"{name}={_spelled(value)}" for name, value in self.given.items())
        twin = f"#{self.twin}" if self.twin else "@against" if self.against else ""
        return ":".join([self.backend, *given]) + twin

    @property
    def options(self) -> dict[str, OptionValue]:
        """Return the value of every option of the backend, which is the user's or the default."""
        return {option.name: self.given.get(option.name, option.default) for option in self.traits.options}

    @property
    def options_while_proven(self) -> dict[str, OptionValue]:
        """Return the options for the parity check, which are ``options`` with values that delay no update."""
        return self.options | {
            option.name: option.while_proven
            for option in self.traits.options
            if option.while_proven is not None
        }

    @property
    def runtime(self) -> Runtime:
        """Return the launcher and libraries that this arm needs."""
        return self.traits.runtime(self.options)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that the user set with ``env.NAME=value`` for this arm's ranks, by name."""
        return {
            name.removeprefix(_VARIABLE_PREFIX): str(value)
            for name, value in self.given.items()
            if name.startswith(_VARIABLE_PREFIX)
        }

    @property
    def traits(self) -> Backend:
        """Return the backend's entry in the registry, which does not depend on the options."""
        return BACKENDS[self.backend]

    @property
    def same_training(self) -> bool:
        """Return whether the registry declares that this arm, with its options, trains like one process."""
        declared = self.traits.training
        at_period_1 = declared == "same at period 1" and self.options == self.options_while_proven
        return declared == "same" or at_period_1

    @property
    def zeros_for_unused(self) -> bool:
        """Return whether parameters without a gradient get one of zeros, so that weight decay moves them.

        The backend declares this for its own strategy. It is False where an option chooses another strategy.
        """
        has_own_strategy = all(
            self.options[option.name] == option.default for option in self.traits.options if option.strategies
        )
        return self.traits.zeros_for_unused and has_own_strategy

    @property
    def exact(self) -> bool:
        """Return whether averaged gradients are the exact mean, except for rounding."""
        return self.gradient_tolerance == 0

    @property
    def gradient_tolerance(self) -> float:
        """Return the largest error of an averaged gradient that the options allow; 0 for an exact arm.

        The error is a fraction of the largest number in the gradient's tensor.
        """
        values = self.options
        return sum(option.lossy.get(str(values[option.name]), 0.0) for option in self.traits.options)

    @property
    def cuda_only(self) -> tuple[str, ...]:
        """Return the arm's settings that need a GPU, each as ``option=value``."""
        return self._settings(lambda option, value: value in option.cuda_only)

    @property
    def never_accumulates(self) -> tuple[str, ...]:
        """Return the arm's settings that rule out gradient accumulation, each as ``option=value``."""
        return self._settings(lambda option, value: value is True and not option.accumulates)

    def cannot_divide(self, ranks: int) -> tuple[str, ...]:
        """Return the arm's settings that need another number of ranks, each as ``option=value``."""
        return self._settings(lambda option, value: option.divides_ranks and ranks % int(value) != 0)

    @property
    def never_compiles(self) -> tuple[str, ...]:
        """Return the arm's settings with which torch.compile fails, each as ``option=value``."""
        return self._settings(
            lambda option, value: isinstance(value, (int, float)) and value < option.compiles_from
        )

    def _settings(self, is_wanted: Callable[[Option, OptionValue], bool]) -> tuple[str, ...]:
        """Return the options for whose values ``is_wanted`` is true, each as ``option=value``."""
        settings = ((option, self.options[option.name]) for option in self.traits.options)
        wanted = (pair for pair in settings if is_wanted(*pair))
        return tuple(f"{option.name}={_spelled(value)}" for option, value in wanted)


def parse_arms(texts: Iterable[str], *, with_aa_test: bool = False) -> tuple[Arm, ...]:
    """Return the arms of some texts, in order; each text may hold several, separated by commas.

    Braces make a sweep: ``ddp:bucket_cap_mb={1,5,25}`` is three arms. Two pairs of braces in one arm give
    every combination, and the last pair varies fastest. ``with_aa_test`` allows one arm that is named twice,
    with no other.

    Raises:
        UsageError: an arm is wrong (see ``parse_arm``) or named twice, braces are not balanced or hold an
            empty value, or a sweep has more than 1000 arms.
    """
    parts = [part.strip() for text in texts for part in _split(text, ",")]
    arms = tuple(parse_arm(arm) for part in parts if part for arm in _expand(part))
    for arm in () if with_aa_test and is_aa_test(arms) else arms:
        if arms.count(arm) > 1:
            raise UsageError(
                f"The arm {arm.label} is named twice.",
                found=f"--backend {','.join(arm.label for arm in arms)}",
                remedy="Give one of them other options, or leave it out. --repeats measures every arm again. "
                "An A/A test is `ringside run` with one arm twice, and no other.",
            )
    return arms


def is_aa_test(arms: Sequence[Arm]) -> bool:
    """Return whether these are one arm that is named twice, as for an A/A test."""
    return len(arms) == 2 and arms[0] == arms[1]  # noqa: PLR2004


def parse_arm(text: str) -> Arm:
    """Return the arm that a text without braces describes.

    Raises:
        UsageError: the text has an unknown backend, option or value, an option twice, or one without effect.
    """
    name, *settings = _split(text, ":")
    name = name.strip()
    if name not in BACKENDS:
        raise _unknown("backend", name, BACKENDS, text)
    backend = BACKENDS[name]
    given: dict[str, OptionValue] = {}
    for setting in settings:
        key, value = _parse_setting(backend, setting, text)
        if key in given:
            raise UsageError(f"{text}: {key} is set twice.", remedy="Set each option once.")
        given[key] = value
    arm = Arm(name, given)
    for option in backend.options:
        if option.name not in arm.given or option.needs is None:
            continue
        other, value = option.needs
        present = _spelled(arm.options[other])
        if present != value:
            raise UsageError(
                f"{text}: {option.name} has no effect here.",
                found=f"It needs {other}={value}; this arm has {other}={present}.",
                remedy=f"Leave {option.name} out, or write {other}={value}.",
            )
    return arm


def _split(text: str, separator: str) -> list[str]:
    """Split a text at each separator that is outside braces and not escaped by a backslash."""
    parts, depth, escaped = [""], 0, False
    for character in text:
        if character == separator and not depth and not escaped:
            parts.append("")
            continue
        if not escaped:
            depth += (character == "{") - (character == "}")
        escaped = character == "\\" and not escaped
        parts[-1] += character
    return parts


def _expand(text: str) -> list[str]:
    """Return the texts of all arms of a sweep; without braces, the text itself is the only one.

    Raises:
        UsageError: the braces are not balanced, a value is empty, or the sweep has more than 1000 arms.
    """
    if not _TEXT_WITH_SWEEPS.fullmatch(text):
        raise UsageError(
            f"{text}: the braces are not balanced.",
            found="Each { needs a }, and braces cannot be nested.",
            remedy="Write a sweep in quotes, because a shell expands braces: 'ddp:bucket_cap_mb={1,5,25}'.",
        )
    plain_and_swept = _SWEEP.split(text)
    choices = [
        [value.strip() for value in _split(part, ",")] if index % 2 else [part]
        for index, part in enumerate(plain_and_swept)
    ]
    if not all(value for values in choices[1::2] for value in values):
        raise UsageError(
            f"{text}: a value of the sweep is empty.",
            remedy="Write a value on both sides of every comma, as in {1,5,25}.",
        )
    count = math.prod(map(len, choices))
    if count > _MAX_SWEEP_ARMS:
        raise UsageError(
            f"{text} makes {count} arms.",
            remedy=f"A sweep may make at most {_MAX_SWEEP_ARMS} arms, so leave out some values.",
        )
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _parse_setting(backend: Backend, setting: str, text: str) -> tuple[str, OptionValue]:
    """Return the name and value of ``name=value``; ``text`` is the whole arm, which errors show."""
    key, equals, value = setting.partition("=")
    key, value = key.strip(), re.sub(r"\\(.)", r"\1", value.strip())
    if key.startswith(_VARIABLE_PREFIX):
        return key, _parse_variable(backend, key.removeprefix(_VARIABLE_PREFIX), value, text)
    key = key.replace("-", "_")
    options = {option.name: option for option in backend.options}
    if key not in options:
        raise _unknown(f"option of {backend.name}", key, options, text)
    if not equals or not value:
        example = f"{key}={_spelled(options[key].default)}"
        raise UsageError(f"{text}: {key} has no value.", remedy=f"Give it one, such as {example}.")
    return key, _parse_value(options[key], value, text)


def _parse_variable(backend: Backend, name: str, value: str, text: str) -> str:
    """Return the value of a variable for the ranks, after checking that an arm may set the variable.

    Raises:
        UsageError: the variable is refused, or its value is empty or not printable.
    """
    reason, subject = refusal_of(name), "an arm"
    if not backend.synchronises:
        reason, subject = "all arms are compared with the same control", "the control"
    if reason:
        raise UsageError(
            f"{text}: {subject} cannot set {name or 'a variable without a name'}.",
            found=f"{reason[0].upper()}{reason[1:]}.",
            remedy="Leave it out. Other arms may set a library up, for example ddp:env.NCCL_ALGO=Ring.",
        )
    if not value or not value.isprintable():
        raise UsageError(
            f"{text}: the value of env.{name} is empty or has an unprintable character.",
            remedy=f"Write env.{name}=VALUE in printable characters, with a backslash before colons, commas "
            "and braces.",
        )
    return value


def _parse_value(option: Option, value: str, text: str) -> OptionValue:
    if option.kind == "switch" and value.lower() in _SWITCH_VALUES:
        return _SWITCH_VALUES[value.lower()]
    if option.kind == "choice" and value.replace("-", "_") in option.choices:
        return value.replace("-", "_")
    if option.kind == "number":
        with suppress(ValueError):
            if 0 < float(value) < float("inf"):
                return float(value)
    if option.kind == "count" and _COUNT.fullmatch(value) and int(value) >= option.least:
        return int(value)
    allowed = {
        "choice": " or ".join(option.choices),
        "switch": "true or false",
        "number": "a number above 0",
        "count": f"a whole number from {option.least}",
    }
    raise UsageError(
        f"{text}: {option.name} cannot be {value!r}.",
        found=f"{option.name}: {option.summary}.",
        remedy=f"Use {allowed[option.kind]}.",
    )


def _unknown(kind: str, name: str, known: Iterable[str], text: str) -> UsageError:
    """Return the error for an unknown name; it suggests the closest ``known`` one, if any is close."""
    known = list(known)
    other = _ARMS_BY_OTHER_NAME.get(re.sub("[-_ ]", "", name).lower(), "") if kind == "backend" else ""
    close = [other] if other else difflib.get_close_matches(name.lower(), known, n=1)
    return UsageError(
        f"There is no {kind} called {name!r}" + (f" (in {text})." if text != name else "."),
        found=f"Did you mean {close[0]}?" if close else "",
        remedy=f"Use one of: {', '.join(known)}." if known else "This backend takes no options.",
    )


def _spelled(value: OptionValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # A number keeps every digit, because a label is read back as its arm and must be unique.
    return _SPECIALS.sub(r"\\\g<0>", value) if isinstance(value, str) else repr(value).removesuffix(".0")
