"""Quote the source lines by which an arm synchronises, without importing its libraries."""

from __future__ import annotations

import ast
import re
import textwrap
from importlib.util import find_spec
from typing import NamedTuple

from backends import BACKENDS
from backends.base import Options, OptionValue

_LINTER_COMMENT = re.compile(r" +# (?:noqa|type:).*")


class Quote(NamedTuple):
    """The source lines of a function's body, without its docstring and without comments for linters."""

    file: str
    """Path of the function's file, with slashes, relative to the folder that holds the package."""
    line: int
    """Number of the first quoted line in the file."""
    function: str
    """Name of the function; for a method, the class and a dot come before it."""
    text: str
    """The quoted lines, without their common indentation."""


def summary_of(backend: str, options: Options) -> str:
    """Return a few words that state what an arm is.

    They are the backend's summary, unless the chosen value of an option has a summary of its own.

    Raises:
        KeyError: there is no such backend.
    """
    entry = BACKENDS[backend]
    chosen = (option.summaries.get(_spelled(options.get(option.name))) for option in entry.options)
    return next(filter(None, chosen), entry.summary)


def _spelled(value: OptionValue | None) -> str:
    """Return the value of an option as users write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def code_of(backend: str, options: Options) -> list[Quote]:
    """Return the source of the functions by which an arm synchronises, in the order of the registry.

    Raises:
        KeyError: there is no such backend.
    """
    entry = BACKENDS[backend]
    chosen = (option.code.get(str(options.get(option.name))) for option in entry.options)
    names = next(filter(None, chosen), entry.code)
    return [quote(f"{entry.group}.{name[1:]}" if name.startswith(":") else name) for name in names]


def quote(name: str) -> Quote:
    """Return the source of a function that ``name`` gives as ``module:Class.function``.

    Raises:
        LookupError: there is no such module or function, or the source is missing.
    """
    module, _, function = name.partition(":")
    spec = find_spec(module)
    source = spec.loader.get_source(module) if spec and spec.loader else None  # type: ignore[attr-defined]
    if source is None:
        raise LookupError(name)
    definition: ast.AST | None = ast.parse(source)
    for part in function.split("."):
        children = ast.iter_child_nodes(definition) if definition else ()
        definition = next((node for node in children if getattr(node, "name", "") == part), None)
    if not isinstance(definition, ast.FunctionDef):
        raise LookupError(name)  # noqa: TRY004 -- it is a name, not a value
    statement = definition.body[0]
    first = (statement.end_lineno or 0) + 1 if ast.get_docstring(definition) else statement.lineno
    lines = [_LINTER_COMMENT.sub("", line) for line in source.splitlines()[first - 1 : definition.end_lineno]]
    file = f"{module.replace('.', '/')}.py"
    return Quote(file, first, function, textwrap.dedent("\n".join(lines)).strip("\n"))
