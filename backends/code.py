"""Quote the source lines by which an arm synchronises, without importing its libraries."""

from __future__ import annotations

import ast
import re
import textwrap
from importlib.util import find_spec
from typing import NamedTuple

from backends import BACKENDS
from backends.base import Options

_FOR_TOOLS = re.compile(r" +# (?:noqa|type:).*")


class Quote(NamedTuple):
    """The body of a function, without docstring and comments for linters."""

    file: str
    """Path of the function's file, with slashes, relative to the folder that holds the package."""
    line: int
    """Number of the first quoted line in the file."""
    function: str
    """Name of the function, after that of its class if it is a method."""
    text: str
    """The quoted lines, without their common indentation."""


def summary_of(backend: str, options: Options) -> str:
    """Return what an arm is, in a few words; an option's choice may replace the backend's summary.

    Raises:
        KeyError: there is no such backend.
    """
    entry = BACKENDS[backend]
    chosen = (option.summaries.get(str(options.get(option.name))) for option in entry.options)
    return next(filter(None, chosen), entry.summary)


def code_of(backend: str, options: Options) -> list[Quote]:
    """Return quotes of the functions by which an arm synchronises, in the order of the registry.

    Raises:
        KeyError: there is no such backend.
    """
    entry = BACKENDS[backend]
    chosen = (option.code.get(str(options.get(option.name))) for option in entry.options)
    names = next(filter(None, chosen), entry.code)
    return [quote(f"{entry.group}.{name[1:]}" if name.startswith(":") else name) for name in names]


def quote(name: str) -> Quote:
    """Quote a function, given as ``module:Class.function``, without its docstring.

    Raises:
        LookupError: there is no such module or function, or the source is missing.
    """
    module, _, function = name.partition(":")
    spec = find_spec(module)
    source = spec.loader.get_source(module) if spec and spec.loader else None  # type: ignore[attr-defined]
    if source is None:
        raise LookupError(name)
    found: ast.AST | None = ast.parse(source)
    for part in function.split("."):
        children = ast.iter_child_nodes(found) if found else ()
        found = next((node for node in children if getattr(node, "name", "") == part), None)
    if not isinstance(found, ast.FunctionDef):
        raise LookupError(name)  # noqa: TRY004 -- it is a name, not a value
    first = (found.body[0].end_lineno or 0) + 1 if ast.get_docstring(found) else found.body[0].lineno
    lines = [_FOR_TOOLS.sub("", line) for line in source.splitlines()[first - 1 : found.end_lineno]]
    file = f"{module.replace('.', '/')}.py"
    return Quote(file, first, function, textwrap.dedent("\n".join(lines)).strip("\n"))
