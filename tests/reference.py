"""Write the reference from the code: ``make reference``.

``docs/reference/cli.md`` has every command with its flags, ``docs/reference/options.md`` every arm with its
options, and ``docs/results.schema.json`` the JSON Schema of ``results.json``. A test compares the committed
files with what the code states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import typer.main

from backends import Backend, Option
from backends.arms import ARMS
from compare.cli.help import EXAMPLES, GROUPS
from compare.cli.main import app
from compare.data.models import MLPS
from compare.schema.results import SCHEMA_VERSION, Run
from compare.system.files import json_text
from tests.comparing import ROOT

FOLDER = ROOT / "docs" / "reference"
WIDEST = "run"
"""The command whose flags are described in full; others refer to it."""
_METAVARS = {"list[str]": "TEXT", "list[Path]": "PATH", "str": "TEXT", "path": "PATH", "file": "PATH"}
_METAVARS |= {"int": "N", "int range": "N", "float": "X", "float range": "X"}

CLI = """\
# Commands and flags

`make reference` writes this page from the code, so it states what `--help` prints.
[`ringside run`](#ringside-run) has every flag in full, and each other command only what differs from that.
Defaults stand in parentheses.

{commands}

Dashes and underscores in a flag are the same, and a *repeatable* flag may stand several times.
`ringside --version` prints the version, and `ringside --install-completion` makes the shell complete
commands, flags and choices. `compare` and `python -m compare` start the same program.
[Exit codes](../errors.md) and [arms with their options](options.md) have pages of their own.

{sections}

## Models and data

| `--model` | what it is |
|---|---|
| `mlp` | layers of {mlp} |
| `wide` | layers of {wide}: 80 MB of gradients |
| `convnet` | the convolutional net of pytorch/examples |
| `mlp:784-…-10` | any widths between these two |

`--workload` takes [a model of your own](../own-model.md). Without MNIST, a run takes scikit-learn's
handwritten digits, enlarged to MNIST's shape and size, and every table states it. `--data mnist` never does
that.
"""

OPTIONS = """\
# Arms and their options

`make reference` writes this page from the registry, `backends/arms/`. [Which arms there are](../arms.md) says
what each does and is good for, and `ringside backends` which of them your machine has.

An arm is a backend with options, as in `ddp:bucket_cap_mb=5:static_graph=true`. Commas stand between arms,
and `--backend` may come several times. A wrong option or value is an error that names the right ones.

- Braces sweep an option: `--backend 'ddp:bucket_cap_mb={{1,5,25}}'` is three arms. Quote it.
- `env.NAME=VALUE` sets a variable for the ranks of one arm, as in `ddp:env.NCCL_ALGO=Ring`.
- In a value, put a backslash before a colon, comma, brace or backslash.

## What arms have in common

{facts}

## Options of several arms

Defaults stand in parentheses.

{shared}

{sections}
"""


class Flag(NamedTuple):
    """A flag as ``--help`` shows it."""

    names: str
    value: str
    default: str
    meaning: str
    group: str

    @property
    def first(self) -> str:
        """Return its longest name, without the opposite of a switch."""
        return max(self.names.partition(" / ")[0].split(", "), key=len)

    @property
    def fixed(self) -> tuple[str, str, str]:
        """Return what is the same in every command that shares the flag, so all but its default."""
        return self.names, self.value, self.meaning


class Section(NamedTuple):
    """A command as ``--help`` shows it."""

    name: str
    paragraphs: list[str]
    flags: list[Flag]


def cli_page() -> str:
    """Return the page of all commands."""
    sections = list(read_commands(typer.main.get_command(app)))
    widest = next(section for section in sections if section.name == WIDEST)
    widths = {name: "-".join(map(str, widths)) for name, widths in MLPS.items()}
    return CLI.format(
        commands="\n".join(command_links(sections)),
        sections="\n\n".join(command_text(section, widest) for section in sections),
        **widths,
    )


def command_links(sections: Iterable[Section]) -> Iterator[str]:
    """Write a line for each group of commands, with links to their sections."""
    known = [section.name for section in sections]
    for group, commands in GROUPS.items():
        found = (name for name in known if name.partition(" ")[0] in commands)
        links = (f"[`{name}`](#ringside-{name.replace(' ', '-')})" for name in found)
        yield f"- {group}: {', '.join(links)}"


def read_commands(command: Any, path: str = "", parent: Any = None) -> Iterator[Section]:
    """Read the commands below a command."""
    context = command.make_context(path or "ringside", [], parent=parent, resilient_parsing=True)
    for name, below in getattr(command, "commands", {}).items():
        yield from read_commands(below, f"{path} {name}".strip(), context)
    if path and (not hasattr(command, "commands") or command.invoke_without_command):
        paragraphs = [" ".join(text.split()) for text in command.help.split("\n\n")]
        records = ((given, given.get_help_record(context)) for given in command.get_params(context))
        flags = [read_flag(given, *record) for given, record in records if record]  # hidden ones have none
        yield Section(path, paragraphs, [flag for flag in flags if "--help" not in flag.names])


def read_flag(given: Any, shown: str, meaning: str) -> Flag:
    """Read a flag from the line that ``--help`` prints."""
    argument = given.param_type_name == "argument"
    names, _, value = (shown, "", "") if argument else shown.partition(" <")
    if argument:
        names = re.sub(r" <.*>$", "", shown)
    elif not value and (written := re.fullmatch(r"(.*) ([^-/ ][^ ]*)", shown)):
        names, value = written.groups()
    value = value.rstrip(">")
    meaning, facts = split_facts(meaning)
    notes = [note for fact in facts if (note := bounds(fact))]
    if given.multiple and "repeat" not in meaning.lower():
        notes.append("Repeatable.")
    if "required" in facts:
        notes.append("Required.")
    default = next((fact.removeprefix("default: ") for fact in facts if fact.startswith("default: ")), "")
    if found := re.fullmatch(r"\((.*)\)", default):
        default = found[1] if re.search(r"[\s']", found[1]) else f"`{found[1]}`"
    elif default:
        default = f"`{default.removesuffix('.0')}`"
    group = "Arguments" if argument else getattr(given, "rich_help_panel", None) or "Other"
    return Flag(names, _METAVARS.get(value, value), default, " ".join([meaning, *notes]).strip(), group)


def split_facts(meaning: str) -> tuple[str, list[str]]:
    """Split the meaning of a flag from its default and bounds."""
    text, found, facts = meaning.rpartition("[")
    if not found or not facts.endswith("]") or not re.match(r"default: |required|[\dx]", facts):
        return meaning, []
    return text.strip(), re.split(r"; (?=x[<>]|\d|required)", facts[:-1])


def bounds(fact: str) -> str:
    """Write a range of numbers in words."""
    found = re.fullmatch(r"(?:(\d+)<=)?x(?:([<>]=)(\d+))?", fact)
    if not found:
        return ""
    low, sign, number = found.groups()
    if low and number:
        return f"From {low} to {number}."
    return f"At {'least' if sign == '>=' else 'most'} {number}."


def command_text(section: Section, widest: Section) -> str:
    """Write the section of a command."""
    parts = [f"## `ringside {section.name}`", *map(prose, section.paragraphs)]
    if examples := EXAMPLES.get(section.name):
        parts.append("\n".join(("```", *examples, "```")))
    if section.name == WIDEST:
        parts += (f"**{group}**\n\n{flag_list(flags)}" for group, flags in grouped(section.flags))
        return "\n\n".join(parts)
    known = {flag.fixed for flag in widest.flags}
    if own := [flag for flag in section.flags if flag.fixed not in known]:
        parts.append(flag_list(own))
    if lines := list(shared_flags(section, widest)):
        parts.append(f"As in [`ringside {WIDEST}`](#ringside-{WIDEST}):\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def shared_flags(section: Section, widest: Section) -> Iterator[str]:
    """Write a line for each group of flags that a command shares with the widest."""
    given = {flag.fixed: flag for flag in section.flags}
    for group, flags in grouped(widest.flags):
        taken = [flag for flag in flags if flag.fixed in given]
        if not taken:
            continue
        text = some_of([flag.first for flag in taken], [flag.first for flag in flags])
        for flag in taken:
            if (default := given[flag.fixed].default) != flag.default:
                text += f"; the default of `{flag.first}` is {prose(default)}"
        yield f"- {group}: {text}"


def some_of(taken: Sequence[str], every: Sequence[str]) -> str:
    """Write names as a list, or which of all are left out where these are few."""
    left = [name for name in every if name not in taken]
    if len(left) * 2 >= len(taken):
        return names(taken)
    return f"all but {names(left)}" if left else "all"


def flag_list(flags: Iterable[Flag]) -> str:
    """Write a list of flags, each with its default in parentheses."""
    return "\n".join(f"- `{flag.names} {flag.value}".rstrip() + "`" + flag_text(flag) for flag in flags)


def flag_text(flag: Flag) -> str:
    """Write what stands behind the name of a flag."""
    default = f" ({prose(flag.default)})" if flag.default else ""
    return f"{default}. {prose(flag.meaning)}" if flag.meaning else default


def grouped(flags: Iterable[Flag]) -> list[tuple[str, list[Flag]]]:
    """Group flags as ``--help`` does, in the order of their first."""
    groups: dict[str, list[Flag]] = {}
    for flag in flags:
        groups.setdefault(flag.group, []).append(flag)
    return list(groups.items())


def options_page() -> str:
    """Return the page of all arms with their options."""
    shared = shared_options()
    return OPTIONS.format(
        facts="\n".join(f"- {fact}" for fact in backend_facts()),
        shared="\n".join(f"- {line} Of {names(arms)}." for line, arms in shared.items()),
        sections="\n\n".join(text for backend in ARMS if (text := backend_text(backend, shared))),
    )


def shared_options() -> dict[str, list[str]]:
    """Return the lines of the options that several backends share, with the names of these."""
    takers: dict[str, list[str]] = {}
    for backend in ARMS:
        for option in backend.options:
            takers.setdefault(option_line(option), []).append(backend.name)
    return {line: arms for line, arms in takers.items() if len(arms) > 1}


def backend_text(backend: Backend, shared: Container[str]) -> str:
    """Write the section of a backend; it is empty if the backend has no options of its own."""
    own = [line for option in backend.options if (line := option_line(option)) not in shared]
    if not own:
        return ""
    parts = [f"## `{backend.name}`", "\n".join(f"- {line}" for line in own)]
    if others := [option.name for option in backend.options if option_line(option) in shared]:
        parts.append(f"It also has {names(others)} ([shared](#options-of-several-arms)).")
    return "\n\n".join(parts)


def backend_facts() -> Iterator[str]:
    """List the facts of the registry, each with the backends that share it."""
    for facts in _FACTS:
        holders: dict[str, list[str]] = {}
        for backend in ARMS:
            for fact in facts(backend):
                holders.setdefault(fact, []).append(backend.name)
        yield from (
            f"{fact}: {some_of(arms, [backend.name for backend in ARMS])}." for fact, arms in holders.items()
        )
    for backend in ARMS:
        for option, value in backend.on_one_host.items():
            yield f"A plain run on the CPUs of one host takes `{backend.name}:{option}={value}`, too."
        if backend.not_on_cpus:
            yield f"`{backend.name}` does not run on CPUs: {backend.not_on_cpus}."


_FACTS: tuple[Callable[[Backend], Iterable[str]], ...] = (
    lambda backend: [] if backend.only_named else ["In a plain run, while others join if you name them"],
    lambda backend: [f"Started by `{backend.default_runtime.launcher}`"],
    lambda backend: [f"Installed by `{install}`" for install in [backend.default_runtime.install] if install],
    lambda backend: [f"Claim *{claim}*" for claim in backend.claims],
)


def option_line(option: Option) -> str:
    """Write an option with its values, its default and what it does."""
    meaning = " ".join([sentence(option.summary, option.choices), *option_facts(option)])
    return f"`{option.name}={values_of(option)}` (`{written(option.default)}`). {meaning}"


def option_facts(option: Option) -> Iterator[str]:
    """List what else the registry states of an option."""
    if option.kind == "count" and option.least > 1:
        yield f"At least {option.least}."
    if option.divides_ranks:
        yield "Divides the number of ranks."
    if option.needs:
        yield f"Needs `{'='.join(option.needs)}`."
    if option.lossy:
        yield f"Rounding or compressing on purpose: {names(option.lossy)}."
    if option.cuda_only:
        yield f"Only on CUDA: {names(option.cuda_only)}."
    if option.compiles_from:
        yield f"At least {written(option.compiles_from)} with `--compile`."
    if not option.accumulates:
        yield "Not with `--accumulate`."
    for choice, runtime in option.runtimes.items():
        yield f"`{choice}` runs under `{runtime.launcher}`, on this machine only (`{runtime.install}`)."
    if option.rebuild:
        yield f"Where the library was built without one: `{option.rebuild}`."


def values_of(option: Option) -> str:
    """Write the values that an option takes."""
    values = {"choice": "|".join(option.choices), "switch": "true|false", "number": "X", "count": "N"}
    return values[option.kind]


def written(value: object) -> str:
    """Write a value as an arm has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def names(choices: Iterable[str]) -> str:
    """Write choices as a list."""
    return ", ".join(f"`{choice}`" for choice in choices)


def sentence(text: str, choices: Sequence[str] = ()) -> str:
    """Return a summary as a sentence; names keep their case."""
    first = text.partition(" ")[0].rstrip(":")
    start = text if first in choices or re.search(r"[._\d]", first) else text[0].upper() + text[1:]
    return start + "."


def prose(text: str) -> str:
    """Write the text of a help, with its flags as code."""
    parts = text.split("`")
    for plain in range(0, len(parts), 2):
        escaped = parts[plain].replace("<", "\\<")
        parts[plain] = re.sub(r"(?<![\w-])(--[a-z][a-z-]*(?:=[\w:=-]*\w)?)", r"`\1`", escaped)
    return "`".join(parts)


def results_schema() -> str:
    """Return the JSON Schema of ``results.json``, in which class docstrings are descriptions.

    Unknown fields are allowed, because readers ignore them.
    """
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"results.json of Ringside, schema version {SCHEMA_VERSION}",
        **msgspec.json.schema(Run),
    }
    return json_text(schema) + "\n"


PAGES = {"cli.md": cli_page, "options.md": options_page, "../results.schema.json": results_schema}


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()
