"""Pass flags that several commands share to a command, as one argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, get_type_hints


def pass_flags(
    kind: type[Any], described: Mapping[str, Any], command: Callable[..., None], *, last: type[Any]
) -> Callable[..., None]:
    """Return a command that takes the flags of a dataclass, and gets them as its first argument.

    ``described`` replaces the annotations of some flags by name, and so what ``--help`` shows of them. Among
    the flags of ``kind``, those of ``last`` come last.
    """
    _, *own = inspect.signature(command).parameters.values()
    hints = get_type_hints(command, include_extras=True)
    # The signature of a dataclass has its flags, all with defaults.
    flags = dict(inspect.signature(kind).parameters)
    flags = dict(sorted(flags.items(), key=lambda flag: flag[0] in last.__dataclass_fields__))
    hints |= get_type_hints(kind, include_extras=True) | dict(described)

    @wraps(command)
    def called(**given: Any) -> None:
        command(kind(**{name: given.pop(name) for name in flags}), **given)

    parameters = [flag.replace(annotation=hints[flag.name]) for flag in (*flags.values(), *own)]
    return with_parameters(called, parameters)


def with_parameters(
    called: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Return ``called`` with a signature that shows typer these parameters in place of its own."""
    # Typer reads only these two attributes.
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del called.__wrapped__  # type: ignore[attr-defined]
    return called
