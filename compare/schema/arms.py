"""Read and write arms: ``backend:option=value:option=value``.

Commas separate arms, and braces make a sweep. ``env.NAME=value`` sets an environment variable for the ranks
of this arm only. In a value, put a backslash before a colon, a comma, a brace or a backslash.

The registry in ``backends`` names the backends and their options. This module reads the text, and answers
a wrong name or value with the right ones.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeAlias

import msgspec

from backends import BACKENDS, Backend, Option, Runtime
from compare.errors import UsageError
from compare.schema.environment import refusal_of
from compare.schema.interpreter import Interpreter

OptionValue: TypeAlias = bool | float | str

CONTROL = "none"
"""The backend that does not communicate; sync cost is relative to it."""

_ENVIRONMENT = "env."
"""The prefix of environment variables, which are no options of the backend."""

_MOST_IN_A_SWEEP = 1000
# A backslash escapes the next character.
_PLAIN = r"(?:\\.|\\$|[^\\{}])*"
_SWEEP = re.compile(rf"{{({_PLAIN})}}", re.DOTALL)
_BALANCED = re.compile(rf"{_PLAIN}(?:{_SWEEP.pattern}{_PLAIN})*", re.DOTALL)

_SPECIAL = re.compile(r"[\\:,{}]")
_ALSO_CALLED = {
    "allreduce": "manual",
    "torch": "ddp",
    "torchddp": "ddp",
    "distributeddataparallel": "ddp",
    "hvd": "horovod",
    "openmpi": "mpi",
    "mpi4py": "mpi",
    "gloo": "ddp:process_group=gloo",
    "nccl": "ddp:process_group=nccl",
}
"""Backends by names that users try, without dashes and capitals."""
_COUNT = re.compile(r"[0-9]{1,9}")

_SWITCH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Arm(msgspec.Struct, frozen=True):
    """A backend with the options that the user gave it."""

    backend: str
    given: dict[str, OptionValue] = {}
    twin: int = 0
    """1 or 2 for the equal arms of `compare aa`, otherwise 0."""
    against: Interpreter | None = None
    """The other interpreter of `compare gate`, if its ranks run there."""

    def __post_init__(self) -> None:
        """Refuse an unknown backend, which the results of another version may name.

        Raises:
            ValueError: there is no such backend; from JSON, a ``msgspec.ValidationError``.
        """
        if self.backend not in BACKENDS:
            raise ValueError(f"there is no backend called {self.backend!r}")

    @property
    def label(self) -> str:
        """Return the arm as a user writes it: its name everywhere."""
        given = (f"{name}={_spell(value)}" for name, value in self.given.items())
        twin = f"#{self.twin}" if self.twin else "@against" if self.against else ""
        return ":".join([self.backend, *given]) + twin

    @property
    def options(self) -> dict[str, OptionValue]:
        """Return every option of the backend: the user's values, else the defaults."""
        return {option.name: self.given.get(option.name, option.default) for option in self.traits.options}

    @property
    def options_while_proven(self) -> dict[str, OptionValue]:
        """Return the options for the parity check, which delays no update."""
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
        """Return the environment variables of this arm's ranks."""
        return {
            name.removeprefix(_ENVIRONMENT): str(value)
            for name, value in self.given.items()
            if name.startswith(_ENVIRONMENT)
        }

    @property
    def traits(self) -> Backend:
        """Return what its backend declares, with any options."""
        return BACKENDS[self.backend]

    @property
    def same_training(self) -> bool:
        """Return whether this arm declares that it trains like one process."""
        declared = self.traits.training
        at_period_1 = declared == "same at period 1" and self.options == self.options_while_proven
        return declared == "same" or at_period_1

    @property
    def zeros_for_unused(self) -> bool:
        """Return whether parameters without a gradient get zeros."""
        chosen = self.traits
        own = all(
            self.options[option.name] == option.default for option in chosen.options if option.strategies
        )
        return chosen.zeros_for_unused and own

    @property
    def exact(self) -> bool:
        """Return whether averaged gradients are the exact mean, except for rounding."""
        return self.gradient_tolerance == 0

    @property
    def gradient_tolerance(self) -> float:
        """Return the largest error of an averaged gradient that the options allow.

        It is relative to the largest number in the tensor, and 0 for exact arms.
        """
        chosen = self.options
        return sum(option.lossy.get(str(chosen[option.name]), 0.0) for option in self.traits.options)

    @property
    def cuda_only(self) -> tuple[str, ...]:
        """Return the settings that need a GPU, as a user writes them."""
        return self._settings(lambda option, value: value in option.cuda_only)

    @property
    def never_accumulates(self) -> tuple[str, ...]:
        """Return the settings that rule out gradient accumulation."""
        return self._settings(lambda option, value: value is True and not option.accumulates)

    @property
    def never_compiles(self) -> tuple[str, ...]:
        """Return the settings with which torch.compile fails."""
        return self._settings(
            lambda option, value: isinstance(value, (int, float)) and value < option.compiles_from
        )

    def _settings(self, which: Callable[[Option, OptionValue], bool]) -> tuple[str, ...]:
        settings = ((option, self.options[option.name]) for option in self.traits.options)
        return tuple(f"{option.name}={_spell(value)}" for option, value in settings if which(option, value))


def parse_arms(texts: Iterable[str]) -> tuple[Arm, ...]:
    """Read arms; a text may hold several, separated by commas.

    Braces make a sweep: ``ddp:bucket_cap_mb={1,5,25}`` is three arms. Two pairs of braces in one arm give
    every combination; the last pair varies first.

    Raises:
        UsageError: an unknown backend, option or value, unbalanced braces, or the same arm twice.
    """
    written = [text.strip() for joined in texts for text in _split(joined, ",")]
    arms = tuple(parse_arm(one) for text in written if text for one in _expand(text))
    for arm in arms:
        if arms.count(arm) > 1:
            raise UsageError(
                f"The arm {arm.label} is named twice.",
                found=f"--backend {','.join(arm.label for arm in arms)}",
                remedy="Give the second one other options, or leave it out. --repeats measures an arm again.",
            )
    return arms


def parse_arm(text: str) -> Arm:
    """Read one arm, without braces.

    Raises:
        UsageError: an unknown backend, option or value.
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
            raise UsageError(f"{text}: {key} is set twice.", remedy="Name each option once.")
        given[key] = value
    arm = Arm(name, given)
    for option in backend.options:
        if option.name not in arm.given or option.needs is None:
            continue
        other, value = option.needs
        has = _spell(arm.options[other])
        if has != value:
            raise UsageError(
                f"{text}: {option.name} has no effect here.",
                found=f"It needs {other}={value}; this arm has {other}={has}.",
                remedy=f"Leave {option.name} out, or write {other}={value}.",
            )
    return arm


def _split(text: str, separator: str) -> list[str]:
    """Split a text at each separator outside braces and without a backslash."""
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
    """Return the arms of a sweep, as text."""
    if not _BALANCED.fullmatch(text):
        raise UsageError(
            f"{text}: the braces are not balanced.",
            found="Each { needs one }, and braces cannot be nested.",
            remedy="Write a sweep as 'ddp:bucket_cap_mb={1,5,25}', in quotes: a shell expands braces.",
        )
    plain_and_swept = _SWEEP.split(text)
    choices = [
        [value.strip() for value in _split(part, ",")] if index % 2 else [part]
        for index, part in enumerate(plain_and_swept)
    ]
    if not all(value for values in choices[1::2] for value in values):
        raise UsageError(
            f"{text}: a value of the sweep is empty.", remedy="Write every value between commas: {1,5,25}."
        )
    count = math.prod(map(len, choices))
    if count > _MOST_IN_A_SWEEP:
        raise UsageError(f"{text} is {count} arms.", remedy=f"Write at most {_MOST_IN_A_SWEEP} in one sweep.")
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _parse_setting(backend: Backend, setting: str, text: str) -> tuple[str, OptionValue]:
    key, equals, value = setting.partition("=")
    key, value = key.strip(), re.sub(r"\\(.)", r"\1", value.strip())
    if key.startswith(_ENVIRONMENT):
        return key, _parse_variable(backend, key.removeprefix(_ENVIRONMENT), value, text)
    key = key.replace("-", "_")
    options = {option.name: option for option in backend.options}
    if key not in options:
        raise _unknown(f"option of {backend.name}", key, options, text)
    if not equals or not value:
        raise UsageError(
            f"{text}: {key} has no value.", remedy=f"Write {key}={_spell(options[key].default)}."
        )
    return key, _parse_value(options[key], value, text)


def _parse_variable(backend: Backend, name: str, value: str, text: str) -> str:
    """Read an environment variable of the ranks."""
    reason = refusal_of(name)
    if not backend.synchronises:
        reason = "all arms are compared with the same control"
    if reason:
        raise UsageError(
            f"{text}: an arm cannot set {name or 'a variable without a name'}.",
            found=f"{reason[0].upper()}{reason[1:]}.",
            remedy="Leave it out. Settings of libraries are allowed, for example ddp:env.NCCL_ALGO=Ring.",
        )
    if not value or not value.isprintable():
        raise UsageError(
            f"{text}: env.{name} has no printable value.",
            remedy=f"Write env.{name}=VALUE, with a backslash before colons, commas and braces.",
        )
    return value


def _parse_value(option: Option, value: str, text: str) -> OptionValue:
    if option.kind == "switch" and value.lower() in _SWITCH:
        return _SWITCH[value.lower()]
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
    known = list(known)
    other = _ALSO_CALLED.get(re.sub("[-_ ]", "", name).lower(), "") if kind == "backend" else ""
    close = [other] if other else difflib.get_close_matches(name, known, n=1)
    return UsageError(
        f"There is no {kind} called {name!r}" + (f" (in {text})." if text != name else "."),
        found=f"Did you mean {close[0]}?" if close else "",
        remedy=f"Use one of: {', '.join(known)}." if known else "It takes no options.",
    )


def _spell(value: OptionValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # Every digit, because a label is read back as its arm and must be unique.
    return _SPECIAL.sub(r"\\\g<0>", value) if isinstance(value, str) else repr(value).removesuffix(".0")
