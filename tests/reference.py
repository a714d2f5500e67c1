"""Write the reference from the code: ``make reference``.

``docs/reference/cli.md`` has every command with its flags, ``docs/reference/options.md`` every arm with its
options, and ``docs/results.schema.json`` the JSON Schema of ``results.json``. A test compares the committed
files with what the code states.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import typer.main

from backends import BACKENDS, GROUPS, Backend, Option
from compare.cli.help import EXAMPLES
from compare.cli.main import app
from compare.data.models import MLPS
from compare.schema.arms import Arm
from compare.schema.results import SCHEMA_VERSION, Run
from compare.system.files import json_text
from tests.comparing import ROOT

FOLDER = ROOT / "docs" / "reference"
WIDEST = "run"
"""The command whose flags are described in full; others refer to it."""
_METAVARS = {"list[str]": "TEXT", "list[Path]": "PATH", "str": "TEXT", "path": "PATH", "file": "PATH"}
_METAVARS |= {"int": "N", "int range": "N", "float": "X", "float range": "X"}
_TRAINING = {
    "same": "the same",
    "same at period 1": "another; the same with `period=1`",
    "another": "another",
}

CLI = """\
# Commands and flags

`make reference` writes this page from the code: what it states is what `--help` prints.

- [`ringside run`](#ringside-run) has every flag in full. Others list what is their own, and name the rest.
- In flags, dashes and underscores are the same. A flag that is *repeatable* may stand several times.
- `ringside --install-completion` makes the shell complete commands, flags and choices.
- `ringside --version` prints the version, `-h` the help of any command.
- [Exit codes](../errors.md) are distinct. [Arms and their options](options.md) have a page of their own.
- `compare` and `python -m compare` are the same program.

{commands}

{sections}

## Models and data

| `--model` | what it is |
|---|---|
| `mlp` | layers of {mlp} |
| `wide` | layers of {wide}: 80 MB of gradients |
| `convnet` | the convolutional net of pytorch/examples |
| `mlp:784-…-10` | any widths between these two |

`--workload` takes [a model of your own](../own-model.md).

Without MNIST, a run takes scikit-learn's handwritten digits, enlarged to MNIST's shape and size. Every table
then states it. `--data mnist` never does that. The folder of `--data` is laid out as torchvision does it.
"""

OPTIONS = """\
# Arms and their options

`make reference` writes this page from the registry, `backends/arms/`. `ringside backends` lists what is
available on your machine. [Which arms there are](../arms.md) says what each is good for.

An arm is a backend with options: `backend:option=value:option=value`. Commas stand between arms, and
`--backend` may come several times.

- Braces sweep an option: `--backend 'ddp:bucket_cap_mb={{1,5,25}}'` is three arms. Quote it.
- `env.NAME=VALUE` sets a variable for the ranks of one arm: `ddp:env.NCCL_ALGO=Ring`. Every backend has it.
- In a value, put a backslash before a colon, comma, brace or backslash.
- A wrong option or value is an error that names the right ones.

{backends}

{sections}

## Groups of `ringside collectives`

`ringside collectives --group gloo,mpi` times the collectives of these alone.

{groups}
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


class Section(NamedTuple):
    """A command as ``--help`` shows it."""

    name: str
    paragraphs: list[str]
    flags: list[Flag]


def cli_page() -> str:
    """Return the page of all commands."""
    sections = list(read_commands(typer.main.get_command(app)))
    widest = next(section for section in sections if section.name == WIDEST)
    rows = (
        (f"[`ringside {name}`](#ringside-{name.replace(' ', '-')})", prose(paragraphs[0]))
        for name, paragraphs, _ in sections
    )
    widths = {name: "-".join(map(str, widths)) for name, widths in MLPS.items()}
    return CLI.format(
        commands=table(("command", "what it does"), rows),
        sections="\n\n".join(command_text(section, widest) for section in sections),
        **widths,
    )


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
    if given.multiple and "repeat" not in meaning:
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
    known = set(widest.flags) if section.name != WIDEST else set()
    parts = [f"## `ringside {section.name}`", *map(prose, section.paragraphs)]
    if examples := EXAMPLES.get(section.name):
        parts.append("\n".join(("```", *examples, "```")))
    own = [flag for flag in section.flags if flag not in known]
    if section.name == WIDEST:
        parts += (f"**{group}**\n\n{flag_table(flags)}" for group, flags in grouped(own))
    elif own:
        parts.append(flag_table(own))
    if shared := [flag for flag in section.flags if flag in known]:
        names = (
            f"- {group}: {', '.join(f'`{flag.first}`' for flag in flags)}" for group, flags in grouped(shared)
        )
        parts.append(f"As in [`ringside {WIDEST}`](#ringside-{WIDEST}):\n\n" + "\n".join(names))
    return "\n\n".join(parts)


def flag_table(flags: Iterable[Flag]) -> str:
    """Write a table of flags."""
    rows = ((code(f"{flag.names} {flag.value}"), prose(flag.default), prose(flag.meaning)) for flag in flags)
    return table(("flag", "default", "what it does"), rows)


def grouped(flags: Iterable[Flag]) -> list[tuple[str, list[Flag]]]:
    """Group flags as ``--help`` does, in the order of their first."""
    groups: dict[str, list[Flag]] = {}
    for flag in flags:
        groups.setdefault(flag.group, []).append(flag)
    return list(groups.items())


def options_page() -> str:
    """Return the page of all arms with their options."""
    return OPTIONS.format(
        backends=table(
            ("backend", "what it is", "launcher", "in a plain `ringside run`", "training"),
            map(backend_row, BACKENDS.values()),
        ),
        sections="\n\n".join(
            backend_text(backend)
            for backend in BACKENDS.values()
            if backend.options or backend.default_runtime.install
        ),
        groups=table(
            ("group", "what it is", "launched as"),
            (
                (f"`{name}`", entry.summary, code(Arm(entry.backend, dict(entry.options)).label))
                for name, entry in GROUPS.items()
            ),
        ),
    )


def backend_row(backend: Backend) -> tuple[str, ...]:
    """Return the row of a backend in the table of all."""
    name = f"`{backend.name}`"
    return (
        f"[{name}](#{backend.name})" if backend.options or backend.default_runtime.install else name,
        backend.summary,
        f"`{backend.default_runtime.launcher}`",
        "only if named" if backend.only_named else "yes" if backend.synchronises else "yes, as the control",
        "each rank alone" if not backend.synchronises else _TRAINING[backend.training],
    )


def backend_text(backend: Backend) -> str:
    """Write the section of a backend."""
    parts = [f"## `{backend.name}`", sentence(backend.summary)]
    if facts := list(backend_facts(backend)):
        parts.append("\n".join(f"- {fact}" for fact in facts))
    if backend.options:
        rows = map(option_row, backend.options)
        parts.append(table(("option", "values", "default", "what it does"), rows))
    return "\n\n".join(parts)


def backend_facts(backend: Backend) -> Iterator[str]:
    """List what else the registry states of a backend."""
    if backend.default_runtime.install:
        yield f"Installed by `{backend.default_runtime.install}`."
    for option, value in backend.on_one_host.items():
        yield f"A plain `ringside run` on one host's CPUs takes `{backend.name}:{option}={value}`, too."
    yield f"What it claims: {', '.join(backend.claims)}."
    if backend.not_on_cpus:
        yield f"Not on CPUs: {backend.not_on_cpus}."
    if backend.own_step:
        yield "It needs [a step of your own](../own-model.md#your-own-distributed-step)."


def option_row(option: Option) -> tuple[str, ...]:
    """Return the row of an option."""
    meaning = " ".join([sentence(option.summary, option.choices), *option_facts(option)])
    return f"`{option.name}`", values_of(option), f"`{written(option.default)}`", meaning


def option_facts(option: Option) -> Iterator[str]:
    """List what else the registry states of an option."""
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
    if option.kind == "choice":
        return code("|".join(option.choices))
    if option.kind == "switch":
        return code("true|false")
    return "a number" if option.kind == "number" else f"a whole number from {option.least}"


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
        escaped = parts[plain].replace("<", "\\<").replace("|", "\\|")
        parts[plain] = re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", escaped)
    return "`".join(parts)


def code(text: str) -> str:
    """Write code into a cell; bars would end it."""
    return "`" + text.strip().replace("|", "\\|") + "`"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


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
